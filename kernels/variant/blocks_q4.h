// Products of Q4_K rows with few columns of 8 bits: see products.h.

#ifndef SKIPPY_BLOCKS_Q4_H
#define SKIPPY_BLOCKS_Q4_H

#include "panels.h"

namespace skippy {
namespace SKIPPY_VARIANT {

#ifdef SKIPPY_AVX2

// out[c][m] = row m . column c for `rows` rows of `blocks` blocks, the first at `first`, and n columns.
void multiply_q4(
        const char * first, int64_t stride, int64_t rows, int64_t blocks, const ColumnBlock * const * columns, int64_t n,
        float * const * out);

#endif

} // namespace SKIPPY_VARIANT
} // namespace skippy

#endif
