//! `skippy-stage bench phase-e`: each of our ways to compute a GLM-5.2 layer against ggml's own operations in the order of
//! llama.cpp's graph, in one run and in turns. Values are compared before any time counts; a difference ends the command.

mod attention;
mod fixtures;
mod gates;
mod moe;
mod parity;
mod plot;
mod report;
mod table;

use crate::{llama::Threadpool, policy::Evidence, stage::dsa::measure::AttentionLayer};
use anyhow::Context as _;
use clap::{Args, builder::FalseyValueParser};
use fixtures::{Fixture, Group};
use gates::Gates;
use report::Report;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Arguments of `bench phase-e`.
#[derive(Args, Clone, Debug)]
pub struct PhaseEArgs {
    /// Groups of rows to measure; all but `sweep` when absent
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Group>,
    /// Rounds of upstream and every path; fixtures of microseconds take more, those of many seconds fewer
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Compute threads; all cores when absent
    #[arg(long)]
    threads: Option<u32>,
    /// Fewer fixtures and rounds: a look, no evidence for a whole table
    #[arg(long)]
    quick: bool,
    /// MiB that the data of one fixture may take; rows that do not fit are left out, and said so
    #[arg(long, default_value_t = 4096)]
    memory: usize,
    /// Full layers among the layers: a layer's time counts the indexer once in this many (IndexShare), on both sides
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    share: u32,
    /// Write everything that was measured as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a plot of a layer's time against KV rows
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write evidence of the experimental switches, for `serve --evidence`
    #[arg(long, value_name = "FILE")]
    evidence: Option<PathBuf>,
    /// Fail when a row of the shape of the production MoE layer is missing
    #[arg(long, env = "GLM52_PHASE_E_REQUIRE_GATES", value_parser = FalseyValueParser::new())]
    require_gates: bool,
    /// Measure threads, chunks and tokens one by one too, and fail when one of these rows is missing
    #[arg(long, env = "GLM52_PHASE_E_KERNEL_SWEEP", value_parser = FalseyValueParser::new())]
    kernel_sweep: bool,
    /// Spoil a result of ours before it is compared, to see the command fail
    #[arg(long, value_enum, hide = true)]
    spoil: Option<Spoil>,
}

/// A fault that the comparison must see.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Spoil {
    Selection,
    Values,
    Experts,
}

impl PhaseEArgs {
    fn wants(&self, group: Group) -> bool {
        match self.only.is_empty() {
            true => group != Group::Sweep || self.kernel_sweep,
            false => self.only.contains(&group),
        }
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When values differ, memory runs out, a file cannot be written, or a demanded row is missing.
pub(super) fn run(args: &PhaseEArgs) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let pool = Threadpool::new(args.threads.unwrap_or(cores))?;
    let pool = Arc::new(pool);
    let mut report = Report::new(args, pool.n_threads())?;
    println!("{}", report.header());

    let mut evidence = Vec::new();
    let fixtures = fixtures::all(args.quick, pool.n_threads());
    let (fit, too_large): (Vec<Fixture>, Vec<Fixture>) = fixtures
        .into_iter()
        .filter(|fixture| args.wants(fixture.group))
        .partition(|fixture| fixture.bytes() <= args.memory << 20);
    report.left_out.extend(too_large.iter().map(Fixture::describe));
    if let Some(room) = fit.iter().map(|fixture| fixture.shape.n_kv).max() {
        let mut layer = AttentionLayer::new(pool.clone(), room)?;
        for fixture in &fit {
            eprintln!("{}", fixture.describe());
            report.attention.extend(attention::measure(args, &mut layer, fixture, &mut evidence)?);
        }
        println!("{}", table::attention(&report.attention, report.peak()));
    }
    if args.wants(Group::Moe) {
        report.experts = moe::measure(args, &pool, &mut report.left_out, &mut evidence)?;
        println!("{}", table::experts(&report.experts));
    }

    for row in &report.left_out {
        println!("Left out, since it needs more than {} MiB: {row}.", args.memory);
    }
    if let Some(path) = &args.json {
        write(path, serde_json::to_string_pretty(&report)?)?;
    }
    if let Some(path) = &args.svg {
        write(path, plot::svg(&report)?)?;
    }
    if let Some(path) = &args.evidence {
        anyhow::ensure!(!evidence.is_empty(), "no switch was measured: nothing to write to {}", path.display());
        write(path, Evidence::seal(evidence, report.origin.clone())?)?;
    }
    let gates = Gates { production: args.require_gates, sweep: args.kernel_sweep };
    gates.check(&report)
}

fn write(path: &Path, text: String) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
