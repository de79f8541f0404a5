//! `write-package`.

use std::{num::NonZeroUsize, path::PathBuf, process::ExitCode};

use serde_json::json;

use super::{Bar, UsageError, jobs, print, print_json, refuse_hub_source, size};
use crate::package::write::{WriteRequest, write_package};

/// Cut a GGUF model into a layer package.
///
/// The source is streamed, never held in memory. Every fragment is read back and compared with the source before the
/// manifest is written. A run that was interrupted goes on where it stopped when it is started again.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A GGUF file, any shard of a split model, or a directory that holds one model.
    source: PathBuf,
    /// Directory to write the package to; new, empty, or with the same package, finished or not.
    #[arg(long, value_name = "DIR")]
    out_dir: PathBuf,
    /// Coordinate of the source model.
    #[arg(long, value_name = "ORG/REPO:DISTRIBUTION")]
    model_id: Option<String>,
    /// Commit of the source repository.
    #[arg(long, value_name = "COMMIT")]
    source_revision: Option<String>,
    /// Name of the source file, or of its first shard, within the source repository.
    #[arg(long, value_name = "FILE")]
    source_file: Option<String>,
    /// Multimodal projector to copy into the package; may be given several times.
    #[arg(long = "projector", value_name = "GGUF")]
    projectors: Vec<PathBuf>,
    /// Threads [default: one per core].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    refuse_hub_source(&args.source)?;
    let (Some(model_id), Some(source_revision), Some(source_file)) =
        (args.model_id.clone(), args.source_revision.clone(), args.source_file.clone())
    else {
        return Err(missing_provenance(args).into());
    };
    let request = WriteRequest {
        source: args.source.clone(),
        out_dir: args.out_dir.clone(),
        model_id,
        source_revision,
        source_file,
        projectors: args.projectors.clone(),
        jobs: jobs(args.jobs),
    };
    let bar = Bar::new("writing");
    let written = write_package(&request, &bar);
    bar.finish();
    let written = written?;
    for note in &written.derived.notes {
        eprintln!("note: {note}");
    }
    let manifest = &written.manifest;
    let bytes: u64 = manifest.artifacts().map(|(_, artifact)| artifact.artifact_bytes).sum();
    let artifacts = manifest.artifacts().count();
    if args.json {
        print_json(&json!({
            "package": args.out_dir.to_string_lossy(),
            "model_id": manifest.model_id,
            "layer_count": manifest.layer_count,
            "activation_width": manifest.activation_width,
            "artifacts": artifacts,
            "artifacts_reused": written.reused,
            "artifact_bytes": bytes,
            "manifest_sha256": written.manifest_sha256,
            "generation": manifest.generation,
            "notes": written.derived.notes,
        }))?;
    } else {
        let reused =
            if written.reused > 0 { format!(", {} of them there already", written.reused) } else { String::new() };
        print(&format!(
            "wrote `{}`: {}, {} layers, {artifacts} artifacts{reused}, {}\nmanifest sha256 {}\n",
            args.out_dir.display(),
            manifest.model_id,
            manifest.layer_count,
            size(bytes),
            written.manifest_sha256,
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn missing_provenance(args: &Args) -> UsageError {
    let flags = [
        ("--model-id", args.model_id.is_some()),
        ("--source-revision", args.source_revision.is_some()),
        ("--source-file", args.source_file.is_some()),
    ];
    let missing: Vec<&str> = flags.iter().filter(|(_, given)| !given).map(|(flag, _)| *flag).collect();
    UsageError(format!(
        "a local source needs its provenance stated: missing {} (for example `--model-id org/repo:Q4_K_M \
         --source-revision <commit> --source-file model.gguf`)",
        missing.join(", ")
    ))
}
