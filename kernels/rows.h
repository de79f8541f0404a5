// Reading rows of any ggml type as f32, and the small vectors that the kernels compute with.

#ifndef SKIPPY_ROWS_H
#define SKIPPY_ROWS_H

#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace skippy {

// Eight floats; the compiler maps them to whatever the target has.
typedef float f32x8 __attribute__((vector_size(32)));

inline f32x8 load8(const float * p) {
    f32x8 v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline void store8(float * p, f32x8 v) {
    std::memcpy(p, &v, sizeof v);
}

inline f32x8 splat8(float x) {
    return f32x8{ x, x, x, x, x, x, x, x };
}

// The sum of all lanes, in the order of a tree.
inline float sum8(f32x8 v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

// The parts of 0..n that thread ith of nth takes: contiguous, in whole steps.
struct Share {
    int64_t begin;
    int64_t end;
    Share(int64_t n, int64_t step, int ith, int nth) {
        const int64_t steps = (n + step - 1) / step;
        begin               = std::min(n, steps * ith / nth * step);
        end                 = std::min(n, steps * (ith + 1) / nth * step);
    }
};

// Floats as integers of the same order; -0.0 and 0.0 are one value.
inline uint32_t ordered(float x) {
    uint32_t bits;
    x += 0.0f;
    std::memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// exp for x <= 0, to about 2e-7 relative: 2^n from the exponent bits, the rest by a polynomial. 0 far below.
inline f32x8 exp8(f32x8 x) {
    typedef int32_t i32x8 __attribute__((vector_size(32)));
    const f32x8 low = splat8(-87.0f);
    const i32x8 far = x < low;
    x               = far ? low : x;
    // x = n ln 2 + r, |r| <= ln 2 / 2; adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    const f32x8 magic = splat8(12582912.0f);
    const f32x8 n     = (x * splat8(1.44269504f) + magic) - magic;
    const f32x8 r     = (x - n * splat8(0.693359375f)) - n * splat8(-2.12194440e-4f);
    f32x8       p     = splat8(1.0f / 720.0f);
    for (float c : { 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f }) {
        p = p * r + splat8(c);
    }
    const i32x8 exponent = (__builtin_convertvector(n, i32x8) + 127) << 23;
    f32x8       scale;
    std::memcpy(&scale, &exponent, sizeof scale);
    const f32x8 result = p * scale;
    return far ? f32x8{} : result;
}

// The share of the rows of a matrix: in steps of what products take at a time, unless some threads would stay idle.
inline Share row_share(int64_t rows, int ith, int nth) {
    return Share(rows, rows >= 16 * nth ? 8 : 1, ith, nth);
}

// Row `index` of a 2-D tensor as f32: `scratch` unless the tensor is f32 already.
class RowReader {
  public:
    explicit RowReader(const ggml_tensor * tensor)
        : base((const char *) tensor->data), stride(tensor->nb[1]), width(tensor->ne[0]),
          half(tensor->type == GGML_TYPE_F16),
          to_float(tensor->type == GGML_TYPE_F32 ? nullptr : ggml_get_type_traits(tensor->type)->to_float) {}

    const float * row(int64_t index, float * scratch) const {
        const char * bytes = base + index * (int64_t) stride;
        if (to_float == nullptr) {
            return (const float *) bytes;
        }
        if (half) {
            // The general conversion is scalar; this one uses what the CPU has.
            ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) bytes, scratch, width);
        } else {
            to_float(bytes, scratch, width);
        }
        return scratch;
    }

    // Row `index` copied to `out`, whatever its type.
    void copy(int64_t index, float * out) const {
        const float * values = row(index, out);
        if (values != out) {
            std::memcpy(out, values, width * sizeof(float));
        }
    }

  private:
    const char *    base;
    size_t          stride;
    int64_t         width;
    bool            half;
    ggml_to_float_t to_float;
};

// Memory of one thread that grows once and stays. Alone: each call site has its own `Tag`.
template <typename Tag> float * scratch(size_t n) {
    static thread_local std::vector<float> memory;
    if (memory.size() < n) {
        memory.resize(n);
    }
    return memory.data();
}

} // namespace skippy

#endif
