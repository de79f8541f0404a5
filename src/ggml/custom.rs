//! Operations of our own (`kernels/`), as nodes of a ggml graph.

use super::{Graph, Tensor, elements, multiplies, ops::rows_are_dense, reads_as_f32};
use crate::kernels::ffi;
use llama_cpp_sys_2 as sys;

type Body = unsafe extern "C" fn(*mut sys::ggml_tensor, i32, i32, *mut std::ffi::c_void);

const F32: sys::ggml_type = sys::GGML_TYPE_F32;
const I32: sys::ggml_type = sys::GGML_TYPE_I32;
/// ggml's value for "as many tasks as there are threads".
const ALL_THREADS: i32 = -1;

/// Whether the kernels can read the rows of a 2-D tensor.
fn readable_rows(x: &Tensor<'_>) -> bool {
    rows_are_dense(x) && reads_as_f32(x.ty())
}

impl<'g> Graph<'g> {
    fn custom(
        &self,
        op: &'static str,
        sound: bool,
        ty: sys::ggml_type,
        shape: [i64; 3],
        sources: &[Tensor<'g>],
        (body, userdata): (Body, *mut std::ffi::c_void),
    ) -> Tensor<'g> {
        let sound = sound && elements(&shape).is_some();
        self.node(op, sound, sources, |ctx| {
            let mut pointers: Vec<_> = sources.iter().map(|source| source.ptr.as_ptr()).collect();
            let (args, n) = (pointers.as_mut_ptr(), pointers.len() as i32);
            // SAFETY: the sources are alive and have the shapes that the body expects (checked by the callers below); the
            // body touches nothing but `dst`, its sources and `userdata`, which the graph owns.
            unsafe {
                sys::ggml_custom_4d(
                    ctx,
                    ty,
                    shape[0],
                    shape[1],
                    shape[2],
                    1,
                    args,
                    n,
                    Some(body),
                    ALL_THREADS,
                    userdata,
                )
            }
        })
    }

    /// As [`Graph::mul_mat`] without repetition, for few columns: each has the bits of a product with it alone.
    pub fn mul_mat_rows(&self, w: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let (a, b) = (w.shape(), x.shape());
        let sound = a[0] == b[0] && a[2] == b[2] && a[3] == 1 && b[3] == 1 && x.ty() == F32;
        let sound = sound && rows_are_dense(&w) && rows_are_dense(&x) && multiplies(w.ty());
        let shape = [a[1], b[1], b[2]];
        let body = ffi::skippy_op_matmul_rows;
        self.custom("mul_mat_rows", sound, F32, shape, &[w, x], (body, std::ptr::null_mut()))
    }

    /// Indexer scores `[n_kv, n]` f32 = sum over heads of weight * relu(query . key); `query` `[D, H, n]`, `keys`
    /// `[D, n_kv]` of any cache type, `weights` `[H, n]`.
    pub fn index(&self, query: Tensor<'g>, keys: Tensor<'g>, weights: Tensor<'g>) -> Tensor<'g> {
        let (q, k, w) = (query.shape(), keys.shape(), weights.shape());
        let sound = q[0] == k[0] && q[3] == 1 && k[2] == 1 && k[3] == 1 && w == [q[1], q[2], 1, 1];
        let sound = sound && query.ty() == F32 && weights.ty() == F32 && readable_rows(&keys);
        let sound = sound && query.is_contiguous() && weights.is_contiguous();
        let sources = [query, keys, weights];
        self.custom("index", sound, F32, [k[1], q[2], 1], &sources, (ffi::skippy_op_index, std::ptr::null_mut()))
    }

    /// Positions `[k, n]` i32, ascending, of the `k` largest of the first `visible[t]` scores of each row; ties to the
    /// lowest position; all visible ones, then -1, when there are no more than `k`.
    pub fn select(&self, scores: Tensor<'g>, visible: Tensor<'g>, k: i64) -> Tensor<'g> {
        let (s, v) = (scores.shape(), visible.shape());
        let sound = v == [s[1], 1, 1, 1] && s[2] == 1 && s[3] == 1 && scores.ty() == F32 && visible.ty() == I32;
        let sound = sound && scores.is_contiguous() && visible.is_contiguous();
        let sources = [scores, visible];
        self.custom("select", sound, I32, [k, s[1], 1], &sources, (ffi::skippy_op_select, std::ptr::null_mut()))
    }

    /// A mask f16 `[n_kv, n]` that shows what `lists` `[k, n]` i32 names.
    pub fn list_mask(&self, lists: Tensor<'g>, n_kv: i64) -> Tensor<'g> {
        let l = lists.shape();
        let sound = lists.ty() == I32 && lists.is_contiguous() && l[2] == 1 && l[3] == 1;
        let body = ffi::skippy_op_list_mask;
        self.custom("list_mask", sound, sys::GGML_TYPE_F16, [n_kv, l[1], 1], &[lists], (body, std::ptr::null_mut()))
    }

    /// Attention `[V, H, n]` f32 of `query` `[W, H, n]` on the rows of `cache` `[W, n_kv]` that `lists` `[k, n]` names,
    /// where they lie; values are the first `v_dim` elements of a row.
    pub fn attend_listed(
        &self,
        query: Tensor<'g>,
        cache: Tensor<'g>,
        lists: Tensor<'g>,
        v_dim: i64,
        scale: f32,
    ) -> Tensor<'g> {
        let (q, c, l) = (query.shape(), cache.shape(), lists.shape());
        let sound = q[0] == c[0] && q[2] == l[1] && v_dim <= q[0] && q[3] == 1 && c[2] == 1 && c[3] == 1 && l[2] == 1;
        let sound = sound && query.ty() == F32 && query.is_contiguous() && lists.ty() == I32 && lists.is_contiguous();
        let sound = sound && readable_rows(&cache);
        let mut kept = Box::new(scale);
        let userdata = std::ptr::from_mut(&mut *kept).cast();
        self.scales.borrow_mut().push(kept);
        let sources = [query, cache, lists];
        let body = ffi::skippy_op_attend_listed;
        self.custom("attend_listed", sound, F32, [v_dim, q[1], q[2]], &sources, (body, userdata))
    }
}
