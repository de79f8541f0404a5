//! Splitting a model into stages of about equal weight.
//!
//! The unit is tensor bytes: decoding reads every weight once per token, so the heaviest stage sets the pace of the
//! chain. [`plan`] finds the cuts that make the heaviest stage as light as possible and, among those, the most even
//! ones, using only cuts that the model's family allows.

use crate::{
    gguf::Metadata,
    package::{LayerRange, Package, PackageError},
};

/// What the stages of one model cost, in tensor bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Bytes of each layer, layer 0 first.
    pub layers: Vec<u64>,
    /// Bytes every stage holds (`shared/metadata.gguf`).
    pub every_stage: u64,
    /// Bytes of the input boundary.
    pub embeddings: u64,
    /// Bytes of the output boundary.
    pub output: u64,
    /// Whether the last stage needs the embeddings too: tied head, or an MTP block without its own.
    pub last_needs_embeddings: bool,
}

impl Costs {
    /// The costs of a package's stages, and its shared metadata, which holds the family's cut rules. Reads headers only.
    ///
    /// # Errors
    /// When one of the shared artifacts, or the last layer, is refused.
    pub fn of(package: &Package) -> Result<(Self, Metadata), PackageError> {
        let manifest = package.manifest();
        let (metadata, _) = package.open_metadata()?;
        // What a stage selects that owns the last layer and nothing before it.
        let last = LayerRange::new(manifest.layer_count.saturating_sub(1), manifest.layer_count)?;
        let last_needs_embeddings = package.select(last)?.embeddings.is_some();
        let costs = Self {
            layers: manifest.layers.iter().map(|layer| layer.artifact.tensor_bytes).collect(),
            every_stage: manifest.shared.metadata.tensor_bytes,
            embeddings: manifest.shared.embeddings.tensor_bytes,
            output: manifest.shared.output.tensor_bytes,
            last_needs_embeddings,
        };
        Ok((costs, metadata.gguf().metadata.clone()))
    }

    /// Tensor bytes of a stage that owns `range`.
    pub fn stage_bytes(&self, range: LayerRange) -> u64 {
        let (start, end) = (range.start() as usize, range.end() as usize);
        let layers = self.layers.get(start..end).unwrap_or_default();
        let first = start == 0;
        let last = end == self.layers.len();
        let embeddings = if first || (last && self.last_needs_embeddings) { self.embeddings } else { 0 };
        let output = if last { self.output } else { 0 };
        layers
            .iter()
            .chain([&self.every_stage, &embeddings, &output])
            .fold(0u64, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// One stage of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedStage {
    /// The layers it owns.
    pub layers: LayerRange,
    /// The tensor bytes it loads, embeddings and output counted where it needs them.
    pub tensor_bytes: u64,
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

/// Cuts the model into `stages` stages; `cut_allowed(layer)` says whether a stage may start at `layer`.
///
/// # Errors
/// When there are fewer allowed cuts than `stages - 1`.
pub fn plan(costs: &Costs, stages: u32, cut_allowed: impl Fn(u32) -> bool) -> Result<Vec<PlannedStage>, PlanError> {
    let layer_count = u32::try_from(costs.layers.len()).unwrap_or(u32::MAX);
    if stages == 0 {
        return Err(PlanError::NoStages);
    }
    let allowed: Vec<u32> = (1..layer_count).filter(|&cut| cut_allowed(cut)).collect();
    if allowed.len() + 1 < stages as usize || layer_count == 0 {
        return Err(PlanError::TooMany { stages, layer_count, allowed, why: String::new() });
    }
    // Boundaries a stage may start or end at, 0 and layer_count included.
    let mut bounds = vec![0];
    bounds.extend(&allowed);
    bounds.push(layer_count);

    let heaviest = |a: u128, b: u128| a.max(b);
    let lightest_maximum = best_cuts(costs, &bounds, stages, u128::from, heaviest, u64::MAX).0;
    let limit = u64::try_from(lightest_maximum).unwrap_or(u64::MAX);
    // Of all plans that reach the lightest maximum, the one with the smallest sum of squares is the most even. Scaled
    // down so that the squares of any real model fit.
    let square = |bytes: u64| u128::from(bytes >> 8).pow(2);
    let (_, cuts) = best_cuts(costs, &bounds, stages, square, |a, b| a.saturating_add(b), limit);

    let planned = cuts.windows(2).filter_map(|pair| match pair {
        [start, end] => LayerRange::new(*start, *end).ok(),
        _ => None,
    });
    Ok(planned.map(|layers| PlannedStage { layers, tensor_bytes: costs.stage_bytes(layers) }).collect())
}

/// Dynamic programme over `bounds`: the choice of `stages` consecutive ranges, none above `limit` bytes, that minimises
/// `weigh` of each stage folded with `join`. Returns the minimum and the bounds chosen, `stages + 1` of them.
fn best_cuts(
    costs: &Costs,
    bounds: &[u32],
    stages: u32,
    weigh: impl Fn(u64) -> u128,
    join: impl Fn(u128, u128) -> u128,
    limit: u64,
) -> (u128, Vec<u32>) {
    const UNREACHED: u128 = u128::MAX;
    let n = bounds.len();
    // best[j]: cheapest way to cover everything before bounds[j] with the stages so far; from[s][j]: where stage s began.
    let mut best = vec![UNREACHED; n];
    best[0] = 0;
    let mut from: Vec<Vec<usize>> = Vec::new();
    for _ in 0..stages {
        let mut next = vec![UNREACHED; n];
        let mut began = vec![0; n];
        for end in 1..n {
            for start in (0..end).filter(|&start| best[start] != UNREACHED) {
                let Ok(range) = LayerRange::new(bounds[start], bounds[end]) else { continue };
                let bytes = costs.stage_bytes(range);
                if bytes > limit {
                    continue;
                }
                let total = join(best[start], weigh(bytes));
                if total < next[end] {
                    (next[end], began[end]) = (total, start);
                }
            }
        }
        best = next;
        from.push(began);
    }
    let mut chosen = vec![n - 1];
    for began in from.iter().rev() {
        chosen.push(began[chosen[chosen.len() - 1]]);
    }
    chosen.reverse();
    (best[n - 1], chosen.into_iter().map(|index| bounds[index]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(layers: &[u64], embeddings: u64, output: u64, tied: bool) -> Costs {
        Costs { layers: layers.to_vec(), every_stage: 0, embeddings, output, last_needs_embeddings: tied }
    }

    fn ranges(planned: &[PlannedStage]) -> Vec<String> {
        planned.iter().map(|stage| stage.layers.to_string()).collect()
    }

    #[test]
    fn equal_layers_are_split_evenly() {
        let planned = plan(&costs(&[1000; 10], 0, 0, false), 3, |_| true).unwrap();
        // 10 layers in 3 stages: no stage above 4, and no plan is more even than 3, 3, 4.
        let mut sizes: Vec<u64> = planned.iter().map(|stage| stage.tensor_bytes).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [3000, 3000, 4000]);
        assert_eq!(planned[0].layers.start(), 0);
        assert_eq!(planned[2].layers.end(), 10);
        assert!(planned.windows(2).all(|pair| pair[0].layers.end() == pair[1].layers.start()));
    }

    #[test]
    fn the_boundaries_weigh_in() {
        // Embeddings as heavy as three layers: the first stage gets three layers fewer.
        let planned = plan(&costs(&[1000; 9], 3000, 0, false), 2, |_| true).unwrap();
        assert_eq!(ranges(&planned), ["0..3", "3..9"]);
        assert_eq!(planned[0].tensor_bytes, 6000);
        // A tied head weighs on the last stage as well.
        let tied = plan(&costs(&[1000; 9], 3000, 10, true), 2, |_| true).unwrap();
        assert_eq!(tied[1].tensor_bytes, 3000 + 10 + 1000 * u64::from(tied[1].layers.len()));
    }

    #[test]
    fn embeddings_count_once_when_one_stage_owns_everything() {
        let planned = plan(&costs(&[10; 4], 100, 1, true), 1, |_| true).unwrap();
        assert_eq!(ranges(&planned), ["0..4"]);
        assert_eq!(planned[0].tensor_bytes, 141);
    }

    #[test]
    fn only_allowed_cuts_are_used() {
        let multiples_of_6 = |cut: u32| cut.is_multiple_of(6);
        let planned = plan(&costs(&[1000; 18], 0, 0, false), 2, multiples_of_6).unwrap();
        assert!(planned[1].layers.start() % 6 == 0);
        let error = plan(&costs(&[1000; 18], 0, 0, false), 4, multiples_of_6).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("4 stages") && text.contains("6,12") && text.contains("at most 3"), "{text}");
    }

    #[test]
    fn impossible_requests_are_refused() {
        assert_eq!(plan(&costs(&[1; 3], 0, 0, false), 0, |_| true), Err(PlanError::NoStages));
        assert!(matches!(plan(&costs(&[1; 3], 0, 0, false), 4, |_| true), Err(PlanError::TooMany { .. })));
        let none = plan(&costs(&[1; 3], 0, 0, false), 2, |_| false).unwrap_err();
        assert!(none.to_string().contains("no layer"), "{none}");
        assert!(plan(&Costs::default(), 1, |_| true).is_err());
    }

    #[test]
    fn the_heaviest_stage_is_as_light_as_any_choice_of_cuts_allows() {
        let layers = [7, 1, 9, 3, 3, 8, 2, 4u64].map(|bytes| bytes * 4096);
        let costs = costs(&layers, 5 * 4096, 6 * 4096, true);
        for stages in 1..=8u32 {
            let planned = plan(&costs, stages, |_| true).unwrap();
            assert_eq!(planned.len(), stages as usize);
            let ours = planned.iter().map(|stage| stage.tensor_bytes).max().unwrap();
            // Every subset of the 7 cuts with stages - 1 members.
            let mut lightest = u64::MAX;
            for mask in (0u32..128).filter(|mask| mask.count_ones() == stages - 1) {
                let mut bounds = vec![0];
                bounds.extend((0..7).filter(|bit| mask & (1 << bit) != 0).map(|bit| bit + 1));
                bounds.push(8);
                let heaviest =
                    bounds.windows(2).map(|pair| costs.stage_bytes(LayerRange::new(pair[0], pair[1]).unwrap()));
                lightest = lightest.min(heaviest.max().unwrap());
            }
            assert_eq!(ours, lightest, "{stages} stages");
        }
    }
}
