//! Rows of routed and shared experts.

use super::{PhaseEArgs, Spoil, parity};
use crate::{
    cli::bench::stats::{Sample, paired_ratio},
    gguf::GgmlType,
    llama::Threadpool,
    stage::dsa::measure::{EXPERT_WIDTH, ExpertsLayer, Part},
};
use anyhow::Context as _;
use serde::Serialize;
use std::{sync::Arc, time::Duration};

/// Types of the routed down projection: what GLM-5.2 is published with, and the smaller one that is under test.
pub(super) const DOWNS: [GgmlType; 2] = [GgmlType::Q3_K, GgmlType::Q2_K];
/// Tokens of a pass.
const TOKENS: [usize; 2] = [1, 64];
/// Experts of the model, and what is taken instead where they do not fit.
const EXPERTS: [usize; 5] = [256, 128, 64, 32, 16];
/// The same when only a look is wanted.
const QUICK_EXPERTS: usize = 16;
/// What the row of a whole layer is called.
pub(super) const LAYER: &str = "layer";

/// The second half of a layer, or a part of it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ExpertsRow {
    /// [`LAYER`] or a [`Part`].
    pub(super) part: &'static str,
    pub(super) tokens: usize,
    pub(super) gate_up: &'static str,
    pub(super) down: &'static str,
    pub(super) shared: &'static str,
    pub(super) n_embd: usize,
    pub(super) expert_width: usize,
    pub(super) experts: usize,
    pub(super) experts_used: usize,
    pub(super) upstream_ms: Sample,
    /// None where we have no kernel of our own for just this.
    pub(super) ours_ms: Option<Sample>,
    /// Upstream's time over ours, pair by pair.
    pub(super) speedup: Option<Sample>,
    /// Largest difference, relative to the largest value; at most [`parity::VALUES`].
    pub(super) difference: Option<f64>,
}

/// Measures all that fits; what does not is described in `left_out`.
pub(super) fn measure(
    args: &PhaseEArgs,
    pool: &Arc<Threadpool>,
    left_out: &mut Vec<String>,
) -> anyhow::Result<Vec<ExpertsRow>> {
    let mut rows = Vec::new();
    for down in DOWNS {
        let Some(experts) = fitting(args.memory << 20, down, args.quick) else {
            left_out.push(format!("moe: down {}, {} experts", down.name(), EXPERTS[EXPERTS.len() - 1]));
            continue;
        };
        eprintln!("moe: down {}, {experts} experts", down.name());
        let mut layer = ExpertsLayer::new(pool.clone(), experts, down)?;
        for tokens in TOKENS {
            let mut bench = Bench { args, layer: &mut layer, experts, down, tokens };
            rows.push(bench.row(LAYER, |layer, seed, ours| match ours {
                true => layer.ours(tokens, seed).map(Some),
                false => layer.upstream(tokens, seed).map(Some),
            })?);
            for part in Part::ALL {
                rows.push(bench.row(part.label(), |layer, seed, ours| match ours {
                    true => layer.our_part(part, tokens, seed),
                    false => layer.upstream_part(part, tokens, seed).map(Some),
                })?);
            }
        }
    }
    Ok(rows)
}

/// As many experts as fit into `bytes`.
fn fitting(bytes: usize, down: GgmlType, quick: bool) -> Option<usize> {
    let counts = EXPERTS.into_iter().filter(|n| !quick || *n <= QUICK_EXPERTS);
    counts.into_iter().find(|n| ExpertsLayer::bytes(*n, down) <= bytes)
}

struct Bench<'a> {
    args: &'a PhaseEArgs,
    layer: &'a mut ExpertsLayer,
    experts: usize,
    down: GgmlType,
    tokens: usize,
}

type Outcome = Result<Option<crate::stage::dsa::measure::Timed<Vec<f32>>>, crate::stage::dsa::DsaStageError>;

impl Bench<'_> {
    /// `run` computes one side, ours or upstream's, of rows that a seed makes.
    fn row(
        &mut self,
        part: &'static str,
        run: impl Fn(&mut ExpertsLayer, u64, bool) -> Outcome,
    ) -> anyhow::Result<ExpertsRow> {
        let theirs = run(self.layer, 0, false)?.context("upstream was not measured")?.value;
        let difference = run(self.layer, 0, true)?.map(|ours| {
            let mut values = ours.value;
            if self.args.spoil == Some(Spoil::Experts) {
                values.iter_mut().take(1).for_each(|value| *value += 1e6);
            }
            parity::difference(&values, &theirs)
        });
        anyhow::ensure!(
            difference.is_none_or(|difference| difference <= parity::VALUES),
            "moe: {part}, down {}, {} tokens: values differ by {:.1e} of the largest, more than {:.0e}",
            self.down.name(),
            self.tokens,
            difference.unwrap_or_default(),
            parity::VALUES
        );
        let rounds = usize::from(self.args.rounds) * if self.tokens == 1 { 4 } else { 1 };
        let (mut ours, mut theirs): (Vec<Duration>, Vec<Duration>) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            // Other rows, and so other experts, each time: a layer's experts are not in the cache when a token comes by.
            // Each side goes first in its turn.
            for side in [round % 2 == 0, round % 2 != 0] {
                let took = run(self.layer, round as u64 + 1, side)?.map(|timed| timed.took);
                if side { ours.extend(took) } else { theirs.extend(took) }
            }
        }
        let [gate_up, shared] = ExpertsLayer::types();
        let [n_embd, experts_used] = ExpertsLayer::widths();
        Ok(ExpertsRow {
            part,
            tokens: self.tokens,
            gate_up,
            down: self.down.name(),
            shared,
            n_embd,
            expert_width: EXPERT_WIDTH,
            experts: self.experts,
            experts_used,
            upstream_ms: Sample::millis(&theirs).context("no rounds")?,
            ours_ms: Sample::millis(&ours),
            speedup: paired_ratio(&theirs, &ours),
            difference,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_experts_are_taken_where_memory_asks() {
        let fit = |mib: usize, quick| fitting(mib << 20, GgmlType::Q3_K, quick);
        assert_eq!([fit(4096, false), fit(4096, true), fit(1024, false)], [Some(256), Some(16), Some(64)]);
        assert_eq!([fit(100, false), fit(0, false)], [None, None]);
        assert!(ExpertsLayer::bytes(256, GgmlType::Q2_K) < ExpertsLayer::bytes(256, GgmlType::Q3_K));
    }
}
