//! The `generation` block that a package may carry, from what its artifacts hold.
//!
//! Nothing is advertised on the strength of a name or a key alone (spec, "Generation Defaults" and "Native MTP strategy
//! rules"): the tensors must have been found in the fragments that were written. What is not advertised, although the
//! model hints at it, is explained in [`Derived::notes`].

use std::collections::BTreeMap;

use crate::{
    gguf::{Metadata, TensorInfo},
    package::{
        Extra, Generation,
        generation::{
            NativeMtp, NativeMtpStrategy, Open, Proposer, SpeculativeDecoding, Strategy, StrategyKind, WindowMode,
            WindowPolicy,
        },
        glm_dsa::{Arch, Config, recommended_policy, recommended_thresholds},
    },
};

/// Id of the native MTP strategy, and of its proposer, in the spec's product menu.
pub const MTP: &str = "mtp";

/// What the written fragments hold.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// Tensors of the embeddings fragment.
    pub embeddings: Vec<TensorInfo>,
    /// Tensors of each layer fragment, layer 0 first.
    pub layers: Vec<Vec<TensorInfo>>,
    /// Tensors of the output fragment.
    pub output: Vec<TensorInfo>,
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
    if metadata.arch() == Some(Arch::GlmDsa.name()) {
        let faults = glm_dsa_faults(metadata, inventory);
        if faults.is_empty() {
            generation.policy = Some(recommended_policy());
            generation.thresholds = Some(recommended_thresholds());
        }
        notes.extend(faults.into_iter().map(|fault| format!("policy `glm-dsa-v1` is not advertised: {fault}")));
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
        let name = format!("blk.{layer}.{name}");
        self.layers.get(layer as usize).is_some_and(|tensors| tensors.iter().any(|tensor| tensor.name == name))
    }

    /// Those of `names` that the layer lacks, as tensor names.
    fn missing(&self, layer: u32, names: &[&str]) -> Vec<String> {
        names.iter().filter(|name| !self.has(layer, name)).map(|name| format!("blk.{layer}.{name}")).collect()
    }

    fn has_any(&self, layer: u32, prefix: &str) -> bool {
        let prefix = format!("blk.{layer}.{prefix}");
        let tensors = self.layers.get(layer as usize);
        tensors.is_some_and(|tensors| tensors.iter().any(|tensor| tensor.name.starts_with(&prefix)))
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

/// Everything that keeps the model from what `glm-dsa-v1` promises, in lines.
fn glm_dsa_faults(metadata: &Metadata, inventory: &Inventory) -> Vec<String> {
    let config = match Config::read(metadata, inventory.layer_count()) {
        Ok(config) => config,
        Err(error) => return vec![error.to_string()],
    };
    let layers = (0..config.layer_count).zip(&inventory.layers);
    let layers = layers.flat_map(|(layer, tensors)| config.layer_faults(layer, tensors).1);
    let boundaries = [
        config.boundary_faults(true, false, &inventory.embeddings),
        config.boundary_faults(false, true, &inventory.output),
    ];
    shorten(boundaries.into_iter().flatten().chain(layers).map(|fault| fault.to_string()).collect())
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
