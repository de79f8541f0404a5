// Rows of a cache, and products of them with few columns.

#ifndef SKIPPY_ROWS_H
#define SKIPPY_ROWS_H

#include "simd.h"

#include "ggml.h"

namespace skippy {
namespace SKIPPY_VARIANT {

// Rows of a matrix that stay in the second cache while all columns pass by: a large matrix is read from memory once.
constexpr int64_t ROWS_AT_ONCE = 16;

// Columns that a product takes at a time, where there may be any number of them.
constexpr int64_t COLUMNS_AT_ONCE = 16;

// Starts to fetch `bytes` bytes, which need not exist.
inline void prefetch(const char * from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) {
        const char * line = (const char *) ((uintptr_t) from + (uintptr_t) at);
        __builtin_prefetch(line);
        // To GCC a loop of nothing else has no effect, and is dropped.
        asm volatile("" : : "r"(line));
    }
}

// The rows of a 2-D tensor of f32, f16 or Q8_0, as f32.
class Rows {
  public:
    explicit Rows(const ggml_tensor * tensor)
        : count(tensor->ne[1]), base((const char *) tensor->data), stride(tensor->nb[1]), width(tensor->ne[0]),
          type(tensor->type) {}

    // Row `index`: where it lies when it is f32, else in `scratch`.
    const float * row(int64_t index, float * scratch) const {
        if (type == GGML_TYPE_F32) {
            return (const float *) (base + index * stride);
        }
        copy(index, scratch);
        return scratch;
    }

    // Row `index` in `out`.
    void copy(int64_t index, float * out) const {
        const char * bytes = base + index * stride;
        switch (type) {
            case GGML_TYPE_F16: halves_to_floats((const uint16_t *) bytes, out, width); break;
            case GGML_TYPE_Q8_0: quants_to_floats(bytes, out, width); break;
            default: memcpy(out, bytes, width * sizeof(float));
        }
    }

    // Starts to fetch row `index`.
    void fetch(int64_t index) const {
        prefetch(base + index * stride, stride);
    }

    const int64_t count;

  private:
    const char * base;
    int64_t      stride;
    int64_t      width;
    ggml_type    type;
};

// out[r][c] (+)= sum over d < D of rows[r][d] * columns[d][c], for ROWS rows and VECS vectors of columns. Each sum has its
// own order, whatever the blocking.
template <int VECS, int ROWS>
inline void add_block(
        const float * const * rows, const float * columns, int64_t stride, int64_t D, float * out, int64_t out_stride,
        bool fresh) {
    vec sum[ROWS][VECS];
    for (int r = 0; r < ROWS; ++r) {
        for (int v = 0; v < VECS; ++v) {
            sum[r][v] = fresh ? vec{} : load(out + r * out_stride + WIDTH * v);
        }
    }
    for (int64_t d = 0; d < D; ++d) {
        vec column[VECS];
        for (int v = 0; v < VECS; ++v) {
            column[v] = load(columns + d * stride + WIDTH * v);
        }
        for (int r = 0; r < ROWS; ++r) {
            const vec x = splat(rows[r][d]);
            for (int v = 0; v < VECS; ++v) {
                sum[r][v] += x * column[v];
            }
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        for (int v = 0; v < VECS; ++v) {
            store(out + r * out_stride + WIDTH * v, sum[r][v]);
        }
    }
}

template <int VECS>
inline void add_vectors(
        const float * const * rows, int64_t n, const float * columns, int64_t stride, int64_t D, float * out,
        int64_t out_stride, bool fresh) {
    int64_t r = 0;
    for (; r + BLOCK_ROWS <= n; r += BLOCK_ROWS) {
        add_block<VECS, BLOCK_ROWS>(rows + r, columns, stride, D, out + r * out_stride, out_stride, fresh);
    }
    for (; r < n; ++r) {
        add_block<VECS, 1>(rows + r, columns, stride, D, out + r * out_stride, out_stride, fresh);
    }
}

// n rows with all columns: `width` is a multiple of WIDTH.
inline void add_products(
        const float * const * rows, int64_t n, const float * columns, int64_t stride, int64_t D, int64_t width, float * out,
        int64_t out_stride, bool fresh) {
    int64_t c = 0;
    for (; c + WIDTH * BLOCK_VECS <= width; c += WIDTH * BLOCK_VECS) {
        add_vectors<BLOCK_VECS>(rows, n, columns + c, stride, D, out + c, out_stride, fresh);
    }
    for (; c < width; c += WIDTH) {
        add_vectors<1>(rows, n, columns + c, stride, D, out + c, out_stride, fresh);
    }
}

// [n][D] to [D][stride], columns behind n zero.
inline void transpose(const float * from, int64_t n, int64_t D, float * to, int64_t stride) {
    for (int64_t d = 0; d < D; ++d) {
        for (int64_t i = 0; i < n; ++i) {
            to[d * stride + i] = from[i * D + d];
        }
        for (int64_t i = n; i < stride; ++i) {
            to[d * stride + i] = 0.0f;
        }
    }
}

// The share of the rows of a matrix: in steps of what products take at a time, unless some threads would stay idle.
inline Share row_share(int64_t rows, int ith, int nth) {
    return Share(rows, rows >= 16 * nth ? 8 : 1, ith, nth);
}

} // namespace SKIPPY_VARIANT
} // namespace skippy

#endif
