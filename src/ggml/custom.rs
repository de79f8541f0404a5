//! Operations of our own (`kernels/`), as nodes of a ggml graph.

use super::{Graph, Tensor, elements, multiplies, ops::rows_are_dense};
use crate::kernels::ffi;
use llama_cpp_sys_2 as sys;

type Body = unsafe extern "C" fn(*mut sys::ggml_tensor, i32, i32, *mut std::ffi::c_void);

const F32: sys::ggml_type = sys::GGML_TYPE_F32;
const I32: sys::ggml_type = sys::GGML_TYPE_I32;
/// ggml's value for "as many tasks as there are threads".
const ALL_THREADS: i32 = -1;

/// Tokens of a call from which every thread of a few has tokens enough to share a pass over the keys.
const TOKENS_PER_THREAD: i64 = 8;
/// Keys of a part of the indexer's work at least.
const KEYS_PER_SPLIT: i64 = 1024;

/// Whether the kernels can read the rows of a 2-D tensor.
fn readable_rows(x: &Tensor<'_>) -> bool {
    rows_are_dense(x) && [F32, sys::GGML_TYPE_F16, sys::GGML_TYPE_Q8_0].contains(&x.ty())
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

    /// As [`Graph::mul_mat`] without repetition, for few columns: each has the bits that it has alone.
    pub fn mul_mat_rows(&self, w: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let (a, b) = (w.shape(), x.shape());
        let sound = a[0] == b[0] && a[2] == b[2] && a[3] == 1 && b[3] == 1 && x.ty() == F32;
        let sound = sound && rows_are_dense(&w) && rows_are_dense(&x) && multiplies(w.ty());
        let shape = [a[1], b[1], b[2]];
        let body = ffi::skippy_op_matmul_rows;
        self.custom("mul_mat_rows", sound, F32, shape, &[w, x], (body, std::ptr::null_mut()))
    }

    /// Experts `[used, n]` i32 of each row, ascending: those of the largest `sigmoid(logit) + bias`, ties to the lowest;
    /// `logits` `[experts, n]`, `bias` `[experts]`.
    pub fn route(&self, logits: Tensor<'g>, bias: Option<Tensor<'g>>, used: i64) -> Tensor<'g> {
        let l = logits.shape();
        let fits = bias.is_none_or(|bias| bias.shape() == [l[0], 1, 1, 1] && bias.ty() == F32 && bias.is_contiguous());
        let sound = fits && used <= l[0] && l[2] == 1 && l[3] == 1 && logits.ty() == F32 && logits.is_contiguous();
        let sources: Vec<_> = [Some(logits), bias].into_iter().flatten().collect();
        let body = ffi::skippy_op_route;
        self.custom("route", sound, I32, [used, l[1], 1], &sources, (body, std::ptr::null_mut()))
    }

    /// First half of the experts of few rows: `silu(gate x) * (up x)` `[used * F + S, n]`, for each expert that `ids`
    /// `[used, n]` names and then for the shared one; `x` `[K, n]`, `routed` two of `[K, F, experts]`, `shared` two of
    /// `[K, S]`. Each row has the bits that it has alone. The caller vouches for ids below the number of experts.
    pub fn experts_inner(
        &self,
        x: Tensor<'g>,
        ids: Tensor<'g>,
        routed: [Tensor<'g>; 2],
        shared: Option<[Tensor<'g>; 2]>,
    ) -> Tensor<'g> {
        let (a, i, f) = (x.shape(), ids.shape(), routed[0].shape());
        let matrix = |w: &Tensor<'g>| w.shape()[0] == a[0] && rows_are_dense(w) && multiplies(w.ty());
        let pair = |[gate, up]: &[Tensor<'g>; 2]| gate.shape() == up.shape() && matrix(gate) && matrix(up);
        let flat = shared.as_ref().is_none_or(|[gate, _]| gate.shape()[2] == 1 && gate.shape()[3] == 1);
        let sound = pair(&routed) && f[3] == 1 && shared.as_ref().is_none_or(pair) && flat;
        let sound = sound && x.ty() == F32 && rows_are_dense(&x) && a[2] == 1 && a[3] == 1;
        let sound = sound && ids.ty() == I32 && ids.is_contiguous() && i == [i[0], a[1], 1, 1];
        let width = i[0].saturating_mul(f[1]).saturating_add(shared.as_ref().map_or(0, |[gate, _]| gate.shape()[1]));
        let sources: Vec<_> = [x, ids].into_iter().chain(routed).chain(shared.into_iter().flatten()).collect();
        let body = ffi::skippy_op_experts_inner;
        self.custom("experts_inner", sound, F32, [width, a[1], 1], &sources, (body, std::ptr::null_mut()))
    }

    /// `silu(gate x) * (up x)` `[F, n]` in one operation; `x` `[K, n]` of any number of rows, `gate` and `up` `[K, F]`. Each
    /// row has the bits that it has alone.
    pub fn glu(&self, x: Tensor<'g>, gate: Tensor<'g>, up: Tensor<'g>) -> Tensor<'g> {
        let (a, f) = (x.shape(), gate.shape());
        let matrix = |w: &Tensor<'g>| w.shape() == [a[0], f[1], 1, 1] && rows_are_dense(w) && multiplies(w.ty());
        let sound = matrix(&gate) && matrix(&up) && x.ty() == F32 && rows_are_dense(&x) && a[2] == 1 && a[3] == 1;
        let body = ffi::skippy_op_glu;
        self.custom("glu", sound, F32, [f[1], a[1], 1], &[x, gate, up], (body, std::ptr::null_mut()))
    }

    /// Second half: `residual` `[N, n]` + the sum of weight * (down `inner`) in the order of `ids` + shared down. A weight is
    /// `sigmoid(logit)`, divided by the sum of the row's weights, or by `least` if that is larger, and scaled; not divided when
    /// `least` is 0.
    pub fn experts_outer(
        &self,
        (inner, ids, logits, residual): (Tensor<'g>, Tensor<'g>, Tensor<'g>, Tensor<'g>),
        down: Tensor<'g>,
        shared: Option<Tensor<'g>>,
        (scale, least): (f32, f32),
    ) -> Tensor<'g> {
        let (h, i, l, r, d) = (inner.shape(), ids.shape(), logits.shape(), residual.shape(), down.shape());
        let matrix = |w: &Tensor<'g>| w.shape()[1] == r[0] && rows_are_dense(w) && multiplies(w.ty());
        let flat =
            shared.as_ref().is_none_or(|shared| matrix(shared) && shared.shape()[2] == 1 && shared.shape()[3] == 1);
        let width = i[0].saturating_mul(d[0]).saturating_add(shared.as_ref().map_or(0, |shared| shared.shape()[0]));
        let sound = matrix(&down) && flat && d[3] == 1 && h == [width, r[1], 1, 1];
        let sound = sound && i == [i[0], r[1], 1, 1] && l == [d[2], r[1], 1, 1] && r[2] == 1 && r[3] == 1;
        let dense = |x: &Tensor<'g>| x.ty() == F32 && x.is_contiguous();
        let sound =
            sound && ids.ty() == I32 && ids.is_contiguous() && dense(&inner) && dense(&logits) && dense(&residual);
        let userdata = self.constants([scale, least]);
        let sources: Vec<_> = [inner, ids, logits, residual, down].into_iter().chain(shared).collect();
        let body = ffi::skippy_op_experts_outer;
        self.custom("experts_outer", sound, F32, [r[0], r[1], 1], &sources, (body, userdata))
    }

    /// As [`Graph::mul_mat`] of matrices without repetition, for many columns: by kernels of our own where they are faster.
    /// Each column has the bits that it has alone, if they are.
    pub fn mul_mat_many(&self, w: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let (a, b) = (w.shape(), x.shape());
        let flat = a[2] == 1 && a[3] == 1 && b[2] == 1 && b[3] == 1 && rows_are_dense(&w) && a[0] == b[0];
        match packed_bytes(w.ty(), a[0]).filter(|_| flat) {
            None => self.mul_mat(w, x),
            Some(bytes) => {
                let packed = self.packed(x, bytes);
                let body = ffi::skippy_op_matmul_packed;
                let sources = [w, packed];
                self.custom("matmul_packed", true, F32, [a[1], b[1], 1], &sources, (body, std::ptr::null_mut()))
            }
        }
    }

    /// Rows `[K, n]` f32 as products want them.
    fn packed(&self, x: Tensor<'g>, bytes: i64) -> Tensor<'g> {
        let sound = x.ty() == F32 && rows_are_dense(&x) && x.shape()[2] == 1 && x.shape()[3] == 1;
        let shape = [bytes, x.shape()[1], 1];
        self.custom("pack", sound, sys::GGML_TYPE_I8, shape, &[x], (ffi::skippy_op_pack, std::ptr::null_mut()))
    }

    /// [`Graph::experts_inner`] and [`Graph::experts_outer`] for many rows, if all weights are of types whose products are
    /// faster here than ggml's: `residual` + routed experts of `x` + the shared expert. Weights are gate, up, down.
    pub fn experts_many(
        &self,
        (x, ids, logits, residual): (Tensor<'g>, Tensor<'g>, Tensor<'g>, Tensor<'g>),
        routed: [Tensor<'g>; 3],
        shared: Option<[Tensor<'g>; 3]>,
        (scale, least): (f32, f32),
    ) -> Option<Tensor<'g>> {
        let ([k, f, e, _], [_, n, ..]) = (routed[0].shape(), x.shape());
        let (used, n_embd) = (ids.shape()[0], residual.shape()[0]);
        let s = shared.map_or(0, |[gate, ..]| gate.shape()[1]);
        let width = used.saturating_mul(f).saturating_add(s);
        // Inner rows are packed whole: each expert's part must be whole blocks by itself.
        let packs = |w: &Tensor<'g>| packed_bytes(w.ty(), w.shape()[0]).is_some() && rows_are_dense(w);
        if !routed.iter().chain(shared.iter().flatten()).all(packs) {
            return None;
        }
        let (of_x, of_inner) = (packed_bytes(routed[0].ty(), k)?, packed_bytes(routed[2].ty(), width)?);
        let flat = |x: &Tensor<'g>, ty, shape| x.ty() == ty && x.shape() == shape && x.is_contiguous();
        let shapes = |[gate, up, down]: [Tensor<'g>; 3], inner, experts| {
            let wide = [k, inner, experts, 1];
            [gate.shape(), up.shape(), down.shape()] == [wide, wide, [inner, n_embd, experts, 1]]
        };
        let sound = x.shape() == [k, n, 1, 1] && flat(&ids, I32, [used, n, 1, 1]);
        let sound = sound && flat(&logits, F32, [e, n, 1, 1]) && flat(&residual, F32, [n_embd, n, 1, 1]);
        let sound = sound && shapes(routed, f, e) && shared.is_none_or(|shared| shapes(shared, s, 1));
        let first = [self.packed(x, of_x), ids, routed[0], routed[1]];
        let first: Vec<_> = first.into_iter().chain(shared.iter().flat_map(|[gate, up, _]| [*gate, *up])).collect();
        let body = (ffi::skippy_op_experts_inner_packed as Body, std::ptr::null_mut());
        let inner = self.custom("experts_inner_packed", sound, sys::GGML_TYPE_I8, [of_inner, n, 1], &first, body);
        let second = [inner, ids, logits, residual, routed[2]];
        let second: Vec<_> = second.into_iter().chain(shared.iter().map(|[.., down]| *down)).collect();
        let body = (ffi::skippy_op_experts_outer_packed as Body, self.constants([scale, least]));
        Some(self.custom("experts_outer_packed", sound, F32, [n_embd, n, 1], &second, body))
    }

    /// Numbers that a body reads, kept while the graph lives.
    fn constants(&self, values: [f32; 2]) -> *mut std::ffi::c_void {
        let mut kept = Box::new(values);
        let userdata = std::ptr::from_mut(&mut *kept).cast();
        self.constants.borrow_mut().push(kept);
        userdata
    }

    /// The indexer: positions `[k, n]` i32, ascending, of the `k` largest scores of the first `visible[t]` keys, where a score
    /// is the sum over heads of weight * relu(query . key); ties to the lowest position; all visible ones, then -1, when
    /// there are no more than `k`. `query` `[D, H, n]`, `keys` `[D, n_kv]` of any cache type, `weights` `[H, n]`, `visible`
    /// `[n]` i32. No matrix of keys and tokens exists at any time.
    pub fn index_select(
        &self,
        query: Tensor<'g>,
        keys: Tensor<'g>,
        weights: Tensor<'g>,
        visible: Tensor<'g>,
        k: i64,
    ) -> Tensor<'g> {
        let (q, c, w) = (query.shape(), keys.shape(), weights.shape());
        let sound = q[0] == c[0] && q[3] == 1 && c[2] == 1 && c[3] == 1 && w == [q[1], q[2], 1, 1];
        let sound = sound && query.ty() == F32 && weights.ty() == F32 && readable_rows(&keys);
        let sound = sound && query.is_contiguous() && weights.is_contiguous() && c[1] <= i64::from(i32::MAX);
        let sound = sound && visible.shape() == [q[2], 1, 1, 1] && visible.ty() == I32 && visible.is_contiguous();
        let sources = [query, keys, weights, visible];
        let splits = splits(i64::from(self.pool), q[2], c[1]);
        let none = std::ptr::null_mut();
        if splits == 1 {
            return self.custom(
                "index_select",
                sound,
                I32,
                [k, q[2], 1],
                &sources,
                (ffi::skippy_op_index_select, none),
            );
        }
        let size = k.saturating_mul(2).saturating_add(2);
        let body = ffi::skippy_op_index_candidates;
        let parts = self.custom("index_candidates", sound, I32, [size, splits, q[2]], &sources, (body, none));
        self.custom("index_merge", true, I32, [k, q[2], 1], &[parts], (ffi::skippy_op_index_merge, none))
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
        let userdata = self.constants([scale, 0.0]);
        let sources = [query, cache, lists];
        let body = ffi::skippy_op_attend_listed;
        self.custom("attend_listed", sound, F32, [v_dim, q[1], q[2]], &sources, (body, userdata))
    }
}

/// Bytes of a packed row of `k` elements for matrices of type `ty`, if products are packed.
fn packed_bytes(ty: sys::ggml_type, k: i64) -> Option<i64> {
    // SAFETY: ggml's type of the table whose blocks the row is made of.
    let block = unsafe { sys::ggml_blck_size(ty) };
    // SAFETY: takes numbers.
    let bytes = unsafe { ffi::skippy_packed_bytes(i32::try_from(ty).unwrap_or(-1), k) };
    (bytes > 0 && block > 0 && k % block == 0).then_some(bytes)
}

/// Parts into which the keys of `n` tokens are cut, so that `threads` threads have work.
fn splits(threads: i64, n: i64, n_kv: i64) -> i64 {
    let groups = (n / TOKENS_PER_THREAD).clamp(1, threads);
    (threads / groups).clamp(1, (n_kv / KEYS_PER_SPLIT).max(1))
}
