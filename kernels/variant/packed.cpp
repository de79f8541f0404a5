// Products with many rows that are packed once, by all threads: see skippy_kernels.h. K-quants only.

#include "experts.h"
#include "ops.h"
#include "panels.h"

namespace skippy {
namespace SKIPPY_VARIANT {

#ifdef SKIPPY_AVX2

namespace {

struct ColumnsTag;
struct OutTag;
struct UpTag;
struct ValuesTag;
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
    multiply_panels(weight->type, first, weight->nb[1], rows.end - rows.begin, weight->ne[0], columns, n, out);
}

} // namespace

int64_t packed_bytes(int type, int64_t K) {
    return is_paneled(type) ? K / SUPER * (int64_t) sizeof(ColumnBlock) : 0;
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
    const Share share = row_share(F, ith, nth);
    for_each_expert((const int32_t *) ids->data, used * n, gate->ne[2], [&](int32_t expert, const int32_t * places, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
            columns[i] = packed.column(places[i] / used);
            gates[i]   = (float *) dst->data + places[i] / used * width + places[i] % used * F + share.begin;
        }
        both(gate, up, expert, share, count);
    });
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
        const float * logit = (const float *) logits->data + t * E;
        expert_weights(logit, (const int32_t *) ids->data + t * used, used, scale, lowest, weights + t * used);
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
    for_each_expert((const int32_t *) ids->data, used * n, E, [&](int32_t expert, const int32_t * places, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
            columns[i] = packed.column(places[i] / used, places[i] % used * blocks);
        }
        add(down, expert, count, [&](int64_t i) { return places[i] / used; }, [&](int64_t i) { return weights[places[i]]; });
    });
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
