// Products of Q4_K rows with columns of 8 bits: see products.h.

#ifndef SKIPPY_BLOCKS_Q4_H
#define SKIPPY_BLOCKS_Q4_H

#include "avx2.h"
#include "rows.h"

namespace skippy {
namespace SKIPPY_VARIANT {

#ifdef SKIPPY_AVX2

constexpr int64_t SUPER = 256; // elements of a block of blocks
constexpr int64_t PARTS = 8;   // blocks of 32 in it

// Q4_K as ggml stores it: weight = scale * part scale * quant - least * part least, part scales and leasts of 6 bits.
struct BlockQ4 {
    uint16_t scale;
    uint16_t least;
    uint8_t  parts[12];
    uint8_t  quants[SUPER / 2]; // of each 64, the first 32 in the low halves
};
static_assert(sizeof(BlockQ4) == 144, "the layout of a file");

// A column's elements as integers of 8 bits, and their sums for the part leasts.
struct alignas(16) ColumnBlock {
    int8_t  quants[SUPER];
    int16_t sums[PARTS];
    float   scale;
};

// K elements, a multiple of SUPER.
void pack_column(const float * x, int64_t K, ColumnBlock * to);

// out[c][m] = row m . column c for `rows` rows of `blocks` blocks, the first at `first`, and n columns.
void multiply_q4(
        const char * first, int64_t stride, int64_t rows, int64_t blocks, const ColumnBlock * const * columns, int64_t n,
        float * const * out);

#endif

} // namespace SKIPPY_VARIANT
} // namespace skippy

#endif
