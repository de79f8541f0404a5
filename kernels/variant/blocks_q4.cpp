// Q4_K with few columns on AVX2. ggml unpacks the weights anew for every column; here four columns share it, which is most of the
// work. Sums of a block are integers and so exact; those of the blocks are added in their order, for each column by itself.

#include "blocks_q4.h"

#include "k_quants.h"

namespace skippy {
namespace SKIPPY_VARIANT {

#ifdef SKIPPY_AVX2

namespace {

// Group scales and leasts of a block.
struct Parts {
    __m128i scales; // eight words
    __m256i leasts; // each twice

    explicit Parts(const uint8_t * packed) {
        constexpr uint32_t SIX = 0x3f3f3f3f, FOUR = 0x0f0f0f0f, TWO = 0x03030303;
        uint32_t           word[3];
        memcpy(word, packed, sizeof word);
        const uint64_t low_scales = word[0] & SIX, low_leasts = word[1] & SIX;
        const uint64_t high_scales = (word[2] & FOUR) | (word[0] >> 6 & TWO) << 4;
        const uint64_t high_leasts = (word[2] >> 4 & FOUR) | (word[1] >> 6 & TWO) << 4;
        scales = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long) (low_scales | high_scales << 32)));
        const __m128i bytes = _mm_cvtsi64_si128((long long) (low_leasts | high_leasts << 32));
        leasts = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(bytes, bytes));
    }
};

// One row with COLUMNS columns.
template <int COLUMNS>
inline void row(const Q4 * blocks, int64_t n, const ColumnBlock * const * columns, float * totals) {
    const __m256i low = _mm256_set1_epi8(0x0f), next = _mm256_set1_epi8(2);
    __m256        sum[COLUMNS];
    for (int c = 0; c < COLUMNS; ++c) {
        sum[c] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < n; ++b) {
        const Q4 &    block = blocks[b];
        const Parts   parts(block.scales);
        const __m256i scales = _mm256_broadcastsi128_si256(parts.scales);
        // Which part's scale a shuffle puts everywhere.
        __m256i pick = _mm256_set1_epi16(0x0100);
        __m256i whole[COLUMNS];
        for (int c = 0; c < COLUMNS; ++c) {
            whole[c] = _mm256_setzero_si256();
        }
        for (int64_t pair = 0; pair < SUPER / 32; pair += 2) {
            const __m256i packed = _mm256_loadu_si256((const __m256i *) block.quants + pair / 2);
            const __m256i first = _mm256_and_si256(packed, low), second = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low);
            const __m256i a = _mm256_shuffle_epi8(scales, pick), z = _mm256_shuffle_epi8(scales, _mm256_add_epi8(pick, next));
            pick            = _mm256_add_epi8(pick, _mm256_add_epi8(next, next));
            for (int c = 0; c < COLUMNS; ++c) {
                const __m256i * x = (const __m256i *) columns[c][b].quants + pair;
                const __m256i   p = _mm256_madd_epi16(a, _mm256_maddubs_epi16(first, _mm256_loadu_si256(x)));
                const __m256i   q = _mm256_madd_epi16(z, _mm256_maddubs_epi16(second, _mm256_loadu_si256(x + 1)));
                whole[c]          = _mm256_add_epi32(whole[c], _mm256_add_epi32(p, q));
            }
        }
        const float scale = _cvtsh_ss(block.scale), least = _cvtsh_ss(block.least);
        for (int c = 0; c < COLUMNS; ++c) {
            const ColumnBlock & column = columns[c][b];
            const __m256i       under  = _mm256_madd_epi16(parts.leasts, _mm256_loadu_si256((const __m256i *) column.sums));
            sum[c] = _mm256_fmadd_ps(_mm256_set1_ps(scale * column.scale), _mm256_cvtepi32_ps(whole[c]), sum[c]);
            sum[c] = _mm256_fnmadd_ps(_mm256_set1_ps(least * column.scale), _mm256_cvtepi32_ps(under), sum[c]);
        }
    }
    for (int c = 0; c < COLUMNS; ++c) {
        totals[c] = total_of(sum[c]);
    }
}

template <int COLUMNS>
void several(
        const char * first, int64_t stride, int64_t rows, int64_t blocks, const ColumnBlock * const * columns,
        float * const * out) {
    for (int64_t m = 0; m < rows; ++m) {
        float totals[COLUMNS];
        row<COLUMNS>((const Q4 *) (first + m * stride), blocks, columns, totals);
        for (int c = 0; c < COLUMNS; ++c) {
            out[c][m] = totals[c];
        }
    }
}

} // namespace

void multiply_q4(
        const char * first, int64_t stride, int64_t rows, int64_t blocks, const ColumnBlock * const * columns, int64_t n,
        float * const * out) {
    for (int64_t done = 0; done < rows; done += ROWS_AT_ONCE) {
        const int64_t count = least(ROWS_AT_ONCE, rows - done);
        const char *  from  = first + done * stride;
        int64_t       c     = 0;
        const auto    take  = [&](int columns_at_once, auto several) {
            for (; c + columns_at_once <= n; c += columns_at_once) {
                float * to[4];
                for (int i = 0; i < columns_at_once; ++i) {
                    to[i] = out[c + i] + done;
                }
                several(from, stride, count, blocks, columns + c, to);
            }
        };
        take(4, several<4>);
        take(2, several<2>);
        take(1, several<1>);
    }
}

#endif

} // namespace SKIPPY_VARIANT
} // namespace skippy
