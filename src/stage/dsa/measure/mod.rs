//! The layer of a large model piece by piece, by our kernels and by ggml's own operations: what `skippy-stage bench
//! phase-e` times and compares.

mod attention;
mod experts;
mod parts;
mod upstream;

pub use attention::{AttentionLayer, Shape, Variant};
pub use experts::{EXPERT_WIDTH, ExpertTypes, ExpertsLayer};
pub use parts::Part;

use super::{Switches, dims::Dims};
use crate::ggml::Rope;
use std::time::Duration;

/// A result, and what it took to compute: graphs are built before the clock starts.
pub struct Timed<T> {
    /// The result.
    pub value: T,
    /// Evaluation, inputs written included.
    pub took: Duration,
    /// Operations of the graph: what does not change them, nor the result, changes nothing.
    pub operations: usize,
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

/// GLM-5.2, as its configuration states it.
fn glm_5_2() -> Dims {
    let rotary = Rope {
        n_dims: 64,
        half_split: false,
        n_ctx_orig: 1 << 20,
        freq_base: 8e6,
        freq_scale: 1.0,
        ext_factor: 0.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    Dims {
        n_embd: 6144,
        heads: 64,
        nope: 192,
        rope: 64,
        latent: 512,
        v_dim: 256,
        indexer_heads: 32,
        indexer_dim: 128,
        top_k: 2048,
        experts: 256,
        experts_used: 8,
        expert_norm: true,
        expert_scale: 2.5,
        eps: 1e-5,
        score_scale: 1.0 / 16.0,
        indexer_scale: 1.0 / 64.0,
        rotary,
        indexer_rotary: rotary,
        switches: Switches::default(),
    }
}
