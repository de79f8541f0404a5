// skippy_op_matmul_rows: see skippy_kernels.h.

#include "products.h"
#include "skippy_kernels.h"

using skippy::Columns;
using skippy::Matrix;

namespace {

struct Packed;

constexpr int64_t MOST = 16; // columns at a time

} // namespace

void skippy_op_matmul_rows(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * weight = dst->src[0];
    const ggml_tensor * rows   = dst->src[1];
    const int64_t       K = weight->ne[0], n = rows->ne[1];
    const skippy::Share share = skippy::row_share(weight->ne[1], ith, nth);
    if (share.begin == share.end) {
        return;
    }
    Columns columns(weight->type, K, MOST, skippy::scratch<Packed>(Columns::floats(weight->type, K, MOST)));
    for (int64_t b = 0; b < rows->ne[2]; ++b) {
        for (int64_t first = 0; first < n; first += MOST) {
            const int64_t count = std::min(MOST, n - first);
            int32_t       which[MOST];
            float *       out[MOST];
            for (int64_t c = 0; c < count; ++c) {
                columns.set(c, (const float *) ((const char *) rows->data + b * rows->nb[2] + (first + c) * rows->nb[1]));
                which[c] = (int32_t) c;
                out[c]   = (float *) ((char *) dst->data + b * dst->nb[2] + (first + c) * dst->nb[1]);
            }
            skippy::multiply(Matrix(weight, b), share.begin, share.end, columns, which, count, out);
        }
    }
}
