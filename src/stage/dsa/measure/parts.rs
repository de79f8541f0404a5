//! The same half of a layer by ggml's operations in the order of llama.cpp's graph, and both sides part by part.

use super::{
    Random, Timed,
    experts::{EXPERT_WIDTH, ExpertsLayer, PARTS, UPSTREAM},
    timed, timed_values,
};
use crate::{
    ggml::{Graph, Tensor},
    stage::dsa::{
        DsaStageError,
        dims::Dims,
        layer::{MIN_WEIGHT_SUM, route_weights, sum_of_experts},
        spans::FEW_ROWS,
        weights::{Ffn, Glu},
    },
};

/// What a layer's second half consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Scores to experts; upstream computes their weights here, our kernel where it sums.
    Route,
    /// Gate and up of routed and shared experts, and SwiGLU.
    GateUp,
    /// SwiGLU of the routed experts alone.
    Swiglu,
    /// Down of routed and shared experts, their weighted sum, and the residual.
    Down,
    /// The weighted sum alone.
    WeightedSum,
}

impl Part {
    /// All of them, in the order of a layer.
    pub const ALL: [Self; 5] = [Self::Route, Self::GateUp, Self::Swiglu, Self::Down, Self::WeightedSum];

    /// The name in tables.
    pub fn label(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::GateUp => "gate, up, SwiGLU",
            Self::Swiglu => "SwiGLU",
            Self::Down => "down, weighted sum",
            Self::WeightedSum => "weighted sum",
        }
    }
}

/// What a part starts from.
struct Inputs {
    logits: Vec<f32>,
    /// Experts of each row, ascending.
    ids: Vec<i32>,
    /// Their weights.
    weights: Vec<f32>,
    /// What [`Graph::experts_inner`] gives: routed experts, then the shared one.
    inner: Vec<f32>,
}

impl ExpertsLayer {
    /// By ggml's operations, as [`ExpertsLayer::ours`].
    ///
    /// # Errors
    /// When the evaluation fails.
    pub fn upstream(&mut self, tokens: usize, seed: u64) -> Result<Timed<Vec<f32>>, DsaStageError> {
        let rows = self.rows(tokens, seed);
        let Some((router, bias, routed, shared)) = parts(&self.ffn) else { return Err(NOT_EXPERTS.into()) };
        let (g, d) = (self.arena.graph(UPSTREAM)?, &self.dims);
        let x = g.input_f32(&rows, [d.n_embd, tokens as i64]);
        let normed = g.rms_norm(x, g.leaf(&self.norm), d.eps);
        let logits = g.mul_mat(g.leaf(router), normed);
        let (ids, weights) = route(&g, d, logits, g.leaf(bias));
        let column = g.reshape(normed, [d.n_embd, 1, tokens as i64, 1]);
        let up = g.mul_mat_id(g.leaf(&routed.up), column, ids);
        let gate = g.mul_mat_id(g.leaf(&routed.gate), column, ids);
        let down = g.mul_mat_id(g.leaf(&routed.down), g.swiglu(gate, up), ids);
        let sum = weighted_sum(&g, d, down, weights);
        let (up, gate) = (g.mul_mat(g.leaf(&shared.up), normed), g.mul_mat(g.leaf(&shared.gate), normed));
        let shared = g.mul_mat(g.leaf(&shared.down), g.swiglu(gate, up));
        let out = g.add(g.add(sum, shared), x);
        timed_values(&mut self.computer, &g, out)
    }

    /// One part by ggml's operations: values in our kernels' order, experts as numbers.
    ///
    /// # Errors
    /// When the evaluation fails.
    pub fn upstream_part(&mut self, part: Part, tokens: usize, seed: u64) -> Result<Timed<Vec<f32>>, DsaStageError> {
        let (rows, inputs) = (self.rows(tokens, seed), self.inputs(tokens, seed));
        let Some((_, bias, routed, shared)) = parts(&self.ffn) else { return Err(NOT_EXPERTS.into()) };
        let (g, d, n) = (self.arena.graph(PARTS)?, &self.dims, tokens as i64);
        let used = d.experts_used;
        let x = || g.input_f32(&rows, [d.n_embd, n]);
        let ids = || g.input_i32(&inputs.ids, [used, n]);
        let weights = || g.reshape(g.input_f32(&inputs.weights, [used, n]), [1, used, n, 1]);
        let width = inputs.inner.len() as i64 / n;
        let f = EXPERT_WIDTH as i64;
        let routed_inner = |inner| g.view(inner, [f, used, n], [EXPERT_WIDTH * 4, width as usize * 4], 0);
        match part {
            Part::Route => {
                let (ids, weights) = route(&g, d, g.input_f32(&inputs.logits, [d.experts, n]), g.leaf(bias));
                let ids = g.cont(ids);
                g.output(ids);
                g.output(weights);
                timed(&mut self.computer, &g, |done| Ok(ascending(done.i32(ids)?, used as usize)))
            }
            Part::GateUp => {
                let (x, ids) = (x(), ids());
                let column = g.reshape(x, [d.n_embd, 1, n, 1]);
                let up = g.mul_mat_id(g.leaf(&routed.up), column, ids);
                let gate = g.mul_mat_id(g.leaf(&routed.gate), column, ids);
                let inner = g.swiglu(gate, up);
                let (up, gate) = (g.mul_mat(g.leaf(&shared.up), x), g.mul_mat(g.leaf(&shared.gate), x));
                let shared = g.swiglu(gate, up);
                g.output(inner);
                g.output(shared);
                timed(&mut self.computer, &g, |done| {
                    let rows = done.f32(inner)?.chunks(EXPERT_WIDTH * used as usize);
                    Ok(rows.zip(done.f32(shared)?.chunks(EXPERT_WIDTH)).flat_map(|(a, b)| [a, b].concat()).collect())
                })
            }
            Part::Swiglu => {
                let half = g.input_f32(&inputs.inner[..(f * used * n) as usize], [f, used * n]);
                let out = g.swiglu(half, half);
                timed_values(&mut self.computer, &g, out)
            }
            Part::Down => {
                let inner = g.input_f32(&inputs.inner, [width, n]);
                let down = g.mul_mat_id(g.leaf(&routed.down), routed_inner(inner), ids());
                let sum = weighted_sum(&g, d, down, weights());
                let shared = g.mul_mat(g.leaf(&shared.down), g.columns(inner, f * used, f));
                let out = g.add(g.add(sum, shared), x());
                timed_values(&mut self.computer, &g, out)
            }
            Part::WeightedSum => {
                let values = rows.iter().copied().cycle().take((d.n_embd * used * n) as usize).collect::<Vec<_>>();
                let values = g.reshape(g.input_f32(&values, [d.n_embd, used * n]), [d.n_embd, used, n, 1]);
                let out = weighted_sum(&g, d, values, weights());
                timed_values(&mut self.computer, &g, out)
            }
        }
    }

    /// The same part by our kernel. `None` where it has none of its own: inside another part, or for many rows, where only
    /// the choice of experts is ours.
    ///
    /// # Errors
    /// When the evaluation fails.
    pub fn our_part(&mut self, part: Part, tokens: usize, seed: u64) -> Result<Option<Timed<Vec<f32>>>, DsaStageError> {
        if tokens > FEW_ROWS || matches!(part, Part::Swiglu | Part::WeightedSum) {
            return Ok(None);
        }
        let (rows, inputs) = (self.rows(tokens, seed), self.inputs(tokens, seed));
        let Some((_, bias, routed, shared)) = parts(&self.ffn) else { return Err(NOT_EXPERTS.into()) };
        let (g, d, n) = (self.arena.graph(PARTS + 1 + part as usize)?, &self.dims, tokens as i64);
        let logits = g.input_f32(&inputs.logits, [d.experts, n]);
        if part == Part::Route {
            let ids = g.route(logits, Some(g.leaf(bias)), d.experts_used);
            g.output(ids);
            let used = d.experts_used as usize;
            return timed(&mut self.computer, &g, |done| Ok(ascending(done.i32(ids)?, used))).map(Some);
        }
        let (x, ids) = (g.input_f32(&rows, [d.n_embd, n]), g.input_i32(&inputs.ids, [d.experts_used, n]));
        let out = if part == Part::GateUp {
            let routed = [g.leaf(&routed.gate), g.leaf(&routed.up)];
            g.experts_inner(x, ids, routed, Some([g.leaf(&shared.gate), g.leaf(&shared.up)]))
        } else {
            let inner = g.input_f32(&inputs.inner, [inputs.inner.len() as i64 / n, n]);
            let downs = (g.leaf(&routed.down), Some(g.leaf(&shared.down)));
            g.experts_outer((inner, ids, logits, x), downs.0, downs.1, (d.expert_scale, MIN_WEIGHT_SUM))
        };
        timed_values(&mut self.computer, &g, out).map(Some)
    }

    fn inputs(&self, tokens: usize, seed: u64) -> Inputs {
        let (d, mut random) = (&self.dims, Random::new(seed ^ 0x10));
        let (experts, used) = (d.experts as usize, d.experts_used as usize);
        let logits = random.values(tokens * experts, 1.0);
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        for logits in logits.chunks(experts) {
            let mut order: Vec<usize> = (0..experts).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            order.truncate(used);
            order.sort_unstable();
            let scores: Vec<f32> = order.iter().map(|expert| 1.0 / (1.0 + (-logits[*expert]).exp())).collect();
            let sum: f32 = scores.iter().sum();
            weights.extend(scores.iter().map(|score| score / sum * d.expert_scale));
            ids.extend(order.iter().map(|expert| *expert as i32));
        }
        let inner = random.values(tokens * (used + 1) * EXPERT_WIDTH, 1.0);
        Inputs { logits, ids, weights, inner }
    }
}

const NOT_EXPERTS: crate::ggml::GgmlError = crate::ggml::GgmlError::Alloc("experts");

fn parts(ffn: &Ffn) -> Option<(&crate::ggml::Leaf, &crate::ggml::Leaf, &Glu, &Glu)> {
    match ffn {
        Ffn::Experts { router, bias: Some(bias), routed, shared: Some(shared) } => Some((router, bias, routed, shared)),
        _ => None,
    }
}

/// Experts `[used, n]` in the order of their scores, and their weights `[1, used, n]`.
fn route<'g>(g: &Graph<'g>, d: &Dims, logits: Tensor<'g>, bias: Tensor<'g>) -> (Tensor<'g>, Tensor<'g>) {
    let scores = g.sigmoid(logits);
    let ids = g.argsort_top_k(g.add(scores, bias), d.experts_used);
    (ids, route_weights(g, d, scores, ids))
}

/// `values` `[n_embd, used, n]` times their weights, added up.
fn weighted_sum<'g>(g: &Graph<'g>, d: &Dims, values: Tensor<'g>, weights: Tensor<'g>) -> Tensor<'g> {
    sum_of_experts(g, d, g.mul(values, weights))
}

/// The experts of each row in the order of their numbers, as values.
fn ascending(ids: &[i32], used: usize) -> Vec<f32> {
    let row = |row: &[i32]| {
        let mut row = row.to_vec();
        row.sort_unstable();
        row.into_iter().map(|id| id as f32).collect::<Vec<_>>()
    };
    ids.chunks(used).flat_map(row).collect()
}
