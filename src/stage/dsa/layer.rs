//! One transformer layer as a graph: MLA in absorbed form, the indexer's keys and queries, dense or routed FFN.

use super::{
    attention::Attention,
    cache::LayerCache,
    dims::Dims,
    spans::{Chunk, SpanPlan, SpanWork, pieces},
    weights::{Ffn, Glu, Indexer, Layer},
};
use crate::{
    ggml::{Graph, Leaf, Tensor},
    package::glm_dsa::INDEXER_NORM_EPS,
};

/// What the layers of a pass share.
pub(super) struct Pass<'a, 'g> {
    pub(super) g: &'a Graph<'g>,
    pub(super) dims: &'a Dims,
    /// Positions `[n]`.
    pub(super) pos: Tensor<'g>,
    /// Few rows: products whose columns have the same bits whatever else is in the pass.
    pub(super) few: bool,
}

/// The selection of each span, for shared layers: one tensor for each chunk of its plan.
pub(super) type Lists<'g> = Vec<Vec<Tensor<'g>>>;

impl<'a, 'g> Pass<'a, 'g> {
    /// weight x columns.
    pub(super) fn mm(&self, w: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
        if self.few { self.g.mul_mat_rows(w, x) } else { self.g.mul_mat_many(w, x) }
    }

    /// Hidden rows `[n_embd, n]` through `layer`. `lists` is replaced on full layers and read on shared ones.
    pub(super) fn layer(
        &self,
        x: Tensor<'g>,
        layer: &'g Layer,
        cache: &'g LayerCache,
        spans: &[SpanPlan<'g>],
        lists: &mut Lists<'g>,
    ) -> Tensor<'g> {
        let g = self.g;
        let normed = g.rms_norm(x, g.leaf(&layer.attn_norm), self.dims.eps);
        self.store(normed, layer, cache, spans.iter().map(|plan| &plan.work));
        self.attend(x, normed, layer, cache, spans, lists)
    }

    /// The layer behind its cache: attention of `normed`, then feed-forward, both added to `x`.
    pub(super) fn attend(
        &self,
        x: Tensor<'g>,
        normed: Tensor<'g>,
        layer: &'g Layer,
        cache: &'g LayerCache,
        spans: &[SpanPlan<'g>],
        lists: &mut Lists<'g>,
    ) -> Tensor<'g> {
        let g = self.g;
        let latent = self.query_latent(normed, layer);
        if let (Some(indexer), Some(keys)) = (&layer.indexer, &cache.keys) {
            *lists = self.select(normed, latent, indexer, g.leaf(keys), spans);
        }
        let attention = Attention { g, dims: self.dims, rows: g.leaf(&cache.rows) };
        let spans = spans.iter().zip(lists.iter());
        let out = if self.few {
            let query = self.query(latent, self.pos, layer);
            let parts = spans.map(|(plan, lists)| {
                let query = g.slices(query, plan.work.first, plan.work.n);
                attention.values(query, plan, lists, &(0..plan.work.n))
            });
            parts.reduce(|all, part| g.concat(all, part, 2)).map(|values| self.project_out(values, layer))
        } else {
            let all = spans.flat_map(|(plan, lists)| pieces(plan.work.n).map(move |rows| (plan, lists, rows)));
            let parts = all.map(|(plan, lists, rows)| {
                let (first, n) = (plan.work.first + rows.start, rows.end - rows.start);
                let query = self.query(g.rows(latent, first, n), g.columns(self.pos, first, n), layer);
                self.project_out(attention.values(query, plan, lists, &rows), layer)
            });
            parts.reduce(|all, part| g.concat(all, part, 1))
        };
        let Some(out) = out else { return x };
        let x = g.add(out, x);
        self.ffn(x, &layer.ffn_norm, &layer.ffn)
    }

    /// Writes the cache rows, and on full layers the indexer keys, of all rows.
    pub(super) fn store<'s>(
        &self,
        normed: Tensor<'g>,
        layer: &'g Layer,
        cache: &'g LayerCache,
        spans: impl Iterator<Item = &'s SpanWork> + Clone,
    ) {
        let (g, d) = (self.g, self.dims);
        let n = normed.shape()[1];
        let kv = self.mm(g.leaf(&layer.kv_a), normed);
        let latent = g.rms_norm(g.columns(kv, 0, d.latent), g.leaf(&layer.kv_a_norm), d.eps);
        let [_, stride, ..] = kv.strides();
        let key = g.view(kv, [d.rope, 1, n], [stride, stride], d.latent as usize * 4);
        let key = g.reshape(g.rope(key, self.pos, &d.rotary), [d.rope, n, 1, 1]);
        let rows = g.concat(latent, key, 0);
        self.store_rows(rows, g.leaf(&cache.rows), spans.clone());
        if let (Some(indexer), Some(keys)) = (&layer.indexer, &cache.keys) {
            let key = self.mm(g.leaf(&indexer.k), normed);
            let key = g.layer_norm(key, g.leaf(&indexer.k_norm), g.leaf(&indexer.k_bias), INDEXER_NORM_EPS);
            let key = g.reshape(key, [d.indexer_dim, 1, n, 1]);
            let key = g.reshape(g.rope(key, self.pos, &d.indexer_rotary), [d.indexer_dim, n, 1, 1]);
            self.store_rows(key, g.leaf(keys), spans);
        }
    }

    fn store_rows<'s>(&self, rows: Tensor<'g>, cache: Tensor<'g>, spans: impl Iterator<Item = &'s SpanWork>) {
        for span in spans {
            let part = self.g.rows(rows, span.first, span.n);
            self.g.store(part, self.g.rows(cache, span.base + span.pos, span.n));
        }
    }

    /// The normed low-rank query `[q_lora, n]`, which attention and indexer share.
    fn query_latent(&self, normed: Tensor<'g>, layer: &'g Layer) -> Tensor<'g> {
        let g = self.g;
        g.rms_norm(self.mm(g.leaf(&layer.q_a), normed), g.leaf(&layer.q_a_norm), self.dims.eps)
    }

    /// Absorbed queries `[latent + rope, heads, n]` of rows at `pos`.
    fn query(&self, latent: Tensor<'g>, pos: Tensor<'g>, layer: &'g Layer) -> Tensor<'g> {
        let (g, d) = (self.g, self.dims);
        let n = latent.shape()[1];
        let q = self.mm(g.leaf(&layer.q_b), latent);
        let (head, all) = ((d.nope + d.rope) as usize * 4, (d.nope + d.rope) as usize * 4 * d.heads as usize);
        let nope = g.view(q, [d.nope, d.heads, n], [head, all], 0);
        let rope = g.view(q, [d.rope, d.heads, n], [head, all], d.nope as usize * 4);
        let rope = g.rope(rope, pos, &d.rotary);
        let absorbed = self.mm(g.leaf(&layer.k_b), g.permute(nope, [0, 2, 1, 3]));
        g.concat(g.permute(absorbed, [0, 2, 1, 3]), rope, 0)
    }

    /// Positions of the largest scores of the indexer for each span's chunks.
    fn select(
        &self,
        normed: Tensor<'g>,
        latent: Tensor<'g>,
        indexer: &'g Indexer,
        keys: Tensor<'g>,
        spans: &[SpanPlan<'g>],
    ) -> Lists<'g> {
        let (g, d) = (self.g, self.dims);
        if spans.iter().all(|plan| plan.chunks.is_empty()) {
            // Every row sees at most top-k rows: nothing to choose, nothing to score.
            return vec![Vec::new(); spans.len()];
        }
        let n = normed.shape()[1];
        let query = self.mm(g.leaf(&indexer.q_b), latent);
        let query = g.reshape(query, [d.indexer_dim, d.indexer_heads, n, 1]);
        let query = g.rope(query, self.pos, &d.indexer_rotary);
        let weights = g.scale(self.mm(g.leaf(&indexer.weights), normed), d.indexer_scale);
        spans.iter().map(|plan| self.lists(query, weights, keys, plan)).collect()
    }

    /// The selection of one span: rotated queries `[D, H, n]` and scaled head weights `[H, n]` of the pass against `keys`.
    pub(super) fn lists(
        &self,
        query: Tensor<'g>,
        weights: Tensor<'g>,
        keys: Tensor<'g>,
        plan: &SpanPlan<'g>,
    ) -> Vec<Tensor<'g>> {
        let g = self.g;
        let list = |chunk: &Chunk<'g>| {
            let first = plan.work.first + chunk.first;
            let keys = g.rows(keys, plan.work.base, chunk.n_kv);
            let (query, weights) = (g.slices(query, first, chunk.n), g.rows(weights, first, chunk.n));
            g.index_select(query, keys, weights, chunk.visible, self.dims.top_k)
        };
        plan.chunks.iter().map(list).collect()
    }

    /// Values in latent space `[latent, heads, n]` back to hidden rows.
    fn project_out(&self, values: Tensor<'g>, layer: &'g Layer) -> Tensor<'g> {
        let (g, d) = (self.g, self.dims);
        let n = values.shape()[2];
        let values = self.mm(g.leaf(&layer.v_b), g.permute(values, [0, 2, 1, 3]));
        let flat = g.reshape(g.cont(g.permute(values, [0, 2, 1, 3])), [d.v_dim * d.heads, n, 1, 1]);
        self.mm(g.leaf(&layer.out), flat)
    }

    /// The second half of a layer, residual included.
    pub(super) fn ffn(&self, x: Tensor<'g>, norm: &'g Leaf, ffn: &'g Ffn) -> Tensor<'g> {
        let g = self.g;
        let normed = g.rms_norm(x, g.leaf(norm), self.dims.eps);
        let out = match ffn {
            Ffn::Dense(glu) => self.dense(normed, glu),
            Ffn::Experts { router, bias, routed, shared } => {
                let bias = bias.as_ref().map(|bias| g.leaf(bias));
                let logits = self.mm(g.leaf(router), normed);
                // Not ggml's sort: scores that are no numbers, as broken weights give, make it run out of bounds.
                let chosen = (logits, g.route(logits, bias, self.dims.experts_used));
                if let Some(out) = self.kernel_experts(x, normed, chosen, routed, shared.as_ref()) {
                    return out;
                }
                let routed = self.experts(normed, chosen, routed);
                match shared {
                    Some(shared) => g.add(routed, self.shared_expert(normed, shared)),
                    None => routed,
                }
            }
        };
        g.add(out, x)
    }

    /// [`Pass::experts`], the shared expert and the residual included, in few operations of our own: of few rows, and of many
    /// where the types of all weights have kernels for that.
    fn kernel_experts(
        &self,
        x: Tensor<'g>,
        normed: Tensor<'g>,
        (logits, ids): (Tensor<'g>, Tensor<'g>),
        routed: &'g Glu,
        shared: Option<&'g Glu>,
    ) -> Option<Tensor<'g>> {
        let (g, d) = (self.g, self.dims);
        let leaves = |glu: &'g Glu| [g.leaf(&glu.gate), g.leaf(&glu.up), g.leaf(&glu.down)];
        let (routed, shared) = (leaves(routed), shared.map(leaves));
        let weights = (d.expert_scale, if d.expert_norm { MIN_WEIGHT_SUM } else { 0.0 });
        if !self.few {
            return g.experts_many((normed, ids, logits, x), routed, shared, weights);
        }
        let ([gate, up, down], shared_inner) = (routed, shared.map(|[gate, up, _]| [gate, up]));
        let inner = g.experts_inner(normed, ids, [gate, up], shared_inner);
        Some(g.experts_outer((inner, ids, logits, x), down, shared.map(|[.., down]| down), weights))
    }

    /// The dense FFN, of a long pass in pieces: three times its width would exist of every row.
    fn dense(&self, x: Tensor<'g>, glu: &'g Glu) -> Tensor<'g> {
        let g = self.g;
        let parts = pieces(x.shape()[1]).map(|rows| self.glu(g.rows(x, rows.start, rows.end - rows.start), glu));
        parts.reduce(|all, part| g.concat(all, part, 1)).unwrap_or(x)
    }

    fn glu(&self, x: Tensor<'g>, glu: &'g Glu) -> Tensor<'g> {
        let g = self.g;
        let inner = g.swiglu(self.mm(g.leaf(&glu.gate), x), self.mm(g.leaf(&glu.up), x));
        self.mm(g.leaf(&glu.down), inner)
    }

    /// The shared expert of many rows.
    fn shared_expert(&self, x: Tensor<'g>, glu: &'g Glu) -> Tensor<'g> {
        let g = self.g;
        if !self.dims.switches.moe_merged_shared_gate_up {
            return self.glu(x, glu);
        }
        self.mm(g.leaf(&glu.down), g.glu(x, g.leaf(&glu.gate), g.leaf(&glu.up)))
    }

    /// Routed experts. The correction bias takes part in the choice only; weights are the plain sigmoid scores of the
    /// chosen experts, normalised and scaled.
    fn experts(&self, x: Tensor<'g>, (logits, ids): (Tensor<'g>, Tensor<'g>), routed: &'g Glu) -> Tensor<'g> {
        let (g, d) = (self.g, self.dims);
        let n = x.shape()[1];
        let weights = route_weights(g, d, g.sigmoid(logits), ids);
        let x = g.reshape(x, [d.n_embd, 1, n, 1]);
        let gate = g.mul_mat_id(g.leaf(&routed.gate), x, ids);
        let up = g.mul_mat_id(g.leaf(&routed.up), x, ids);
        let inner = g.swiglu(gate, up);
        let early = d.switches.moe_weighted_down;
        let inner = if early { g.mul(inner, weights) } else { inner };
        let down = g.mul_mat_id(g.leaf(&routed.down), inner, ids);
        let weighted = if early { down } else { g.mul(down, weights) };
        let sum = sum_of_experts(g, d, weighted);
        if d.experts_used == 1 { g.cont(sum) } else { sum }
    }
}

/// Weights `[1, used, n]` of the experts `ids` `[used, n]`, of their sigmoid `scores` `[experts, n]`.
pub(super) fn route_weights<'g>(g: &Graph<'g>, d: &Dims, scores: Tensor<'g>, ids: Tensor<'g>) -> Tensor<'g> {
    let n = scores.shape()[1];
    let weights = g.get_rows(g.reshape(scores, [1, d.experts, n, 1]), ids);
    let mut weights = g.reshape(weights, [d.experts_used, n, 1, 1]);
    if d.expert_norm {
        let sum = g.at_least(g.sum_rows(weights), MIN_WEIGHT_SUM);
        weights = g.div(weights, sum);
    }
    g.reshape(g.scale(weights, d.expert_scale), [1, d.experts_used, n, 1])
}

/// `values` `[n_embd, used, n]` added up one by one, in the order of the experts: the sum does not depend on the number of rows.
pub(super) fn sum_of_experts<'g>(g: &Graph<'g>, d: &Dims, values: Tensor<'g>) -> Tensor<'g> {
    let n = values.shape()[2];
    let [_, stride, outer, _] = values.strides();
    let one = |i: i64| g.view(values, [d.n_embd, n, 1], [outer, outer * n as usize], i as usize * stride);
    (1..d.experts_used).fold(one(0), |sum, i| g.add(sum, one(i)))
}

/// The smallest sum of expert weights that is divided by: that of the smallest normal half, as the reference has it.
pub(super) const MIN_WEIGHT_SUM: f32 = 6.103_515_6e-5;
