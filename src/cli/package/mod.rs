//! The command line of `skippy-model-package`.
//!
//! Data goes to stdout, everything else to stderr. Exit codes: 0 success, 1 failure or a package that is not valid,
//! 2 wrong usage.

mod contract;
mod inspect;
mod plan;
mod preflight;
mod synth;
mod validate;
mod write;

use std::{
    fmt,
    io::{self, Write as _},
    num::NonZeroUsize,
    path::Path,
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use indicatif::ProgressBar;
use tracing_subscriber::filter::LevelFilter;

use crate::package::{Issue, Severity, progress_bar, write::Progress};

/// Cuts GGUF models into layer packages, and checks, describes and plans them.
#[derive(Debug, Parser)]
#[command(name = "skippy-model-package", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    WritePackage(write::Args),
    Synth(synth::Args),
    ValidatePackage(validate::Args),
    Inspect(inspect::Args),
    Preflight(preflight::Args),
    Plan(plan::Args),
    GlmDsaContract(contract::ShowArgs),
    ValidateGlmDsaContract(contract::ValidateArgs),
}

/// Runs the tool and returns its exit code.
pub fn main() -> ExitCode {
    let args = Args::parse();
    super::init_logging(false, LevelFilter::WARN);
    let result = match &args.command {
        Command::WritePackage(args) => write::run(args),
        Command::Synth(args) => synth::run(args),
        Command::ValidatePackage(args) => validate::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Preflight(args) => preflight::run(args),
        Command::Plan(args) => plan::run(args),
        Command::GlmDsaContract(args) => contract::show(args),
        Command::ValidateGlmDsaContract(args) => contract::validate(args),
    };
    match result {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", one_line(&super::with_causes(&error)));
            if error.is::<UsageError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// The command line contradicts itself or lacks something: exit code 2.
#[derive(Debug)]
struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Refuses a source that is a coordinate of the hub: those are not fetched by this version.
fn refuse_hub_source(source: &Path) -> Result<(), UsageError> {
    let Some(text) = source.to_str() else { return Ok(()) };
    if source.exists() || !(text.starts_with("hf://") || looks_like_coordinate(text)) {
        return Ok(());
    }
    Err(UsageError(format!(
        "`{text}` is a model coordinate, and sources on a hub are not supported yet: download the GGUF file, then pass \
         its path with `--model-id`, `--source-revision` and `--source-file`"
    )))
}

/// Whether `text` reads as `org/repo:distribution` or `org/repo`, and not as the path of a GGUF file.
fn looks_like_coordinate(text: &str) -> bool {
    text.parse::<crate::package::write::provenance::ModelId>().is_ok()
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Foreign text in a message (a path, a value) must not break it into lines.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// One line for each finding.
fn issues(issues: &[Issue]) -> String {
    let lines = issues.iter().map(|issue| {
        let severity = match issue.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let code = serde_json::to_value(issue.code).unwrap_or_default();
        format!("{severity} [{}] {}\n", code.as_str().unwrap_or_default(), one_line(&issue.message))
    });
    lines.collect()
}

/// Threads to use: as asked for, else one per core.
fn jobs(asked: Option<NonZeroUsize>) -> usize {
    asked.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get)
}

/// A progress bar on a terminal, nothing elsewhere.
struct Bar(ProgressBar);

impl Bar {
    fn new(doing: &'static str) -> Self {
        Self(progress_bar(doing, 0))
    }

    fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Bar {
    fn start(&self, total: u64) {
        self.0.set_length(total);
    }

    fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

/// A size for people: `12.3 MiB`.
fn size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn coordinates_are_told_from_paths() {
        for text in ["hf://org/repo", "hf://org/repo@main", "org/repo:Q4_K_M", "org/repo"] {
            let error = refuse_hub_source(Path::new(text)).unwrap_err().to_string();
            assert!(error.contains("not supported yet") && error.contains("--source-file"), "{error}");
        }
        for text in ["model.gguf", "models/model.gguf", "/models/a", "./org/repo", "a/b/c"] {
            assert!(refuse_hub_source(Path::new(text)).is_ok(), "{text}");
        }
    }

    #[test]
    fn messages_stay_on_one_line() {
        assert_eq!(one_line("a\nb\u{1b}[31m"), "a b [31m");
    }
}
