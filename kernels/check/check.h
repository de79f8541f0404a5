// Shapes from foreign bytes, tensors of exactly the memory that they need, and what is compared with what.

#ifndef SKIPPY_CHECK_H
#define SKIPPY_CHECK_H

#include "../dispatch.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace check {

// The bytes of a case, then zeros; and random numbers that depend on all of them.
class Bytes {
  public:
    Bytes(const uint8_t * data, size_t n) : data(data), left(n), state(0x9e3779b97f4a7c15ull) {
        for (size_t i = 0; i < n; ++i) {
            state = (state ^ data[i]) * 0x100000001b3ull;
        }
        state |= 1;
    }

    // A number in low..high.
    int64_t within(int64_t low, int64_t high) {
        uint32_t value = 0;
        for (int i = 0; i < 3; ++i) {
            value = value << 8 | (left > 0 ? (--left, *data++) : 0);
        }
        return low + (int64_t) (value % (uint64_t) (high - low + 1));
    }

    // Mostly one of a few edges, sometimes any number up to the last of them.
    int64_t edge(std::initializer_list<int64_t> edges) {
        const int64_t at = within(0, (int64_t) edges.size());
        return at < (int64_t) edges.size() ? edges.begin()[at] : within(1, *(edges.end() - 1));
    }

    uint64_t random() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    }

    // In -1..1.
    float uniform() { return (float) (random() >> 40) / (float) (1 << 23) - 1.0f; }

  private:
    const uint8_t * data;
    size_t          left;
    uint64_t        state;
};

float    from_half(uint16_t h);
// Towards zero, for numbers that a half can hold.
uint16_t to_half(float x);

constexpr int64_t K_QUANTS = 256; // elements of a block
size_t             k_quant_bytes(ggml_type type);
void               random_k_quants(ggml_type type, Bytes & bytes, void * to, int64_t blocks);
std::vector<float> k_quant_numbers(ggml_type type, const void * from, int64_t blocks);

// A tensor of its own memory, not one byte more.
class Tensor {
  public:
    Tensor(ggml_type type, int64_t a, int64_t b = 1, int64_t c = 1);

    ggml_tensor *       get() { return &tensor; }
    template <typename T> T * data() { return (T *) tensor.data; }
    // Random numbers, as the type stores them; returns what they are.
    std::vector<float> fill(Bytes & bytes, float size = 1.0f);

  private:
    std::unique_ptr<uint8_t[]> memory;
    ggml_tensor                tensor;
};

// A variant that this machine can run.
struct Named {
    const char *            name;
    const skippy::Variant * variant;
};

const std::vector<Named> & variants();

// Runs `op` by as many threads as asked for, one after the other: they must not depend on each other.
void run(skippy::Operation * op, Tensor & dst, std::initializer_list<Tensor *> sources, int threads, void * userdata = nullptr);

// Ends the process with a message unless `holds`.
#define CHECK(holds, ...)                                                                       \
    do {                                                                                        \
        if (!(holds)) {                                                                         \
            std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #holds);                    \
            std::fprintf(stderr, __VA_ARGS__);                                                  \
            std::fprintf(stderr, "\n");                                                         \
            std::abort();                                                                       \
        }                                                                                       \
    } while (false)

void index(Bytes & bytes);
void attend(Bytes & bytes);
void mask(Bytes & bytes);
void products(Bytes & bytes);
void experts(Bytes & bytes);

} // namespace check

#endif
