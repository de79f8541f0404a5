// skippy_op_matmul_rows: see skippy_kernels.h.
//
// ggml computes one column with the dot product of the weight's type and several columns with blocked kernels that round
// differently. Speculation and batching must not change a greedy answer, so the few rows of decoding lanes and verify
// windows all go through here: a column is summed in the same order whatever columns stand beside it, and a weight row is
// read once for all of them.

#include "rows.h"
#include "skippy_kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define SKIPPY_Q8_0_AVX2
#include <immintrin.h>
#endif

namespace {

struct Packed;
struct Quants;

// One matrix and its columns.
struct Product {
    const char * weight;
    size_t       weight_stride;
    int64_t      K;
    const char * columns;
    size_t       column_stride;
    int64_t      n;
    char *       out;
    size_t       out_stride;

    float * at(int64_t column, int64_t row) const { return (float *) (out + column * out_stride) + row; }
};

// ---- any type: ggml's dot product, column by column -----------------------------------------------------------------

void any_type(const ggml_tensor * weight, const Product & p, int64_t begin, int64_t end) {
    const ggml_type_traits_cpu * traits = ggml_get_type_traits_cpu(weight->type);
    const ggml_type              packed = traits->vec_dot_type;
    const char *                 columns = p.columns;
    size_t                       stride  = p.column_stride;
    if (packed != GGML_TYPE_F32) {
        const ggml_from_float_t pack = ggml_get_type_traits_cpu(packed)->from_float;
        stride                       = ggml_row_size(packed, p.K);
        char * memory                = (char *) skippy::scratch<Packed>((stride * p.n + 3) / sizeof(float));
        for (int64_t c = 0; c < p.n; ++c) {
            pack((const float *) (p.columns + c * p.column_stride), memory + c * stride, p.K);
        }
        columns = memory;
    }
    for (int64_t m = begin; m < end; ++m) {
        for (int64_t c = 0; c < p.n; ++c) {
            traits->vec_dot((int) p.K, p.at(c, m), 0, p.weight + m * p.weight_stride, 0, columns + c * stride, 0, 1);
        }
    }
}

// ---- Q8_0 on AVX2: a weight block is unpacked once for up to four columns ---------------------------------------------

#ifdef SKIPPY_Q8_0_AVX2

constexpr int64_t BLOCK = 32;

// A block of 32 weights as ggml stores it.
struct BlockQ8 {
    uint16_t scale;
    int8_t   quants[BLOCK];
};
static_assert(sizeof(BlockQ8) == 34, "the layout of a file");

// A column in blocks of 32: quants, and for each block its scale.
struct Column {
    const int8_t * quants;
    const float *  scales;
};

// The sums of four vectors, each in the order that ggml has: halves, then pairs.
inline __m128 totals(__m256 a, __m256 b, __m256 c, __m256 d) {
    const auto half = [](__m256 v) { return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)); };
    const __m128 ha = half(a), hb = half(b), hc = half(c), hd = half(d);
    const __m128 ab = _mm_add_ps(_mm_movelh_ps(ha, hb), _mm_movehl_ps(hb, ha));
    const __m128 cd = _mm_add_ps(_mm_movelh_ps(hc, hd), _mm_movehl_ps(hd, hc));
    return _mm_hadd_ps(ab, cd);
}

// Several rows at a time hide the latency of the sums and share their last step.
template <int ROWS, int COLUMNS>
inline void q8_rows(const Product & p, int64_t m, int64_t blocks, const Column * columns, int64_t first) {
    const __m256i   ones = _mm256_set1_epi16(1);
    const BlockQ8 * row[ROWS];
    __m256          sum[ROWS][COLUMNS];
    for (int r = 0; r < ROWS; ++r) {
        row[r] = (const BlockQ8 *) (p.weight + (m + r) * p.weight_stride);
        for (int c = 0; c < COLUMNS; ++c) {
            sum[r][c] = _mm256_setzero_ps();
        }
    }
    for (int64_t b = 0; b < blocks; ++b) {
        for (int r = 0; r < ROWS; ++r) {
            const __m256i w     = _mm256_loadu_si256((const __m256i *) row[r][b].quants);
            const __m256i size  = _mm256_sign_epi8(w, w);
            const float   scale = _cvtsh_ss(row[r][b].scale);
            for (int c = 0; c < COLUMNS; ++c) {
                // maddubs wants one side unsigned: |w| times x with the sign of w.
                const __m256i x     = _mm256_loadu_si256((const __m256i *) (columns[c].quants + b * BLOCK));
                const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, w));
                const __m256  quads = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
                sum[r][c]           = _mm256_fmadd_ps(_mm256_set1_ps(scale * columns[c].scales[b]), quads, sum[r][c]);
            }
        }
    }
    const auto part = [&](int i) { return i < ROWS * COLUMNS ? sum[i / COLUMNS][i % COLUMNS] : _mm256_setzero_ps(); };
    float out[4];
    _mm_storeu_ps(out, totals(part(0), part(1), part(2), part(3)));
    for (int i = 0; i < ROWS * COLUMNS; ++i) {
        *p.at(first + i % COLUMNS, m + i / COLUMNS) = out[i];
    }
}

template <int ROWS, int COLUMNS>
void q8_columns(
        const Product & p, int64_t begin, int64_t end, int64_t blocks, const Column * columns, int64_t first) {
    static_assert(ROWS * COLUMNS <= 4, "one vector of sums");
    int64_t m = begin;
    for (; m + ROWS <= end; m += ROWS) {
        q8_rows<ROWS, COLUMNS>(p, m, blocks, columns, first);
    }
    for (; m < end; ++m) {
        q8_rows<1, COLUMNS>(p, m, blocks, columns, first);
    }
}

inline float largest_of(__m256 v) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half        = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

// Quantises a column as ggml does for this product: blocks of 32 with the largest value at 127. The scale is rounded to
// f16 like a stored one.
void quantise(const float * x, int64_t blocks, int8_t * quants, float * scales) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (int64_t b = 0; b < blocks; ++b) {
        __m256 v[4];
        __m256 largest = _mm256_setzero_ps();
        for (int i = 0; i < 4; ++i) {
            v[i]    = _mm256_loadu_ps(x + b * BLOCK + 8 * i);
            largest = _mm256_max_ps(largest, _mm256_andnot_ps(sign, v[i]));
        }
        const float  top     = largest_of(largest);
        const float  scale   = top / 127.0f;
        const __m256 inverse = _mm256_set1_ps(top != 0.0f ? 127.0f / top : 0.0f);
        scales[b]            = _cvtsh_ss(_cvtss_sh(scale, _MM_FROUND_TO_NEAREST_INT));
        __m256i n[4];
        for (int i = 0; i < 4; ++i) {
            n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
        }
        // The packs work on halves of a register each; the permutation puts groups of four back in order.
        const __m256i low    = _mm256_packs_epi32(n[0], n[1]);
        const __m256i high   = _mm256_packs_epi32(n[2], n[3]);
        const __m256i packed = _mm256_packs_epi16(low, high);
        const __m256i order  = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_storeu_si256((__m256i *) (quants + b * BLOCK), _mm256_permutevar8x32_epi32(packed, order));
    }
}

void q8_0(const Product & p, int64_t begin, int64_t end) {
    const int64_t blocks = p.K / BLOCK;
    float *       memory = skippy::scratch<Quants>(p.n * blocks * (1 + BLOCK / sizeof(float)));
    int8_t *      quants = (int8_t *) (memory + p.n * blocks);
    for (int64_t c = 0; c < p.n; ++c) {
        const float * x = (const float *) (p.columns + c * p.column_stride);
        quantise(x, blocks, quants + c * p.K, memory + c * blocks);
    }
    for (int64_t c = 0; c < p.n; c += 4) {
        const int64_t count = std::min<int64_t>(4, p.n - c);
        Column        columns[4];
        for (int64_t i = 0; i < count; ++i) {
            columns[i] = { quants + (c + i) * p.K, memory + (c + i) * blocks };
        }
        switch (count) {
            case 1: q8_columns<4, 1>(p, begin, end, blocks, columns, c); break;
            case 2: q8_columns<2, 2>(p, begin, end, blocks, columns, c); break;
            case 3: q8_columns<1, 3>(p, begin, end, blocks, columns, c); break;
            default: q8_columns<1, 4>(p, begin, end, blocks, columns, c);
        }
    }
}

#endif

} // namespace

void skippy_op_matmul_rows(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * weight = dst->src[0];
    const ggml_tensor * rows   = dst->src[1];
    const skippy::Share share(weight->ne[1], 1, ith, nth);
    for (int64_t b = 0; b < rows->ne[2] && share.begin < share.end; ++b) {
        const Product product = {
            (const char *) weight->data + b * weight->nb[2], weight->nb[1], weight->ne[0],
            (const char *) rows->data + b * rows->nb[2], rows->nb[1], rows->ne[1],
            (char *) dst->data + b * dst->nb[2], dst->nb[1],
        };
#ifdef SKIPPY_Q8_0_AVX2
        if (weight->type == GGML_TYPE_Q8_0) {
            q8_0(product, share.begin, share.end);
            continue;
        }
#endif
        any_type(weight, product, share.begin, share.end);
    }
}
