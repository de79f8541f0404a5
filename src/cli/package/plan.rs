//! `plan`.

use std::{cell::RefCell, path::PathBuf, process::ExitCode};

use serde_json::json;

use super::{print, print_json, size};
use crate::{
    package::{
        Package,
        plan::{Costs, PlanError, PlannedStage, plan},
    },
    stage::families::{CutError, check_cut},
};

/// Split a package into stages of about equal tensor bytes, at cuts that the model family allows.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The package directory.
    package: PathBuf,
    /// Number of stages.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    stages: u32,
    /// Cut also where the model family is not certified.
    #[arg(long)]
    allow_uncertified_cuts: bool,
    /// Print the plan as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let package = Package::open(&args.package)?;
    let stages = plan_package(&package, args.stages, args.allow_uncertified_cuts)?;
    let heaviest = stages.iter().map(|stage| stage.tensor_bytes).max().unwrap_or(0);
    let cuts: Vec<String> = stages.iter().skip(1).map(|stage| stage.layers.start().to_string()).collect();
    if args.json {
        let shown = stages.iter().map(|stage| {
            json!({
                "layer_start": stage.layers.start(),
                "layer_end": stage.layers.end(),
                "tensor_bytes": stage.tensor_bytes,
            })
        });
        print_json(&json!({
            "model_id": package.manifest().model_id,
            "layer_count": package.manifest().layer_count,
            "cuts": stages.iter().skip(1).map(|stage| stage.layers.start()).collect::<Vec<_>>(),
            "heaviest_stage_bytes": heaviest,
            "stages": shown.collect::<Vec<_>>(),
        }))?;
    } else {
        let mut out = String::new();
        for (index, stage) in stages.iter().enumerate() {
            out.push_str(&format!("stage {index}: layers {}, {}\n", stage.layers, size(stage.tensor_bytes)));
        }
        if !cuts.is_empty() {
            out.push_str(&format!(
                "in one process: skippy-stage serve {} --split {}\n",
                args.package.display(),
                cuts.join(",")
            ));
        }
        print(&out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The plan, with the bytes that each stage really selects.
///
/// # Errors
/// When a shared artifact is refused, or, as a [`PlanError`], when the model's cuts do not allow so many stages.
pub(super) fn plan_package(package: &Package, stages: u32, uncertified: bool) -> anyhow::Result<Vec<PlannedStage>> {
    let (costs, metadata) = Costs::of(package)?;
    let layer_count = package.manifest().layer_count;
    let refused = RefCell::new(None::<CutError>);
    let allowed = |cut| match check_cut(&metadata, layer_count, cut, uncertified) {
        Ok(()) => true,
        Err(error) => {
            refused.borrow_mut().get_or_insert(error);
            false
        }
    };
    let mut planned = plan(&costs, stages, allowed).map_err(|error| match (error, refused.take()) {
        (PlanError::TooMany { stages, layer_count, allowed, .. }, Some(cut)) => {
            PlanError::TooMany { stages, layer_count, allowed, why: format!(" ({cut})") }
        }
        (error, _) => error,
    })?;
    for stage in &mut planned {
        stage.tensor_bytes = package.select(stage.layers)?.tensor_bytes();
    }
    Ok(planned)
}
