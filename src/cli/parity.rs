//! `skippy-stage parity`: does a split model compute what the whole one does?
//!
//! Runs a prompt in one batch, then decodes a few tokens one by one, through the whole model and through two stages
//! for every cut, and compares all logits. This is what certifies a family (see [`crate::stage::families`]); operators
//! run it before they trust an uncertified cut.

use super::engine::{EngineChoice, EngineOptions, chain};
use crate::{
    llama::Threadpool,
    package::{LayerRange, Package, Verify},
    stage::{
        Row, SeqId, StageBatch, StageEngine, StageInput, StageOutput, llama::LlamaStageOptions, local_chain::LocalChain,
    },
};
use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use std::{path::PathBuf, process::ExitCode, sync::Arc};
use tracing_subscriber::filter::LevelFilter;

use super::serve::config::CacheType;

/// Arguments of `parity`.
#[derive(Args, Clone, Debug)]
pub struct ParityArgs {
    /// Layer package directory
    pub package: PathBuf,
    /// Cuts to try; every allowed one by default
    #[arg(long, value_delimiter = ',', value_name = "LAYER,..")]
    pub cuts: Vec<u32>,
    /// Prompt; numbered tokens of the vocabulary by default
    #[arg(long)]
    pub prompt: Option<String>,
    /// Type of the K and V cache
    #[arg(long, value_enum, default_value = "f16")]
    pub cache_type: CacheType,
    /// What runs the layers
    #[arg(long, value_enum, default_value = "auto")]
    pub engine: EngineChoice,
    /// Compute threads
    #[arg(long, default_value_t = 2)]
    pub threads: u32,
    /// Also try cuts of families that are not certified
    #[arg(long)]
    pub allow_uncertified_cuts: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What came of one cut.
#[derive(Clone, Debug, Serialize)]
pub struct CutParity {
    /// First layer of the second stage.
    pub cut: u32,
    /// Largest absolute difference of a logit, whole against split.
    pub max_abs_diff: f32,
    /// Whether every logit has the same bits.
    pub bit_equal: bool,
}

/// Tokens of the default prompt.
const PROMPT_TOKENS: u32 = 21;
/// Tokens decoded one by one after the prompt.
const STEPS: u32 = 3;

/// Compares the whole model with two stages for each of `cuts`.
///
/// # Errors
/// When the package cannot be loaded, a cut is not allowed, or a stage fails.
pub fn compare(
    package: &Package,
    cuts: &[u32],
    prompt: &[i32],
    options: &EngineOptions,
    pool: &Arc<Threadpool>,
) -> anyhow::Result<Vec<CutParity>> {
    let whole = logits(&mut chain(package, &[], options, pool)?.chain, prompt)?;
    cuts.iter()
        .map(|cut| {
            let split = logits(&mut chain(package, &[*cut], options, pool)?.chain, prompt)?;
            anyhow::ensure!(whole.len() == split.len(), "cut {cut}: {} logits, expected {}", split.len(), whole.len());
            let pairs = || whole.iter().zip(&split);
            Ok(CutParity {
                cut: *cut,
                max_abs_diff: pairs().map(|(a, b)| (a - b).abs()).fold(0.0, f32::max),
                bit_equal: pairs().all(|(a, b)| a.to_bits() == b.to_bits()),
            })
        })
        .collect()
}

/// Logits of every prompt row, then of [`STEPS`] greedy tokens.
fn logits(chain: &mut LocalChain, prompt: &[i32]) -> anyhow::Result<Vec<f32>> {
    let n_vocab = chain.shape().n_vocab;
    let row = |pos: usize| Row { seq: SeqId(0), pos: pos as u32, output: true };
    let rows: Vec<Row> = (0..prompt.len()).map(row).collect();
    let mut all = output(chain, &StageBatch::new(StageInput::Tokens(prompt), &rows))?;
    for step in 0..STEPS as usize {
        let last = all.len().checked_sub(n_vocab).and_then(|start| all.get(start..)).context("no logits")?;
        let next = crate::text::argmax(last).context("nan in the logits")?;
        let input = StageInput::Tokens(&[i32::try_from(next)?]);
        all.extend(output(chain, &StageBatch::new(input, &[row(prompt.len() + step)]))?);
    }
    Ok(all)
}

fn output(chain: &mut LocalChain, batch: &StageBatch<'_>) -> anyhow::Result<Vec<f32>> {
    match chain.forward(batch)? {
        StageOutput::Logits(rows) => Ok(rows.to_vec()),
        StageOutput::Hidden(_) => anyhow::bail!("the last stage gave hidden rows instead of logits"),
    }
}

/// Runs `parity` to its end: exit code 0 when every cut is bit-equal, 1 otherwise.
///
/// # Errors
/// As [`compare`].
pub fn run(args: &ParityArgs) -> anyhow::Result<ExitCode> {
    super::init_logging(false, LevelFilter::WARN);
    let package = Package::open(&args.package)?;
    let layer_count = package.manifest().layer_count;
    let whole = package.load(&package.select(LayerRange::new(0, layer_count)?)?, Verify::SizesOnly)?;
    let metadata = whole.metadata.gguf().metadata.clone();
    drop(whole);
    let llama = LlamaStageOptions {
        n_ctx_seq: 512,
        n_batch: 512,
        n_seq_max: 1,
        cache_type_k: args.cache_type.into(),
        cache_type_v: args.cache_type.into(),
        gpu_layers: None,
        allow_uncertified_cuts: args.allow_uncertified_cuts,
    };
    let options = EngineOptions { engine: args.engine, ..EngineOptions::from(llama) };
    let allowed = |cut: u32| options.check_cut(&metadata, layer_count, cut);
    let cuts: Vec<u32> = match args.cuts.is_empty() {
        true => (1..layer_count).filter(|cut| allowed(*cut).is_ok()).collect(),
        false => args.cuts.iter().map(|cut| allowed(*cut).map(|()| *cut)).collect::<Result<_, _>>()?,
    };
    let prompt = match &args.prompt {
        Some(text) => {
            let vocabulary = crate::stage::llama::load_vocabulary(&metadata)?;
            crate::text::TextModel::tokenize(&vocabulary, text, true, false)?
        }
        None => sample_prompt(&metadata),
    };
    anyhow::ensure!(
        !prompt.is_empty() && prompt.len() < 500,
        "the prompt has {} tokens, allowed 1 to 499",
        prompt.len()
    );
    let pool = Arc::new(Threadpool::new(args.threads)?);
    let results = compare(&package, &cuts, &prompt, &options, &pool)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        for result in &results {
            let verdict = if result.bit_equal { "bit-equal" } else { "DIFFERS" };
            println!("cut {:>4}  max |d| {:<12e} {verdict}", result.cut, result.max_abs_diff);
        }
        let equal = results.iter().filter(|result| result.bit_equal).count();
        println!("{equal} of {} cuts bit-equal ({} prompt tokens, {STEPS} decoded)", results.len(), prompt.len());
    }
    Ok(if results.iter().all(|result| result.bit_equal) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Token ids spread over the vocabulary.
pub fn sample_prompt(metadata: &crate::gguf::Metadata) -> Vec<i32> {
    let n_vocab = metadata.array("tokenizer.ggml.tokens").map_or(32, |tokens| tokens.len().max(1)) as u32;
    (0..PROMPT_TOKENS).map(|i| (i.wrapping_mul(2_654_435_761) % n_vocab) as i32).collect()
}
