// K-quants on AVX2: see panels.h.
//
// ggml takes a row with a column at a time: it unpacks the row for each column anew, and adds up across a register for each
// product. Here eight rows lie side by side, unpacked once for all columns, and a register holds four elements of each: a
// column's four elements go to all of them, and nothing is added across. Sums of a block are integers and so exact; those of the
// blocks are added in their order, for each column by itself.

#include "panels.h"

#include "k_quants.h"

namespace skippy {
namespace SKIPPY_VARIANT {

#ifdef SKIPPY_AVX2

namespace {

constexpr int     PANELS  = 2;   // side by side: each of a column's elements is fetched once for both
constexpr int     COLUMNS = 4;   // at a time
constexpr int64_t AHEAD   = 2;   // blocks that are fetched before they are needed

typedef float Sums[MANY][PANEL_ROWS];

inline __m256i four_of(const void * from) {
    int32_t word;
    memcpy(&word, from, sizeof word);
    return _mm256_set1_epi32(word);
}

// `sum` is now `next`, in the register that it had. Left alone, GCC makes trees of sums of integers and runs out of registers.
inline void advance(__m256i & sum, __m256i next) {
    sum = next;
    asm("" : "+x"(sum));
}

// sums[i][first + c] += panel i x the block of column c, for N panels and C columns.
template <class Type, int N, int C>
inline void add_panels(const Panel * panels, const ColumnBlock * const * blocks, Sums * sums, int64_t first) {
    __m256i whole[N][C], under[N][C];
    for (int i = 0; i < N; ++i) {
        for (int c = 0; c < C; ++c) {
            whole[i][c] = under[i][c] = _mm256_setzero_si256();
        }
    }
    for (int step = 0; step < SUPER / 4; step += Type::STEP) {
        __m256i part[N][C];
        for (int i = 0; i < N; ++i) {
            for (int c = 0; c < C; ++c) {
                part[i][c] = _mm256_setzero_si256();
            }
        }
#pragma GCC unroll 8
        for (int q = step; q < step + Type::STEP; ++q) {
            for (int c = 0; c < C; ++c) {
                const __m256i x = four_of(blocks[c]->quants + 4 * q);
                for (int i = 0; i < N; ++i) {
                    const __m256i four = _mm256_load_si256((const __m256i *) panels[i].quants + q);
                    advance(part[i][c], _mm256_add_epi16(part[i][c], _mm256_maddubs_epi16(four, x)));
                }
            }
        }
        for (int i = 0; i < N; ++i) {
            const __m256i scales = _mm256_load_si256((const __m256i *) panels[i].scales + step * 4 / GROUP);
            for (int c = 0; c < C; ++c) {
                whole[i][c] = _mm256_add_epi32(whole[i][c], _mm256_madd_epi16(part[i][c], scales));
            }
        }
    }
#pragma GCC unroll 8
    for (int g = 0; g < GROUPS; g += 2) {
        for (int c = 0; c < C; ++c) {
            const __m256i two = four_of(blocks[c]->sums + g);
            for (int i = 0; i < N; ++i) {
                const __m256i leasts = _mm256_load_si256((const __m256i *) panels[i].leasts + g / 2);
                advance(under[i][c], _mm256_add_epi32(under[i][c], _mm256_madd_epi16(leasts, two)));
            }
        }
    }
    for (int i = 0; i < N; ++i) {
        const __m256 scale = _mm256_load_ps(panels[i].scale), least = _mm256_load_ps(panels[i].least);
        for (int c = 0; c < C; ++c) {
            const __m256 size = _mm256_set1_ps(blocks[c]->scale);
            float *      to   = sums[i][first + c];
            __m256       sum  = _mm256_load_ps(to);
            sum = _mm256_fmadd_ps(_mm256_mul_ps(scale, size), _mm256_cvtepi32_ps(whole[i][c]), sum);
            sum = _mm256_fnmadd_ps(_mm256_mul_ps(least, size), _mm256_cvtepi32_ps(under[i][c]), sum);
            _mm256_store_ps(to, sum);
        }
    }
}

// Up to N * PANEL_ROWS rows of `blocks` blocks with up to MANY columns.
template <class Type, int N>
void multiply_rows(
        const char * first, int64_t stride, int64_t rows, int64_t blocks, const ColumnBlock * const * columns, int64_t n,
        float * const * out) {
    alignas(32) Sums    sums[N];
    Panel               panels[N];
    const char *        at[N * PANEL_ROWS];
    const ColumnBlock * block[MANY];
    for (int64_t r = 0; r < N * PANEL_ROWS; ++r) {
        // The last row stands in for those that are missing.
        at[r] = first + least(r, rows - 1) * stride;
    }
    for (Sums & panel : sums) {
        fill(panel[0], n * PANEL_ROWS, 0.0f);
    }
    // Sixteen rows side by side are more than hardware foresees. Behind their ends the next sixteen begin.
    const auto fetch_ahead = [&](int64_t b) {
        const int64_t offset = b < blocks ? b * sizeof(Type) : N * PANEL_ROWS * stride + (b - blocks) * sizeof(Type);
        for (const char * row : at) {
            prefetch((const char *) ((uintptr_t) row + (uintptr_t) offset), sizeof(Type));
        }
    };
    for (int64_t b = 0; b < blocks; ++b) {
        for (int i = 0; i < N; ++i) {
            unpack<Type>(at + i * PANEL_ROWS, b, panels[i]);
        }
        for (int64_t c = 0; c < n; ++c) {
            block[c] = columns[c] + b;
        }
        fetch_ahead(b + AHEAD);
        int64_t c = 0;
        for (; c + COLUMNS <= n; c += COLUMNS) {
            add_panels<Type, N, COLUMNS>(panels, block + c, sums, c);
        }
        for (; c < n; ++c) {
            add_panels<Type, N, 1>(panels, block + c, sums, c);
        }
    }
    for (int64_t c = 0; c < n; ++c) {
        for (int64_t r = 0; r < rows; ++r) {
            out[c][r] = sums[r / PANEL_ROWS][c][r % PANEL_ROWS];
        }
    }
}

template <class Type>
void multiply_type(
        const char * first, int64_t stride, int64_t rows, int64_t K, const ColumnBlock * const * columns, int64_t n,
        float * const * out) {
    const int parts = column_parts(n);
    for (int part = 0; part < parts; ++part) {
        const Share share(n, 1, part, parts);
        for (int64_t done = 0; done < rows; done += PANELS * PANEL_ROWS) {
            const int64_t left = least(PANELS * PANEL_ROWS, rows - done);
            const auto    some = left > PANEL_ROWS ? multiply_rows<Type, PANELS> : multiply_rows<Type, 1>;
            float *       to[MANY];
            for (int64_t c = share.begin; c < share.end; ++c) {
                to[c - share.begin] = out[c] + done;
            }
            some(first + done * stride, stride, left, K / SUPER, columns + share.begin, share.end - share.begin, to);
        }
    }
}

} // namespace

void pack_column(const float * x, int64_t K, ColumnBlock * to) {
    const __m256i ones = _mm256_set1_epi8(1), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int64_t b = 0; b < K / SUPER; ++b, x += SUPER, ++to) {
        const Extent extent  = extent_of(x, SUPER);
        const __m256 inverse = _mm256_set1_ps(extent.largest > 0.0f ? 127.0f / extent.largest : 0.0f);
        for (int64_t part = 0; part < SUPER / 32; ++part) {
            const float * from = x + 32 * part;
            const auto    eight = [&](int64_t i) {
                return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + i), inverse));
            };
            // The packs work on halves of a register each; the permutation puts fours of elements in their order.
            const __m256i words  = _mm256_packs_epi32(eight(0), eight(8)), others = _mm256_packs_epi32(eight(16), eight(24));
            const __m256i quants = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words, others), order);
            _mm256_storeu_si256((__m256i *) to->quants + part, quants);
            __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, quants), _mm256_set1_epi16(1));
            sums         = _mm256_hadd_epi32(sums, sums);
            sums         = _mm256_hadd_epi32(sums, sums);
            to->sums[2 * part]     = (int16_t) _mm256_extract_epi32(sums, 0);
            to->sums[2 * part + 1] = (int16_t) _mm256_extract_epi32(sums, 4);
        }
        to->scale = extent.largest / 127.0f + extent.nothing;
    }
}

PanelProduct * panel_product(int type) {
    switch (type) {
        case GGML_TYPE_Q2_K: return multiply_type<Q2>;
        case GGML_TYPE_Q3_K: return multiply_type<Q3>;
        case GGML_TYPE_Q4_K: return multiply_type<Q4>;
        case GGML_TYPE_Q5_K: return multiply_type<Q5>;
        case GGML_TYPE_Q6_K: return multiply_type<Q6>;
        default: return nullptr;
    }
}

#endif

} // namespace SKIPPY_VARIANT
} // namespace skippy
