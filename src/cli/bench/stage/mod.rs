//! A range of layers at depth: prefill and decode behind thousands of rows, the `dsa` engine against the `llama` engine, that
//! is llama.cpp's own graph, on the same fragments.
//!
//! Both caches are filled with the same random rows through [`StageEngine::restore`](crate::stage::StageEngine::restore):
//! computing them would take llama.cpp hours. Outputs are compared before any time counts. A comparison of quantised models
//! means little by itself, since both round activations, so the difference is held against what the cached rows are worth:
//! how far the output moves when they are others. A selection or an attention gone wrong moves it as far.

mod memory;
mod report;
mod rows;
mod side;

use self::{
    memory::Memory,
    report::{Depth, Report},
    rows::CachedRows,
    side::Side,
};
use super::stats::{Sample, paired_ratio};
use crate::{
    llama::Threadpool,
    package::{LayerRange, Package},
};
use anyhow::Context as _;
use clap::Args;
use std::{path::PathBuf, sync::Arc, time::Duration};

/// Arguments of `bench stage`.
#[derive(Args, Clone, Debug)]
pub struct StageArgs {
    /// Layer package directory, of a GLM-DSA model
    package: PathBuf,
    /// Layers, A..B; all of them by default
    #[arg(long, value_name = "A..B")]
    layers: Option<LayerRange>,
    /// Rows that are cached already
    #[arg(long, value_delimiter = ',', default_values_t = [2048, 8192, 32768])]
    at: Vec<u32>,
    /// Rows of a prefill pass
    #[arg(long, default_value_t = 256)]
    chunk: u32,
    /// Tokens decoded one by one in a round
    #[arg(long, default_value_t = 8)]
    decode: u32,
    /// Rounds of llama, dsa
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Tokens of the prefill whose memory is measured, behind the most rows; 0 leaves it out
    #[arg(long, default_value_t = 2048)]
    memory: u32,
    /// Measure the `dsa` engine alone: nothing is compared
    #[arg(long)]
    alone: bool,
    /// Let the `llama` engine use ggml's flash attention, which it does not when it serves on a CPU
    #[arg(long)]
    llama_flash: bool,
    /// Compute threads
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Largest difference between the engines. F16 caches and activations rounded to q8_K make 0.022 of it in three q4_K layers.
const TOLERANCE: f32 = 0.1;
/// The difference over what the cached rows are worth, at most.
const OF_INFLUENCE: f32 = 0.5;
/// Rows of a compared pass that give output, at most: the `llama` engine has room for 64 rows of logits.
const COMPARED: u32 = 32;

/// Runs the benchmark.
///
/// # Errors
/// When something cannot be loaded or computed, or outputs differ.
pub(super) fn run(args: &StageArgs) -> anyhow::Result<()> {
    anyhow::ensure!(args.rounds > 0 && args.chunk > 0 && args.decode > 0, "rounds, chunk and decode must be positive");
    let package = Package::open(&args.package)?;
    let whole = LayerRange::new(0, package.manifest().layer_count)?;
    let bench = Bench { args, package: &package, layers: args.layers.unwrap_or(whole) };
    let report = bench.run()?;
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.table()),
    }
    Ok(())
}

struct Bench<'a> {
    args: &'a StageArgs,
    package: &'a Package,
    layers: LayerRange,
}

impl Bench<'_> {
    fn run(&self) -> anyhow::Result<Report> {
        let args = self.args;
        let most = args.at.iter().copied().max().context("no depth to measure at")?;
        // A compared pass has a token behind it.
        let room = (most + (args.chunk + 1).max(args.decode).max(args.memory)).next_multiple_of(256);
        let pool = Arc::new(Threadpool::new(args.threads)?);
        let mut dsa = Side::dsa(self.package, self.layers, &pool, (room, args.chunk))?;
        let config = side::config(self.package, self.layers)?;
        let cached = CachedRows::random(&config, self.layers, most + args.memory, 1);
        let memory = (args.memory > 0).then(|| Memory::measure(&mut dsa, &cached, (most, args.memory), args.chunk));
        let memory = memory.transpose()?;
        let mut depths = Vec::new();
        if args.alone {
            for at in &args.at {
                depths.push(self.alone(&mut dsa, &cached, *at)?);
            }
        } else {
            let other = CachedRows::random(&config, self.layers, most, 2);
            let mut llama = Side::llama(self.package, self.layers, &pool, (room, args.chunk), args.llama_flash)?;
            for at in &args.at {
                depths.push(self.depth([&mut dsa, &mut llama], [&cached, &other], *at)?);
            }
        }
        Ok(Report {
            model: self.package.manifest().model_id.clone(),
            layers: self.layers.to_string(),
            threads: args.threads,
            chunk: args.chunk,
            llama_flash: args.llama_flash,
            depths,
            memory,
        })
    }

    /// The `dsa` engine at one depth.
    fn alone(&self, dsa: &mut Side, cached: &CachedRows, at: u32) -> anyhow::Result<Depth> {
        dsa.fill(cached, at)?;
        let (mut prefill, mut decode) = (Vec::new(), Vec::new());
        for round in 0..=self.args.rounds {
            let times = (dsa.prefill(self.args.chunk)?, dsa.decode(self.args.decode)?);
            // The first one touches the weights.
            if round > 0 {
                prefill.push(times.0);
                decode.push(times.1);
            }
        }
        Ok(Depth { at, dsa_prefill: self.speeds(&prefill)?, dsa_decode_ms: self.per_token(&decode)?, against: None })
    }

    /// Both engines at one depth, compared and timed in turns.
    fn depth(&self, [dsa, llama]: [&mut Side; 2], [cached, other]: [&CachedRows; 2], at: u32) -> anyhow::Result<Depth> {
        let compared = |side: &mut Side, cached: &CachedRows| -> anyhow::Result<Vec<Vec<f32>>> {
            side.fill(cached, at)?;
            side.outputs(self.args.chunk, COMPARED)
        };
        let moved = compared(dsa, other)?;
        let (ours, theirs) = (compared(dsa, cached)?, compared(llama, cached)?);
        let (difference, influence) = (median_distance(&ours, &theirs)?, median_distance(&moved, &ours)?);
        anyhow::ensure!(
            difference <= TOLERANCE && difference <= OF_INFLUENCE * influence,
            "outputs at {at} rows differ by {difference}, and other rows in the cache move them by {influence}"
        );
        let (mut prefill, mut decode) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for _ in 0..self.args.rounds {
            for (times, side) in prefill.iter_mut().zip([&mut *llama, &mut *dsa]) {
                times.push(side.prefill(self.args.chunk)?);
            }
            for (times, side) in decode.iter_mut().zip([&mut *llama, &mut *dsa]) {
                times.push(side.decode(self.args.decode)?);
            }
        }
        let ([their_prefill, our_prefill], [their_decode, our_decode]) = (prefill, decode);
        Ok(Depth {
            at,
            dsa_prefill: self.speeds(&our_prefill)?,
            dsa_decode_ms: self.per_token(&our_decode)?,
            against: Some(report::Against {
                llama_prefill: self.speeds(&their_prefill)?,
                llama_decode_ms: self.per_token(&their_decode)?,
                prefill_speed: paired_ratio(&their_prefill, &our_prefill).context("no rounds")?,
                decode_speed: paired_ratio(&their_decode, &our_decode).context("no rounds")?,
                difference,
                influence,
            }),
        })
    }

    /// Tokens per second of prefill passes.
    fn speeds(&self, times: &[Duration]) -> anyhow::Result<Sample> {
        let chunk = f64::from(self.args.chunk);
        Sample::new(times.iter().map(|time| chunk / time.as_secs_f64()).collect()).context("no rounds")
    }

    /// Milliseconds for a token of decoding.
    fn per_token(&self, times: &[Duration]) -> anyhow::Result<Sample> {
        let tokens = f64::from(self.args.decode);
        Sample::new(times.iter().map(|time| time.as_secs_f64() * 1e3 / tokens).collect()).context("no rounds")
    }
}

/// The median over rows of the distance between two outputs, relative to the second. Not the largest: a row whose experts
/// nearly tie may take another one by rounding alone.
fn median_distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> anyhow::Result<f32> {
    anyhow::ensure!(a.len() == b.len(), "{} rows of output against {}", a.len(), b.len());
    let square = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x) * f64::from(x)).sum::<f64>();
    let distance = |(a, b): (&Vec<f32>, &Vec<f32>)| {
        let off = square(&mut a.iter().zip(b).map(|(a, b)| a - b));
        (off / square(&mut b.iter().copied())).sqrt()
    };
    let distances = Sample::new(a.iter().zip(b).map(distance).collect()).context("no rows of output")?;
    anyhow::ensure!(distances.max.is_finite(), "outputs that are no numbers");
    Ok(distances.median as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_relative_and_by_row() {
        let rows = |scale: f32| vec![vec![3.0 * scale, 4.0], vec![6.0, 8.0], vec![1.0, 0.0]];
        assert_eq!(median_distance(&rows(1.0), &rows(1.0)).unwrap(), 0.0);
        let off = median_distance(&[vec![3.0, 3.0]], &[vec![3.0, 4.0]]).unwrap();
        assert!((off - 0.2).abs() < 1e-6, "{off}");
        assert!(median_distance(&rows(1.0), &rows(1.0)[..2]).is_err());
        assert!(median_distance(&[vec![f32::NAN]], &[vec![1.0]]).is_err());
    }
}
