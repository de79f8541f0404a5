//! Everything that was measured, with where and how.

use super::{PhaseEArgs, attention::AttentionRow, parity};
use crate::{
    chat::clock,
    telemetry::metrics::{GIT, LLAMA},
};
use serde::Serialize;

/// What the JSON file holds.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) version: u32,
    pub(super) date: String,
    pub(super) command: String,
    pub(super) machine: Machine,
    pub(super) build: Build,
    pub(super) tolerances: Tolerances,
    /// One layer in this many runs the indexer.
    pub(super) share: u32,
    pub(super) attention: Vec<AttentionRow>,
    /// Fixtures that `--memory` left out.
    pub(super) left_out: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) os: &'static str,
    pub(super) arch: &'static str,
    /// Threads that computed.
    pub(super) threads: u32,
}

#[derive(Serialize)]
pub(super) struct Build {
    pub(super) version: &'static str,
    pub(super) git: &'static str,
    pub(super) llama: &'static str,
}

/// What counts as the same result; see [`parity`].
#[derive(Serialize)]
pub(super) struct Tolerances {
    values: f64,
    upstream: f64,
    selection: f64,
}

impl Report {
    /// Nothing measured yet.
    pub(super) fn new(args: &PhaseEArgs, threads: u32) -> Self {
        let words: Vec<String> = std::env::args().skip(1).collect();
        Self {
            version: 1,
            date: clock::now("%Y-%m-%d %H:%M UTC"),
            command: format!("skippy-stage {}", words.join(" ")),
            machine: Machine {
                cpu: cpu(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
                os: std::env::consts::OS,
                arch: std::env::consts::ARCH,
                threads,
            },
            build: Build { version: env!("CARGO_PKG_VERSION"), git: GIT, llama: LLAMA },
            tolerances: Tolerances { values: parity::VALUES, upstream: parity::UPSTREAM, selection: parity::SELECTION },
            share: args.share,
            attention: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Where, when and how, for people.
    pub(super) fn header(&self) -> String {
        let Self { date, command, machine, build, .. } = self;
        let Machine { cpu, os, arch, threads } = machine;
        let Build { version, git, llama } = build;
        format!(
            "`{command}`, {date}, {cpu} ({os} {arch}), {threads} threads, skippy-stage {version} ({git}), {llama}\n"
        )
    }
}

/// The name of the processor in the text of `/proc/cpuinfo`, where there is one.
fn cpu(cpuinfo: &str) -> String {
    let value = |line: &str| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim().to_owned());
    cpuinfo.lines().find_map(value).filter(|name| !name.is_empty()).unwrap_or_else(|| "unnamed processor".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_named_where_the_system_does() {
        assert_eq!(cpu("processor : 0\nmodel name\t: Some CPU @ 2 GHz\nflags: a\n"), "Some CPU @ 2 GHz");
        assert_eq!(cpu("processor : 0\n"), "unnamed processor");
    }
}
