//! Rows that must not be missing: `GLM52_PHASE_E_REQUIRE_GATES` and `GLM52_PHASE_E_KERNEL_SWEEP`.

use super::{
    attention::AttentionRow,
    fixtures::{Group, SWEEP_CHUNKS, SWEEP_TOKENS, sweep_threads},
    moe::{DOWNS, ExpertsRow, LAYER},
    report::Report,
};
use crate::stage::dsa::measure::Part;

/// What is demanded of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gates {
    /// The MoE layer in the shape of production.
    pub(super) production: bool,
    /// Threads, chunks and tokens one by one.
    pub(super) sweep: bool,
}

impl Gates {
    /// # Errors
    /// Everything that is missing.
    pub(super) fn check(self, report: &Report) -> anyhow::Result<()> {
        let mut missing = Vec::new();
        if self.production {
            missing.extend(missing_production(&report.experts));
        }
        if self.sweep {
            missing.extend(missing_sweep(&report.attention, report.origin.threads));
        }
        anyhow::ensure!(missing.is_empty(), "demanded rows are missing: {}", missing.join("; "));
        Ok(())
    }
}

/// One token through the whole second half of a layer, with each down projection, and the parts that are not products.
fn missing_production(rows: &[ExpertsRow]) -> Vec<String> {
    let produced = |row: &&ExpertsRow| {
        (row.tokens, row.n_embd, row.expert_width, row.experts_used) == (1, 6144, 2048, 8) && row.experts >= 16
    };
    let rows: Vec<_> = rows.iter().filter(produced).collect();
    let mut missing = Vec::new();
    for down in DOWNS.map(|down| down.name()) {
        if !rows
            .iter()
            .any(|row| row.part == LAYER && row.switch.is_none() && row.down == down && row.ours_ms.is_some())
        {
            missing.push(format!("routed and shared experts of one token, n_embd 6144, down {down}"));
        }
    }
    for part in [Part::Route, Part::Swiglu, Part::WeightedSum].map(Part::label) {
        if !rows.iter().any(|row| row.part == part) {
            missing.push(format!("{part} of one token, n_embd 6144"));
        }
    }
    missing
}

fn missing_sweep(rows: &[AttentionRow], threads: u32) -> Vec<String> {
    let rows: Vec<_> = rows.iter().filter(|row| row.group == Group::Sweep).collect();
    let mut missing = Vec::new();
    for tokens in [1, 64] {
        for n in sweep_threads(threads) {
            if !rows.iter().any(|row| row.threads == Some(n) && row.tokens == tokens) {
                missing.push(format!("sweep with {n} threads, {tokens} tokens"));
            }
        }
    }
    for n in SWEEP_CHUNKS {
        if !rows.iter().any(|row| row.chunk_rows == Some(n)) {
            missing.push(format!("sweep with {n} rows a chunk"));
        }
    }
    for n in SWEEP_TOKENS {
        if !rows.iter().any(|row| row.tokens == n) {
            missing.push(format!("sweep with {n} tokens"));
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::stats::Sample;

    fn row(part: &'static str, down: &'static str) -> ExpertsRow {
        let sample = || Sample::new(vec![1.0]).unwrap();
        ExpertsRow {
            part,
            switch: None,
            tokens: 1,
            gate_up: "q2_K",
            down,
            shared: "q4_K",
            n_embd: 6144,
            expert_width: 2048,
            experts: 16,
            experts_used: 8,
            upstream_ms: sample(),
            ours_ms: Some(sample()),
            speedup: Some(sample()),
            difference: Some(0.0),
        }
    }

    fn production() -> Vec<ExpertsRow> {
        let parts = Part::ALL.map(|part| row(part.label(), "q3_K"));
        parts.into_iter().chain([row(LAYER, "q3_K"), row(LAYER, "q2_K")]).collect()
    }

    #[test]
    fn rows_in_another_shape_than_productions_do_not_count() {
        assert!(missing_production(&production()).is_empty());
        assert_eq!(missing_production(&[]).len(), 5);
        let changed = |change: fn(&mut ExpertsRow)| {
            let mut rows = production();
            rows.iter_mut().filter(|row| row.part == LAYER && row.down == "q2_K").for_each(change);
            missing_production(&rows)
        };
        for change in [
            |row: &mut ExpertsRow| row.n_embd = 2048,
            |row: &mut ExpertsRow| row.tokens = 64,
            |row: &mut ExpertsRow| row.experts_used = 2,
            |row: &mut ExpertsRow| row.experts = 8,
            |row: &mut ExpertsRow| row.ours_ms = None,
        ] {
            assert_eq!(changed(change), ["routed and shared experts of one token, n_embd 6144, down q2_K"]);
        }
    }

    #[test]
    fn every_row_of_the_sweep_is_demanded() {
        let missing = missing_sweep(&[], 4);
        assert_eq!(missing.len(), 2 * 3 + SWEEP_CHUNKS.len() + SWEEP_TOKENS.len());
        assert!(missing.contains(&"sweep with 4 threads, 64 tokens".to_owned()), "{missing:?}");
    }
}
