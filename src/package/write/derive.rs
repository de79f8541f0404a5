//! The `generation` block that a package may carry, from what its artifacts hold.
//!
//! Nothing is advertised on the strength of a name or a key alone (spec, "Generation Defaults" and "Native MTP strategy
//! rules"): the tensors must have been found in the fragments that were written. What is not advertised, although the
//! model hints at it, is explained in [`Derived::notes`].

use std::collections::{BTreeMap, HashSet};

use crate::{
    gguf::{Array, Metadata, Value},
    package::{
        Extra, Generation,
        generation::{
            Gate, IndexShare, NativeMtp, NativeMtpStrategy, Open, Policy, PolicyPath, Profile, Proposer,
            SpeculativeDecoding, Strategy, StrategyKind, Switch, Thresholds, Vocabulary, WindowMode, WindowPolicy,
        },
    },
};

/// Id of the native MTP strategy, and of its proposer, in the spec's product menu.
pub const MTP: &str = "mtp";
const GLM_DSA: &str = "glm-dsa";

/// The spec's threshold values for `glm-dsa-v1`.
const SHORT_PREFILL_MAX_TOKENS: u64 = 2048;
const COMPACT_FLASH_MIN_KV: u64 = 1;
const DENSE_MASK_MAX_BYTES: u64 = 256 << 20;

/// What the written fragments hold.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// Tensor names of each layer fragment, layer 0 first.
    pub layers: Vec<HashSet<String>>,
}

/// The generation block and the reasons for what is missing from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Derived {
    /// The block; nothing when there is nothing to advertise.
    pub generation: Option<Generation>,
    /// Why something that the model hints at is not advertised.
    pub notes: Vec<String>,
}

/// Derives the generation block of a package.
pub fn derive(metadata: &Metadata, inventory: &Inventory) -> Derived {
    let mut notes = Vec::new();
    let mtp = match find_mtp(metadata, inventory) {
        Ok(layers) => layers,
        Err(note) => {
            notes.push(format!("native MTP is not advertised: {note}"));
            Mtp::Broken
        }
    };
    let mut generation = Generation::default();
    if metadata.arch() == Some(GLM_DSA) {
        match check_glm_dsa(metadata, inventory, &mtp) {
            Ok(()) => {
                generation.policy = Some(glm_dsa_v1());
                generation.thresholds = Some(thresholds());
            }
            Err(missing) => {
                notes.extend(missing.into_iter().map(|what| format!("policy `glm-dsa-v1` is not advertised: {what}")))
            }
        }
    }
    if let Mtp::Complete(layers) = mtp {
        generation.speculative_decoding = Some(native_mtp(layers));
    }
    let generation = (generation != Generation::default()).then_some(generation);
    Derived { generation, notes }
}

/// What was found of the model's MTP blocks.
#[derive(Debug, PartialEq, Eq)]
enum Mtp {
    /// The model has none.
    Absent,
    /// Some tensors or keys are missing.
    Broken,
    /// These layers are whole MTP blocks.
    Complete(Vec<u32>),
}

impl Inventory {
    fn has(&self, layer: u32, name: &str) -> bool {
        let names = self.layers.get(layer as usize);
        names.is_some_and(|names| names.contains(&format!("blk.{layer}.{name}")))
    }

    /// Those of `names` that the layer lacks, as tensor names.
    fn missing(&self, layer: u32, names: &[&str]) -> Vec<String> {
        names.iter().filter(|name| !self.has(layer, name)).map(|name| format!("blk.{layer}.{name}")).collect()
    }

    fn has_any(&self, layer: u32, prefix: &str) -> bool {
        let prefix = format!("blk.{layer}.{prefix}");
        self.layers.get(layer as usize).is_some_and(|names| names.iter().any(|name| name.starts_with(&prefix)))
    }

    fn layer_count(&self) -> u32 {
        u32::try_from(self.layers.len()).unwrap_or(u32::MAX)
    }
}

/// MTP blocks are the last `<arch>.nextn_predict_layers` blocks; each needs its projection and both input norms around
/// an attention and a feed-forward part. Its embeddings, head and head norm are optional: the model's own stand in.
fn find_mtp(metadata: &Metadata, inventory: &Inventory) -> Result<Mtp, String> {
    let layer_count = inventory.layer_count();
    let with_nextn: Vec<u32> = (0..layer_count).filter(|&layer| inventory.has_any(layer, "nextn.")).collect();
    let key = metadata.arch_key("nextn_predict_layers");
    let count = match metadata.get(&key) {
        None => 0,
        Some(value) => value.as_uint().ok_or_else(|| format!("`{key}` is of type {}", value.value_type().name()))?,
    };
    if count == 0 {
        return match with_nextn.first() {
            None => Ok(Mtp::Absent),
            Some(layer) => Err(format!("blk.{layer} has `nextn` tensors, but `{key}` does not count it")),
        };
    }
    let count = u32::try_from(count).ok().filter(|&count| count < layer_count);
    let count = count.ok_or_else(|| format!("`{key}` is not below the model's {layer_count} blocks"))?;
    let expected: Vec<u32> = (layer_count - count..layer_count).collect();
    for &layer in &expected {
        let missing = inventory.missing(layer, &["nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight"]);
        if !missing.is_empty() {
            return Err(format!("`{key}` is {count}, but {} is missing", missing.join(", ")));
        }
        if !(inventory.has_any(layer, "attn_") && inventory.has_any(layer, "ffn_")) {
            return Err(format!("blk.{layer} has `nextn` tensors but no attention or no feed-forward part"));
        }
    }
    match with_nextn.iter().find(|layer| !expected.contains(layer)) {
        Some(layer) => Err(format!(
            "blk.{layer} has `nextn` tensors, but `{key}` is {count}: expected them in the last blocks only"
        )),
        None => Ok(Mtp::Complete(expected)),
    }
}

/// Keys without which GLM-DSA cannot be computed, or is computed wrongly without notice.
const GLM_DSA_KEYS: &[&str] = &[
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "attention.q_lora_rank",
    "attention.kv_lora_rank",
    "attention.layer_norm_rms_epsilon",
    "attention.indexer.head_count",
    "attention.indexer.key_length",
    "attention.indexer.top_k",
    "rope.dimension_count",
    "rope.freq_base",
    "expert_count",
    "expert_used_count",
    "expert_shared_count",
    "expert_feed_forward_length",
    "expert_weights_scale",
    "expert_weights_norm",
];
const GLM_DSA_ATTENTION: &[&str] = &[
    "attn_norm.weight",
    "attn_q_a.weight",
    "attn_q_a_norm.weight",
    "attn_q_b.weight",
    "attn_kv_a_mqa.weight",
    "attn_kv_a_norm.weight",
    "attn_k_b.weight",
    "attn_v_b.weight",
    "attn_output.weight",
    "ffn_norm.weight",
];
const GLM_DSA_INDEXER: &[&str] = &[
    "indexer.attn_q_b.weight",
    "indexer.attn_k.weight",
    "indexer.k_norm.weight",
    "indexer.k_norm.bias",
    "indexer.proj.weight",
];
const DENSE_FFN: &[&str] = &["ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"];
const MOE_FFN: &[&str] = &[
    "ffn_gate_inp.weight",
    "exp_probs_b.bias",
    "ffn_gate_exps.weight",
    "ffn_up_exps.weight",
    "ffn_down_exps.weight",
    "ffn_gate_shexp.weight",
    "ffn_up_shexp.weight",
    "ffn_down_shexp.weight",
];

/// Everything that `glm-dsa-v1` promises, or what of it is missing.
fn check_glm_dsa(metadata: &Metadata, inventory: &Inventory, mtp: &Mtp) -> Result<(), Vec<String>> {
    let layer_count = inventory.layer_count();
    let mut missing: Vec<String> = GLM_DSA_KEYS
        .iter()
        .map(|key| metadata.arch_key(key))
        .filter(|key| metadata.get(key).is_none())
        .map(|key| format!("metadata key `{key}` is missing"))
        .collect();
    let mtp_layers = match mtp {
        Mtp::Complete(layers) => layers.len() as u32,
        Mtp::Absent => 0,
        Mtp::Broken => {
            missing.push("the MTP block is incomplete".into());
            0
        }
    };
    let dense = metadata.arch_uint("leading_dense_block_count").unwrap_or(0);
    for layer in 0..layer_count {
        let ffn = if u64::from(layer) < dense { DENSE_FFN } else { MOE_FFN };
        let lacks = [GLM_DSA_ATTENTION, ffn].into_iter().flat_map(|names| inventory.missing(layer, names));
        missing.extend(lacks.map(|tensor| format!("tensor `{tensor}` is missing")));
    }
    if let Err(problem) = check_index_share(metadata, inventory, layer_count.saturating_sub(mtp_layers)) {
        missing.push(problem);
    }
    if missing.is_empty() { Ok(()) } else { Err(shorten(missing)) }
}

/// The IndexShare role of every trunk layer, from `attention.indexer.types` or, without it, from the tensors: a full
/// layer has a whole indexer, and the first layer is full because a shared one takes its list from a layer before it.
fn check_index_share(metadata: &Metadata, inventory: &Inventory, trunk: u32) -> Result<(), String> {
    let key = metadata.arch_key("attention.indexer.types");
    let declared = match metadata.get(&key) {
        None => None,
        Some(value) => Some(roles(value).ok_or_else(|| format!("`{key}` is not an array of booleans"))?),
    };
    if let Some(declared) = &declared
        && declared.len() != trunk as usize
    {
        return Err(format!("`{key}` has {} entries, expected {trunk}, one for each trunk layer", declared.len()));
    }
    for layer in 0..trunk {
        let lacks = inventory.missing(layer, GLM_DSA_INDEXER);
        let full = match &declared {
            Some(roles) => roles.get(layer as usize) == Some(&true),
            None => inventory.has_any(layer, "indexer."),
        };
        if full && !lacks.is_empty() {
            return Err(format!("layer {layer} computes its own top-k, but {} is missing", lacks.join(", ")));
        }
        if layer == 0 && !full {
            return Err("layer 0 shares the top-k of a layer before it, and there is none".into());
        }
    }
    Ok(())
}

fn roles(value: &Value) -> Option<Vec<bool>> {
    match value.as_array()? {
        Array::Bool(roles) => Some(roles.clone()),
        other => (0..other.len()).map(|at| other.value(at)?.as_uint().map(|role| role != 0)).collect(),
    }
}

/// One line for each missing thing is plenty to find the cause.
fn shorten(mut missing: Vec<String>) -> Vec<String> {
    const SHOWN: usize = 8;
    if missing.len() > SHOWN {
        let more = missing.len() - SHOWN;
        missing.truncate(SHOWN);
        missing.push(format!("and {more} more"));
    }
    missing
}

fn glm_dsa_v1() -> Policy {
    let path = |path| Some(Open::Known(path));
    let gated = |switch: Switch| (switch.name().to_owned(), Open::Known(Gate::EvidenceGated));
    Policy {
        profile: Some(Open::Known(Profile::GlmDsaV1)),
        decode: path(PolicyPath::CompactFlash),
        short_prefill: path(PolicyPath::Dense),
        long_prefill: path(PolicyPath::SparseChunked),
        verify: path(PolicyPath::Auto),
        indexshare: Some(Open::Known(IndexShare::Required)),
        experimental: [Switch::SelectedRowFlash, Switch::MoeWeightedDown, Switch::MoeMergedSharedGateUp]
            .map(gated)
            .into(),
        extra: Extra::new(),
    }
}

fn thresholds() -> Thresholds {
    Thresholds {
        short_prefill_max_tokens: Some(SHORT_PREFILL_MAX_TOKENS),
        compact_flash_min_kv: Some(COMPACT_FLASH_MIN_KV),
        dense_mask_max_bytes: Some(DENSE_MASK_MAX_BYTES),
        extra: Extra::new(),
    }
}

/// The MTP blocks as a proposer, and the one strategy that uses it, with its window fixed at 1.
fn native_mtp(layer_indices: Vec<u32>) -> SpeculativeDecoding {
    let proposer = NativeMtp { prediction_depth: 1, layer_indices: layer_indices.clone(), extra: Extra::new() };
    let strategy = Strategy {
        kind: StrategyKind::NativeMtp(NativeMtpStrategy {
            proposer: Some(MTP.into()),
            prediction_depth: Some(1),
            layer_indices: Some(layer_indices),
            extra: Extra::new(),
        }),
        window_policy: Some(WindowPolicy {
            default: Some(Open::Known(WindowMode::Fixed)),
            initial_window: Some(1),
            min_window: Some(1),
            max_window: Some(1),
            pipeline_depth: Some(1),
            extra: Extra::new(),
        }),
    };
    SpeculativeDecoding {
        default: Some(MTP.into()),
        proposers: BTreeMap::from([(MTP.into(), Proposer::NativeMtp(proposer))]),
        strategies: BTreeMap::from([(MTP.into(), strategy)]),
        extra: Extra::new(),
    }
}

#[cfg(test)]
#[path = "derive_tests.rs"]
mod tests;
