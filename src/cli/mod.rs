//! Command lines: flags, config file, one file per subcommand.

#[cfg(feature = "engine")]
pub mod bench;
pub mod certs;
#[cfg(feature = "engine")]
pub mod engine;
#[cfg(feature = "engine")]
pub mod link;
pub mod machine;
pub mod package;
#[cfg(feature = "engine")]
pub mod parity;
pub mod resolve;
#[cfg(feature = "engine")]
pub mod serve;
#[cfg(feature = "engine")]
pub mod stage;

use std::{io::IsTerminal as _, process::ExitCode};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::LevelFilter,
    layer::{Identity, SubscriberExt as _},
    util::SubscriberInitExt as _,
};

/// Log lines to stderr, filtered by `RUST_LOG` (`level` and worse by default), coloured on a terminal unless `NO_COLOR` is set.
pub fn init_logging(json: bool, level: LevelFilter) {
    init_logging_beside(json, level, Identity::new());
}

/// The same, beside another layer, which `RUST_LOG` does not concern.
pub fn init_logging_beside(json: bool, level: LevelFilter, other: impl Layer<Registry> + Send + Sync) {
    let filter = EnvFilter::builder().with_default_directive(level.into()).from_env_lossy();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let subscriber = tracing_subscriber::registry().with(other);
    // A second call in one process (tests) keeps the first subscriber.
    let _ = if json {
        subscriber.with(lines.json().flatten_event(true).with_span_list(false).with_filter(filter)).try_init()
    } else {
        let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        subscriber.with(lines.with_ansi(colours).with_filter(filter)).try_init()
    };
}

/// What [`start_logging`] has begun, until it is dropped, which must be within the runtime in which it was begun.
#[derive(Debug)]
#[must_use]
pub struct Logging {
    #[cfg(feature = "otlp")]
    _export: Option<crate::telemetry::otlp::Export>,
}

/// Log lines of a server, `info` and worse by default, and the export of spans to the collector at `endpoint`, if any.
///
/// # Errors
/// When the endpoint cannot be used, or this build has no export.
pub fn start_logging(json: bool, endpoint: Option<&str>) -> anyhow::Result<Logging> {
    #[cfg(feature = "otlp")]
    {
        let export = endpoint.map(crate::telemetry::otlp::Export::start).transpose()?;
        init_logging_beside(json, LevelFilter::INFO, export.as_ref().map(|export| export.layer()));
        Ok(Logging { _export: export })
    }
    #[cfg(not(feature = "otlp"))]
    {
        let refused = "this build cannot export spans: build it with `--features otlp`, or leave out `--otlp-endpoint`";
        anyhow::ensure!(endpoint.is_none(), refused);
        init_logging(json, LevelFilter::INFO);
        Ok(Logging {})
    }
}

/// The runtime of the HTTP side: one worker for every four cores, one at least and four at most. Handlers do little, and a
/// worker that wakes on a core makes all compute threads wait for the one it displaced.
///
/// # Errors
/// When its threads cannot be started.
#[cfg(feature = "engine")]
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads((cores / 4).clamp(1, 4)).build()
}

/// The end of a binary with an engine: as [`exit`], but without what C++ has registered for the end of a process. An engine
/// that a second signal or a timeout cut off still computes, with what those destructors would take from under it.
#[cfg(feature = "engine")]
pub fn leave(result: anyhow::Result<ExitCode>) -> ! {
    let code = exit(result);
    // Nothing can be said any more if this fails.
    let _ = std::io::Write::flush(&mut std::io::stdout());
    #[allow(unsafe_code)]
    // SAFETY: ends the process; no destructor runs.
    unsafe {
        libc::_exit(i32::from(code != ExitCode::SUCCESS))
    }
}

/// The last line of a binary: the error with its causes on one line of stderr, and the exit code.
pub fn exit(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("error: {}", with_causes(&error));
        ExitCode::FAILURE
    })
}

/// An error and its causes, each said once: some name their cause themselves.
fn with_causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match said.as_str() {
        "" => cause,
        said if said.ends_with(&cause) => said.to_owned(),
        said => format!("{said}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use super::with_causes;
    use anyhow::Context as _;

    #[derive(Debug, thiserror::Error)]
    #[error("layers 0..9: {source}")]
    struct Named {
        source: std::fmt::Error,
    }

    #[test]
    fn a_cause_is_said_once() {
        let error = Err::<(), _>(Named { source: std::fmt::Error }).context("cannot load the model").unwrap_err();
        assert_eq!(with_causes(&error), format!("cannot load the model: layers 0..9: {}", std::fmt::Error));
        let error = anyhow::anyhow!("no such file").context("a.gguf");
        assert_eq!(with_causes(&error), "a.gguf: no such file");
    }
}
