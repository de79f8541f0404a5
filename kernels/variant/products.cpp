// Products with few columns: see products.h.
//
// ggml computes one column with the dot product of the weight's type and several columns with blocked kernels that round
// differently. Speculation and batching must not change a greedy answer, so the few rows of decoding lanes and verify
// windows all go through here: a column is summed in the same order whatever columns stand beside it, and a weight row is
// read once for all of them.

#include "products.h"

#include "blocks_q4.h"

namespace skippy {
namespace SKIPPY_VARIANT {

namespace {

// ---- any type: ggml's dot product, column by column -----------------------------------------------------------------

void any_type(
        const Matrix & matrix, int64_t begin, int64_t end, const Columns & columns, const int32_t * which, int64_t n,
        float * const * out) {
    const ggml_vec_dot_t dot = skippy_cpu_type_traits(matrix.type)->vec_dot;
    for (int64_t m = begin; m < end; ++m) {
        for (int64_t i = 0; i < n; ++i) {
            const char * row = matrix.data + m * matrix.stride;
            dot((int) matrix.K, out[i] + m, 0, row, 0, columns.column(which[i]), 0, 1);
        }
    }
}

// ---- Q8_0 on AVX2: columns of 16 bits, weights widened once for two of them -------------------------------------------
//
// Against ggml's columns of 8 bits, a weight costs more to unpack and a column less to multiply with; and no product is
// rounded before the sum. |weight| <= 128 and |x| < 2^15: a sum of four products fits 32 bits.

#ifdef SKIPPY_AVX2

inline __m256i widened(const int8_t * quants) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) quants));
}

inline __m256 times(__m256i low, __m256i high, const int16_t * x) {
    const __m256i a = _mm256_madd_epi16(low, _mm256_loadu_si256((const __m256i *) x));
    const __m256i b = _mm256_madd_epi16(high, _mm256_loadu_si256((const __m256i *) x + 1));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(a, b));
}

// The totals of eight vectors, in their order, each added up as a tree.
inline __m256 totals(const __m256 * v) {
    const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

// ROWS rows from m on with COLUMNS columns: eight sums at most, column c's from 4 c on.
template <int ROWS, int COLUMNS>
inline void q8_rows(const Matrix & matrix, int64_t m, const int16_t * const * x, const float * scale, float * const * out) {
    static_assert(COLUMNS == 1 ? ROWS <= 8 : ROWS <= 4, "eight sums");
    const char * rows = matrix.data + m * matrix.stride;
    __m256       sum[8];
    for (__m256 & s : sum) {
        s = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < matrix.K / QUANTS; ++b) {
        for (int r = 0; r < ROWS; ++r) {
            const BlockQ8 * block = (const BlockQ8 *) (rows + r * matrix.stride) + b;
            const __m256i   low = widened(block->quants), high = widened(block->quants + QUANTS / 2);
            const __m256    size = _mm256_cvtph_ps(_mm_set1_epi16((short) block->scale));
            for (int c = 0; c < COLUMNS; ++c) {
                sum[4 * c + r] = _mm256_fmadd_ps(size, times(low, high, x[c] + b * QUANTS), sum[4 * c + r]);
            }
        }
    }
    float total[8];
    _mm256_storeu_ps(total, totals(sum));
    for (int c = 0; c < COLUMNS; ++c) {
        for (int r = 0; r < ROWS; ++r) {
            out[c][m + r] = total[4 * c + r] * scale[c];
        }
    }
}

template <int ROWS, int COLUMNS>
void q8_columns(
        const Matrix & matrix, int64_t begin, int64_t end, const int16_t * const * x, const float * scale,
        float * const * out) {
    int64_t m = begin;
    for (; m + ROWS <= end; m += ROWS) {
        q8_rows<ROWS, COLUMNS>(matrix, m, x, scale, out);
    }
    for (; m < end; ++m) {
        q8_rows<1, COLUMNS>(matrix, m, x, scale, out);
    }
}

void q8_0(
        const Matrix & matrix, int64_t begin, int64_t end, const Columns & columns, const int32_t * which, int64_t n,
        float * const * out) {
    const auto x = [&](int64_t i) { return (const int16_t *) columns.column(which[i]); };
    for (int64_t first = begin; first < end; first += ROWS_AT_ONCE) {
        const int64_t last = least(end, first + ROWS_AT_ONCE);
        int64_t       i    = 0;
        for (; i + 2 <= n; i += 2) {
            const int16_t * two[2]   = { x(i), x(i + 1) };
            const float     scale[2] = { columns.scale(which[i]), columns.scale(which[i + 1]) };
            q8_columns<4, 2>(matrix, first, last, two, scale, out + i);
        }
        if (i < n) {
            const int16_t * one[1]   = { x(i) };
            const float     scale[1] = { columns.scale(which[i]) };
            q8_columns<8, 1>(matrix, first, last, one, scale, out + i);
        }
    }
}

// A column as integers of 16 bits with the largest value at 32767; returns their scale.
float widen(const float * x, int64_t K, int16_t * out) {
    const Extent extent  = extent_of(x, K);
    const __m256 inverse = _mm256_set1_ps(extent.largest != 0.0f ? 32767.0f / extent.largest : 0.0f);
    for (int64_t i = 0; i < K; i += 16) {
        const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), inverse));
        const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), inverse));
        // The pack works on halves of a register each.
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
        _mm256_storeu_si256((__m256i *) (out + i), packed);
    }
    return extent.largest / 32767.0f + extent.nothing;
}

void q4_k(
        const Matrix & matrix, int64_t begin, int64_t end, const Columns & columns, const int32_t * which, int64_t n,
        float * const * out) {
    const char *        first = matrix.data + begin * matrix.stride;
    const ColumnBlock * picked[COLUMNS_AT_ONCE];
    float *             to[COLUMNS_AT_ONCE];
    for (int64_t done = 0; done < n; done += COLUMNS_AT_ONCE) {
        const int64_t count = least(COLUMNS_AT_ONCE, n - done);
        for (int64_t i = 0; i < count; ++i) {
            picked[i] = (const ColumnBlock *) columns.column(which[done + i]);
            to[i]     = out[done + i] + begin;
        }
        multiply_q4(first, matrix.stride, end - begin, matrix.K / SUPER, picked, count, to);
    }
}
constexpr bool WIDE = true;
#else
constexpr bool WIDE = false;
#endif

bool is_wide(ggml_type type) {
    return WIDE && type == GGML_TYPE_Q8_0;
}

size_t column_bytes(ggml_type type, int64_t K) {
#ifdef SKIPPY_AVX2
    if (type == GGML_TYPE_Q4_K) {
        return K / SUPER * sizeof(ColumnBlock);
    }
#endif
    const size_t bytes =
        is_wide(type) ? K * sizeof(int16_t) : ggml_row_size(skippy_cpu_type_traits(type)->vec_dot_type, K);
    return (bytes + 31) / 32 * 32;
}

} // namespace

size_t Columns::floats(ggml_type type, int64_t K, int64_t n) {
    return padded(n) + n * column_bytes(type, K) / sizeof(float);
}

Columns::Columns(ggml_type type, int64_t K, int64_t n, float * memory)
    : K(K), stride(column_bytes(type, K)), packed((char *) (memory + padded(n))), scales(memory), type(type),
      from_float(nullptr) {
    const ggml_type other = skippy_cpu_type_traits(type)->vec_dot_type;
    if (other != GGML_TYPE_F32) {
        from_float = skippy_cpu_type_traits(other)->from_float;
    }
}

void Columns::set(int64_t at, const float * x) {
    char * to = packed + at * stride;
#ifdef SKIPPY_AVX2
    if (type == GGML_TYPE_Q4_K) {
        pack_column(x, K, (ColumnBlock *) to);
        return;
    }
    if (is_wide(type)) {
        scales[at] = widen(x, K, (int16_t *) to);
        return;
    }
#endif
    if (from_float != nullptr) {
        from_float(x, to, K);
    } else {
        memcpy(to, x, K * sizeof(float));
    }
}

void multiply(
        const Matrix & matrix, int64_t begin, int64_t end, const Columns & columns, const int32_t * which, int64_t n,
        float * const * out) {
#ifdef SKIPPY_AVX2
    if (is_wide(matrix.type)) {
        q8_0(matrix, begin, end, columns, which, n, out);
        return;
    }
    if (matrix.type == GGML_TYPE_Q4_K) {
        q4_k(matrix, begin, end, columns, which, n, out);
        return;
    }
#endif
    any_type(matrix, begin, end, columns, which, n, out);
}

} // namespace SKIPPY_VARIANT
} // namespace skippy
