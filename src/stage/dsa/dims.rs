//! The numbers of a model, as the graphs need them.

use super::Switches;
use crate::{
    ggml,
    package::glm_dsa::{Config, IndexerRope, Scaling},
};

/// Sizes (in elements, ggml's `i64`) and constants of one model.
#[derive(Clone, Debug)]
pub(super) struct Dims {
    pub(super) n_embd: i64,
    pub(super) heads: i64,
    /// Part of a query head without position.
    pub(super) nope: i64,
    /// Part of a query head, and of a cache row, with position.
    pub(super) rope: i64,
    /// Latent of keys and values: the first part of a cache row, and the value of absorbed attention.
    pub(super) latent: i64,
    /// Value of a head after `attn_v_b`.
    pub(super) v_dim: i64,
    pub(super) indexer_heads: i64,
    pub(super) indexer_dim: i64,
    pub(super) top_k: i64,
    pub(super) experts: i64,
    pub(super) experts_used: i64,
    pub(super) expert_norm: bool,
    pub(super) expert_scale: f32,
    pub(super) eps: f32,
    /// Factor of query x key before the softmax.
    pub(super) score_scale: f32,
    /// Factor of the indexer's head weights: `(heads * dim)^-1/2`.
    pub(super) indexer_scale: f32,
    pub(super) rotary: ggml::Rope,
    pub(super) indexer_rotary: ggml::Rope,
    /// Which experimental forms the graphs have.
    pub(super) switches: Switches,
}

impl Dims {
    pub(super) fn new(config: &Config) -> Self {
        let (beta_fast, beta_slow, original) = match &config.rope.scaling {
            Scaling::None => (32.0, 1.0, config.context_length),
            Scaling::Yarn(yarn) => (yarn.beta_fast, yarn.beta_slow, yarn.original_context),
        };
        let rotary = ggml::Rope {
            n_dims: i32::try_from(config.rope_dim).unwrap_or(i32::MAX),
            half_split: false,
            n_ctx_orig: i32::try_from(original).unwrap_or(i32::MAX),
            freq_base: config.rope.theta,
            freq_scale: config.rope.freq_scale(),
            ext_factor: config.rope.ext_factor(),
            attn_factor: config.rope.attn_factor(),
            beta_fast,
            beta_slow,
        };
        let indexer_rotary = ggml::Rope { half_split: config.rope.indexer == IndexerRope::HalfSplit, ..rotary };
        let head = (config.nope_dim + config.rope_dim) as f32;
        let indexer = (config.indexer_heads * config.indexer_dim) as f32;
        Self {
            n_embd: i64::from(config.n_embd),
            heads: i64::from(config.n_head),
            nope: i64::from(config.nope_dim),
            rope: i64::from(config.rope_dim),
            latent: i64::from(config.kv_lora),
            v_dim: i64::from(config.v_dim),
            indexer_heads: i64::from(config.indexer_heads),
            indexer_dim: i64::from(config.indexer_dim),
            top_k: i64::from(config.top_k),
            experts: i64::from(config.n_expert),
            experts_used: i64::from(config.n_expert_used),
            expert_norm: config.expert_norm,
            expert_scale: config.expert_scale,
            eps: config.rms_eps,
            score_scale: config.rope.score_factor() / head.sqrt(),
            indexer_scale: 1.0 / indexer.sqrt(),
            rotary,
            indexer_rotary,
            switches: Switches::default(),
        }
    }

    /// Elements of a row of the attention cache: latent, then the rotated key.
    pub(super) fn row(&self) -> i64 {
        self.latent + self.rope
    }
}
