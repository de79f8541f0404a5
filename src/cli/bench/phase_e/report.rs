//! Everything that was measured, with where and how.

use super::{PhaseEArgs, attention::AttentionRow, moe::ExpertsRow, parity};
use crate::{chat::clock, cli::machine, kernels, policy::Origin};
use anyhow::Context as _;
use serde::Serialize;

/// What the JSON file holds.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) version: u32,
    pub(super) date: String,
    pub(super) command: String,
    /// Build, machine and threads.
    pub(super) origin: Origin,
    /// 10^9 f32 multiply-adds each second that the threads reach in registers.
    pub(super) fma_peak_gmacs: f64,
    pub(super) tolerances: Tolerances,
    /// One layer in this many runs the indexer.
    pub(super) share: u32,
    pub(super) attention: Vec<AttentionRow>,
    pub(super) experts: Vec<ExpertsRow>,
    /// Fixtures that `--memory` left out.
    pub(super) left_out: Vec<String>,
}

/// What counts as the same result; see [`parity`].
#[derive(Serialize)]
pub(super) struct Tolerances {
    values: f64,
    upstream: f64,
    selection: f64,
}

impl Report {
    /// Nothing measured yet.
    ///
    /// # Errors
    /// When the running executable cannot be read.
    pub(super) fn new(args: &PhaseEArgs, threads: u32) -> anyhow::Result<Self> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let origin = Origin::here(&machine::capability(), threads).context("cannot read this executable")?;
        Ok(Self {
            version: 1,
            date: clock::now("%Y-%m-%d %H:%M UTC"),
            command: format!("skippy-stage {}", words.join(" ")),
            origin,
            fma_peak_gmacs: kernels::fma_peak(threads as usize) / 1e9,
            tolerances: Tolerances { values: parity::VALUES, upstream: parity::UPSTREAM, selection: parity::SELECTION },
            share: args.share,
            attention: Vec::new(),
            experts: Vec::new(),
            left_out: Vec::new(),
        })
    }

    /// What one thread can reach, 10^9 multiply-adds each second, and threads.
    pub(super) fn peak(&self) -> (f64, u32) {
        (self.fma_peak_gmacs / f64::from(self.origin.threads.max(1)), self.origin.threads)
    }

    /// Where, when and how, for people.
    pub(super) fn header(&self) -> String {
        let Self { date, command, origin, fma_peak_gmacs, .. } = self;
        let Origin { device, isa, threads, build, llama, .. } = origin;
        format!(
            "`{command}`, {date}, {device}, kernels {isa}, {threads} threads with {fma_peak_gmacs:.0} G multiply-adds/s, \
             skippy-stage {build}, {llama}\n"
        )
    }
}
