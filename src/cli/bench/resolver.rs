//! Time of one decision of the phase resolver.

use super::stats::Sample;
use crate::policy::{Inputs, Path, Phase, Resolver, ResolverConfig};
use anyhow::Context as _;
use std::{hint::black_box, time::Instant};

/// Decisions of a round.
const DECISIONS: u32 = 1_000_000;
const ROUNDS: usize = 9;

pub(super) fn run() -> anyhow::Result<()> {
    let resolver = Resolver::new(ResolverConfig { top_k: Some(2048), ..ResolverConfig::default() });
    // Every phase, below and above top-k, forced and not, with masks within the budget and over it.
    let lengths = [1, 64, 2048, 4096, 131_072];
    let inputs = |i: u32| {
        let phase = Phase::ALL[i as usize % Phase::ALL.len()];
        let n_kv = lengths[(i / 4) as usize % lengths.len()];
        let path = i.is_multiple_of(3).then(|| Path::ALL[(i / 3) as usize % Path::ALL.len()]);
        Inputs { path, ..Inputs::new(phase, 1 + i % 512, n_kv) }
    };
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for i in 0..DECISIONS {
            black_box(resolver.resolve(black_box(&inputs(i))));
        }
        rounds.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(DECISIONS));
    }
    let sample = Sample::new(rounds).context("no rounds")?;
    println!(
        "{:.1} ns per decision ({:.1}..{:.1}), {DECISIONS} decisions a round",
        sample.median, sample.min, sample.max
    );
    Ok(())
}
