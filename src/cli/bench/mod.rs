//! `skippy-stage bench`: ratios against llama.cpp used the plain way, in the same process and run, and against other
//! servers over HTTP.

mod client;
mod decode;
mod load;
mod phase_e;
mod resolver;
mod serve;
mod speculation;
mod stage;
pub mod stats;

use clap::Subcommand;
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;

/// What to measure.
#[derive(Subcommand, Clone, Debug)]
pub enum BenchCommand {
    /// Serving against a hand-written `llama_decode` loop
    Decode(decode::DecodeArgs),
    /// Sparse attention and experts of a GLM-5.2 layer, path by path, against ggml's own operations
    PhaseE(phase_e::PhaseEArgs),
    /// One decision of the phase resolver
    Resolver,
    /// A running server under load over HTTP, alone or against another one
    Serve(serve::ServeArgs),
    /// Greedy answers with and without drafts
    Speculation(speculation::SpeculationArgs),
    /// A few layers of a GLM-DSA model behind thousands of rows: the dsa engine against llama.cpp's own graph
    Stage(stage::StageArgs),
    /// Loading a package against llama.cpp loading the GGUF it was made from, and the memory each stage takes
    Load(load::LoadArgs),
}

/// Runs one benchmark.
///
/// # Errors
/// When something cannot be loaded, or outputs differ: no time counts before the results agree.
pub fn run(command: &BenchCommand) -> anyhow::Result<ExitCode> {
    super::init_logging(false, LevelFilter::WARN);
    match command {
        BenchCommand::Decode(args) => decode::run(args),
        BenchCommand::Load(args) => load::run(args),
        BenchCommand::PhaseE(args) => phase_e::run(args),
        BenchCommand::Resolver => resolver::run(),
        BenchCommand::Serve(args) => serve::run(args),
        BenchCommand::Speculation(args) => speculation::run(args),
        BenchCommand::Stage(args) => stage::run(args),
    }?;
    Ok(ExitCode::SUCCESS)
}
