//! `glm-dsa-contract` and `validate-glm-dsa-contract`.

use std::{path::PathBuf, process::ExitCode};

use serde_json::{Value as Json, json};

use super::{inspect::render, issues, one_line, print, print_json};
use crate::package::{
    Severity,
    glm_dsa::{ContractReport, contract},
};

/// Show what a GLM-DSA package promises and contains: sizes, IndexShare roles, bytes for each token, MTP tensors, and its
/// generation policy beside the recommended one.
///
/// Exit code 1 when the package is not of the architecture `glm-dsa` or `deepseek32`, or its metadata cannot be used.
#[derive(Debug, clap::Args)]
pub(super) struct ShowArgs {
    /// The package directory.
    package: PathBuf,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Hold a GLM-DSA package against everything the engine demands: metadata, every tensor, IndexShare roles and the
/// generation block.
///
/// The findings go to stdout. Exit code 1 when one of them is an error.
#[derive(Debug, clap::Args)]
pub(super) struct ValidateArgs {
    /// The package directory.
    package: PathBuf,
    /// Demand the generation policy `glm-dsa-v1`, with a supported value for every phase.
    #[arg(long)]
    require_generation_policy: bool,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn show(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let report = contract(&args.package, false);
    if args.json {
        print_json(&report)?;
    } else {
        print(&description(&report)?)?;
    }
    if report.model.is_some() {
        return Ok(ExitCode::SUCCESS);
    }
    let why = report.issues.first().map_or("nothing is known about it", |issue| issue.message.as_str());
    eprintln!("error: `{}` has no GLM-DSA contract: {}", args.package.display(), one_line(why));
    Ok(ExitCode::FAILURE)
}

pub(super) fn validate(args: &ValidateArgs) -> anyhow::Result<ExitCode> {
    let report = contract(&args.package, args.require_generation_policy);
    if args.json {
        print_json(&report)?;
    } else {
        print(&findings(&report))?;
    }
    if report.ok {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("error: `{}` breaks the GLM-DSA contract: {} errors", args.package.display(), errors(&report));
    Ok(ExitCode::FAILURE)
}

fn errors(report: &ContractReport) -> usize {
    report.issues.iter().filter(|issue| issue.severity == Severity::Error).count()
}

fn findings(report: &ContractReport) -> String {
    let mut out = issues(&report.issues);
    match &report.model {
        Some(model) if report.ok => out.push_str(&format!(
            "valid: {} of {} layers, roles {}, top-k {}\n",
            model.architecture, model.layer_count, model.roles, model.top_k
        )),
        _ => out.push_str("not valid\n"),
    }
    out
}

fn description(report: &ContractReport) -> anyhow::Result<String> {
    let mut out = String::new();
    // Through text: an f32 shows as it is written there, not as the f64 next to it.
    let model: Json = serde_json::from_str(&serde_json::to_string(&report.model)?)?;
    render(&json!({"model_id": report.model_id, "model": model}), 0, &mut out);
    if !report.generation.is_empty() {
        out.push_str("generation (recommended, declared)\n");
    }
    for field in &report.generation {
        let declared = field.declared.as_ref().map_or_else(|| "nothing".into(), |declared| declared.to_string());
        let name = field.field.strip_prefix("generation.").unwrap_or(&field.field);
        out.push_str(&format!("  {name}: {}, {}\n", field.recommended, one_line(&declared)));
    }
    out.push_str(&issues(&report.issues));
    Ok(out)
}
