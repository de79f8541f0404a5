//! The model's dimensions and constants, from its metadata.

use super::{
    ContractError, Rope,
    keys::{Keys, SILENTLY_WRONG},
    roles,
};
use crate::{
    gguf::{Metadata, Value},
    package::manifest::fields::quoted,
    policy::Role,
};

/// Architectures that keep this contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// `glm-dsa`: GLM-5 and later.
    GlmDsa,
    /// `deepseek32`: DeepSeek-V3.2. Every layer has its own indexer, whose rotation is half-split.
    DeepSeek32,
}

/// How the router's scores become weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Sigmoid of each score by itself.
    Sigmoid,
}

/// Everything about a GLM-DSA model that its metadata decides. Widths are elements of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Architecture.
    pub arch: Arch,
    /// Layers, MTP block counted.
    pub layer_count: u32,
    /// Layers without the MTP block: at least 1.
    pub trunk_layers: u32,
    /// MTP (NextN) blocks, which come last: 0 or 1.
    pub nextn_layers: u32,
    /// Width of a hidden row.
    pub n_embd: u32,
    /// Entries of the vocabulary.
    pub n_vocab: u32,
    /// Tokens the model was trained for.
    pub context_length: u32,

    /// Attention heads.
    pub n_head: u32,
    /// Width of the query latent.
    pub q_lora: u32,
    /// Width of the key-value latent.
    pub kv_lora: u32,
    /// Rotated elements of a head, even.
    pub rope_dim: u32,
    /// Elements of a query or key head that are not rotated.
    pub nope_dim: u32,
    /// Elements of a value head.
    pub v_dim: u32,
    /// Epsilon of every RMS norm.
    pub rms_eps: f32,
    /// Position encoding.
    pub rope: Rope,

    /// Indexer heads.
    pub indexer_heads: u32,
    /// Elements of an indexer head: 64 times a power of two, at least [`Config::rope_dim`].
    pub indexer_dim: u32,
    /// Rows that a query attends to at most.
    pub top_k: u32,
    /// Role of every layer, MTP block counted; the first and the MTP block are full.
    pub roles: Vec<Role>,

    /// The first layers have one dense feed-forward part; all others have experts.
    pub dense_lead: u32,
    /// Width of the dense feed-forward part; 0 when no layer has one.
    pub n_ff: u32,
    /// Routed experts; 0, like all expert fields below, when every layer is dense.
    pub n_expert: u32,
    /// Routed experts that a token uses.
    pub n_expert_used: u32,
    /// Shared experts, which lie side by side in one tensor.
    pub n_expert_shared: u32,
    /// Width of one expert.
    pub n_ff_exp: u32,
    /// What the weights of the routed experts are multiplied by.
    pub expert_scale: f32,
    /// Whether the weights of the used experts are made to sum to 1 first.
    pub expert_norm: bool,
    /// How scores become weights.
    pub expert_gating: Gating,
}

// Larger than any model, small enough that no product of two or three overflows 64 bits.
const MAX_LAYERS: u32 = 512;
const MAX_WIDTH: u32 = 1 << 20;
const MAX_HEADS: u32 = 1 << 12;
const MAX_HEAD_DIM: u32 = 1 << 13;
const MAX_EXPERTS: u32 = 1 << 12;
const MAX_VOCAB: u32 = 1 << 26;
const MAX_TOKENS: u32 = 1 << 30;

impl Arch {
    /// `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            Self::GlmDsa => "glm-dsa",
            Self::DeepSeek32 => "deepseek32",
        }
    }

    /// The architecture of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::GlmDsa, Self::DeepSeek32].into_iter().find(|arch| arch.name() == name)
    }
}

impl Config {
    /// Reads the metadata of a model of `layer_count` layers, MTP block counted.
    ///
    /// # Errors
    /// With the first key that is missing, or whose value is of the wrong type, out of range or contradicts another one.
    pub fn read(metadata: &Metadata, layer_count: u32) -> Result<Self, ContractError> {
        let arch = read_arch(metadata)?;
        let keys = Keys::new(metadata);
        let trunk = Trunk::read(&keys, layer_count)?;
        let attention = Attention::read(&keys, layer_count)?;
        let context_length = keys.number("context_length", 1..=MAX_TOKENS)?;
        let indexer_dim = keys.number("attention.indexer.key_length", 1..=MAX_HEAD_DIM)?;
        let of_64 = indexer_dim.is_multiple_of(64) && (indexer_dim / 64).is_power_of_two();
        if !of_64 || indexer_dim < attention.rope_dim {
            let expected = format!("64 times a power of two, and at least the {} rotated elements", attention.rope_dim);
            return Err(keys.wrong("attention.indexer.key_length", &Value::U32(indexer_dim), expected));
        }
        let moe = if trunk.dense_lead < layer_count { Moe::read(&keys, arch, layer_count)? } else { Moe::NONE };
        Ok(Self {
            arch,
            layer_count,
            trunk_layers: trunk.layers,
            nextn_layers: trunk.nextn,
            n_embd: keys.number("embedding_length", 1..=MAX_WIDTH)?,
            n_vocab: read_vocab(metadata, &keys)?,
            context_length,
            n_head: attention.n_head,
            q_lora: attention.q_lora,
            kv_lora: attention.kv_lora,
            rope_dim: attention.rope_dim,
            nope_dim: attention.nope_dim,
            v_dim: attention.v_dim,
            rms_eps: keys.positive("attention.layer_norm_rms_epsilon", "")?,
            rope: Rope::read(&keys, arch, context_length)?,
            indexer_heads: keys.number("attention.indexer.head_count", 1..=MAX_HEADS)?,
            indexer_dim,
            top_k: keys.number("attention.indexer.top_k", 1..=MAX_TOKENS)?,
            roles: roles::read(&keys, arch, trunk.layers, trunk.nextn, context_length)?,
            dense_lead: trunk.dense_lead,
            n_ff: trunk.n_ff,
            n_expert: moe.n_expert,
            n_expert_used: moe.n_expert_used,
            n_expert_shared: moe.n_expert_shared,
            n_ff_exp: moe.n_ff_exp,
            expert_scale: moe.scale,
            expert_norm: moe.norm,
            expert_gating: Gating::Sigmoid,
        })
    }

    /// The role of a layer; `None` beyond the last.
    pub fn role(&self, layer: u32) -> Option<Role> {
        self.roles.get(layer as usize).copied()
    }

    /// Whether `layer` is the MTP block.
    pub fn is_mtp(&self, layer: u32) -> bool {
        layer >= self.trunk_layers && layer < self.layer_count
    }

    /// Whether `layer` has one dense feed-forward part instead of experts.
    pub fn is_dense(&self, layer: u32) -> bool {
        layer < self.dense_lead
    }

    /// Elements of a query or key head: `nope_dim + rope_dim`.
    pub fn head_dim(&self) -> u32 {
        self.nope_dim + self.rope_dim
    }

    /// Elements of a row of the attention cache: `kv_lora + rope_dim`, one key head; values are its first `kv_lora`.
    pub fn kv_row(&self) -> u32 {
        self.kv_lora + self.rope_dim
    }

    /// What attention scores are multiplied by.
    pub fn score_scale(&self) -> f32 {
        self.rope.score_factor() / (self.head_dim() as f32).sqrt()
    }

    /// Bytes for each token of the top-k list that goes from a full layer to the shared layers behind it (spec, Policy
    /// Resolution: `tokens * top_k * 4`).
    pub fn sideband_bytes_per_token(&self) -> u64 {
        4 * u64::from(self.top_k)
    }
}

fn read_arch(metadata: &Metadata) -> Result<Arch, ContractError> {
    const KEY: &str = "general.architecture";
    const EXPECTED: &str = "\"glm-dsa\" or \"deepseek32\"";
    let Some(value) = metadata.get(KEY) else {
        return Err(ContractError::MissingKey { key: KEY.into(), expected: EXPECTED.into() });
    };
    let wrong = |got: String| ContractError::Key { key: KEY.into(), got, expected: EXPECTED.into() };
    let name = value.as_str().ok_or_else(|| wrong(super::keys::describe(value)))?;
    Arch::from_name(name).ok_or_else(|| wrong(quoted(name)))
}

/// The vocabulary is as long as the tokenizer's list; a model without a tokenizer states its size.
fn read_vocab(metadata: &Metadata, keys: &Keys<'_>) -> Result<u32, ContractError> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let Some(value) = metadata.get(TOKENS) else { return keys.number("vocab_size", 1..=MAX_VOCAB) };
    let expected = || format!("an array of 1 to {MAX_VOCAB} strings");
    let count = value.as_array().and_then(|tokens| tokens.strings()).map(<[_]>::len);
    let count = count.and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=MAX_VOCAB).contains(n));
    let wrong = || ContractError::Key { key: TOKENS.into(), got: super::keys::describe(value), expected: expected() };
    count.ok_or_else(wrong)
}

/// How many layers of which kind.
struct Trunk {
    layers: u32,
    nextn: u32,
    dense_lead: u32,
    n_ff: u32,
}

impl Trunk {
    fn read(keys: &Keys<'_>, layer_count: u32) -> Result<Self, ContractError> {
        keys.number("block_count", 1..=MAX_LAYERS)?;
        keys.exactly("block_count", layer_count, "the layers of the package")?;
        let nextn =
            keys.optional_number("nextn_predict_layers", 0..=layer_count.saturating_sub(1).min(1))?.unwrap_or(0);
        let layers = layer_count - nextn;
        // The MTP block always has experts.
        let dense_lead = keys.optional_number("leading_dense_block_count", 0..=layers)?.unwrap_or(0);
        let n_ff = match dense_lead {
            0 => 0,
            _ => keys.uniform("feed_forward_length", 1..=MAX_WIDTH, layer_count)?,
        };
        Ok(Self { layers, nextn, dense_lead, n_ff })
    }
}

struct Attention {
    n_head: u32,
    q_lora: u32,
    kv_lora: u32,
    rope_dim: u32,
    nope_dim: u32,
    v_dim: u32,
}

impl Attention {
    fn read(keys: &Keys<'_>, layers: u32) -> Result<Self, ContractError> {
        let n_head = keys.uniform("attention.head_count", 1..=MAX_HEADS, layers)?;
        // The absorbed form has one key head, which all query heads share.
        keys.uniform("attention.head_count_kv", 1..=1, layers)?;
        let q_lora = keys.number("attention.q_lora_rank", 1..=MAX_WIDTH)?;
        let kv_lora = keys.number("attention.kv_lora_rank", 1..=MAX_WIDTH)?;
        let rope_dim = keys.number("rope.dimension_count", 2..=MAX_HEAD_DIM)?;
        if !rope_dim.is_multiple_of(2) {
            return Err(keys.wrong("rope.dimension_count", &Value::U32(rope_dim), "an even number"));
        }
        keys.exactly("attention.key_length", kv_lora + rope_dim, "`kv_lora_rank` + `rope.dimension_count`")?;
        if keys.get("attention.value_length").is_some() {
            keys.exactly("attention.value_length", kv_lora, "`kv_lora_rank`")?;
        }
        let head = keys.number("attention.key_length_mla", rope_dim + 1..=2 * MAX_HEAD_DIM)?;
        let v_dim = keys.number("attention.value_length_mla", 1..=MAX_HEAD_DIM)?;
        Ok(Self { n_head, q_lora, kv_lora, rope_dim, nope_dim: head - rope_dim, v_dim })
    }
}

struct Moe {
    n_expert: u32,
    n_expert_used: u32,
    n_expert_shared: u32,
    n_ff_exp: u32,
    scale: f32,
    norm: bool,
}

/// llama.cpp's numbers of the gating functions.
const SOFTMAX: u32 = 1;
const SIGMOID: u32 = 2;

impl Moe {
    const NONE: Self = Self { n_expert: 0, n_expert_used: 0, n_expert_shared: 0, n_ff_exp: 0, scale: 1.0, norm: false };

    fn read(keys: &Keys<'_>, arch: Arch, layers: u32) -> Result<Self, ContractError> {
        let n_expert = keys.number("expert_count", 1..=MAX_EXPERTS)?;
        let n_expert_used = keys.uniform("expert_used_count", 1..=n_expert, layers)?;
        let n_expert_shared = keys.number("expert_shared_count", 1..=MAX_EXPERTS)?;
        let n_ff_exp = keys.uniform("expert_feed_forward_length", 1..=MAX_WIDTH, layers)?;
        let scale = keys.positive("expert_weights_scale", SILENTLY_WRONG)?;
        let norm = keys.flag("expert_weights_norm", SILENTLY_WRONG)?;
        check_gating(keys, arch)?;
        // Selection by groups first is another router.
        keys.optional_number("expert_group_count", 0..=1)?;
        Ok(Self { n_expert, n_expert_used, n_expert_shared, n_ff_exp, scale, norm })
    }
}

fn check_gating(keys: &Keys<'_>, arch: Arch) -> Result<(), ContractError> {
    const KEY: &str = "expert_gating_func";
    const EXPECTED: &str = "2 (sigmoid)";
    match keys.get(KEY) {
        // Files of GLM leave it out; llama.cpp has no default for the other architecture.
        None if arch == Arch::GlmDsa => Ok(()),
        None => Err(keys.missing(KEY, EXPECTED)),
        Some(value) => match value.as_uint() {
            Some(n) if n == u64::from(SIGMOID) => Ok(()),
            // Zero is "none", which llama.cpp reads as absent.
            Some(0) if arch == Arch::GlmDsa => Ok(()),
            Some(n) if n == u64::from(SOFTMAX) => {
                Err(keys.wrong(KEY, value, format!("{EXPECTED}: softmax gating is not supported")))
            }
            _ => Err(keys.wrong(KEY, value, EXPECTED)),
        },
    }
}
