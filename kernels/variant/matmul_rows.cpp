// skippy_op_matmul_rows: see skippy_kernels.h.

#include "ops.h"
#include "products.h"

namespace skippy {
namespace SKIPPY_VARIANT {

namespace {

struct Packed;

} // namespace

void matmul_rows(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * weight = dst->src[0];
    const ggml_tensor * rows   = dst->src[1];
    const int64_t       K = weight->ne[0], n = rows->ne[1];
    const Share         share = row_share(weight->ne[1], ith, nth);
    if (share.begin == share.end) {
        return;
    }
    Columns columns(weight->type, K, COLUMNS_AT_ONCE, scratch<Packed>(Columns::floats(weight->type, K, COLUMNS_AT_ONCE)));
    for (int64_t b = 0; b < rows->ne[2]; ++b) {
        for (int64_t first = 0; first < n; first += COLUMNS_AT_ONCE) {
            const int64_t count = least(COLUMNS_AT_ONCE, n - first);
            int32_t       which[COLUMNS_AT_ONCE];
            float *       out[COLUMNS_AT_ONCE];
            for (int64_t c = 0; c < count; ++c) {
                columns.set(c, (const float *) ((const char *) rows->data + b * rows->nb[2] + (first + c) * rows->nb[1]));
                which[c] = (int32_t) c;
                out[c]   = (float *) ((char *) dst->data + b * dst->nb[2] + (first + c) * dst->nb[1]);
            }
            multiply(Matrix(weight, b), share.begin, share.end, columns, which, count, out);
        }
    }
}

} // namespace SKIPPY_VARIANT
} // namespace skippy
