// Which variant of the operations runs: the best that this CPU has, unless a caller asks for another one.

#include "dispatch.h"

#include "skippy_kernels.h"

#include <atomic>

namespace {

bool cpu_has(int32_t isa) {
    switch (isa) {
        case SKIPPY_ISA_PORTABLE: return true;
#ifdef SKIPPY_HAS_AVX2
        case SKIPPY_ISA_AVX2:
            // F16C is older than AVX2, and not every compiler can ask for it.
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        case SKIPPY_ISA_AVX512:
            return cpu_has(SKIPPY_ISA_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
#ifdef SKIPPY_HAS_NEON
        case SKIPPY_ISA_NEON: return true;
#endif
        default: return false;
    }
}

const skippy::Variant & table(int32_t isa) {
    switch (isa) {
#ifdef SKIPPY_HAS_AVX2
        case SKIPPY_ISA_AVX2: return skippy_variant_avx2;
        case SKIPPY_ISA_AVX512: return skippy_variant_avx512;
#endif
#ifdef SKIPPY_HAS_NEON
        case SKIPPY_ISA_NEON: return skippy_variant_neon;
#endif
        default: return skippy_variant_portable;
    }
}

int32_t best() {
    const int32_t fastest_first[] = { SKIPPY_ISA_AVX512, SKIPPY_ISA_AVX2, SKIPPY_ISA_NEON };
    for (const int32_t isa : fastest_first) {
        if (cpu_has(isa)) {
            return isa;
        }
    }
    return SKIPPY_ISA_PORTABLE;
}

std::atomic<int32_t> & chosen() {
    static std::atomic<int32_t> isa{ best() };
    return isa;
}

const skippy::Variant & variant() {
    return table(chosen().load(std::memory_order_relaxed));
}

} // namespace

const skippy::Variant * skippy::variant_for(int32_t isa) {
    return cpu_has(isa) ? &table(isa) : nullptr;
}

int32_t skippy_isa(void) {
    return chosen();
}

bool skippy_isa_available(int32_t isa) {
    return cpu_has(isa);
}

bool skippy_isa_use(int32_t isa) {
    if (!cpu_has(isa)) {
        return false;
    }
    chosen() = isa;
    return true;
}

double skippy_fma_rate(void) {
    return variant().fma_rate();
}

int64_t skippy_packed_bytes(int32_t type, int64_t K) {
    return variant().packed_bytes(type, K);
}

#define SKIPPY_OPERATION(name)                                                                  \
    void skippy_op_##name(struct ggml_tensor * dst, int ith, int nth, void * userdata) {        \
        variant().name(dst, ith, nth, userdata);                                                \
    }

SKIPPY_OPERATION(matmul_rows)
SKIPPY_OPERATION(route)
SKIPPY_OPERATION(experts_inner)
SKIPPY_OPERATION(glu)
SKIPPY_OPERATION(experts_outer)
SKIPPY_OPERATION(index_select)
SKIPPY_OPERATION(index_candidates)
SKIPPY_OPERATION(index_merge)
SKIPPY_OPERATION(list_mask)
SKIPPY_OPERATION(attend_listed)
SKIPPY_OPERATION(pack)
SKIPPY_OPERATION(matmul_packed)
SKIPPY_OPERATION(experts_inner_packed)
SKIPPY_OPERATION(experts_outer_packed)
