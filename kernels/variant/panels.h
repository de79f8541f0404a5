// Products of K-quant rows with columns of 8 bits, eight rows at a time.

#ifndef SKIPPY_PANELS_H
#define SKIPPY_PANELS_H

#include "avx2.h"
#include "rows.h"

namespace skippy {
namespace SKIPPY_VARIANT {

#ifdef SKIPPY_AVX2

constexpr int64_t SUPER = 256; // elements of a block
constexpr int64_t GROUP = 16;  // elements that share a scale, or half of those that do
constexpr int64_t MANY  = 64;  // columns that pass by one unpacking of weights: their blocks and the panels fit the first cache

// Parts of at most MANY into which n columns are cut; Share(n, 1, i, parts) is one of them.
inline int column_parts(int64_t n) {
    return (int) ((n + MANY - 1) / MANY);
}

// A column's elements as integers of 8 bits, and their sums for what the weights subtract.
struct alignas(16) ColumnBlock {
    int8_t  quants[SUPER];
    int16_t sums[SUPER / GROUP];
    float   scale;
};

// K elements, a multiple of SUPER.
void pack_column(const float * x, int64_t K, ColumnBlock * to);

// out[c][m] = row m . column c for `rows` rows of K elements, the first at `first`, and n columns.
typedef void PanelProduct(
        const char * first, int64_t stride, int64_t rows, int64_t K, const ColumnBlock * const * columns, int64_t n,
        float * const * out);

// That of rows of this type; null for all but Q2_K, Q3_K, Q4_K, Q5_K and Q6_K.
PanelProduct * panel_product(int type);

#endif

} // namespace SKIPPY_VARIANT
} // namespace skippy

#endif
