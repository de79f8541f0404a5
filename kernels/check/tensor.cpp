// Tensors and the few functions of ggml that the kernels call, so that sanitizers see all code that runs.

#include "check.h"

#include "../skippy_kernels.h"

namespace check {

float from_half(uint16_t h) {
    const int   exponent = h >> 10 & 31, fraction = h & 1023;
    const float size = exponent == 0 ? std::ldexp((float) fraction, -24)
                                     : exponent == 31 ? (fraction ? NAN : INFINITY) : std::ldexp((float) (fraction + 1024), exponent - 25);
    return h & 0x8000 ? -size : size;
}

// Towards zero, for numbers that a half can hold.
uint16_t to_half(float x) {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    int            exponent;
    const float    fraction = std::frexp(std::fabs(x), &exponent);
    if (x == 0.0f || exponent < -13) {
        return sign | (uint16_t) std::ldexp(std::fabs(x), 24);
    }
    return sign | (uint16_t) ((exponent + 14) << 10) | ((uint16_t) std::ldexp(fraction, 11) & 1023);
}

} // namespace check

namespace {

using check::from_half;
using check::to_half;

constexpr int64_t BLOCK = 32;

#pragma pack(push, 1)
struct BlockQ8 {
    uint16_t scale;
    int8_t   quants[BLOCK];
};
#pragma pack(pop)

void quantize(const float * x, void * to, int64_t n) {
    for (int64_t b = 0; b < n / BLOCK; ++b) {
        float most = 0.0f;
        for (int64_t i = 0; i < BLOCK; ++i) {
            most = std::max(most, std::fabs(x[b * BLOCK + i]));
        }
        BlockQ8 block;
        block.scale       = to_half(most / 127.0f);
        const float scale = from_half(block.scale);
        for (int64_t i = 0; i < BLOCK; ++i) {
            const float quant = scale > 0.0f ? std::round(x[b * BLOCK + i] / scale) : 0.0f;
            block.quants[i]   = (int8_t) std::clamp(quant, -127.0f, 127.0f);
        }
        std::memcpy((char *) to + b * sizeof block, &block, sizeof block);
    }
}

std::vector<float> quants(const void * from, int64_t n) {
    std::vector<float> values;
    for (int64_t b = 0; b < n / BLOCK; ++b) {
        BlockQ8 block;
        std::memcpy(&block, (const char *) from + b * sizeof block, sizeof block);
        for (const int8_t quant : block.quants) {
            values.push_back(from_half(block.scale) * (float) quant);
        }
    }
    return values;
}

void dot_f32(int n, float * s, size_t, const void * x, size_t, const void * y, size_t, int) {
    double sum = 0.0;
    for (int i = 0; i < n; ++i) {
        sum += (double) ((const float *) x)[i] * ((const float *) y)[i];
    }
    *s = (float) sum;
}

void dot_q8(int n, float * s, size_t, const void * x, size_t, const void * y, size_t, int) {
    const std::vector<float> a = quants(x, n), b = quants(y, n);
    dot_f32(n, s, 0, a.data(), 0, b.data(), 0, 1);
}

template <ggml_type TYPE> void dot_k_quants(int n, float * s, size_t, const void * x, size_t, const void * y, size_t, int) {
    const std::vector<float> a = check::k_quant_numbers(TYPE, x, n / check::K_QUANTS);
    dot_f32(n, s, 0, a.data(), 0, y, 0, 1);
}

template <ggml_type TYPE> constexpr ggml_type_traits_cpu K_QUANT = { nullptr, dot_k_quants<TYPE>, GGML_TYPE_F32, 1 };

size_t row_bytes(ggml_type type, int64_t n) {
    switch (type) {
        case GGML_TYPE_F16: return n * 2;
        case GGML_TYPE_Q8_0: return n / BLOCK * sizeof(BlockQ8);
        case GGML_TYPE_I8: return n;
        case GGML_TYPE_F32:
        case GGML_TYPE_I32: return n * 4;
        default: return n / check::K_QUANTS * check::k_quant_bytes(type);
    }
}

} // namespace

extern "C" size_t ggml_row_size(ggml_type type, int64_t n) {
    return row_bytes(type, n);
}

extern "C" const ggml_type_traits_cpu * skippy_cpu_type_traits(ggml_type type) {
    static const ggml_type_traits_cpu f32 = { nullptr, dot_f32, GGML_TYPE_F32, 1 };
    static const ggml_type_traits_cpu q8  = { quantize, dot_q8, GGML_TYPE_Q8_0, 1 };
    switch (type) {
        case GGML_TYPE_Q8_0: return &q8;
        case GGML_TYPE_Q2_K: return &K_QUANT<GGML_TYPE_Q2_K>;
        case GGML_TYPE_Q3_K: return &K_QUANT<GGML_TYPE_Q3_K>;
        case GGML_TYPE_Q4_K: return &K_QUANT<GGML_TYPE_Q4_K>;
        case GGML_TYPE_Q5_K: return &K_QUANT<GGML_TYPE_Q5_K>;
        case GGML_TYPE_Q6_K: return &K_QUANT<GGML_TYPE_Q6_K>;
        default: return &f32;
    }
}

namespace check {

Tensor::Tensor(ggml_type type, int64_t a, int64_t b, int64_t c) : tensor() {
    const size_t row = row_bytes(type, a);
    memory.reset(new uint8_t[row * b * c]());
    tensor.type  = type;
    tensor.data  = memory.get();
    tensor.ne[0] = a, tensor.ne[1] = b, tensor.ne[2] = c, tensor.ne[3] = 1;
    tensor.nb[0] = row_bytes(type, 1), tensor.nb[1] = row, tensor.nb[2] = row * b, tensor.nb[3] = row * b * c;
}

std::vector<float> Tensor::fill(Bytes & bytes, float size) {
    const int64_t      n = tensor.ne[0] * tensor.ne[1] * tensor.ne[2];
    std::vector<float> values(n);
    for (float & value : values) {
        value = bytes.uniform() * size;
    }
    switch (tensor.type) {
        case GGML_TYPE_F16:
            for (int64_t i = 0; i < n; ++i) {
                data<uint16_t>()[i] = to_half(values[i]);
                values[i]           = from_half(to_half(values[i]));
            }
            break;
        case GGML_TYPE_Q8_0:
            quantize(values.data(), tensor.data, n);
            values = quants(tensor.data, n);
            break;
        case GGML_TYPE_F32: std::memcpy(tensor.data, values.data(), n * sizeof(float)); break;
        default:
            random_k_quants(tensor.type, bytes, tensor.data, n / K_QUANTS);
            values = k_quant_numbers(tensor.type, tensor.data, n / K_QUANTS);
    }
    return values;
}

const std::vector<Named> & variants() {
    static const std::vector<Named> all = [] {
        const std::pair<const char *, int32_t> isas[] = {
            { "portable", SKIPPY_ISA_PORTABLE }, { "avx2", SKIPPY_ISA_AVX2 },
            { "avx512", SKIPPY_ISA_AVX512 },     { "neon", SKIPPY_ISA_NEON },
        };
        std::vector<Named> all;
        for (const auto & [name, isa] : isas) {
            if (const skippy::Variant * variant = skippy::variant_for(isa)) {
                all.push_back({ name, variant });
            }
        }
        return all;
    }();
    return all;
}

void run(skippy::Operation * op, Tensor & dst, std::initializer_list<Tensor *> sources, int threads, void * userdata) {
    int at = 0;
    for (Tensor * source : sources) {
        dst.get()->src[at++] = source == nullptr ? nullptr : source->get();
    }
    for (int thread = threads - 1; thread >= 0; --thread) {
        op(dst.get(), thread, threads, userdata);
    }
}

} // namespace check
