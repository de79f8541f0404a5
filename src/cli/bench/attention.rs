//! One attention layer of GLM-5.2 (64 heads on rows of 512 + 64, indexer 32 x 128, f16 cache), our paths against ggml's
//! own operations in the order of llama.cpp's graph. Values are compared before any time counts.

use super::stats::{Sample, paired_ratio};
use crate::{
    llama::Threadpool,
    policy::Path,
    stage::dsa::measure::{AttentionLayer, Measured},
};
use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use std::{sync::Arc, time::Duration};

/// Arguments of `bench attention`.
#[derive(Args, Clone, Debug)]
pub struct AttentionArgs {
    /// KV rows
    #[arg(long, value_delimiter = ',', default_values_t = [8192, 32768])]
    kv: Vec<usize>,
    /// Tokens of a pass
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64])]
    tokens: Vec<usize>,
    /// Rows that the indexer selects
    #[arg(long, default_value_t = 2048)]
    top_k: u32,
    /// Full layers among the layers: the indexer runs in one of this many (IndexShare), on both sides
    #[arg(long, default_value_t = 4)]
    share: u32,
    /// Rounds of upstream and each path
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Compute threads
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One path at one shape.
#[derive(Serialize)]
struct Row {
    n_kv: usize,
    tokens: usize,
    path: &'static str,
    upstream_select_ms: Sample,
    upstream_attend_ms: Sample,
    select_ms: Sample,
    attend_ms: Sample,
    /// Time of a layer, selection shared as `--share` says, over upstream's: below 1 means faster.
    ratio: Sample,
    /// Largest difference of a value, relative to the largest value.
    difference: f32,
}

/// Values of both sides differ by the rounding of f16 sums, and where scores tie within rounding by the rows selected.
const TOLERANCE: f32 = 0.02;

/// Runs the benchmark.
///
/// # Errors
/// When memory runs out, or values differ.
pub(super) fn run(args: &AttentionArgs) -> anyhow::Result<()> {
    let pool = Arc::new(Threadpool::new(args.threads).context("cannot start compute threads")?);
    let mut table = Vec::new();
    for n_kv in &args.kv {
        let mut layer = AttentionLayer::new(pool.clone(), *n_kv, args.top_k)?;
        for tokens in &args.tokens {
            let paths: &[Path] = if *tokens == 1 {
                &[Path::CompactFlash, Path::DirectSparse]
            } else {
                &[Path::SparseChunked, Path::CompactFlash]
            };
            for path in paths {
                let row = measure(args, &mut layer, *n_kv, *tokens, *path)?;
                if !args.json {
                    print(&row);
                }
                table.push(row);
            }
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&table)?);
    }
    Ok(())
}

fn measure(
    args: &AttentionArgs,
    layer: &mut AttentionLayer,
    n_kv: usize,
    tokens: usize,
    path: Path,
) -> anyhow::Result<Row> {
    let (upstream, ours) = (layer.upstream(tokens)?, layer.ours(tokens, path)?);
    let difference = difference(&upstream.values, &ours.values);
    anyhow::ensure!(
        difference <= TOLERANCE,
        "{}: values differ by {difference} of the largest at {n_kv} rows, {tokens} tokens",
        path.label()
    );
    let (mut theirs, mut mine): (Vec<Measured>, Vec<Measured>) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        theirs.push(layer.upstream(tokens)?);
        mine.push(layer.ours(tokens, path)?);
    }
    let of = |side: &[Measured], get: fn(&Measured) -> Duration| {
        Sample::millis(&side.iter().map(get).collect::<Vec<_>>()).context("no rounds")
    };
    let whole = |side: &[Measured]| -> Vec<Duration> {
        side.iter().map(|one| one.select / args.share.max(1) + one.attend).collect()
    };
    Ok(Row {
        n_kv,
        tokens,
        path: path.label(),
        upstream_select_ms: of(&theirs, |one| one.select)?,
        upstream_attend_ms: of(&theirs, |one| one.attend)?,
        select_ms: of(&mine, |one| one.select)?,
        attend_ms: of(&mine, |one| one.attend)?,
        ratio: paired_ratio(&whole(&mine), &whole(&theirs)).context("no rounds")?,
        difference,
    })
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    let largest = a.iter().fold(f32::MIN_POSITIVE, |max, value| max.max(value.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}

fn print(row: &Row) {
    println!(
        "kv {:>6}  tokens {:>3}  {:<14}  upstream {:>9.2} + {:>9.2} ms  ours {:>8.2} + {:>8.2} ms  ratio {:.3}  (difference {:.4})",
        row.n_kv,
        row.tokens,
        row.path,
        row.upstream_select_ms.median,
        row.upstream_attend_ms.median,
        row.select_ms.median,
        row.attend_ms.median,
        row.ratio.median,
        row.difference,
    );
}
