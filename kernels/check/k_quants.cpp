// The K-quants element by element, as their format is described.

#include "check.h"

namespace check {

namespace {

struct Format {
    size_t bytes;
    size_t scale;     // where a half lies
    bool   has_least; // and another behind it
};

Format format(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q2_K: return { 84, 80, true };
        case GGML_TYPE_Q3_K: return { 110, 108, false };
        case GGML_TYPE_Q4_K: return { 144, 0, true };
        case GGML_TYPE_Q5_K: return { 176, 0, true };
        case GGML_TYPE_Q6_K: return { 210, 208, false };
        default: return { 0, 0, false };
    }
}

// Number g of eight scales, or leasts, of six bits.
int six_bits(const uint8_t * p, int64_t g, bool least) {
    const int shift = least ? 4 : 0;
    if (g < 4) {
        return p[g + shift] & 63;
    }
    return (p[g + 4] >> shift & 15) | (p[g - 4 + shift] >> 6) << 4;
}

// Element i of a block without its halves: what the scale and what the least is multiplied with.
struct Element {
    int of_scale, of_least;
};

Element element(ggml_type type, const uint8_t * block, int64_t i) {
    const int64_t part = i / 32, group = i / 16, at = i % 32, half = i / 128;
    switch (type) {
        case GGML_TYPE_Q2_K: {
            const int quant = block[16 + 32 * half + at] >> part % 4 * 2 & 3;
            return { quant * (block[group] & 15), block[group] >> 4 };
        }
        case GGML_TYPE_Q3_K: {
            const int       quant = (block[32 + 32 * half + at] >> part % 4 * 2 & 3) + (block[at] >> part & 1 ? 0 : -4);
            const uint8_t * p     = block + 96;
            const int       low = group < 8 ? p[group] & 15 : p[group - 8] >> 4, high = p[8 + group % 4] >> group / 4 * 2 & 3;
            return { quant * ((low | high << 4) - 32), 0 };
        }
        case GGML_TYPE_Q4_K: {
            const int quant = block[16 + part / 2 * 32 + at] >> part % 2 * 4 & 15;
            return { quant * six_bits(block + 4, part, false), six_bits(block + 4, part, true) };
        }
        case GGML_TYPE_Q5_K: {
            const int quant = (block[48 + part / 2 * 32 + at] >> part % 2 * 4 & 15) | (block[16 + at] >> part & 1) << 4;
            return { quant * six_bits(block + 4, part, false), six_bits(block + 4, part, true) };
        }
        case GGML_TYPE_Q6_K: {
            const int low = block[64 * half + part % 2 * 32 + at] >> part % 4 / 2 * 4 & 15;
            const int quant = low | (block[128 + 32 * half + at] >> part % 4 * 2 & 3) << 4;
            return { (quant - 32) * (int8_t) block[192 + group], 0 };
        }
        default: return { 0, 0 };
    }
}

} // namespace

size_t k_quant_bytes(ggml_type type) {
    return format(type).bytes;
}

void random_k_quants(ggml_type type, Bytes & bytes, void * to, int64_t blocks) {
    const Format f = format(type);
    for (int64_t b = 0; b < blocks; ++b) {
        uint8_t * block = (uint8_t *) to + b * f.bytes;
        for (size_t i = 0; i < f.bytes; ++i) {
            block[i] = (uint8_t) bytes.random();
        }
        // Random bytes are numbers, if their halves are.
        const uint16_t scale = to_half(bytes.uniform() / 512.0f), least = to_half(bytes.uniform() / 64.0f);
        std::memcpy(block + f.scale, &scale, sizeof scale);
        if (f.has_least) {
            std::memcpy(block + f.scale + 2, &least, sizeof least);
        }
    }
}

std::vector<float> k_quant_numbers(ggml_type type, const void * from, int64_t blocks) {
    const Format       f = format(type);
    std::vector<float> values;
    for (int64_t b = 0; b < blocks; ++b) {
        const uint8_t * block = (const uint8_t *) from + b * f.bytes;
        uint16_t        scale, least = 0;
        std::memcpy(&scale, block + f.scale, sizeof scale);
        if (f.has_least) {
            std::memcpy(&least, block + f.scale + 2, sizeof least);
        }
        for (int64_t i = 0; i < K_QUANTS; ++i) {
            const Element one = element(type, block, i);
            values.push_back(from_half(scale) * (float) one.of_scale - from_half(least) * (float) one.of_least);
        }
    }
    return values;
}

} // namespace check
