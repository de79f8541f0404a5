//! The operations of ggml that the graphs here use, each with the checks that ggml would abort on.

use super::{Graph, Tensor, elements, multiplies, reads_as_f32, written_from_f32};
use llama_cpp_sys_2 as sys;

/// Rotary embedding of a model (RoPE; YaRN when `ext_factor` is above 0).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Dimensions that are rotated, the first ones of a head. Even.
    pub n_dims: i32,
    /// Whether dimension `i` is paired with `i + n_dims / 2` (half-split) instead of `i + 1` (interleaved).
    pub half_split: bool,
    /// Context length that the model was first trained on.
    pub n_ctx_orig: i32,
    /// Base of the angles.
    pub freq_base: f32,
    /// One over the context extension factor.
    pub freq_scale: f32,
    /// YaRN: weight of the extrapolation mix; 0 is off.
    pub ext_factor: f32,
    /// Factor of the rotated vector's length.
    pub attn_factor: f32,
    /// YaRN: upper edge of the ramp.
    pub beta_fast: f32,
    /// YaRN: lower edge of the ramp.
    pub beta_slow: f32,
}

const F32: sys::ggml_type = sys::GGML_TYPE_F32;
const I32: sys::ggml_type = sys::GGML_TYPE_I32;

/// Whether `b` can be repeated to the shape of `a` and combined with it, element by element.
fn pairs(a: &Tensor<'_>, b: &Tensor<'_>) -> bool {
    let repeats = a.shape().iter().zip(b.shape()).all(|(a, b)| a % b == 0);
    repeats && a.ty() == F32 && b.ty() == F32 && rows_are_dense(a)
}

/// Whether the elements of a row are neighbours.
pub(super) fn rows_are_dense(x: &Tensor<'_>) -> bool {
    // SAFETY: a plain number.
    x.strides()[0] == unsafe { sys::ggml_type_size(x.ty()) }
}

/// Whether single elements can be moved: not those of quantised blocks.
fn is_scalar(x: &Tensor<'_>) -> bool {
    // SAFETY: a plain number.
    unsafe { sys::ggml_blck_size(x.ty()) == 1 }
}

impl<'g> Graph<'g> {
    /// `[M, n, ..]` = weight `[K, M, ..]` x columns `[K, n, ..]` f32; outer dimensions of the weight repeat.
    pub fn mul_mat(&self, w: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let (a, b) = (w.shape(), x.shape());
        let sound = a[0] == b[0] && b[2] % a[2] == 0 && b[3] % a[3] == 0 && x.ty() == F32;
        let sound = sound && w.strides()[0] <= w.strides()[1] && rows_are_dense(&w) && rows_are_dense(&x);
        let sound = sound && multiplies(w.ty());
        // SAFETY: here and below: sources are alive, and the checks above are those of ggml's own assertions.
        self.node("mul_mat", sound, &[w, x], |c| unsafe { sys::ggml_mul_mat(c, w.ptr.as_ptr(), x.ptr.as_ptr()) })
    }

    /// Expert product: `[M, n_used, n]` = experts `[K, M, n_expert]` chosen by `ids` `[n_used, n]` i32, times columns
    /// `[K, n_used or 1, n]`. The caller vouches for ids below `n_expert`.
    pub fn mul_mat_id(&self, experts: Tensor<'g>, x: Tensor<'g>, ids: Tensor<'g>) -> Tensor<'g> {
        let (e, b, i) = (experts.shape(), x.shape(), ids.shape());
        let sound = e[0] == b[0] && e[3] == 1 && b[3] == 1 && i[2] == 1 && i[3] == 1 && i[1] == b[2];
        let sound = sound && i[0] % b[1] == 0 && ids.ty() == I32 && x.ty() == F32 && multiplies(experts.ty());
        let sound = sound && experts.strides()[0] <= experts.strides()[1] && rows_are_dense(&experts);
        let sound = sound && rows_are_dense(&x);
        self.node("mul_mat_id", sound, &[experts, x, ids], |c| {
            // SAFETY: checked.
            unsafe { sys::ggml_mul_mat_id(c, experts.ptr.as_ptr(), x.ptr.as_ptr(), ids.ptr.as_ptr()) }
        })
    }

    /// Rows of `[n, rows, ..]` by `ids` i32, as f32 `[n, ids..]`. The caller vouches for ids inside the table.
    pub fn get_rows(&self, table: Tensor<'g>, ids: Tensor<'g>) -> Tensor<'g> {
        let (a, b) = (table.shape(), ids.shape());
        let sound = a[2] == b[1] && a[3] == b[2] && b[3] == 1 && ids.ty() == I32;
        let sound = sound && rows_are_dense(&table) && reads_as_f32(table.ty());
        self.node("get_rows", sound, &[table, ids], |c| {
            // SAFETY: checked.
            unsafe { sys::ggml_get_rows(c, table.ptr.as_ptr(), ids.ptr.as_ptr()) }
        })
    }

    /// `a + b`, `b` repeating.
    pub fn add(&self, a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
        let sound = pairs(&a, &b);
        // SAFETY: checked.
        self.node("add", sound, &[a, b], |c| unsafe { sys::ggml_add(c, a.ptr.as_ptr(), b.ptr.as_ptr()) })
    }

    /// `a * b`, `b` repeating.
    pub fn mul(&self, a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
        let sound = pairs(&a, &b);
        // SAFETY: checked.
        self.node("mul", sound, &[a, b], |c| unsafe { sys::ggml_mul(c, a.ptr.as_ptr(), b.ptr.as_ptr()) })
    }

    /// `a / b`, `b` repeating.
    pub fn div(&self, a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
        let sound = pairs(&a, &b);
        // SAFETY: checked.
        self.node("div", sound, &[a, b], |c| unsafe { sys::ggml_div(c, a.ptr.as_ptr(), b.ptr.as_ptr()) })
    }

    /// `a * factor`.
    pub fn scale(&self, a: Tensor<'g>, factor: f32) -> Tensor<'g> {
        let sound = a.ty() == F32 && a.is_contiguous();
        // SAFETY: checked.
        self.node("scale", sound, &[a], |c| unsafe { sys::ggml_scale(c, a.ptr.as_ptr(), factor) })
    }

    /// Values raised to at least `low`, in place.
    pub fn at_least(&self, a: Tensor<'g>, low: f32) -> Tensor<'g> {
        let sound = a.ty() == F32 && a.is_contiguous();
        // SAFETY: checked.
        self.node("clamp", sound, &[a], |c| unsafe { sys::ggml_clamp(c, a.ptr.as_ptr(), low, f32::INFINITY) })
    }

    /// Root-mean-square norm of each row, times `weight`.
    pub fn rms_norm(&self, x: Tensor<'g>, weight: Tensor<'g>, eps: f32) -> Tensor<'g> {
        let sound = x.ty() == F32 && rows_are_dense(&x);
        // SAFETY: checked.
        let norm = self.node("rms_norm", sound, &[x], |c| unsafe { sys::ggml_rms_norm(c, x.ptr.as_ptr(), eps) });
        self.mul(norm, weight)
    }

    /// Layer norm of each row, times `weight`, plus `bias`.
    pub fn layer_norm(&self, x: Tensor<'g>, weight: Tensor<'g>, bias: Tensor<'g>, eps: f32) -> Tensor<'g> {
        let sound = x.ty() == F32 && rows_are_dense(&x);
        // SAFETY: checked.
        let norm = self.node("norm", sound, &[x], |c| unsafe { sys::ggml_norm(c, x.ptr.as_ptr(), eps) });
        self.add(self.mul(norm, weight), bias)
    }

    /// Rotates the first dimensions of each head of `x` `[head, n_head, n]` by positions `pos` `[n]` i32.
    pub fn rope(&self, x: Tensor<'g>, pos: Tensor<'g>, rope: &Rope) -> Tensor<'g> {
        let (a, p) = (x.shape(), pos.shape());
        let sound = p[0] == a[2] && p[1] == 1 && pos.ty() == I32 && x.ty() == F32 && rows_are_dense(&x);
        let sound = sound && rope.n_dims > 0 && rope.n_dims % 2 == 0 && i64::from(rope.n_dims) <= a[0] && a[3] == 1;
        let mode = if rope.half_split { sys::LLAMA_ROPE_TYPE_NEOX } else { 0 };
        self.node("rope", sound, &[x, pos], |c| {
            // SAFETY: checked; no frequency factors.
            unsafe {
                sys::ggml_rope_ext(
                    c,
                    x.ptr.as_ptr(),
                    pos.ptr.as_ptr(),
                    std::ptr::null_mut(),
                    rope.n_dims,
                    mode,
                    rope.n_ctx_orig,
                    rope.freq_base,
                    rope.freq_scale,
                    rope.ext_factor,
                    rope.attn_factor,
                    rope.beta_fast,
                    rope.beta_slow,
                )
            }
        })
    }

    /// `silu(gate) * up`.
    pub fn swiglu(&self, gate: Tensor<'g>, up: Tensor<'g>) -> Tensor<'g> {
        let sound = gate.shape() == up.shape() && gate.ty() == F32 && up.ty() == F32;
        let sound = sound && gate.is_contiguous() && up.is_contiguous();
        self.node("swiglu", sound, &[gate, up], |c| {
            // SAFETY: checked.
            unsafe { sys::ggml_swiglu_split(c, gate.ptr.as_ptr(), up.ptr.as_ptr()) }
        })
    }

    /// `1 / (1 + exp(-x))`.
    pub fn sigmoid(&self, x: Tensor<'g>) -> Tensor<'g> {
        let sound = x.ty() == F32 && x.is_contiguous();
        // SAFETY: checked.
        self.node("sigmoid", sound, &[x], |c| unsafe { sys::ggml_sigmoid(c, x.ptr.as_ptr()) })
    }

    /// Sum of each row, `[1, n, ..]`.
    pub fn sum_rows(&self, x: Tensor<'g>) -> Tensor<'g> {
        let sound = x.ty() == F32 && rows_are_dense(&x);
        // SAFETY: checked.
        self.node("sum_rows", sound, &[x], |c| unsafe { sys::ggml_sum_rows(c, x.ptr.as_ptr()) })
    }

    /// The same data as one of another shape. Unused dimensions are 1.
    pub fn reshape(&self, x: Tensor<'g>, shape: [i64; 4]) -> Tensor<'g> {
        let sound = x.is_contiguous() && elements(&shape) == Some(x.n_elements());
        self.node("reshape", sound, &[x], |c| {
            // SAFETY: checked.
            unsafe { sys::ggml_reshape_4d(c, x.ptr.as_ptr(), shape[0], shape[1], shape[2], shape[3]) }
        })
    }

    /// A window on `x`: `shape`, the strides of dimensions 1 and 2, and where it starts, in bytes.
    pub fn view(&self, x: Tensor<'g>, shape: [i64; 3], strides: [usize; 2], offset: usize) -> Tensor<'g> {
        let sound = elements(&shape).is_some() && self.view_fits(x, shape, strides, offset);
        self.node("view", sound, &[x], |c| {
            // SAFETY: checked.
            unsafe {
                sys::ggml_view_3d(c, x.ptr.as_ptr(), shape[0], shape[1], shape[2], strides[0], strides[1], offset)
            }
        })
    }

    fn view_fits(&self, x: Tensor<'g>, shape: [i64; 3], strides: [usize; 2], offset: usize) -> bool {
        // SAFETY: plain numbers; the block size of a type is not 0.
        let (block, row, held) = unsafe {
            let block = sys::ggml_blck_size(x.ty());
            (block, sys::ggml_row_size(x.ty(), shape[0] - shape[0] % block), sys::ggml_nbytes(x.ptr.as_ptr()))
        };
        let steps = |n: i64, stride: usize| stride.checked_mul((n - 1) as usize);
        let end = || {
            offset
                .checked_add(row)?
                .checked_add(steps(shape[1], strides[0])?)?
                .checked_add(steps(shape[2], strides[1])?)
        };
        // ggml also wants the dense size of the view to fit.
        let rows = (shape[1] as usize).checked_mul(shape[2] as usize);
        let dense = rows.and_then(|n| row.checked_mul(n)).and_then(|n| n.checked_add(offset));
        shape[0] % block == 0 && end().is_some_and(|end| end <= held) && dense.is_some_and(|end| end <= held)
    }

    /// Columns `from..from + n` of each row of a 2-D or 3-D tensor.
    pub fn columns(&self, x: Tensor<'g>, from: i64, n: i64) -> Tensor<'g> {
        let ([_, rows, outer, _], [_, nb1, nb2, _]) = (x.shape(), x.strides());
        // SAFETY: a plain number.
        let block = unsafe { sys::ggml_blck_size(x.ty()) };
        if from % block != 0 || from < 0 {
            return self.node("columns", false, &[x], |_| std::ptr::null_mut());
        }
        // SAFETY: a plain number.
        let offset = unsafe { sys::ggml_row_size(x.ty(), from) };
        self.view(x, [n, rows, outer], [nb1, nb2], offset)
    }

    /// The first `n` columns of each row, all other dimensions as they are.
    pub fn prefix(&self, x: Tensor<'g>, n: i64) -> Tensor<'g> {
        let ([width, b, c, d], [_, nb1, nb2, nb3]) = (x.shape(), x.strides());
        // SAFETY: a plain number.
        let block = unsafe { sys::ggml_blck_size(x.ty()) };
        let sound = n > 0 && n <= width && n % block == 0 && width % block == 0;
        self.node("prefix", sound, &[x], |ctx| {
            // SAFETY: checked: each row of the view lies inside a row of `x`, and its dense size is smaller.
            unsafe { sys::ggml_view_4d(ctx, x.ptr.as_ptr(), n, b, c, d, nb1, nb2, nb3, 0) }
        })
    }

    /// Rows `from..from + n` of a 2-D tensor.
    pub fn rows(&self, x: Tensor<'g>, from: i64, n: i64) -> Tensor<'g> {
        let ([width, ..], [_, nb1, ..]) = (x.shape(), x.strides());
        let offset = usize::try_from(from).unwrap_or(usize::MAX).saturating_mul(nb1);
        let stride = nb1.saturating_mul(usize::try_from(n).unwrap_or(0));
        self.view(x, [width, n, 1], [nb1, stride], offset)
    }

    /// Slices `from..from + n` of the third dimension of a dense tensor.
    pub fn slices(&self, x: Tensor<'g>, from: i64, n: i64) -> Tensor<'g> {
        let ([a, b, ..], [_, nb1, nb2, _]) = (x.shape(), x.strides());
        let offset = usize::try_from(from).unwrap_or(usize::MAX).saturating_mul(nb2);
        self.view(x, [a, b, n], [nb1, nb2], offset)
    }

    /// Dimensions in another order: dimension `i` goes to place `axes[i]`.
    pub fn permute(&self, x: Tensor<'g>, axes: [i32; 4]) -> Tensor<'g> {
        let mut sorted = axes;
        sorted.sort_unstable();
        // Elements of a block cannot go apart.
        let sound = sorted == [0, 1, 2, 3] && (axes[0] == 0 || is_scalar(&x));
        self.node("permute", sound, &[x], |c| {
            // SAFETY: checked.
            unsafe { sys::ggml_permute(c, x.ptr.as_ptr(), axes[0], axes[1], axes[2], axes[3]) }
        })
    }

    /// A dense copy.
    pub fn cont(&self, x: Tensor<'g>) -> Tensor<'g> {
        // SAFETY: any tensor can be copied.
        self.node("cont", true, &[x], |c| unsafe { sys::ggml_cont(c, x.ptr.as_ptr()) })
    }

    /// `a` and `b` side by side in dimension `dim`.
    pub fn concat(&self, a: Tensor<'g>, b: Tensor<'g>, dim: usize) -> Tensor<'g> {
        let pairs = a.shape().into_iter().zip(b.shape()).enumerate();
        let sound =
            dim < 4 && a.ty() == b.ty() && is_scalar(&a) && pairs.into_iter().all(|(i, (x, y))| i == dim || x == y);
        self.node("concat", sound, &[a, b], |c| {
            // SAFETY: checked.
            unsafe { sys::ggml_concat(c, a.ptr.as_ptr(), b.ptr.as_ptr(), dim as i32) }
        })
    }

    /// Writes `x` into `to`, converting to its type, and makes that part of the evaluation.
    pub fn store(&self, x: Tensor<'g>, to: Tensor<'g>) {
        let sound = x.shape() == to.shape() && x.ty() == F32 && x.is_contiguous() && to.is_contiguous();
        let sound = sound && written_from_f32(to.ty());
        let node = self.node("store", sound, &[x, to], |c| {
            // SAFETY: checked.
            unsafe { sys::ggml_cpy(c, x.ptr.as_ptr(), to.ptr.as_ptr()) }
        });
        self.keep(node);
    }

    /// Softmax of each row of `scale * x + mask`. `mask` f32 or f16 `[n, rows, ..]` repeats over outer dimensions.
    pub fn softmax(&self, x: Tensor<'g>, mask: Option<Tensor<'g>>, scale: f32) -> Tensor<'g> {
        let fits = mask.is_none_or(|mask| {
            let (a, m) = (x.shape(), mask.shape());
            let ty = mask.ty() == F32 || mask.ty() == sys::GGML_TYPE_F16;
            ty && mask.is_contiguous() && m[0] == a[0] && m[1] >= a[1] && a[2] % m[2] == 0 && a[3] % m[3] == 0
        });
        let sound = x.ty() == F32 && x.is_contiguous() && fits;
        let mask_ptr = mask.map_or(std::ptr::null_mut(), |mask| mask.ptr.as_ptr());
        let sources: Vec<_> = [Some(x), mask].into_iter().flatten().collect();
        self.node("softmax", sound, &sources, |c| {
            // SAFETY: checked.
            unsafe { sys::ggml_soft_max_ext(c, x.ptr.as_ptr(), mask_ptr, scale, 0.0) }
        })
    }

    /// Flash attention: `[V, q heads, n, b]` = softmax(scale * q . k + mask) v, for `q` `[W, n, heads, b]` f32, `k`
    /// `[W, n_kv, 1, b]`, `v` `[V, n_kv, 1, b]`, `mask` f16 `[n_kv, n]`.
    pub fn flash_attention(
        &self,
        q: Tensor<'g>,
        k: Tensor<'g>,
        v: Tensor<'g>,
        mask: Option<Tensor<'g>>,
        scale: f32,
    ) -> Tensor<'g> {
        let (a, b, d) = (q.shape(), k.shape(), v.shape());
        let dense = rows_are_dense(&q) && rows_are_dense(&k) && rows_are_dense(&v);
        let sound = a[0] == b[0] && b[1] == d[1] && b[2] == d[2] && a[2] % b[2] == 0 && q.ty() == F32 && dense;
        let sound = sound && a[3] == b[3] && a[3] == d[3] && k.ty() == v.ty();
        let sound = sound && multiplies(k.ty()) && reads_as_f32(v.ty());
        let masked = mask.is_none_or(|mask| {
            let m = mask.shape();
            mask.ty() == sys::GGML_TYPE_F16 && mask.is_contiguous() && m == [b[1], a[1], 1, 1]
        });
        let mask_ptr = mask.map_or(std::ptr::null_mut(), |mask| mask.ptr.as_ptr());
        let sources: Vec<_> = [Some(q), Some(k), Some(v), mask].into_iter().flatten().collect();
        self.node("flash_attention", sound && masked, &sources, |c| {
            // SAFETY: checked.
            unsafe {
                let (q, k, v) = (q.ptr.as_ptr(), k.ptr.as_ptr(), v.ptr.as_ptr());
                sys::ggml_flash_attn_ext(c, q, k, v, mask_ptr, scale, 0.0, 0.0)
            }
        })
    }
}
