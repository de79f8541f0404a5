//! The feed-forward half of one MoE layer, whole and in parts.

use super::{Random, Timed, glm_5_2, timed_values};
use crate::{
    ggml::{Arena, Computer, GgmlError, Leaf, Memory, quantize},
    gguf::GgmlType,
    llama::Threadpool,
    package::synth::Dimensions,
    stage::dsa::{
        DsaStageError, Switches,
        dims::Dims,
        layer::Pass,
        spans::FEW_ROWS,
        weights::{Ffn, Glu},
    },
};
use std::sync::Arc;

/// Width of an expert of GLM-5.2, and of its shared one.
pub const EXPERT_WIDTH: usize = Dimensions::GLM_5_2.n_ff_exp as usize;
/// Type of the shared expert.
const SHARED: GgmlType = GgmlType::Q4_K;
/// Different rows of a weight; the others repeat them in another order, since quantising all would take minutes. Every byte
/// lies in memory of its own.
const POOL_ROWS: usize = 256;

/// Types of the routed projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertTypes {
    /// Of gate and up.
    pub gate_up: GgmlType,
    /// Of down.
    pub down: GgmlType,
}

/// A layer of random weights: 6144 wide, 8 routed experts and a shared one of 2048, which is q4_K.
pub struct ExpertsLayer {
    pub(super) dims: Dims,
    pub(super) norm: Leaf,
    pub(super) ffn: Ffn,
    pub(super) arena: Arena,
    pub(super) computer: Computer,
}

impl ExpertsLayer {
    /// `experts` of them.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(pool: Arc<Threadpool>, experts: usize, types: ExpertTypes) -> Result<Self, DsaStageError> {
        let dims = Dims { experts: experts as i64, ..glm_5_2() };
        let (n_embd, width) = (dims.n_embd as usize, EXPERT_WIDTH);
        let mut random = Random::new(7);
        let mut weight = |ty, shape: [usize; 3]| weight(&mut random, ty, shape);
        let routed = Glu {
            gate: weight(types.gate_up, [n_embd, width, experts])?,
            up: weight(types.gate_up, [n_embd, width, experts])?,
            down: weight(types.down, [width, n_embd, experts])?,
        };
        let shared = Glu {
            gate: weight(SHARED, [n_embd, width, 1])?,
            up: weight(SHARED, [n_embd, width, 1])?,
            down: weight(SHARED, [width, n_embd, 1])?,
        };
        let ffn = Ffn::Experts {
            router: weight(GgmlType::F32, [n_embd, experts, 1])?,
            bias: Some(weight(GgmlType::F32, [experts, 1, 1])?),
            routed,
            shared: Some(shared),
        };
        let mut norm = Memory::zeroed(n_embd * 4)?.leaf(GgmlType::F32, &[n_embd as u64], 0)?;
        norm.write(0, &quantize(GgmlType::F32, n_embd, &vec![1.0; n_embd])?)?;
        let arena = Arena::new(256).for_threads(pool.n_threads());
        Ok(Self { dims, norm, ffn, arena, computer: Computer::new(pool)? })
    }

    /// Bytes of the weights of a layer.
    pub fn bytes(experts: usize, types: ExpertTypes) -> usize {
        let cells = glm_5_2().n_embd as usize * EXPERT_WIDTH;
        let of = |ty: GgmlType, n: usize| ty.tensor_bytes(&[(cells * n) as u64]).unwrap_or(u64::MAX) as usize;
        of(types.gate_up, 2 * experts) + of(types.down, experts) + of(SHARED, 3)
    }

    /// Name of the type of the shared expert.
    pub fn shared_type() -> &'static str {
        SHARED.name()
    }

    /// Model width, and experts that a row uses, the shared one not counted.
    pub fn widths() -> [usize; 2] {
        let dims = glm_5_2();
        [dims.n_embd as usize, dims.experts_used as usize]
    }

    /// By our kernels with `switches`, norm and residual included: rows `[6144, tokens]` out of those that `seed` makes.
    ///
    /// # Errors
    /// When the evaluation fails.
    pub fn ours(&mut self, tokens: usize, seed: u64, switches: Switches) -> Result<Timed<Vec<f32>>, DsaStageError> {
        let rows = self.rows(tokens, seed);
        self.dims.switches = switches;
        let kind = [switches.moe_weighted_down, switches.moe_merged_shared_gate_up].map(usize::from);
        let (g, n) = (self.arena.graph(OURS + kind[0] + 2 * kind[1])?, tokens as i64);
        let few = tokens <= FEW_ROWS;
        let pass = Pass { g: &g, dims: &self.dims, pos: g.input_i32(&vec![0; tokens], [n, 1]), few };
        let out = pass.ffn(g.input_f32(&rows, [self.dims.n_embd, n]), &self.norm, &self.ffn);
        timed_values(&mut self.computer, &g, out)
    }

    /// Hidden rows.
    pub(super) fn rows(&self, tokens: usize, seed: u64) -> Vec<f32> {
        Random::new(seed ^ 0xE).values(tokens * self.dims.n_embd as usize, 1.0)
    }
}

/// Kinds of graphs, see [`Arena::graph`].
pub(super) const UPSTREAM: usize = 0;
pub(super) const PARTS: usize = 1;
const OURS: usize = PARTS + 1 + 5;

/// A random weight `[columns, rows, matrices]`, in memory of its own.
fn weight(random: &mut Random, ty: GgmlType, shape: [usize; 3]) -> Result<Leaf, GgmlError> {
    let [columns, rows, matrices] = shape;
    let bytes = |rows: usize| {
        let bytes = ty.tensor_bytes(&[columns as u64, rows as u64]).and_then(|n| usize::try_from(n).ok());
        bytes.ok_or(GgmlError::Alloc("a weight"))
    };
    let (row, all) = (bytes(1)?, bytes(rows * matrices)?);
    let mut leaf = Memory::zeroed(all)?.leaf(ty, &shape.map(|n| n as u64), 0)?;
    let pool = quantize(ty, columns, &random.values(columns * POOL_ROWS.min(rows * matrices), 0.02))?;
    let n = pool.len() / row;
    // From another row on each time, so that no two experts are alike.
    for (turn, first) in (0..rows * matrices).step_by(n).enumerate() {
        let cut = (turn * 37 % n) * row;
        let (head, tail) = pool.split_at(cut);
        let turned = [tail, head].concat();
        leaf.write(first * row, &turned[..turned.len().min(all - first * row)])?;
    }
    Ok(leaf)
}
