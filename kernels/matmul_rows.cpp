// skippy_op_matmul_rows: see skippy_kernels.h.
//
// ggml computes one column with the dot product of the weight's type and several columns with blocked kernels that round
// differently. Speculation and batching must not change a greedy answer, so the few rows of decoding lanes and verify
// windows all take the dot product of the single column; a weight row stays in cache for all of them.

#include "rows.h"
#include "skippy_kernels.h"

namespace {

struct Packed;

} // namespace

void skippy_op_matmul_rows(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * weight = dst->src[0];
    const ggml_tensor * rows   = dst->src[1];
    const int64_t       K = weight->ne[0], M = weight->ne[1], n = rows->ne[1], batches = rows->ne[2];

    const ggml_type_traits_cpu * traits = ggml_get_type_traits_cpu(weight->type);
    const ggml_type              packed = traits->vec_dot_type;
    const size_t                 packed_row = ggml_row_size(packed, K);
    const ggml_from_float_t      pack = packed == GGML_TYPE_F32 ? nullptr : ggml_get_type_traits_cpu(packed)->from_float;
    char * columns = pack == nullptr ? nullptr : (char *) skippy::scratch<Packed>((packed_row * n + 3) / sizeof(float));

    const skippy::Share share(M, 1, ith, nth);
    for (int64_t b = 0; b < batches; ++b) {
        const char * x = (const char *) rows->data + b * rows->nb[2];
        if (share.begin == share.end) {
            continue;
        }
        for (int64_t c = 0; pack != nullptr && c < n; ++c) {
            pack((const float *) (x + c * rows->nb[1]), columns + c * packed_row, K);
        }
        const char * w = (const char *) weight->data + b * weight->nb[2];
        for (int64_t m = share.begin; m < share.end; ++m) {
            for (int64_t c = 0; c < n; ++c) {
                float *      out    = (float *) ((char *) dst->data + b * dst->nb[2] + c * dst->nb[1]) + m;
                const char * column = pack == nullptr ? x + c * rows->nb[1] : columns + c * packed_row;
                traits->vec_dot((int) K, out, 0, w + m * weight->nb[1], 0, column, 0, 1);
            }
        }
    }
}
