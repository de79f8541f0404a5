// The table of this variant, and how fast it could multiply at best.

#include "../dispatch.h"
#include "ops.h"
#include "rows.h"

#include <time.h>

#define SKIPPY_JOIN_(a, b) a##b
#define SKIPPY_JOIN(a, b) SKIPPY_JOIN_(a, b)

namespace skippy {
namespace SKIPPY_VARIANT {

static double seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double) now.tv_sec + 1e-9 * (double) now.tv_nsec;
}

// Multiply-adds of floats per second that the calling thread reaches when nothing is loaded or stored.
double fma_rate() {
    constexpr int  CHAINS = 12;
    constexpr long STEPS  = 4 << 20;
    const vec      factor = splat(0.999f), step = splat(1e-3f);
    vec            sums[CHAINS];
    for (int i = 0; i < CHAINS; ++i) {
        sums[i] = splat((float) i);
    }
    const double start = seconds();
    for (long k = 0; k < STEPS; ++k) {
        for (int i = 0; i < CHAINS; ++i) {
            sums[i] = sums[i] * factor + step;
        }
    }
    const double took = seconds() - start;
    vec          all  = {};
    for (int i = 0; i < CHAINS; ++i) {
        all += sums[i];
    }
    // The sum is looked at, or the compiler would not compute it.
    return sum_of(all) > 0.0f ? (double) STEPS * CHAINS * WIDTH / took : 0.0;
}

} // namespace SKIPPY_VARIANT
} // namespace skippy

using namespace skippy::SKIPPY_VARIANT;

const skippy::Variant SKIPPY_JOIN(skippy_variant_, SKIPPY_VARIANT) = {
    matmul_rows,      route,                experts_inner,        glu,          experts_outer,
    index_select,     index_candidates,     index_merge,          list_mask,    attend_listed,
    pack,             matmul_packed,        experts_inner_packed, experts_outer_packed,
    packed_bytes,     fma_rate,
};
