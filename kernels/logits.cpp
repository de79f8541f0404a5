// Row kernels over logits: see skippy_kernels.h.
//
// The inner loops keep LANES independent accumulators and no branches, which is what lets the compiler use whole
// vector registers without -ffast-math (which would assume away the NaN that must be noticed).

#include "skippy_kernels.h"

#include <cmath>
#include <limits>

namespace {

constexpr size_t LANES = 32;

// Largest element, and whether any is NaN. Comparing a NaN is false, so it never becomes the maximum.
float row_max(const float * row, size_t n, bool & has_nan) {
    float best[LANES];
    int   nan[LANES] = {};
    for (size_t j = 0; j < LANES; ++j) {
        best[j] = -std::numeric_limits<float>::infinity();
    }
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (size_t j = 0; j < LANES; ++j) {
            const float x = row[i + j];
            best[j] = x > best[j] ? x : best[j];
            nan[j] |= x != x;
        }
    }
    float max = -std::numeric_limits<float>::infinity();
    int   any = 0;
    for (; i < n; ++i) {
        max = row[i] > max ? row[i] : max;
        any |= row[i] != row[i];
    }
    for (size_t j = 0; j < LANES; ++j) {
        max = best[j] > max ? best[j] : max;
        any |= nan[j];
    }
    has_nan = any != 0;
    return max;
}

} // namespace

int64_t skippy_argmax(const float * row, size_t n) {
    bool has_nan = false;
    const float max = row_max(row, n, has_nan);
    if (has_nan) {
        return -1;
    }
    for (size_t i = 0; i < n; ++i) {
        if (row[i] == max) {
            return (int64_t) i;
        }
    }
    return -1;
}

double skippy_log_sum_exp(const float * row, size_t n) {
    bool has_nan = false;
    const float max = row_max(row, n, has_nan);
    if (has_nan) {
        return std::numeric_limits<double>::quiet_NaN();
    }
    if (std::isinf(max)) {
        return max;
    }
    double sum[8] = {};
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (size_t j = 0; j < 8; ++j) {
            sum[j] += std::exp((double) (row[i + j] - max));
        }
    }
    double total = 0.0;
    for (; i < n; ++i) {
        total += std::exp((double) (row[i] - max));
    }
    for (double part : sum) {
        total += part;
    }
    return (double) max + std::log(total);
}
