//! What drafting gains: the same greedy requests with and without, in one server, one at a time.

use super::stats::Sample;
use crate::{
    cli::serve::{self as serve_cli, config::ServeFlags},
    serve::{self, Event, GenerateRequest, ServeHandle, ServeOptions},
    text::SamplingParams,
};
use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use std::{path::PathBuf, time::Duration};

/// Arguments of `bench speculation`.
#[derive(Args, Clone, Debug)]
pub struct SpeculationArgs {
    /// Layer package directory
    package: PathBuf,
    /// JSON array of prompts
    #[arg(long, value_name = "FILE")]
    prompts: PathBuf,
    /// Prompts to use
    #[arg(long, default_value_t = 12)]
    limit: usize,
    /// Tokens to generate for each prompt
    #[arg(long, default_value_t = 128)]
    tokens: u32,
    /// Rounds over the prompts, each prompt without and with drafts in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Strategy that drafts
    #[arg(long, default_value = "mtp")]
    strategy: String,
    /// Compute threads; all cores by default
    #[arg(long)]
    threads: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    prompts: usize,
    tokens: u32,
    drafts: u32,
    accepted: u32,
    /// Drafts accepted of those made.
    acceptance: f64,
    /// Tokens behind the first of each answer for each forward pass of the target.
    tokens_per_forward: f64,
    /// Time of a token behind the first, milliseconds.
    without_ms: Sample,
    with_ms: Sample,
    /// Speed with drafts against without: above 1 means faster.
    speed: Sample,
}

/// One pass over the prompts.
#[derive(Default)]
struct Pass {
    answers: Vec<Vec<i32>>,
    decoding: Duration,
    tokens: u32,
    drafts: u32,
    accepted: u32,
    forwards: u32,
}

pub(super) fn run(args: &SpeculationArgs) -> anyhow::Result<()> {
    anyhow::ensure!(args.rounds > 0 && args.tokens > 1, "rounds must be positive, tokens at least 2");
    let text = std::fs::read_to_string(&args.prompts).with_context(|| format!("{}", args.prompts.display()))?;
    let prompts: Vec<String> = serde_json::from_str(&text).context("expected a JSON array of strings")?;
    let flags = ServeFlags {
        package: Some(args.package.clone()),
        lanes: Some(1),
        threads: args.threads,
        speculative_strategy: Some(args.strategy.clone()),
        ..ServeFlags::default()
    };
    let model = serve_cli::load(&flags.resolve()?)?;
    let (text, n_ctx) = (model.text.clone(), model.card.n_ctx);
    let options = ServeOptions { lanes: Some(1), ..ServeOptions::default() };
    let (handle, engine) = serve::spawn(model.engine, model.text, model.card, options)?;
    let prompts = prompts.iter().take(args.limit).map(|prompt| text.tokenize(prompt, true, true));
    let prompts = prompts.collect::<Result<Vec<_>, _>>()?;
    let fits = |prompt: &&Vec<i32>| prompt.len() + args.tokens as usize <= n_ctx as usize;
    let prompts: Vec<Vec<i32>> = prompts.iter().filter(fits).cloned().collect();
    anyhow::ensure!(!prompts.is_empty(), "no prompt leaves room for {} tokens in {n_ctx}", args.tokens);

    let runtime = crate::cli::runtime()?;
    let pass = |drafting: bool| runtime.block_on(generate(&handle, &prompts, args.tokens, drafting));
    let (plain, drafted) = (pass(false)?, pass(true)?);
    anyhow::ensure!(plain.answers == drafted.answers, "the answers differ with drafts");
    let per_token = |pass: &Pass| pass.decoding.as_secs_f64() * 1e3 / f64::from(pass.tokens.max(1));
    // Pairs of one prompt each, the order changing: what disturbs the machine for longer meets both sides.
    let one = |prompt: &Vec<i32>, drafting: bool| -> anyhow::Result<f64> {
        let pass = generate(&handle, std::slice::from_ref(prompt), args.tokens, drafting);
        Ok(per_token(&runtime.block_on(pass)?))
    };
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..args.rounds {
        for (place, prompt) in prompts.iter().enumerate() {
            let drafts_first = (round + place) % 2 == 1;
            let first = one(prompt, drafts_first)?;
            let second = one(prompt, !drafts_first)?;
            let (drafted, plain) = if drafts_first { (first, second) } else { (second, first) };
            without.push(plain);
            with.push(drafted);
        }
    }
    let speed = without.iter().zip(&with).map(|(without, with)| without / with).collect();
    handle.drain(Duration::ZERO);
    engine.join().ok();
    let report = Report {
        prompts: prompts.len(),
        tokens: args.tokens,
        drafts: drafted.drafts,
        accepted: drafted.accepted,
        acceptance: f64::from(drafted.accepted) / f64::from(drafted.drafts.max(1)),
        tokens_per_forward: f64::from(drafted.tokens) / f64::from(drafted.forwards.max(1)),
        without_ms: Sample::new(without).context("no rounds")?,
        with_ms: Sample::new(with).context("no rounds")?,
        speed: Sample::new(speed).context("no rounds")?,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    println!("{} prompts, {} tokens each, the same with and without drafts", report.prompts, report.tokens);
    println!("accepted {} of {} drafts ({:.3})", report.accepted, report.drafts, report.acceptance);
    println!("tokens per forward {:.3}", report.tokens_per_forward);
    println!(
        "ms per token {:.3} without, {:.3} with: speed {:.3} ({:.3}..{:.3})",
        report.without_ms.median, report.with_ms.median, report.speed.median, report.speed.min, report.speed.max
    );
    Ok(())
}

async fn generate(handle: &ServeHandle, prompts: &[Vec<i32>], tokens: u32, drafting: bool) -> anyhow::Result<Pass> {
    let mut pass = Pass::default();
    for prompt in prompts {
        let mut events = handle.submit(GenerateRequest {
            prompt: prompt.clone(),
            sampling: SamplingParams::greedy(),
            max_tokens: Some(tokens),
            ignore_eos: true,
            without_speculation: !drafting,
            ..GenerateRequest::default()
        })?;
        let mut ids = Vec::new();
        while let Some(event) = events.recv().await {
            match event {
                Event::Delta { tokens, .. } => ids.extend(tokens.iter().map(|token| token.id)),
                Event::Done { timings, .. } => {
                    pass.decoding += Duration::from_secs_f64(timings.decode_ms / 1e3);
                    if let Some(drafts) = timings.drafts {
                        pass.drafts += drafts.drafts;
                        pass.accepted += drafts.accepted;
                        pass.forwards += drafts.forwards;
                    }
                }
                Event::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
        pass.tokens += u32::try_from(ids.len())?.saturating_sub(1);
        pass.answers.push(ids);
    }
    Ok(pass)
}
