//! Serving against a plain `llama_decode` loop.
//!
//! For each number of lanes the same work is done in turns by (a) the loop a C programmer would write, (b) the
//! scheduler called in process, and (c) the HTTP server over loopback with streamed answers: the same prompts, the same
//! number of greedy tokens, end-of-text ignored. Times are from the first request to the last token of all.

use super::{
    client,
    stats::{Sample, paired_ratio},
};
use crate::{
    cli::serve::{
        self as serve_cli,
        config::{ServeConfig, ServeFlags},
    },
    http::{self, HttpOptions},
    llama::baseline::{Baseline, BaselineOptions},
    serve::{self, Event, GenerateRequest, ServeHandle, ServeOptions},
    telemetry,
    text::SamplingParams,
};
use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use std::{
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, sync::mpsc};

/// Arguments of `bench decode`.
#[derive(Args, Clone, Debug)]
pub struct DecodeArgs {
    /// Layer package directory
    package: PathBuf,
    /// The GGUF file that the package was made from
    #[arg(long)]
    gguf: PathBuf,
    /// Numbers of requests that run together
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    lanes: Vec<u32>,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 8)]
    prompt_tokens: usize,
    /// Tokens to generate for each request
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// Rounds of loop, scheduler, server
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Compute threads; all cores by default
    #[arg(long)]
    threads: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    lanes: u32,
    tokens: usize,
    same_tokens: bool,
    loop_ms: Sample,
    scheduler_ms: Sample,
    http_ms: Sample,
    /// Speed against the loop: above 1 means faster.
    scheduler_speed: Sample,
    http_speed: Sample,
}

pub(super) fn run(args: &DecodeArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.rounds > 0 && args.tokens > 1 && args.prompt_tokens > 0,
        "rounds, tokens and prompt must be positive"
    );
    let runtime = crate::cli::runtime()?;
    let rows = args.lanes.iter().map(|lanes| measure(args, *lanes, &runtime)).collect::<anyhow::Result<Vec<Row>>>()?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!(
        "lanes  loop ms/token  scheduler  http   speed of scheduler (min..max)  speed of http (min..max)  same tokens"
    );
    for row in &rows {
        let per_token = |ms: f64| ms / row.tokens as f64;
        println!(
            "{:>5}  {:>13.3}  {:>9.3}  {:>5.3}  {:>8.3} ({:.3}..{:.3})  {:>18.3} ({:.3}..{:.3})  {}",
            row.lanes,
            per_token(row.loop_ms.median),
            per_token(row.scheduler_ms.median),
            per_token(row.http_ms.median),
            row.scheduler_speed.median,
            row.scheduler_speed.min,
            row.scheduler_speed.max,
            row.http_speed.median,
            row.http_speed.min,
            row.http_speed.max,
            row.same_tokens
        );
    }
    Ok(())
}

fn measure(args: &DecodeArgs, lanes: u32, runtime: &tokio::runtime::Runtime) -> anyhow::Result<Row> {
    let config = config(args, lanes)?;
    let model = serve_cli::load(&config)?;
    let n_vocab = model.card.n_vocab;
    let (handle, engine) = serve::spawn(
        model.engine,
        model.text,
        model.card,
        ServeOptions { lanes: Some(lanes), ctx_per_request: config.ctx_size, ..ServeOptions::default() },
    )?;
    let mut plain = Baseline::load(
        &args.gguf,
        &BaselineOptions {
            n_ctx: config.ctx_size.unwrap_or(0) * lanes,
            n_batch: config.batch_size,
            n_seq_max: lanes,
            n_threads: config.threads,
            exact: false,
            flash_attention: true,
        },
    )?;
    let prompts: Vec<Vec<i32>> = (0..lanes)
        .map(|lane| {
            (0..args.prompt_tokens as u32)
                .map(|i| ((lane * 7919 + i + 1).wrapping_mul(2_654_435_761) % n_vocab) as i32)
                .collect()
        })
        .collect();

    let (loop_tokens, served_tokens) = (
        plain.generate(&prompts, args.tokens)?.tokens,
        runtime.block_on(through_scheduler(&handle, &prompts, args.tokens))?,
    );
    let same_tokens = loop_tokens == served_tokens;
    let (stop, address) = runtime.block_on(start_http(&handle))?;
    let (mut loop_times, mut scheduler_times, mut http_times) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        loop_times.push(timed(|| plain.generate(&prompts, args.tokens).map_err(Into::into))?);
        scheduler_times.push(timed(|| runtime.block_on(through_scheduler(&handle, &prompts, args.tokens)))?);
        http_times.push(timed(|| runtime.block_on(through_http(address, &prompts, args.tokens)))?);
    }
    drop(stop);
    handle.drain(Duration::ZERO);
    engine.join().ok();
    let sample = |times: &[Duration]| Sample::millis(times).context("no rounds");
    Ok(Row {
        lanes,
        tokens: args.tokens,
        same_tokens,
        loop_ms: sample(&loop_times)?,
        scheduler_ms: sample(&scheduler_times)?,
        http_ms: sample(&http_times)?,
        scheduler_speed: paired_ratio(&loop_times, &scheduler_times).context("no rounds")?,
        http_speed: paired_ratio(&loop_times, &http_times).context("no rounds")?,
    })
}

fn config(args: &DecodeArgs, lanes: u32) -> anyhow::Result<ServeConfig> {
    let ctx_size = u32::try_from(args.prompt_tokens + args.tokens)?.next_multiple_of(256);
    let flags = ServeFlags {
        package: Some(args.package.clone()),
        lanes: Some(lanes),
        ctx_size: Some(ctx_size),
        threads: args.threads,
        ..ServeFlags::default()
    };
    Ok(flags.resolve()?)
}

fn timed<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

async fn through_scheduler(handle: &ServeHandle, prompts: &[Vec<i32>], tokens: usize) -> anyhow::Result<Vec<Vec<i32>>> {
    let running = prompts
        .iter()
        .map(|prompt| {
            handle
                .submit(GenerateRequest {
                    prompt: prompt.clone(),
                    sampling: SamplingParams::greedy(),
                    max_tokens: Some(u32::try_from(tokens)?),
                    ignore_eos: true,
                    ..GenerateRequest::default()
                })
                .map_err(anyhow::Error::from)
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut all = Vec::with_capacity(running.len());
    for mut events in running {
        let mut ids = Vec::with_capacity(tokens);
        while let Some(event) = events.recv().await {
            match event {
                Event::Delta { tokens, .. } => ids.extend(tokens.iter().map(|token| token.id)),
                Event::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
        all.push(ids);
    }
    Ok(all)
}

/// Serves on a free loopback port until the sender is dropped.
async fn start_http(handle: &ServeHandle) -> anyhow::Result<(mpsc::Sender<()>, SocketAddr)> {
    let metrics = telemetry::install()?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = mpsc::channel(1);
    tokio::spawn(http::run(listener, handle.clone(), metrics, HttpOptions::default(), stopped));
    Ok((stop, address))
}

async fn through_http(address: SocketAddr, prompts: &[Vec<i32>], tokens: usize) -> anyhow::Result<usize> {
    let mut running = tokio::task::JoinSet::new();
    for prompt in prompts {
        let body = serde_json::json!({
            "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": true,
        });
        running.spawn(async move { client::stream(address, &body, |_| {}).await });
    }
    let mut pieces = 0;
    while let Some(done) = running.join_next().await {
        pieces += done??.pieces.len();
    }
    Ok(pieces)
}
