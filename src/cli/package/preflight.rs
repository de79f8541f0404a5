//! `preflight`.

use std::{path::PathBuf, process::ExitCode};

use super::print_json;
use crate::{
    cli::package::plan::{Wish, plan_package},
    package::{Code, Issue, Package, PreflightOptions, preflight},
};

/// Check a package before it is served and print every finding as JSON.
///
/// Exit code 1 when a finding is an error.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The package directory.
    package: PathBuf,
    /// Report what each of this many stages would load, cut as `plan` cuts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    stages: Option<u32>,
    /// Cut also where the model family is not certified.
    #[arg(long)]
    allow_uncertified_cuts: bool,
    /// Hash every artifact and compare with the manifest.
    #[arg(long)]
    verify_sha256: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut options = PreflightOptions { verify_sha256: args.verify_sha256, ..PreflightOptions::default() };
    let mut no_plan = None;
    // A package that cannot be opened has no plan; the report says why.
    if let (Some(stages), Ok(package)) = (args.stages, Package::open(&args.package)) {
        let wish = Wish { stages, uncertified: args.allow_uncertified_cuts, ..Wish::default() };
        match plan_package(&package, &wish) {
            Ok(plan) => options.stages = plan.stages.iter().map(|stage| stage.layers).collect(),
            Err(error) => no_plan = error.downcast::<crate::package::plan::PlanError>().ok(),
        }
    }
    let mut report = preflight(&args.package, &options);
    if let Some(error) = no_plan {
        report.issues.insert(0, Issue::new(Code::ImpossiblePlan, "--stages", error.to_string()));
        report.ok = false;
    }
    print_json(&report)?;
    Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
