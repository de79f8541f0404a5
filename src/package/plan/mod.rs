//! Splitting a model into stages that fit their machines.
//!
//! A stage costs what its machine has to hold: weights, KV rows for every lane, and compute buffers
//! ([`Costs::of`] says what of that is estimated). [`plan`] finds the cuts that load the fullest machine least, or, when
//! nothing is known of the machines, make the heaviest stage as light as possible. Decoding reads every weight and the
//! rows of its context once per token, so the heaviest stage also sets the pace of the chain. Where a cut costs extra
//! bytes on the link (IndexShare lists), a slightly heavier plan with fewer such cuts is taken.

mod search;
mod sizing;
#[cfg(test)]
mod tests;

use crate::{
    gguf::Metadata,
    package::{LayerRange, Package, PackageError},
};
pub use sizing::{PlanEngine, Sizing};

/// Bytes that a stage has to hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageBytes {
    /// Tensors, as the package states them.
    pub weights: u64,
    /// KV rows of all lanes.
    pub kv: u64,
    /// Buffers of a pass; an estimate.
    pub compute: u64,
}

impl StageBytes {
    /// All of it.
    pub fn total(self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.compute)
    }

    fn plus(self, other: Self) -> Self {
        Self {
            weights: self.weights.saturating_add(other.weights),
            kv: self.kv.saturating_add(other.kv),
            compute: self.compute.saturating_add(other.compute),
        }
    }
}

/// What a stage holds besides its layers, by where it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Besides {
    /// Of a stage that owns the input and not the output.
    pub first: StageBytes,
    /// Of one that owns neither.
    pub middle: StageBytes,
    /// Of one that owns the output and not the input.
    pub last: StageBytes,
    /// Of one that owns the whole model.
    pub whole: StageBytes,
}

/// What the stages of one model cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Each layer, layer 0 first.
    pub layers: Vec<StageBytes>,
    /// Boundaries and buffers.
    pub besides: Besides,
    /// What could not be taken from the package, for people.
    pub notes: Vec<String>,
}

impl Costs {
    /// The costs of a package's stages, and its shared metadata, which holds the family's cut rules. Reads headers only.
    ///
    /// Weights are exact. KV rows are what the engine allocates: K and V of each layer's heads, and for the `dsa` engine
    /// one row of latent and rotated key, an indexer key on full layers, and the draft head's own. Compute buffers are
    /// an estimate for the CPU, meant to be a little too high. The process itself and the host memory of
    /// `--prefix-cache-mib` are not in it.
    ///
    /// # Errors
    /// When one of the shared artifacts, or the last layer, is refused.
    pub fn of(package: &Package, sizing: &Sizing) -> Result<(Self, Metadata), PackageError> {
        let manifest = package.manifest();
        let count = manifest.layer_count;
        let (file, _) = package.open_metadata()?;
        let metadata = file.gguf().metadata.clone();
        let estimate = sizing.estimate(&metadata, count);
        let weights = manifest.layers.iter().map(|layer| layer.artifact.tensor_bytes);
        let layers =
            weights.zip(0..).map(|(weights, layer)| StageBytes { weights, kv: estimate.kv(layer), compute: 0 });
        let layers: Vec<StageBytes> = layers.collect();
        // What a stage selects besides its layers depends on its place alone, so one range for each place tells.
        let besides = |start: u32, end: u32| -> Result<StageBytes, PackageError> {
            let range = LayerRange::new(start, end)?;
            let own = layers.get(start as usize..end as usize).unwrap_or_default();
            let own = own.iter().fold(0u64, |sum, layer| sum.saturating_add(layer.weights));
            let weights = package.select(range)?.tensor_bytes().saturating_sub(own);
            Ok(StageBytes { weights, kv: 0, compute: estimate.compute(end == count) })
        };
        let besides = Besides {
            whole: besides(0, count)?,
            first: if count > 1 { besides(0, 1)? } else { StageBytes::default() },
            last: if count > 1 { besides(count - 1, count)? } else { StageBytes::default() },
            middle: if count > 2 { besides(1, 2)? } else { StageBytes::default() },
        };
        Ok((Self { layers, besides, notes: estimate.notes }, metadata))
    }

    /// What a stage that owns `range` holds.
    pub fn stage(&self, range: LayerRange) -> StageBytes {
        let (start, end) = (range.start() as usize, range.end() as usize);
        let besides = match (start == 0, end == self.layers.len()) {
            (true, true) => self.besides.whole,
            (true, false) => self.besides.first,
            (false, false) => self.besides.middle,
            (false, true) => self.besides.last,
        };
        let layers = self.layers.get(start..end).unwrap_or_default();
        layers.iter().fold(besides, |sum, layer| sum.plus(*layer))
    }
}

/// One stage of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedStage {
    /// The layers it owns.
    pub layers: LayerRange,
    /// What it holds.
    pub bytes: StageBytes,
    /// Bytes of its machine, when they are known.
    pub memory: Option<u64>,
    /// Bytes for each token that it receives besides hidden rows: the top-k lists that its first layer shares.
    pub sideband: u64,
}

/// A stage that does not fit its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack {
    /// Number of the stage, from 0.
    pub stage: usize,
    /// Its layers.
    pub layers: LayerRange,
    /// Bytes it holds.
    pub needs: u64,
    /// Bytes of its machine.
    pub memory: u64,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No stages were asked for.
    #[error("`stages` is 0, expected at least 1")]
    NoStages,
    /// More stages than the model's cuts allow.
    #[error(
        "{stages} stages need {} cuts, but the model's {layer_count} layers can be cut at {} only: ask for at most {} \
         stages{why}", stages - 1, describe_cuts(allowed), allowed.len() + 1
    )]
    TooMany {
        /// Stages asked for.
        stages: u32,
        /// Layers of the model.
        layer_count: u32,
        /// Layers at which the family allows a new stage to start.
        allowed: Vec<u32>,
        /// Why other layers are not allowed, in brackets, when the caller knows.
        why: String,
    },
    /// Another number of machines than stages.
    #[error("`memory` has {machines} values for {stages} stages, expected one for each stage, or one for all")]
    Machines {
        /// Values given.
        machines: usize,
        /// Stages asked for.
        stages: u32,
    },
    /// No choice of cuts fits. The stages are those of the plan whose fullest machine is the least overfull.
    #[error(
        "no cuts into {stages} stages fit the memory given: at best {}; add a stage or memory, or lower `--ctx-size` or \
         `--lanes`",
        describe_lacks(lacks)
    )]
    DoesNotFit {
        /// Stages asked for.
        stages: u32,
        /// Those that do not fit, in order; at least one.
        lacks: Vec<Lack>,
    },
}

fn describe_cuts(allowed: &[u32]) -> String {
    match allowed {
        [] => "no layer".into(),
        [cuts @ .., last] if cuts.len() < 12 => {
            cuts.iter().chain([last]).map(u32::to_string).collect::<Vec<_>>().join(",")
        }
        cuts => format!("{} layers", cuts.len()),
    }
}

fn describe_lacks(lacks: &[Lack]) -> String {
    let size = |bytes: u64| indicatif::BinaryBytes(bytes).to_string();
    let lack = |lack: &Lack| {
        let (needs, memory) = (size(lack.needs), size(lack.memory));
        let missing = size(lack.needs.saturating_sub(lack.memory));
        format!("stage {} (layers {}) needs {needs}, has {memory} and lacks {missing}", lack.stage, lack.layers)
    };
    lacks.iter().map(lack).collect::<Vec<_>>().join(", ")
}

/// Cuts the model into `stages` stages. `cut(layer)` gives the bytes for each token that a stage which starts at `layer`
/// receives besides hidden rows, or `None` where no stage may start. `memory` holds the bytes of each stage's machine,
/// one value for all of them, or nothing.
///
/// The fullest machine (without `memory`, the heaviest stage) is loaded least; a plan that carries fewer extra bytes
/// goes first if it loads that machine at most 2 % more and still fits; among those left the most even one is taken.
///
/// # Errors
/// When there are fewer allowed cuts than `stages - 1`, or nothing fits `memory`.
pub fn plan(
    costs: &Costs,
    stages: u32,
    memory: &[u64],
    cut: impl Fn(u32) -> Option<u64>,
) -> Result<Vec<PlannedStage>, PlanError> {
    let layer_count = u32::try_from(costs.layers.len()).unwrap_or(u32::MAX);
    if stages == 0 {
        return Err(PlanError::NoStages);
    }
    let machines = match memory {
        [] => vec![None; stages as usize],
        [one] => vec![Some(*one); stages as usize],
        each if each.len() == stages as usize => each.iter().copied().map(Some).collect(),
        each => return Err(PlanError::Machines { machines: each.len(), stages }),
    };
    let cuts: Vec<(u32, u64)> = (1..layer_count).filter_map(|layer| Some((layer, cut(layer)?))).collect();
    if cuts.len() + 1 < stages as usize || layer_count == 0 {
        let allowed = cuts.iter().map(|(layer, _)| *layer).collect();
        return Err(PlanError::TooMany { stages, layer_count, allowed, why: String::new() });
    }
    let chosen = search::Search::new(costs, &cuts, &machines).run();
    let stage = |((start, end), memory): ((u32, u32), &Option<u64>)| {
        let layers = LayerRange::new(start, end).ok()?;
        let sideband = cuts.iter().find(|(layer, _)| *layer == start).map_or(0, |(_, bytes)| *bytes);
        Some(PlannedStage { layers, bytes: costs.stage(layers), memory: *memory, sideband })
    };
    let planned: Vec<PlannedStage> = chosen.into_iter().zip(&machines).filter_map(stage).collect();
    let lack = |(index, stage): (usize, &PlannedStage)| {
        let (needs, memory) = (stage.bytes.total(), stage.memory?);
        (needs > memory).then_some(Lack { stage: index, layers: stage.layers, needs, memory })
    };
    let lacks: Vec<Lack> = planned.iter().enumerate().filter_map(lack).collect();
    if lacks.is_empty() { Ok(planned) } else { Err(PlanError::DoesNotFit { stages, lacks }) }
}
