// The table of operations that each variant of kernels/variant/ fills.

#ifndef SKIPPY_DISPATCH_H
#define SKIPPY_DISPATCH_H

#include "ggml.h"

#include <stdint.h>

namespace skippy {

typedef void Operation(ggml_tensor * dst, int ith, int nth, void * userdata);

struct Variant {
    Operation * matmul_rows;
    Operation * route;
    Operation * experts_inner;
    Operation * glu;
    Operation * experts_outer;
    Operation * index_select;
    Operation * index_candidates;
    Operation * index_merge;
    Operation * list_mask;
    Operation * attend_listed;
    Operation * pack;
    Operation * matmul_packed;
    Operation * experts_inner_packed;
    Operation * experts_outer_packed;
    int64_t (*packed_bytes)(int type, int64_t K);
    double (*fma_rate)();
};

// The variant for an instruction set (see skippy_kernels.h), if this build has it and the CPU can run it.
const Variant * variant_for(int32_t isa);

} // namespace skippy

// One for each variant that build.rs compiles.
extern const skippy::Variant skippy_variant_portable;
extern const skippy::Variant skippy_variant_avx2;
extern const skippy::Variant skippy_variant_avx512;
extern const skippy::Variant skippy_variant_neon;

#endif
