//! `skippy-stage serve`: load a layer package, serve the OpenAI API.

pub(crate) mod chain;
pub mod config;
pub mod keys;
mod load;
pub mod models;

use crate::{
    http::{self, Ended, HttpOptions},
    package::Package,
    serve::{Phase, ServeHandle, ServeOptions, Starter},
    telemetry::{self, PrometheusHandle},
};
use anyhow::Context as _;
use clap::Args;
use config::{LogFormat, ServeConfig, ServeFlags};
use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};
use tokio::net::TcpListener;
use tracing_subscriber::filter::LevelFilter;

pub use load::{LoadError, LoadedModel, evidence, load, open, speculation, stages, strategy};

/// Arguments of `serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Settings.
    #[command(flatten)]
    pub flags: ServeFlags,
    /// TOML file with the same settings; flags and environment win
    #[arg(long, env = "SKIPPY_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the settings that hold, as a config file, and exit
    #[arg(long)]
    pub print_config: bool,
    /// Check the package, the layer range, every cut and the strategy, and exit
    #[arg(long)]
    pub check: bool,
}

/// Runs `serve` to its end.
///
/// # Errors
/// Whatever kept it from serving.
pub fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let file = args.config.as_deref().map(ServeFlags::from_file).transpose()?;
    let config = args.flags.or(file.unwrap_or_default()).resolve()?;
    if args.print_config {
        if config.api_keys.are_required() {
            println!("# {} API keys, not shown", config.api_keys.count());
        }
        print!("{}", toml::to_string(&config)?);
        return Ok(ExitCode::SUCCESS);
    }
    let json = config.log_format == LogFormat::Json;
    if args.check {
        crate::cli::init_logging(json, LevelFilter::INFO);
        return check(&config);
    }
    let runtime = super::runtime()?;
    let _entered = runtime.enter();
    // Dropped at the end, when the last spans are sent; the runtime must still be there then.
    let _logging = super::start_logging(json, config.otlp_endpoint.as_deref())?;
    let metrics = telemetry::install()?;
    runtime.block_on(serve(config, metrics))
}

fn check(config: &ServeConfig) -> anyhow::Result<ExitCode> {
    let package = Package::open(&config.package)?;
    let stages = open(config, &package)?;
    for files in &stages {
        println!("layers {} of 0..{}: ok", files.range, files.layer_count);
    }
    let speculation = speculation(config, &package, &stages)?;
    println!("speculative strategy {}: ok", speculation.strategy);
    if let Some(notice) = speculation.notice {
        println!("speculative strategy: {notice}");
    }
    if let Some(evidence) = evidence(config)? {
        println!("evidence, {} measurements: ok", evidence.entries().len());
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve(config: ServeConfig, metrics: PrometheusHandle) -> anyhow::Result<ExitCode> {
    // What can be known at once is said at once: before the port is taken and before anything large is read.
    let package = Package::open(&config.package)?;
    stages(&config, &package)?;
    strategy(&config, &package)?;
    evidence(&config)?;
    let signals = http::signals().context("cannot listen for signals")?;
    let listener =
        TcpListener::bind(config.bind).await.with_context(|| format!("cannot listen on `{}`", config.bind))?;
    let address = listener.local_addr()?;
    tracing::info!("listening on http://{address}");
    if !address.ip().is_loopback() && !config.api_keys.are_required() {
        tracing::warn!(
            %address,
            "whoever reaches this address may use the server: set `--api-key-file`, or bind to 127.0.0.1"
        );
    }

    let (handle, starter) = ServeHandle::loading(serve_options(&config));
    let options = http_options(&config)?;
    // Loading happens on a thread of its own, so that probes answer and a signal ends it.
    let (runtime, waiting) = (tokio::runtime::Handle::current(), handle.clone());
    let load = move || load_and_start(&config, starter, &waiting, runtime);
    let loader = std::thread::Builder::new().name("skippy-load".into()).spawn(load)?;
    let served = http::run(listener, handle.clone(), metrics, options, signals);
    let failed = async { handle.phases().wait_for(|phase| *phase == Phase::Failed).await.is_ok() };
    tokio::select! {
        ended = served => {
            return Ok(match ended? {
                Ended::Drained => ExitCode::SUCCESS,
                Ended::TimedOut | Ended::Forced => ExitCode::FAILURE,
            });
        }
        _ = failed => {}
    }
    // Either the load or the engine failed; the loader knows which.
    match loader.join() {
        Ok(Err(error)) => Err(error.context("cannot load the model")),
        Ok(Ok(())) => anyhow::bail!("the engine failed; see the log above"),
        Err(_) => anyhow::bail!("loading the model panicked"),
    }
}

fn load_and_start(
    config: &ServeConfig,
    starter: Starter,
    handle: &ServeHandle,
    runtime: tokio::runtime::Handle,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let model = match load(config) {
        Ok(model) => model,
        Err(error) => {
            starter.failed(error.to_string());
            return Err(error.into());
        }
    };
    let took = start.elapsed();
    model.publish(took);
    let card = &model.card;
    tracing::info!(
        model = card.id,
        architecture = card.arch,
        layers = %card.layers,
        stages = config.split.len() + 1,
        lanes = config.lanes,
        ctx_size = card.n_ctx,
        kv_rows = model.engine.shape().n_ctx,
        strategy = card.speculation.strategy,
        load_ms = took.as_millis(),
        "model loaded"
    );
    if let Some(notice) = &card.speculation.notice {
        tracing::warn!(notice, "the strategy that the package recommends is not served");
    }
    let Some(target) = config.link.target()? else {
        handle.chain_status().describe(chain::describe(config, &model));
        starter.start(model.engine, model.text, model.card)?;
        return Ok(());
    };
    let (text, status) = (model.text.clone(), handle.chain_status());
    let connected = chain::connect(config, model, target, runtime, status, |error| {
        let loading = handle.status().phase == Phase::Loading;
        if loading {
            tracing::warn!(%error, "the chain does not stand yet");
        }
        loading
    });
    match connected {
        Ok((chain, card)) => {
            tracing::info!(stages = chain.stages(), "the chain stands");
            starter.start_chain(Box::new(chain), text, card)?;
            Ok(())
        }
        Err(error) => {
            starter.failed(error.to_string());
            Err(error.into())
        }
    }
}

fn serve_options(config: &ServeConfig) -> ServeOptions {
    ServeOptions {
        lanes: Some(config.lanes),
        max_queue: config.max_queue,
        ctx_per_request: config.ctx_size,
        request_timeout: above_zero(config.request_timeout),
        resume_timeout: above_zero(config.link.resume_timeout.unwrap_or(0)),
        step_tokens: config.step_tokens,
        prefix_cache_bytes: u64::from(config.prefix_cache_mib) << 20,
    }
}

fn http_options(config: &ServeConfig) -> anyhow::Result<HttpOptions> {
    Ok(HttpOptions {
        api_keys: config.api_keys.clone(),
        cors_origins: config.cors_origin.iter().map(|origin| origin.parse()).collect::<Result<_, _>>()?,
        max_body_bytes: (config.body_limit_mib as usize) << 20,
        keep_alive: above_zero(config.keepalive),
        idle_timeout: above_zero(config.idle_timeout),
        stuck_after: seconds(config.watchdog),
        drain_delay: seconds(config.drain_delay),
        shutdown_timeout: seconds(config.shutdown_timeout),
        ..HttpOptions::default()
    })
}

fn seconds(n: u32) -> Duration {
    Duration::from_secs(u64::from(n))
}

/// 0 switches off.
fn above_zero(n: u32) -> Option<Duration> {
    (n > 0).then(|| seconds(n))
}
