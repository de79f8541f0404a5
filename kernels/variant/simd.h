// Small vectors and row conversions of one instruction set.
//
// Everything in kernels/variant/ is compiled once for each instruction set that the target may have, into a namespace of
// its own, SKIPPY_VARIANT. The linker keeps one copy of an inline function of the standard library, whichever variant it came
// from, so no template of the standard library may be used here that a compiler could leave out of line: what is needed
// instead (Array, the loops below) lives in that namespace. scripts/check-kernels.sh looks for such copies.

#ifndef SKIPPY_SIMD_H
#define SKIPPY_SIMD_H

#ifndef SKIPPY_VARIANT
#error "compiled by build.rs, which names the variant"
#endif

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__ARM_NEON) && !defined(SKIPPY_PORTABLE)
#define SKIPPY_NEON
#include <arm_neon.h>
#endif

namespace skippy {
namespace SKIPPY_VARIANT {

#if defined(__AVX512F__)
constexpr int WIDTH = 16;   // floats of a vector
constexpr int BLOCK_VECS = 4, BLOCK_ROWS = 6;   // 24 sums, 4 loaded columns, of 32 registers
#elif defined(__AVX2__)
constexpr int WIDTH = 8;
constexpr int BLOCK_VECS = 4, BLOCK_ROWS = 3;   // 12 sums, 4 loaded columns, of 16 registers
#elif defined(SKIPPY_NEON)
constexpr int WIDTH = 8;    // two registers
constexpr int BLOCK_VECS = 2, BLOCK_ROWS = 6;   // 24 sums, 4 loaded columns, of 32 registers
#else
constexpr int WIDTH = 8;    // two registers of SSE
constexpr int BLOCK_VECS = 1, BLOCK_ROWS = 4;   // 8 sums, 2 loaded columns, of 16 registers
#endif

// The compiler maps these to whatever the target has.
typedef float   vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t ivec __attribute__((vector_size(4 * WIDTH)));

inline int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

inline int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// n rounded up to whole vectors.
inline int64_t padded(int64_t n) {
    return (n + WIDTH - 1) / WIDTH * WIDTH;
}

template <typename T> inline void fill(T * p, int64_t n, T value) {
    for (int64_t i = 0; i < n; ++i) {
        p[i] = value;
    }
}

inline vec load(const float * p) {
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

inline void store(float * p, vec v) {
    memcpy(p, &v, sizeof v);
}

// Not vec{} + x, which is an addition: 0 + -0 is not -0.
inline vec splat(float x) {
#if defined(__AVX512F__)
    return vec{ x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x };
#else
    return vec{ x, x, x, x, x, x, x, x };
#endif
}

inline vec greater(vec a, vec b) {
    return a > b ? a : b;
}

// The sum of all lanes, in the order of a tree.
inline float sum_of(vec v) {
    float lanes[WIDTH];
    store(lanes, v);
    for (int half = WIDTH / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) {
            lanes[i] += lanes[i + half];
        }
    }
    return lanes[0];
}

// exp for x <= 0, to about 2e-7 relative: 2^n from the exponent bits, the rest by a polynomial. 0 far below.
inline vec exp_of(vec x) {
    const vec  low = splat(-87.0f);
    const ivec far = x < low;
    x              = far ? low : x;
    // x = n ln 2 + r, |r| <= ln 2 / 2; adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    const vec magic = splat(12582912.0f);
    const vec n     = (x * 1.44269504f + magic) - magic;
    const vec r     = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    vec       p     = splat(1.0f / 720.0f);
    p               = p * r + 1.0f / 120.0f;
    p               = p * r + 1.0f / 24.0f;
    p               = p * r + 1.0f / 6.0f;
    p               = p * r + 0.5f;
    p               = p * r + 1.0f;
    p               = p * r + 1.0f;
    // Lanes that are no numbers convert to anything; the shift of an unsigned value is defined for all.
    typedef uint32_t uvec __attribute__((vector_size(4 * WIDTH)));
    const uvec       exponent = ((uvec) __builtin_convertvector(n == n ? n : vec{}, ivec) + 127) << 23;
    vec              scale;
    memcpy(&scale, &exponent, sizeof scale);
    const vec result = p * scale;
    return far ? vec{} : result;
}

inline float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

// gate[i] = silu(gate[i]) * up[i] for n elements, each alike wherever it stands.
inline void swiglu(float * gate, const float * up, int64_t n) {
    const auto several = [](vec g, vec u) {
        const vec one = splat(1.0f), zero = {};
        const vec e   = exp_of(g < zero ? g : -g);
        return g * (g < zero ? e : one) / (one + e) * u;
    };
    int64_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        store(gate + i, several(load(gate + i), load(up + i)));
    }
    if (i < n) {
        float g[WIDTH] = {}, u[WIDTH] = {};
        memcpy(g, gate + i, (n - i) * sizeof(float));
        memcpy(u, up + i, (n - i) * sizeof(float));
        store(g, several(load(g), load(u)));
        memcpy(gate + i, g, (n - i) * sizeof(float));
    }
}

// Floats as integers of the same order; -0.0 and 0.0 are one value.
inline uint32_t ordered(float x) {
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The parts of 0..n that thread ith of nth takes: contiguous, in whole steps.
struct Share {
    int64_t begin;
    int64_t end;
    Share(int64_t n, int64_t step, int ith, int nth) {
        const int64_t steps = (n + step - 1) / step;
        begin               = least(n, steps * ith / nth * step);
        end                 = least(n, steps * (ith + 1) / nth * step);
    }
};

// Memory that grows and stays; what it held is lost when it grows. For static storage: never freed before its thread ends.
template <typename T> class Array {
  public:
    Array() = default;
    Array(const Array &) = delete;
    Array & operator=(const Array &) = delete;
    ~Array() { free(memory); }

    T * reserve(size_t n) {
        if (n > room) {
            free(memory);
            memory = nullptr;
            room   = 0;
            // Nothing can be answered without memory, and nobody above expects an exception.
            if (n > SIZE_MAX / 2 / sizeof(T) ||
                posix_memalign((void **) &memory, 64, (n * sizeof(T) + 63) / 64 * 64) != 0) {
                abort();
            }
            room = n;
        }
        return memory;
    }

    T * data() { return memory; }

  private:
    T *    memory = nullptr;
    size_t room   = 0;
};

// Memory of one thread. Each call site has its own `Tag`.
template <typename Tag, typename T = float> inline T * scratch(size_t n) {
    static thread_local Array<T> memory;
    return memory.reserve(n);
}

// ---- rows of a cache as f32 ----------------------------------------------------------------------------------------

inline float half_to_float(uint16_t h) {
#if defined(__F16C__)
    return _cvtsh_ss(h);
#else
    // Shifted so that the exponent lies where a float has its own, then scaled by 2^112; infinities and what is no number need
    // the largest exponent put back.
    const uint32_t sign = (uint32_t) (h & 0x8000) << 16, rest = (uint32_t) (h & 0x7fff) << 13;
    float          value;
    memcpy(&value, &rest, sizeof value);
    value *= 5.192296858534828e33f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (h & 0x7c00) == 0x7c00 ? (rest | 0x7f800000) : bits;
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

inline void halves_to_floats(const uint16_t * from, float * to, int64_t n) {
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16) {
        _mm512_storeu_ps(to + i, _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i *) (from + i))));
    }
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (from + i))));
    }
#elif defined(SKIPPY_NEON)
    for (; i + 4 <= n; i += 4) {
        vst1q_f32(to + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + i))));
    }
#endif
    for (; i < n; ++i) {
        to[i] = half_to_float(from[i]);
    }
}

constexpr int64_t QUANTS = 32;

// A block of Q8_0 as ggml stores it.
struct BlockQ8 {
    uint16_t scale;
    int8_t   quants[QUANTS];
};
static_assert(sizeof(BlockQ8) == 34, "the layout of a file");

inline void quants_to_floats(const char * from, float * to, int64_t n) {
    for (int64_t b = 0; b < n / QUANTS; ++b) {
        BlockQ8 block;
        memcpy(&block, from + b * sizeof(BlockQ8), sizeof block);
        const float scale = half_to_float(block.scale);
        for (int i = 0; i < QUANTS; ++i) {
            to[b * QUANTS + i] = scale * (float) block.quants[i];
        }
    }
}

} // namespace SKIPPY_VARIANT
} // namespace skippy

#endif
