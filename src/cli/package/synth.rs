//! `synth`.

use std::{num::NonZeroUsize, path::PathBuf, process::ExitCode};

use clap::ValueEnum;
use serde_json::json;

use super::{Bar, UsageError, jobs, print, print_json, size};
use crate::{
    gguf::GgmlType,
    package::{
        LayerRange,
        synth::{Dimensions, SynthError, SynthRequest, synthesise},
    },
};

/// Write a package of a few layers with the dimensions of a large model and random weights, to measure a stage with.
///
/// The slice is a model of its own, whose blocks 0.. are the layers asked for. It says nothing sensible: it has no tokenizer
/// and a vocabulary of 1024 tokens.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The model.
    #[arg(value_enum)]
    model: Model,
    /// Its layers, `A..B`; the first is given an indexer if it has none.
    #[arg(long, value_name = "A..B")]
    layers: LayerRange,
    /// Routed experts of each layer; a token uses as many as in the whole model.
    #[arg(long, value_name = "N", default_value_t = 16)]
    experts: u32,
    /// Type of the matrices; q8_0 where rows are not whole blocks of it.
    #[arg(long, value_enum, default_value = "q4_k")]
    quant: Quant,
    /// Directory to write the package to.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Where the random numbers start: the same command writes the same tensors.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Keep the model that the package is cut from, for `validate-package`.
    #[arg(long, value_name = "GGUF")]
    keep_source: Option<PathBuf>,
    /// Threads [default: one per core].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Model {
    #[value(name = "glm-5.2")]
    Glm52,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Quant {
    #[value(name = "f32")]
    F32,
    #[value(name = "f16")]
    F16,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_k")]
    Q4K,
    #[value(name = "q3_k")]
    Q3K,
    #[value(name = "q2_k")]
    Q2K,
}

impl From<Quant> for GgmlType {
    fn from(quant: Quant) -> Self {
        match quant {
            Quant::F32 => Self::F32,
            Quant::F16 => Self::F16,
            Quant::Q8_0 => Self::Q8_0,
            Quant::Q4K => Self::Q4_K,
            Quant::Q3K => Self::Q3_K,
            Quant::Q2K => Self::Q2_K,
        }
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Model::Glm52 = args.model;
    let request = SynthRequest {
        dimensions: Dimensions::GLM_5_2,
        layers: args.layers,
        experts: args.experts,
        ty: args.quant.into(),
        seed: args.seed,
        out_dir: args.out.clone(),
        keep_source: args.keep_source.clone(),
        jobs: jobs(args.jobs),
    };
    let bar = Bar::new("writing");
    let written = synthesise(&request, &bar);
    bar.finish();
    let written = match written {
        Err(error @ (SynthError::Layers { .. } | SynthError::Experts { .. })) => {
            return Err(UsageError(error.to_string()).into());
        }
        written => written?,
    };
    let manifest = &written.manifest;
    let bytes: u64 = manifest.artifacts().map(|(_, artifact)| artifact.artifact_bytes).sum();
    if args.json {
        print_json(&json!({
            "package": args.out.to_string_lossy(),
            "model_id": manifest.model_id,
            "layer_count": manifest.layer_count,
            "artifact_bytes": bytes,
            "manifest_sha256": written.manifest_sha256,
        }))?;
    } else {
        print(&format!(
            "wrote `{}`: {}, blocks 0..{}, {}\n",
            args.out.display(),
            manifest.model_id,
            manifest.layer_count,
            size(bytes),
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
