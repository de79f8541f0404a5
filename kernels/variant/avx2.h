// What the AVX2 products share: a vector to one number, and what the packing of a column looks at first.

#ifndef SKIPPY_AVX2_H
#define SKIPPY_AVX2_H

#include "simd.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define SKIPPY_AVX2

namespace skippy {
namespace SKIPPY_VARIANT {

inline float largest_of(__m256 v) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half        = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

inline float total_of(__m256 v) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

// How large n floats are, a multiple of 8.
struct Extent {
    float largest;  // without sign
    float nothing;  // 0, or no number if one of them is none: added to a scale it makes that none, and so every product
};

inline Extent extent_of(const float * x, int64_t n) {
    const __m256 sign    = _mm256_set1_ps(-0.0f);
    __m256       largest = _mm256_setzero_ps(), nothing = _mm256_setzero_ps();
    for (int64_t i = 0; i < n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        largest        = _mm256_max_ps(largest, _mm256_andnot_ps(sign, v));
        nothing        = _mm256_fmadd_ps(v, _mm256_setzero_ps(), nothing);
    }
    return { largest_of(largest), total_of(nothing) };
}

} // namespace SKIPPY_VARIANT
} // namespace skippy

#endif

#endif
