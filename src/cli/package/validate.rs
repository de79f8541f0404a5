//! `validate-package`.

use std::{num::NonZeroUsize, path::PathBuf, process::ExitCode};

use super::{Bar, jobs, print, print_json, refuse_hub_source};
use crate::package::{
    Severity,
    validate::{Validation, validate},
};

/// Compare a package with the source model it was cut from, byte for byte.
///
/// The report goes to stdout. Exit code 1 when the package is not valid.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The source: a GGUF file, any shard of a split model, or a directory that holds one model.
    source: PathBuf,
    /// The package directory.
    package: PathBuf,
    /// Threads [default: one per core].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    refuse_hub_source(&args.source)?;
    let bar = Bar::new("comparing");
    let report = validate(&args.source, &args.package, jobs(args.jobs), &bar);
    bar.finish();
    let report = report?;
    if args.json {
        print_json(&report)?;
    } else {
        print(&text(&report))?;
    }
    if report.valid {
        return Ok(ExitCode::SUCCESS);
    }
    let errors = report.issues.iter().filter(|issue| issue.severity == Severity::Error).count();
    eprintln!(
        "error: `{}` is not a valid package of `{}`: {errors} errors",
        args.package.display(),
        args.source.display()
    );
    Ok(ExitCode::FAILURE)
}

fn text(report: &Validation) -> String {
    let mut out = super::issues(&report.issues);
    let verdict = if report.valid { "valid" } else { "not valid" };
    out.push_str(&format!(
        "{verdict}: {} of {} tensors of the source are in exactly one artifact and equal byte for byte\n",
        report.equal_tensors, report.source_tensors
    ));
    out
}
