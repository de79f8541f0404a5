//! Rows that must not be missing: `GLM52_PHASE_E_KERNEL_SWEEP`.

use super::{
    attention::AttentionRow,
    fixtures::{Group, SWEEP_CHUNKS, SWEEP_TOKENS, sweep_threads},
    report::Report,
};

/// What is demanded of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gates {
    /// Threads, chunks and tokens one by one.
    pub(super) sweep: bool,
}

impl Gates {
    /// # Errors
    /// Everything that is missing.
    pub(super) fn check(self, report: &Report) -> anyhow::Result<()> {
        let mut missing = Vec::new();
        if self.sweep {
            missing.extend(missing_sweep(&report.attention, report.machine.threads));
        }
        anyhow::ensure!(missing.is_empty(), "demanded rows are missing: {}", missing.join("; "));
        Ok(())
    }
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
