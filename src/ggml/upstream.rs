//! Operations that only benchmarks and tests call: ggml's own way of doing what `kernels/` does here.

use super::{Graph, Tensor};
use llama_cpp_sys_2 as sys;

impl<'g> Graph<'g> {
    /// ggml's indexer: scores `[n_kv, n]`; `query` `[D, H, n]`, `keys` `[D, n_kv]`, `weights` `[H, n]`, `mask` f16
    /// `[n_kv, n]`.
    pub fn lightning_indexer(
        &self,
        query: Tensor<'g>,
        keys: Tensor<'g>,
        weights: Tensor<'g>,
        mask: Tensor<'g>,
    ) -> Tensor<'g> {
        let ([d, n_kv, ..], [_, stride, ..]) = (keys.shape(), keys.strides());
        let keys = self.view(keys, [d, 1, n_kv], [stride, stride], 0);
        let (q, k, w, m) = (query.shape(), keys.shape(), weights.shape(), mask.shape());
        let sound = q[0] == k[0] && q[3] == 1 && w == [q[1], q[2], 1, 1] && m == [k[2], q[2], 1, 1];
        let sound = sound && query.ty() == sys::GGML_TYPE_F32 && weights.ty() == sys::GGML_TYPE_F32;
        let sound = sound && mask.ty() == sys::GGML_TYPE_F16;
        self.node("lightning_indexer", sound, &[query, keys, weights, mask], |c| {
            let (q, k) = (query.ptr.as_ptr(), keys.ptr.as_ptr());
            // SAFETY: the sources are alive, and the checks above are those of ggml's own assertions.
            unsafe { sys::ggml_lightning_indexer(c, q, k, weights.ptr.as_ptr(), mask.ptr.as_ptr()) }
        })
    }

    /// ggml's selection: indices `[k, n]` i32 of the k largest of each row, in no order.
    pub fn top_k(&self, x: Tensor<'g>, k: i64) -> Tensor<'g> {
        let sound = x.ty() == sys::GGML_TYPE_F32 && x.is_contiguous() && k > 0 && k <= x.shape()[0];
        // SAFETY: checked.
        let top = self.node("top_k", sound, &[x], |c| unsafe { sys::ggml_top_k(c, x.ptr.as_ptr(), k as i32) });
        self.cont(top)
    }

    /// ggml's choice of experts: indices `[k, n]` i32 of the k largest of each row, largest first, in rows of all indices. The
    /// caller vouches for values that are numbers: the sort runs out of bounds on others.
    pub fn argsort_top_k(&self, x: Tensor<'g>, k: i64) -> Tensor<'g> {
        let sound = x.ty() == sys::GGML_TYPE_F32 && x.is_contiguous() && k > 0 && k <= x.shape()[0];
        // SAFETY: checked.
        self.node("argsort_top_k", sound, &[x], |c| unsafe { sys::ggml_argsort_top_k(c, x.ptr.as_ptr(), k as i32) })
    }

    /// llama.cpp's mask of a selection: `mask` f16 `[n_kv, n]` filled with -inf, zeros scattered to `lists` `[k, n]`, and
    /// `mask` added.
    pub fn scattered_mask(&self, mask: Tensor<'g>, lists: Tensor<'g>) -> Tensor<'g> {
        let ([n_kv, n, ..], [k, rows, ..]) = (mask.shape(), lists.shape());
        let sound = mask.ty() == sys::GGML_TYPE_F16 && lists.ty() == sys::GGML_TYPE_I32 && n == rows;
        self.node("scattered_mask", sound && mask.is_contiguous(), &[mask, lists], |c| {
            // SAFETY: shapes as checked; every view covers its source exactly.
            unsafe {
                let hidden = sys::ggml_fill(c, mask.ptr.as_ptr(), f32::NEG_INFINITY);
                let cells = sys::ggml_reshape_3d(c, hidden, 1, n_kv, n);
                let zeros = sys::ggml_new_tensor_3d(c, sys::GGML_TYPE_F32, 1, k, n);
                let zeros = sys::ggml_fill(c, zeros, 0.0);
                let shown = sys::ggml_set_rows(c, cells, zeros, lists.ptr.as_ptr());
                let shown = sys::ggml_reshape_2d(c, shown, n_kv, n);
                sys::ggml_add(c, shown, mask.ptr.as_ptr())
            }
        })
    }
}
