//! The layer of a large model piece by piece, by our kernels and by ggml's own operations: what `skippy-stage bench
//! phase-e` times and compares.

mod attention;
mod experts;
mod parts;
mod upstream;

pub use attention::{AttentionLayer, Shape, Variant};
pub use experts::{EXPERT_WIDTH, ExpertTypes, ExpertsLayer};
pub use parts::Part;

use super::{DsaStageError, Switches, dims::Dims};
use crate::{
    ggml::{Computer, Evaluated, GgmlError, Graph, Rope, Tensor},
    package::synth::Dimensions,
};
use std::time::{Duration, Instant};

/// A result, and what it took to compute: graphs are built before the clock starts.
pub struct Timed<T> {
    /// The result.
    pub value: T,
    /// Evaluation, inputs written included.
    pub took: Duration,
    /// Operations of the graph: what does not change them, nor the result, changes nothing.
    pub operations: usize,
}

/// Evaluates `g` and takes what `read` finds in it.
fn timed<'a, T>(
    computer: &'a mut Computer,
    g: &'a Graph<'_>,
    read: impl FnOnce(&Evaluated<'a>) -> Result<T, GgmlError>,
) -> Result<Timed<T>, DsaStageError> {
    let start = Instant::now();
    let done = computer.run(g)?;
    let took = start.elapsed();
    Ok(Timed { value: read(&done)?, took, operations: g.len() })
}

/// The same of one output.
fn timed_values<'g>(
    computer: &mut Computer,
    g: &Graph<'g>,
    values: Tensor<'g>,
) -> Result<Timed<Vec<f32>>, DsaStageError> {
    g.output(values);
    timed(computer, g, |done| Ok(done.f32(values)?.to_vec()))
}

/// Numbers that look like activations; the same for the same seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Uniform in -1..1, times `factor`.
    fn values(&mut self, n: usize, factor: f32) -> Vec<f32> {
        let mut next = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            ((self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * factor
        };
        (0..n).map(|_| next()).collect()
    }
}

/// GLM-5.2 without a stage. Rotations are none of these measurements' business.
fn glm_5_2() -> Dims {
    const MODEL: Dimensions = Dimensions::GLM_5_2;
    let rotary = Rope {
        n_dims: MODEL.rope_dim as i32,
        half_split: false,
        n_ctx_orig: MODEL.context_length as i32,
        freq_base: MODEL.rope_theta,
        freq_scale: 1.0,
        ext_factor: 0.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    Dims {
        n_embd: MODEL.n_embd.into(),
        heads: MODEL.n_head.into(),
        nope: MODEL.nope_dim.into(),
        rope: MODEL.rope_dim.into(),
        latent: MODEL.kv_lora.into(),
        v_dim: MODEL.v_dim.into(),
        indexer_heads: MODEL.indexer_heads.into(),
        indexer_dim: MODEL.indexer_dim.into(),
        top_k: MODEL.top_k.into(),
        experts: MODEL.n_expert.into(),
        experts_used: MODEL.n_expert_used.into(),
        expert_norm: true,
        expert_scale: MODEL.expert_scale,
        eps: MODEL.rms_eps,
        score_scale: 1.0 / ((MODEL.nope_dim + MODEL.rope_dim) as f32).sqrt(),
        indexer_scale: 1.0 / ((MODEL.indexer_heads * MODEL.indexer_dim) as f32).sqrt(),
        rotary,
        indexer_rotary: rotary,
        switches: Switches::default(),
    }
}
