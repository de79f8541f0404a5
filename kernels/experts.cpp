// Routed experts of few rows: see skippy_kernels.h.

#include "products.h"
#include "skippy_kernels.h"

using skippy::Columns;
using skippy::f32x8;
using skippy::Matrix;

namespace {

struct Scores;
struct Ups;
struct Downs;

float sigmoid(float x) {
    return 1.0f / (1.0f + std::exp(-x));
}

// gate[i] = silu(gate[i]) * up[i] for n elements.
void swiglu(float * gate, const float * up, int64_t n) {
    const auto eight = [](f32x8 g, f32x8 u) {
        const f32x8 one = skippy::splat8(1.0f), zero = {};
        const f32x8 e   = skippy::exp8(g < zero ? g : -g);
        return g * (g < zero ? e : one) / (one + e) * u;
    };
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        skippy::store8(gate + i, eight(skippy::load8(gate + i), skippy::load8(up + i)));
    }
    if (i < n) {
        float g[8] = {}, u[8] = {};
        std::copy(gate + i, gate + n, g);
        std::copy(up + i, up + n, u);
        skippy::store8(g, eight(skippy::load8(g), skippy::load8(u)));
        std::copy(g, g + (n - i), gate + i);
    }
}

// Columns for matrices of several types, packed once for each type.
class Packs {
  public:
    Packs(int64_t K, int64_t n, const float * x, int64_t stride) : K(K), n(n), x(x), stride(stride) {}

    const Columns & of(ggml_type type) {
        for (size_t i = 0; i < known.size(); ++i) {
            if (known[i].first == type) {
                return known[i].second;
            }
        }
        static thread_local std::vector<float> memory[MOST_TYPES];
        std::vector<float> &                   mine = memory[known.size() % MOST_TYPES];
        if (mine.size() < Columns::floats(type, K, n)) {
            mine.resize(Columns::floats(type, K, n));
        }
        known.emplace_back(type, Columns(type, K, n, mine.data()));
        for (int64_t c = 0; c < n; ++c) {
            known.back().second.set(c, x + c * stride);
        }
        return known.back().second;
    }

  private:
    static constexpr size_t                    MOST_TYPES = 4; // gate and up, routed and shared
    int64_t                                    K, n;
    const float *                              x;
    int64_t                                    stride;
    std::vector<std::pair<ggml_type, Columns>> known;
};

// Calls `use(expert, places, n)` for each expert that is used, with the places in `ids` that name it.
template <typename Use> void for_each_expert(const int32_t * ids, int64_t n, Use use) {
    static thread_local std::vector<int32_t> places;
    for (int64_t first = 0; first < n; ++first) {
        if (std::find(ids, ids + first, ids[first]) != ids + first) {
            continue;
        }
        places.clear();
        for (int64_t i = first; i < n; ++i) {
            if (ids[i] == ids[first]) {
                places.push_back((int32_t) i);
            }
        }
        use(ids[first], places);
    }
}

} // namespace

void skippy_op_route(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * logits = dst->src[0];
    const ggml_tensor * bias   = dst->src[1];
    const int64_t       E = logits->ne[0], used = dst->ne[0];
    const skippy::Share share(dst->ne[1], 1, ith, nth);
    float *             scores = skippy::scratch<Scores>(E);
    for (int64_t t = share.begin; t < share.end; ++t) {
        const float * logit = (const float *) logits->data + t * E;
        int32_t *     ids   = (int32_t *) dst->data + t * used;
        for (int64_t e = 0; e < E; ++e) {
            scores[e] = sigmoid(logit[e]) + (bias != nullptr ? ((const float *) bias->data)[e] : 0.0f);
        }
        // An expert's rank is how many go before it: larger scores, and equal ones of lower number. No number is ranked too.
        int64_t taken = 0;
        for (int64_t e = 0; e < E; ++e) {
            const uint32_t key  = skippy::ordered(scores[e]);
            int64_t        rank = 0;
            for (int64_t other = 0; other < E && rank < used; ++other) {
                const uint32_t theirs = skippy::ordered(scores[other]);
                rank += theirs > key || (theirs == key && other < e);
            }
            if (rank < used) {
                ids[taken++] = (int32_t) e;
            }
        }
    }
}

void skippy_op_experts_inner(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * x = dst->src[0];
    const ggml_tensor * ids = dst->src[1];
    const ggml_tensor * gate = dst->src[2];
    const ggml_tensor * up = dst->src[3];
    const ggml_tensor * shared_gate = dst->src[4];
    const ggml_tensor * shared_up = dst->src[5];
    const int64_t       n = x->ne[1], used = ids->ne[0], F = gate->ne[1], width = dst->ne[0];

    Packs                               packs(x->ne[0], n, (const float *) x->data, x->nb[1] / sizeof(float));
    static thread_local std::vector<int32_t> which;
    static thread_local std::vector<float *> gates, ups;
    const auto both = [&](const ggml_tensor * gate, const ggml_tensor * up, int64_t at, const skippy::Share & share) {
        const int64_t count = (int64_t) which.size(), length = share.end - share.begin;
        float *       memory = skippy::scratch<Ups>(count * length);
        ups.clear();
        for (int64_t i = 0; i < count; ++i) {
            ups.push_back(memory + i * length - share.begin);
        }
        const auto times = [&](const ggml_tensor * weight, const std::vector<float *> & out) {
            const Columns & columns = packs.of(weight->type);
            skippy::multiply(Matrix(weight, at), share.begin, share.end, columns, which.data(), count, out.data());
        };
        times(gate, gates);
        times(up, ups);
        for (int64_t i = 0; i < count; ++i) {
            swiglu(gates[i] + share.begin, ups[i] + share.begin, length);
        }
    };
    const skippy::Share share = skippy::row_share(F, ith, nth);
    if (share.begin < share.end) {
        for_each_expert((const int32_t *) ids->data, used * n, [&](int32_t expert, const std::vector<int32_t> & places) {
            which.clear();
            gates.clear();
            for (const int32_t place : places) {
                which.push_back(place / (int32_t) used);
                gates.push_back((float *) dst->data + place / used * width + place % used * F);
            }
            both(gate, up, expert, share);
        });
    }
    if (shared_gate != nullptr) {
        const skippy::Share share = skippy::row_share(shared_gate->ne[1], ith, nth);
        which.clear();
        gates.clear();
        for (int64_t t = 0; t < n; ++t) {
            which.push_back((int32_t) t);
            gates.push_back((float *) dst->data + t * width + used * F);
        }
        if (share.begin < share.end) {
            both(shared_gate, shared_up, 0, share);
        }
    }
}

void skippy_op_experts_outer(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const ggml_tensor * inner = dst->src[0];
    const ggml_tensor * ids = dst->src[1];
    const ggml_tensor * logits = dst->src[2];
    const ggml_tensor * residual = dst->src[3];
    const ggml_tensor * down = dst->src[4];
    const ggml_tensor * shared_down = dst->src[5];
    const float         scale = ((const float *) userdata)[0], least = ((const float *) userdata)[1];
    const int64_t       n = inner->ne[1], width = inner->ne[0], used = ids->ne[0], F = down->ne[0];
    const int64_t       N = dst->ne[0], E = logits->ne[0];
    const skippy::Share share  = skippy::row_share(N, ith, nth);
    const int64_t       length = share.end - share.begin;
    if (length == 0) {
        return;
    }
    // Products of all experts of all rows, then those of the shared one.
    float *                                  memory = skippy::scratch<Downs>((used + 1) * n * length);
    static thread_local std::vector<int32_t> which;
    static thread_local std::vector<float *> out;
    const auto place = [&](int64_t at) { return memory + at * length; };
    const auto multiply = [&](const ggml_tensor * weight, int64_t at, const Columns & columns) {
        const int64_t count = (int64_t) which.size();
        skippy::multiply(Matrix(weight, at), share.begin, share.end, columns, which.data(), count, out.data());
    };
    static thread_local std::vector<float> packed, packed_shared;
    packed.resize(std::max(packed.size(), Columns::floats(down->type, F, used * n)));
    Columns columns(down->type, F, used * n, packed.data());
    for (int64_t at = 0; at < used * n; ++at) {
        columns.set(at, (const float *) inner->data + at / used * width + at % used * F);
    }
    for_each_expert((const int32_t *) ids->data, used * n, [&](int32_t expert, const std::vector<int32_t> & places) {
        which = places;
        out.clear();
        for (const int32_t at : places) {
            out.push_back(place(at) - share.begin);
        }
        multiply(down, expert, columns);
    });
    if (shared_down != nullptr) {
        const int64_t S = shared_down->ne[0];
        packed_shared.resize(std::max(packed_shared.size(), Columns::floats(shared_down->type, S, n)));
        Columns columns(shared_down->type, S, n, packed_shared.data());
        which.clear();
        out.clear();
        for (int64_t t = 0; t < n; ++t) {
            columns.set(t, (const float *) inner->data + t * width + used * F);
            which.push_back((int32_t) t);
            out.push_back(place(used * n + t) - share.begin);
        }
        multiply(shared_down, 0, columns);
    }
    for (int64_t t = 0; t < n; ++t) {
        const int32_t * chosen = (const int32_t *) ids->data + t * used;
        const float *   logit  = (const float *) logits->data + t * E;
        float           sum    = 0.0f;
        for (int64_t i = 0; i < used; ++i) {
            sum += sigmoid(logit[chosen[i]]);
        }
        const float   divisor = least > 0.0f ? (sum < least ? least : sum) : 1.0f;
        float *       to      = (float *) dst->data + t * N + share.begin;
        const float * from    = (const float *) residual->data + t * N + share.begin;
        for (int64_t i = 0; i < used; ++i) {
            const float   weight = sigmoid(logit[chosen[i]]) / divisor * scale;
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
