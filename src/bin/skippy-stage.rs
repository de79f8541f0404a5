//! The stage server.

use clap::{Parser, Subcommand};
use skippy_stage::cli;

/// Serves a range of layers of a model straight from the fragments of a layer package
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the OpenAI API
    Serve(Box<cli::serve::ServeArgs>),
    /// Say which attention path a package takes with given inputs, and why
    Resolve(cli::resolve::ResolveArgs),
    /// Serve layers that are not the first to the stage in front of them
    Stage(Box<cli::stage::StageArgs>),
    /// Compare a model cut in two with the whole one, at every cut
    Parity(cli::parity::ParityArgs),
    /// Measure against llama.cpp used the plain way, in this process
    #[command(subcommand)]
    Bench(cli::bench::BenchCommand),
    Certs(cli::certs::CertsArgs),
}

fn main() {
    cli::leave(match Cli::parse().command {
        Command::Serve(args) => cli::serve::run(*args),
        Command::Stage(args) => cli::stage::run(*args),
        Command::Resolve(args) => cli::resolve::run(&args),
        Command::Parity(args) => cli::parity::run(&args),
        Command::Bench(command) => cli::bench::run(&command),
        Command::Certs(args) => cli::certs::run(&args),
    })
}
