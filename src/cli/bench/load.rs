//! Loading a package against llama.cpp loading the GGUF it was made from, and what a stage costs in memory.
//!
//! Both sides end with a context that is ready to compute. The page cache is warm: one load of each goes uncounted.

use super::stats::{Sample, paired_ratio};
use crate::{
    llama::{
        KvType, Threadpool,
        baseline::{Baseline, BaselineOptions},
    },
    package::{LayerRange, Package, StageFiles, Verify},
    stage::{
        Boundary, Row, SeqId, StageBatch, StageEngine as _, StageInput,
        llama::{LlamaStage, LlamaStageOptions},
    },
};
use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// Arguments of `bench load`.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// Layer package directory
    package: PathBuf,
    /// The GGUF file that the package was made from
    #[arg(long)]
    gguf: PathBuf,
    /// Cuts between the stages whose memory is measured
    #[arg(long, value_delimiter = ',')]
    split: Vec<u32>,
    /// KV rows
    #[arg(long, default_value_t = 512)]
    ctx_size: u32,
    /// Rounds of package, GGUF
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    package_ms: Sample,
    gguf_ms: Sample,
    /// Time of the package over time of the GGUF: below 1 means faster.
    time_ratio: Sample,
    stages: Vec<StageMemory>,
}

/// What loading one stage added to the process.
#[derive(Serialize)]
struct StageMemory {
    layers: String,
    /// Bytes of the tensors that the stage owns.
    tensor_bytes: u64,
    /// Anonymous memory that the stage added after one full batch: weights, KV cache, compute and output buffers.
    anonymous_bytes: u64,
    /// KV cache at this context size, from the model's dimensions.
    kv_bytes: u64,
}

pub(super) fn run(args: &LoadArgs) -> anyhow::Result<()> {
    anyhow::ensure!(args.rounds > 0, "rounds must be positive");
    let pool = Arc::new(Threadpool::new(2)?);
    let package = Package::open(&args.package)?;
    let whole = LayerRange::new(0, package.manifest().layer_count)?;
    // Memory first: later, freed memory of earlier loads would be used again and not show.
    let mut stages = Vec::new();
    let mut start = whole.start();
    for end in args.split.iter().copied().chain([whole.end()]) {
        stages.push(stage_memory(args, LayerRange::new(start, end)?, &pool)?);
        start = end;
    }
    let (mut package_times, mut gguf_times) = (Vec::new(), Vec::new());
    for round in 0..=args.rounds {
        let ours = timed(|| open_and_load(args, whole, &pool))?;
        let plain = timed(|| plain(args))?;
        if round > 0 {
            package_times.push(ours);
            gguf_times.push(plain);
        }
    }
    let report = Report {
        package_ms: Sample::millis(&package_times).context("no rounds")?,
        gguf_ms: Sample::millis(&gguf_times).context("no rounds")?,
        time_ratio: paired_ratio(&package_times, &gguf_times).context("no rounds")?,
        stages,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

fn print(report: &Report) {
    let ratio = &report.time_ratio;
    println!(
        "ready: package {:.1} ms, gguf {:.1} ms, ratio {:.3} ({:.3}..{:.3})",
        report.package_ms.median, report.gguf_ms.median, ratio.median, ratio.min, ratio.max
    );
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    for stage in &report.stages {
        println!(
            "layers {}: tensors {:.1} MiB, kv {:.1} MiB, anonymous memory {:.1} MiB",
            stage.layers,
            mib(stage.tensor_bytes),
            mib(stage.kv_bytes),
            mib(stage.anonymous_bytes)
        );
    }
}

fn timed<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let loaded = work()?;
    let took = start.elapsed();
    drop(loaded);
    Ok(took)
}

fn open(args: &LoadArgs, range: LayerRange) -> anyhow::Result<StageFiles> {
    let package = Package::open(&args.package)?;
    Ok(package.load(&package.select(range)?, Verify::SizesOnly)?)
}

fn open_and_load(args: &LoadArgs, range: LayerRange, pool: &Arc<Threadpool>) -> anyhow::Result<LlamaStage> {
    Ok(LlamaStage::load(open(args, range)?, pool.clone(), &options(args))?)
}

fn options(args: &LoadArgs) -> LlamaStageOptions {
    LlamaStageOptions {
        n_ctx_seq: args.ctx_size,
        n_batch: args.ctx_size.min(512),
        n_seq_max: 1,
        cache_type_k: KvType::F16,
        cache_type_v: KvType::F16,
        gpu_layers: None,
        allow_uncertified_cuts: false,
    }
}

fn plain(args: &LoadArgs) -> anyhow::Result<Baseline> {
    let options = options(args);
    Ok(Baseline::load(
        &args.gguf,
        &BaselineOptions {
            n_ctx: options.n_ctx_seq,
            n_batch: options.n_batch,
            n_seq_max: 1,
            n_threads: 2,
            exact: false,
            flash_attention: true,
        },
    )?)
}

fn stage_memory(args: &LoadArgs, range: LayerRange, pool: &Arc<Threadpool>) -> anyhow::Result<StageMemory> {
    let files = open(args, range)?;
    let tensor_bytes = owned_tensor_bytes(&files);
    let kv_bytes = kv_bytes(&files, args.ctx_size);
    let before = anonymous_bytes()?;
    let mut stage = LlamaStage::load(files, pool.clone(), &options(args))?;
    let n_rows = options(args).n_batch;
    let rows: Vec<Row> = (0..n_rows).map(|pos| Row { seq: SeqId(0), pos, output: pos + 1 == n_rows }).collect();
    let (tokens, hidden) = (vec![1; rows.len()], vec![0.5; rows.len() * stage.shape().n_embd]);
    let input =
        if range.start() == 0 { StageInput::Tokens(&tokens) } else { StageInput::Hidden(Boundary::new(&hidden)) };
    stage.forward(&StageBatch::new(input, &rows))?;
    let anonymous_bytes = anonymous_bytes()?.saturating_sub(before);
    Ok(StageMemory { layers: range.to_string(), tensor_bytes, anonymous_bytes, kv_bytes })
}

/// Bytes of the tensors that llama.cpp holds for the stage. A first stage of a split model reads its embeddings in place.
fn owned_tensor_bytes(files: &StageFiles) -> u64 {
    let embeddings = files.embeddings.as_ref().filter(|_| files.owns_output());
    let boundary = [embeddings, files.output.as_ref()].into_iter().flatten();
    let layers = files.layers.iter().map(|(_, file)| file);
    boundary.chain(layers).flat_map(|file| &file.gguf().tensors).map(|tensor| tensor.n_bytes).sum()
}

/// Rows of an F16 cache over the stage's layers. 0 when the heads differ between layers.
fn kv_bytes(files: &StageFiles, n_ctx: u32) -> u64 {
    let metadata = &files.metadata.gguf().metadata;
    let number = |suffix: &str| metadata.arch_uint(suffix);
    let heads = number("attention.head_count").unwrap_or(0);
    let head_width = number("embedding_length").unwrap_or(0).checked_div(heads).unwrap_or(0);
    let width =
        number("attention.key_length").unwrap_or(head_width) + number("attention.value_length").unwrap_or(head_width);
    let kv_heads = number("attention.head_count_kv").unwrap_or(0);
    u64::from(files.range.len()) * u64::from(n_ctx) * kv_heads * width * 2
}

fn anonymous_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("anonymous memory can be read on Linux only")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon in /proc/self/status")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib << 10)
}
