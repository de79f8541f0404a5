// Products of a matrix of any ggml type with few columns, each summed in the same order whatever stands beside it.

#ifndef SKIPPY_PRODUCTS_H
#define SKIPPY_PRODUCTS_H

#include "../cpu.h"
#include "rows.h"

namespace skippy {
namespace SKIPPY_VARIANT {

// A matrix in rows of K elements.
struct Matrix {
    ggml_type    type;
    const char * data;
    size_t       stride;
    int64_t      K;

    // Slice `at` of the third dimension.
    explicit Matrix(const ggml_tensor * tensor, int64_t at = 0)
        : type(tensor->type), data((const char *) tensor->data + at * tensor->nb[2]), stride(tensor->nb[1]),
          K(tensor->ne[0]) {}
};

// Columns as products with matrices of one type want them. They live in memory that the caller has.
class Columns {
  public:
    Columns() = default;

    // Floats of memory that n columns of K elements need.
    static size_t floats(ggml_type type, int64_t K, int64_t n);

    Columns(ggml_type type, int64_t K, int64_t n, float * memory);

    // Sets column `at` to the K elements at x.
    void set(int64_t at, const float * x);

    const char * column(int64_t at) const { return packed + at * stride; }
    float        scale(int64_t at) const { return scales[at]; }

  private:
    int64_t           K          = 0;
    size_t            stride     = 0;
    char *            packed     = nullptr;
    float *           scales     = nullptr;
    ggml_type         type       = GGML_TYPE_F32;
    ggml_from_float_t from_float = nullptr;
};

// out[i][m] = row m of the matrix x column which[i], for rows begin..end and i < n. The columns are for its type.
void multiply(
        const Matrix & matrix, int64_t begin, int64_t end, const Columns & columns, const int32_t * which, int64_t n,
        float * const * out);

} // namespace SKIPPY_VARIANT
} // namespace skippy

#endif
