// Products with many rows that are packed once, by all threads: see skippy_kernels.h. Q4_K only.

#include "blocks_q4.h"
#include "ops.h"
#include "rows.h"

namespace skippy {
namespace SKIPPY_VARIANT {

#ifdef SKIPPY_Q4_AVX2

namespace {

struct ColumnsTag;
struct OutTag;
struct UpTag;
struct ValuesTag;
struct CountsTag;
struct PlacesTag;
struct WeightsTag;

// Packed columns of a tensor [bytes, n].
struct Packed {
    const char * data;
    int64_t      stride;

    explicit Packed(const ggml_tensor * tensor) : data((const char *) tensor->data), stride(tensor->nb[1]) {}

    // Column t, from its block `first` on.
    const ColumnBlock * column(int64_t t, int64_t first = 0) const {
        return (const ColumnBlock *) (data + t * stride) + first;
    }
};

// Rows begin..end of slice `at` of a weight with n columns.
void multiply(
        const ggml_tensor * weight, int64_t at, const Share & rows, const ColumnBlock * const * columns, int64_t n,
        float * const * out) {
    const char * first = (const char *) weight->data + at * weight->nb[2] + rows.begin * weight->nb[1];
    multiply_q4(first, weight->nb[1], rows.end - rows.begin, weight->ne[0] / SUPER, columns, n, out);
}

// The places of `ids` by the expert that they name, each expert's in their order.
struct Buckets {
    const int32_t * places;
    const int32_t * first;  // [E + 1]

    Buckets(const int32_t * ids, int64_t n, int64_t E) {
        int32_t * counts = scratch<CountsTag, int32_t>(E + 1);
        int32_t * sorted = scratch<PlacesTag, int32_t>(n);
        fill(counts, E + 1, 0);
        for (int64_t i = 0; i < n; ++i) {
            ++counts[ids[i]];
        }
        int32_t before = 0;
        for (int64_t e = 0; e <= E; ++e) {
            const int32_t count = counts[e];
            counts[e]           = before;
            before += count;
        }
        for (int64_t i = 0; i < n; ++i) {
            sorted[counts[ids[i]]++] = (int32_t) i;
        }
        // Every count has become the start of the next expert.
        for (int64_t e = E; e > 0; --e) {
            counts[e] = counts[e - 1];
        }
        counts[0] = 0;
        places    = sorted;
        first     = counts;
    }
};

} // namespace

int64_t packed_bytes(int type, int64_t K) {
    return type == GGML_TYPE_Q4_K ? K / SUPER * (int64_t) sizeof(ColumnBlock) : 0;
}

void pack(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * x = dst->src[0];
    const Share         share(x->ne[1], 1, ith, nth);
    for (int64_t t = share.begin; t < share.end; ++t) {
        const float * row = (const float *) ((const char *) x->data + t * x->nb[1]);
        pack_column(row, x->ne[0], (ColumnBlock *) ((char *) dst->data + t * dst->nb[1]));
    }
}

void matmul_packed(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor *  weight = dst->src[0];
    const Packed         packed(dst->src[1]);
    const int64_t        n = dst->ne[1];
    const Share          share = row_share(weight->ne[1], ith, nth);
    const ColumnBlock ** columns = scratch<ColumnsTag, const ColumnBlock *>(n);
    float **             out     = scratch<OutTag, float *>(n);
    for (int64_t t = 0; t < n; ++t) {
        columns[t] = packed.column(t);
        out[t]     = (float *) ((char *) dst->data + t * dst->nb[1]) + share.begin;
    }
    multiply(weight, 0, share, columns, n, out);
}

void experts_inner_packed(ggml_tensor * dst, int ith, int nth, void *) {
    const Packed         packed(dst->src[0]);
    const ggml_tensor *  ids = dst->src[1];
    const ggml_tensor *  gate = dst->src[2];
    const ggml_tensor *  up = dst->src[3];
    const ggml_tensor *  shared_gate = dst->src[4];
    const ggml_tensor *  shared_up = dst->src[5];
    const int64_t        n = ids->ne[1], used = ids->ne[0], F = gate->ne[1], width = dst->ne[0];
    const ColumnBlock ** columns = scratch<ColumnsTag, const ColumnBlock *>(used * n);
    float **             gates   = scratch<OutTag, float *>(used * n);
    float **             ups     = scratch<UpTag, float *>(used * n);

    const auto both = [&](const ggml_tensor * gate, const ggml_tensor * up, int64_t at, const Share & share, int64_t count) {
        const int64_t length = share.end - share.begin;
        float *       memory = scratch<ValuesTag>(count * length);
        for (int64_t i = 0; i < count; ++i) {
            ups[i] = memory + i * length;
        }
        multiply(gate, at, share, columns, count, gates);
        multiply(up, at, share, columns, count, ups);
        for (int64_t i = 0; i < count; ++i) {
            swiglu(gates[i], ups[i], length);
        }
    };
    const Buckets buckets((const int32_t *) ids->data, used * n, gate->ne[2]);
    const Share   share = row_share(F, ith, nth);
    for (int64_t e = 0; e < gate->ne[2]; ++e) {
        const int32_t * places = buckets.places + buckets.first[e];
        const int64_t   count  = buckets.first[e + 1] - buckets.first[e];
        for (int64_t i = 0; i < count; ++i) {
            columns[i] = packed.column(places[i] / used);
            gates[i]   = (float *) dst->data + places[i] / used * width + places[i] % used * F + share.begin;
        }
        both(gate, up, e, share, count);
    }
    if (shared_gate != nullptr) {
        const Share share = row_share(shared_gate->ne[1], ith, nth);
        for (int64_t t = 0; t < n; ++t) {
            columns[t] = packed.column(t);
            gates[t]   = (float *) dst->data + t * width + used * F + share.begin;
        }
        both(shared_gate, shared_up, 0, share, n);
    }
}

void experts_outer_packed(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const Packed         packed(dst->src[0]);
    const ggml_tensor *  ids = dst->src[1];
    const ggml_tensor *  logits = dst->src[2];
    const ggml_tensor *  residual = dst->src[3];
    const ggml_tensor *  down = dst->src[4];
    const ggml_tensor *  shared_down = dst->src[5];
    const float          scale = ((const float *) userdata)[0], lowest = ((const float *) userdata)[1];
    const int64_t        n = ids->ne[1], used = ids->ne[0], N = dst->ne[0], E = logits->ne[0];
    const int64_t        blocks = down->ne[0] / SUPER;
    const Share          share = row_share(N, ith, nth);
    const int64_t        length = share.end - share.begin;
    const ColumnBlock ** columns = scratch<ColumnsTag, const ColumnBlock *>(used * n);
    float **             out     = scratch<OutTag, float *>(used * n);
    float *              weights = scratch<WeightsTag>(used * n);

    for (int64_t t = 0; t < n; ++t) {
        const int32_t * chosen = (const int32_t *) ids->data + t * used;
        const float *   logit  = (const float *) logits->data + t * E;
        float           sum    = 0.0f;
        for (int64_t i = 0; i < used; ++i) {
            weights[t * used + i] = sigmoid(logit[chosen[i]]);
            sum += weights[t * used + i];
        }
        const float divisor = lowest > 0.0f ? (sum < lowest ? lowest : sum) : 1.0f;
        for (int64_t i = 0; i < used; ++i) {
            weights[t * used + i] = weights[t * used + i] / divisor * scale;
        }
        memcpy((float *) dst->data + t * N + share.begin, (const float *) residual->data + t * N + share.begin,
               length * sizeof(float));
    }
    // Adds `count` products, each to its row.
    const auto add = [&](const ggml_tensor * weight, int64_t at, int64_t count, const auto & place_of, const auto & weight_of) {
        float * memory = scratch<ValuesTag>(count * length);
        for (int64_t i = 0; i < count; ++i) {
            out[i] = memory + i * length;
        }
        multiply(weight, at, share, columns, count, out);
        for (int64_t i = 0; i < count; ++i) {
            float *     to     = (float *) dst->data + place_of(i) * N + share.begin;
            const float factor = weight_of(i);
            for (int64_t m = 0; m < length; ++m) {
                to[m] += factor * out[i][m];
            }
        }
    };
    // Ids of a row ascend, so each row adds up its experts in their order.
    const Buckets buckets((const int32_t *) ids->data, used * n, E);
    for (int64_t e = 0; e < E; ++e) {
        const int32_t * places = buckets.places + buckets.first[e];
        const int64_t   count  = buckets.first[e + 1] - buckets.first[e];
        for (int64_t i = 0; i < count; ++i) {
            columns[i] = packed.column(places[i] / used, places[i] % used * blocks);
        }
        add(down, e, count, [&](int64_t i) { return places[i] / used; }, [&](int64_t i) { return weights[places[i]]; });
    }
    if (shared_down != nullptr) {
        for (int64_t t = 0; t < n; ++t) {
            columns[t] = packed.column(t, used * blocks);
        }
        add(shared_down, 0, n, [](int64_t t) { return t; }, [](int64_t) { return 1.0f; });
    }
}

#else

int64_t packed_bytes(int, int64_t) {
    return 0;
}

// Never called: nothing is packed where `packed_bytes` says 0.
void pack(ggml_tensor *, int, int, void *) {}
void matmul_packed(ggml_tensor *, int, int, void *) {}
void experts_inner_packed(ggml_tensor *, int, int, void *) {}
void experts_outer_packed(ggml_tensor *, int, int, void *) {}

#endif

} // namespace SKIPPY_VARIANT
} // namespace skippy
