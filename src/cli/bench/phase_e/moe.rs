//! Rows of routed and shared experts.

use super::{PhaseEArgs, Spoil, parity};
use crate::{
    cli::bench::stats::{Sample, paired_ratio},
    gguf::GgmlType,
    llama::Threadpool,
    package::generation::{Switch, Vocabulary as _},
    policy::{
        Profile,
        evidence::{Measurement, Shape},
    },
    stage::dsa::{
        DsaStageError, Switches,
        measure::{EXPERT_WIDTH, ExpertTypes, ExpertsLayer, Part, Timed},
    },
};
use anyhow::Context as _;
use serde::Serialize;
use std::{sync::Arc, time::Duration};

/// Types of the routed projections: down q3_K as GLM-5.2 is published, the smaller down that is under test, everything q4_K, and
/// q8_0, for which there are no kernels of many rows, so that the switches act.
const TYPES: [ExpertTypes; 4] = [
    ExpertTypes { gate_up: GgmlType::Q2_K, down: GgmlType::Q3_K },
    ExpertTypes { gate_up: GgmlType::Q2_K, down: GgmlType::Q2_K },
    ExpertTypes { gate_up: GgmlType::Q4_K, down: GgmlType::Q4_K },
    ExpertTypes { gate_up: GgmlType::Q8_0, down: GgmlType::Q8_0 },
];
/// Down projections that a complete run has.
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
    /// The experimental switch that is open.
    pub(super) switch: Option<&'static str>,
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

/// Measures all that fits; what does not is described in `left_out`. What a switch gains goes to `evidence`.
pub(super) fn measure(
    args: &PhaseEArgs,
    pool: &Arc<Threadpool>,
    left_out: &mut Vec<String>,
    evidence: &mut Vec<Measurement>,
) -> anyhow::Result<Vec<ExpertsRow>> {
    let mut rows = Vec::new();
    for types in TYPES {
        let Some(experts) = fitting(args.memory << 20, types, args.quick) else {
            left_out.push(format!("moe: down {}, {} experts", types.down.name(), EXPERTS[EXPERTS.len() - 1]));
            continue;
        };
        eprintln!("moe: down {}, {experts} experts", types.down.name());
        let mut layer = ExpertsLayer::new(pool.clone(), experts, types)?;
        // Of few rows, products with q8_0 are more exact here than in ggml, and no measure for each other.
        for tokens in TOKENS.into_iter().filter(|tokens| *tokens > 1 || types.gate_up != GgmlType::Q8_0) {
            let mut bench = Bench { args, layer: &mut layer, experts, types, tokens };
            // The switches are about passes of many rows; few rows take kernels in which both are done already.
            let switches: &[Option<Switch>] = if tokens == 1 { &[None] } else { &SWITCHES };
            rows.extend(bench.rows(LAYER, switches, evidence, |layer, seed, side| match side {
                Side::Upstream => layer.upstream(tokens, seed).map(Some),
                Side::Ours(switch) => layer.ours(tokens, seed, open(switch)).map(Some),
            })?);
            for part in Part::ALL {
                rows.extend(bench.rows(part.label(), &[None], evidence, |layer, seed, side| match side {
                    Side::Upstream => layer.upstream_part(part, tokens, seed).map(Some),
                    Side::Ours(_) => layer.our_part(part, tokens, seed),
                })?);
            }
        }
    }
    Ok(rows)
}

/// The layer as it is, then with each switch open.
const SWITCHES: [Option<Switch>; 3] = [None, Some(Switch::MoeWeightedDown), Some(Switch::MoeMergedSharedGateUp)];

/// That switch alone open.
fn open(switch: Option<Switch>) -> Switches {
    Switches {
        moe_weighted_down: switch == Some(Switch::MoeWeightedDown),
        moe_merged_shared_gate_up: switch == Some(Switch::MoeMergedSharedGateUp),
        ..Switches::default()
    }
}

/// As many experts as fit into `bytes`.
fn fitting(bytes: usize, types: ExpertTypes, quick: bool) -> Option<usize> {
    let counts = EXPERTS.into_iter().filter(|n| !quick || *n <= QUICK_EXPERTS);
    counts.into_iter().find(|n| ExpertsLayer::bytes(*n, types) <= bytes)
}

struct Bench<'a> {
    args: &'a PhaseEArgs,
    layer: &'a mut ExpertsLayer,
    experts: usize,
    types: ExpertTypes,
    tokens: usize,
}

/// Who computes.
#[derive(Clone, Copy)]
enum Side {
    Upstream,
    Ours(Option<Switch>),
}

type Outcome = Result<Option<Timed<Vec<f32>>>, DsaStageError>;

impl Bench<'_> {
    /// Upstream against us with each of `switches`, the first being none. `run` computes a side on rows that a seed makes.
    fn rows(
        &mut self,
        part: &'static str,
        switches: &[Option<Switch>],
        evidence: &mut Vec<Measurement>,
        run: impl Fn(&mut ExpertsLayer, u64, Side) -> Outcome,
    ) -> anyhow::Result<Vec<ExpertsRow>> {
        let compared = self.compare(part, switches, &run)?;
        let ours = compared.ours.iter().map(|(switch, _)| Side::Ours(*switch));
        let sides: Vec<Side> = ours.chain([Side::Upstream]).collect();
        let mut times: Vec<Vec<Duration>> = vec![Vec::new(); sides.len()];
        let rounds = usize::from(self.args.rounds) * if self.tokens == 1 { 4 } else { 1 };
        for round in 0..rounds {
            // Other rows, and so other experts, each time: a layer's experts are not in the cache when a token comes by.
            // Each side goes first in its turn.
            for at in (0..sides.len()).map(|i| (i + round) % sides.len()) {
                let took = run(self.layer, round as u64 + 1, sides[at])?.map(|timed| timed.took);
                times[at].extend(took);
            }
        }
        let (upstream, ours) = times.split_last().context("upstream was not measured")?;
        let [n_embd, experts_used] = ExpertsLayer::widths();
        let mut rows = Vec::new();
        for ((switch, values), ours_of) in compared.ours.iter().zip(ours) {
            if let (Some(switch), Some(base), Some(values)) = (switch, &compared.ours[0].1, values) {
                evidence.push(Measurement {
                    profile: Profile::GlmDsaV1,
                    switch: *switch,
                    shape: Shape { n_tokens: self.tokens as u32, n_kv: 0, top_k: 0 },
                    parity_error: parity::difference(values, base),
                    tolerance: parity::VALUES,
                    speed_ratio: paired_ratio(&ours[0], ours_of).context("no rounds")?.median,
                });
            }
            rows.push(ExpertsRow {
                part,
                switch: switch.map(|switch| switch.name()),
                tokens: self.tokens,
                gate_up: self.types.gate_up.name(),
                down: self.types.down.name(),
                shared: ExpertsLayer::shared_type(),
                n_embd,
                expert_width: EXPERT_WIDTH,
                experts: self.experts,
                experts_used,
                upstream_ms: Sample::millis(upstream).context("no rounds")?,
                ours_ms: Sample::millis(ours_of),
                speedup: paired_ratio(upstream, ours_of),
                difference: values.as_ref().map(|values| parity::difference(values, &compared.upstream)),
            });
        }
        Ok(rows)
    }

    /// Values of both sides, checked. A switch that changes neither operations nor values is left out: what it would be said to
    /// gain is noise.
    ///
    /// # Errors
    /// When they differ.
    fn compare(
        &mut self,
        part: &'static str,
        switches: &[Option<Switch>],
        run: impl Fn(&mut ExpertsLayer, u64, Side) -> Outcome,
    ) -> anyhow::Result<Compared> {
        let upstream = run(self.layer, 0, Side::Upstream)?.context("upstream was not measured")?.value;
        let (mut all, mut plain): (Vec<Values>, usize) = (Vec::new(), 0);
        for switch in switches {
            let ours = run(self.layer, 0, Side::Ours(*switch))?;
            let operations = ours.as_ref().map_or(0, |timed| timed.operations);
            let mut values = ours.map(|timed| timed.value);
            if let (Some(values), Some(Spoil::Experts)) = (&mut values, self.args.spoil) {
                values.iter_mut().take(1).for_each(|value| *value += 1e6);
            }
            let difference = values.as_ref().map_or(0.0, |values| parity::difference(values, &upstream));
            anyhow::ensure!(
                difference <= parity::VALUES,
                "moe: {part}, {}down {}, {} tokens: values differ by {difference:.1e} of the largest, more than {:.0e}",
                switch.map(|switch| format!("{}, ", switch.name())).unwrap_or_default(),
                self.types.down.name(),
                self.tokens,
                parity::VALUES
            );
            match all.first() {
                None => plain = operations,
                Some((_, base)) if operations == plain && *base == values => continue,
                Some(_) => {}
            }
            all.push((*switch, values));
        }
        Ok(Compared { ours: all, upstream })
    }
}

/// The switch that is open, and values; none where we have no such part.
type Values = (Option<Switch>, Option<Vec<f32>>);

/// Values of both sides.
struct Compared {
    ours: Vec<Values>,
    upstream: Vec<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_experts_are_taken_where_memory_asks() {
        let fit = |mib: usize, quick| fitting(mib << 20, TYPES[0], quick);
        assert_eq!([fit(4096, false), fit(4096, true), fit(1024, false)], [Some(256), Some(16), Some(64)]);
        assert_eq!([fit(100, false), fit(0, false)], [None, None]);
        assert!(ExpertsLayer::bytes(256, TYPES[1]) < ExpertsLayer::bytes(256, TYPES[0]));
        assert_eq!(fitting(4096 << 20, TYPES[2], false), Some(128));
    }
}
