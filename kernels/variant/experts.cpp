// Routed experts of few rows: see skippy_kernels.h.

#include "experts.h"
#include "ops.h"
#include "products.h"

namespace skippy {
namespace SKIPPY_VARIANT {

namespace {

struct ScoresTag;
struct UpsTag;
struct DownsTag;
struct PackedTag;
struct SharedTag;
struct WhichTag;
struct OutTag;
struct UpTag;
struct WeightsTag;

// Columns for matrices of several types, packed once for each type.
class Packs {
  public:
    Packs(int64_t K, int64_t n, const float * x, int64_t stride) : K(K), n(n), x(x), stride(stride) {}

    const Columns & of(ggml_type type) {
        for (int i = 0; i < known; ++i) {
            if (types[i] == type) {
                return columns[i];
            }
        }
        static thread_local Array<float> memory[MOST_TYPES];
        const int                        i = known++ % MOST_TYPES;
        types[i]   = type;
        columns[i] = Columns(type, K, n, memory[i].reserve(Columns::floats(type, K, n)));
        for (int64_t c = 0; c < n; ++c) {
            columns[i].set(c, x + c * stride);
        }
        return columns[i];
    }

  private:
    static constexpr int MOST_TYPES = 4; // gate and up, routed and shared
    int64_t              K, n;
    const float *        x;
    int64_t              stride;
    int                  known = 0;
    ggml_type            types[MOST_TYPES];
    Columns              columns[MOST_TYPES];
};

// gates[i] = silu(gate x) * (up x) of column which[i], for the rows of `share` of slice `at` of both weights.
void gate_and_up(
        const ggml_tensor * gate, const ggml_tensor * up, int64_t at, const Share & share, Packs & packs, const int32_t * which,
        int64_t count, float * const * gates) {
    const int64_t length = share.end - share.begin;
    float *       memory = scratch<UpsTag>(count * length);
    float **      ups    = scratch<UpTag, float *>(count);
    for (int64_t i = 0; i < count; ++i) {
        ups[i] = memory + i * length - share.begin;
    }
    multiply(Matrix(gate, at), share.begin, share.end, packs.of(gate->type), which, count, gates);
    multiply(Matrix(up, at), share.begin, share.end, packs.of(up->type), which, count, ups);
    for (int64_t i = 0; i < count; ++i) {
        swiglu(gates[i] + share.begin, ups[i] + share.begin, length);
    }
}

} // namespace

void route(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * logits = dst->src[0];
    const ggml_tensor * bias   = dst->src[1];
    const int64_t       E = logits->ne[0], used = dst->ne[0];
    const Share share(dst->ne[1], 1, ith, nth);
    float *             scores = scratch<ScoresTag>(E);
    for (int64_t t = share.begin; t < share.end; ++t) {
        const float * logit = (const float *) logits->data + t * E;
        int32_t *     ids   = (int32_t *) dst->data + t * used;
        for (int64_t e = 0; e < E; ++e) {
            scores[e] = sigmoid(logit[e]) + (bias != nullptr ? ((const float *) bias->data)[e] : 0.0f);
        }
        // An expert's rank is how many go before it: larger scores, and equal ones of lower number. No number is ranked too.
        int64_t taken = 0;
        for (int64_t e = 0; e < E; ++e) {
            const uint32_t key  = ordered(scores[e]);
            int64_t        rank = 0;
            for (int64_t other = 0; other < E && rank < used; ++other) {
                const uint32_t theirs = ordered(scores[other]);
                rank += theirs > key || (theirs == key && other < e);
            }
            if (rank < used) {
                ids[taken++] = (int32_t) e;
            }
        }
    }
}

void experts_inner(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * x = dst->src[0];
    const ggml_tensor * ids = dst->src[1];
    const ggml_tensor * gate = dst->src[2];
    const ggml_tensor * up = dst->src[3];
    const ggml_tensor * shared_gate = dst->src[4];
    const ggml_tensor * shared_up = dst->src[5];
    const int64_t       n = x->ne[1], used = ids->ne[0], F = gate->ne[1], width = dst->ne[0];

    Packs     packs(x->ne[0], n, (const float *) x->data, x->nb[1] / sizeof(float));
    int32_t * which = scratch<WhichTag, int32_t>(used * n);
    float **  gates = scratch<OutTag, float *>(used * n);
    const Share share = row_share(F, ith, nth);
    if (share.begin < share.end) {
        for_each_expert((const int32_t *) ids->data, used * n, gate->ne[2], [&](int32_t expert, const int32_t * places, int64_t count) {
            for (int64_t i = 0; i < count; ++i) {
                which[i] = places[i] / (int32_t) used;
                gates[i] = (float *) dst->data + places[i] / used * width + places[i] % used * F;
            }
            gate_and_up(gate, up, expert, share, packs, which, count, gates);
        });
    }
    if (shared_gate != nullptr) {
        const Share share = row_share(shared_gate->ne[1], ith, nth);
        for (int64_t t = 0; t < n; ++t) {
            which[t] = (int32_t) t;
            gates[t] = (float *) dst->data + t * width + used * F;
        }
        if (share.begin < share.end) {
            gate_and_up(shared_gate, shared_up, 0, share, packs, which, n, gates);
        }
    }
}

void glu(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * x    = dst->src[0];
    const ggml_tensor * gate = dst->src[1];
    const ggml_tensor * up   = dst->src[2];
    const int64_t       K = x->ne[0], n = x->ne[1];
    const Share         share = row_share(gate->ne[1], ith, nth);
    if (share.begin == share.end) {
        return;
    }
    for (int64_t first = 0; first < n; first += COLUMNS_AT_ONCE) {
        const int64_t count = least(COLUMNS_AT_ONCE, n - first);
        Packs         packs(K, count, (const float *) ((const char *) x->data + first * x->nb[1]), x->nb[1] / sizeof(float));
        int32_t       which[COLUMNS_AT_ONCE];
        float *       gates[COLUMNS_AT_ONCE];
        for (int64_t c = 0; c < count; ++c) {
            which[c] = (int32_t) c;
            gates[c] = (float *) ((char *) dst->data + (first + c) * dst->nb[1]);
        }
        gate_and_up(gate, up, 0, share, packs, which, count, gates);
    }
}

void experts_outer(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const ggml_tensor * inner = dst->src[0];
    const ggml_tensor * ids = dst->src[1];
    const ggml_tensor * logits = dst->src[2];
    const ggml_tensor * residual = dst->src[3];
    const ggml_tensor * down = dst->src[4];
    const ggml_tensor * shared_down = dst->src[5];
    const float         scale = ((const float *) userdata)[0], lowest = ((const float *) userdata)[1];
    const int64_t       n = inner->ne[1], width = inner->ne[0], used = ids->ne[0], F = down->ne[0];
    const int64_t       N = dst->ne[0], E = logits->ne[0];
    const Share         share  = row_share(N, ith, nth);
    const int64_t       length = share.end - share.begin;
    if (length == 0) {
        return;
    }
    // Products of all experts of all rows, then those of the shared one.
    float *    memory = scratch<DownsTag>((used + 1) * n * length);
    int32_t *  which  = scratch<WhichTag, int32_t>(used * n);
    float **   out    = scratch<OutTag, float *>(used * n);
    float *    weights = scratch<WeightsTag>(used);
    const auto place  = [&](int64_t at) { return memory + at * length; };
    Columns    columns(down->type, F, used * n, scratch<PackedTag>(Columns::floats(down->type, F, used * n)));
    for (int64_t at = 0; at < used * n; ++at) {
        columns.set(at, (const float *) inner->data + at / used * width + at % used * F);
    }
    for_each_expert((const int32_t *) ids->data, used * n, E, [&](int32_t expert, const int32_t * places, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
            out[i] = place(places[i]) - share.begin;
        }
        multiply(Matrix(down, expert), share.begin, share.end, columns, places, count, out);
    });
    if (shared_down != nullptr) {
        const int64_t S = shared_down->ne[0];
        Columns       columns(shared_down->type, S, n, scratch<SharedTag>(Columns::floats(shared_down->type, S, n)));
        for (int64_t t = 0; t < n; ++t) {
            columns.set(t, (const float *) inner->data + t * width + used * F);
            which[t] = (int32_t) t;
            out[t]   = place(used * n + t) - share.begin;
        }
        multiply(Matrix(shared_down), share.begin, share.end, columns, which, n, out);
    }
    for (int64_t t = 0; t < n; ++t) {
        const float * logit = (const float *) logits->data + t * E;
        expert_weights(logit, (const int32_t *) ids->data + t * used, used, scale, lowest, weights);
        float *       to   = (float *) dst->data + t * N + share.begin;
        const float * from = (const float *) residual->data + t * N + share.begin;
        for (int64_t i = 0; i < used; ++i) {
            const float   weight = weights[i];
            const float * value  = place(t * used + i);
            for (int64_t m = 0; m < length; ++m) {
                to[m] = i == 0 ? weight * value[m] : to[m] + weight * value[m];
            }
        }
        const float * shared = place(used * n + t);
        for (int64_t m = 0; m < length; ++m) {
            to[m] = (shared_down != nullptr ? to[m] + shared[m] : to[m]) + from[m];
        }
    }
}

} // namespace SKIPPY_VARIANT
} // namespace skippy
