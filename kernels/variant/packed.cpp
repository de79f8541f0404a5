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
        const ggml_tensor * weight, int64_t at, int64_t begin, int64_t end, const ColumnBlock * const * columns, int64_t n,
        float * const * out) {
    const char * first = (const char *) weight->data + at * weight->nb[2] + begin * weight->nb[1];
    panel_product(weight->type)(first, weight->nb[1], end - begin, weight->ne[0], columns, n, out);
}

} // namespace

int64_t packed_bytes(int type, int64_t K) {
    return panel_product(type) != nullptr ? K / SUPER * (int64_t) sizeof(ColumnBlock) : 0;
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
    multiply(weight, 0, share.begin, share.end, columns, n, out);
}

void experts_inner_packed(ggml_tensor * dst, int ith, int nth, void *) {
    const Packed         packed(dst->src[0]);
    const ggml_tensor *  ids = dst->src[1];
    const ggml_tensor *  gate = dst->src[2];
    const ggml_tensor *  up = dst->src[3];
    const ggml_tensor *  shared_gate = dst->src[4];
    const ggml_tensor *  shared_up = dst->src[5];
    const int64_t        n = ids->ne[1], used = ids->ne[0], blocks = gate->ne[1] / SUPER;
    const int64_t        shared = shared_gate != nullptr ? shared_gate->ne[1] / SUPER : 0;
    const ColumnBlock ** columns = scratch<ColumnsTag, const ColumnBlock *>(MANY);
    float **             gates   = scratch<OutTag, float *>(MANY);
    float **             ups     = scratch<UpTag, float *>(MANY);
    float *              memory  = scratch<ValuesTag>(2 * MANY * SUPER);
    for (int64_t i = 0; i < MANY; ++i) {
        gates[i] = memory + 2 * i * SUPER;
        ups[i]   = gates[i] + SUPER;
    }
    // Work is cut into blocks of a few columns, and each thread has its part of all of them: what is packed together is computed
    // together, and no inner value is ever kept as f32.
    const Share mine(n * used * blocks + n * shared, 1, ith, nth);
    int64_t     before = 0;
    // Places i < count of an expert: row_of(i), and the first of its blocks in that row.
    const auto expert = [&](const ggml_tensor * gate, const ggml_tensor * up, int64_t slice, int64_t blocks, int64_t count,
                            const auto & row_of, const auto & first_of) {
        const int parts = column_parts(count);
        for (int64_t b = 0; b < blocks; ++b) {
            for (int part = 0; part < parts; ++part) {
                const Share   places(count, 1, part, parts);
                const int64_t start = before, some = places.end - places.begin;
                before += some;
                if (start < mine.begin || start >= mine.end) {
                    continue;
                }
                for (int64_t i = 0; i < some; ++i) {
                    columns[i] = packed.column(row_of(places.begin + i));
                }
                multiply(gate, slice, SUPER * b, SUPER * (b + 1), columns, some, gates);
                multiply(up, slice, SUPER * b, SUPER * (b + 1), columns, some, ups);
                for (int64_t i = 0; i < some; ++i) {
                    swiglu(gates[i], ups[i], SUPER);
                    const int64_t at  = places.begin + i;
                    ColumnBlock * row = (ColumnBlock *) ((char *) dst->data + row_of(at) * dst->nb[1]);
                    pack_column(gates[i], SUPER, row + first_of(at) + b);
                }
            }
        }
    };
    for_each_expert((const int32_t *) ids->data, used * n, gate->ne[2], [&](int32_t at, const int32_t * places, int64_t count) {
        expert(gate, up, at, blocks, count, [&](int64_t i) { return places[i] / used; },
               [&](int64_t i) { return places[i] % used * blocks; });
    });
    if (shared > 0) {
        expert(shared_gate, shared_up, 0, shared, n, [](int64_t i) { return i; }, [&](int64_t) { return used * blocks; });
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
        multiply(weight, at, share.begin, share.end, columns, count, out);
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
