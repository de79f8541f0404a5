//! `skippy-stage stage`: layers that are not the first, for the stages in front of them.

use super::serve::{
    self as serve_cli,
    config::{CacheType, LogFormat, ServeConfig, ServeFlags},
};
use crate::{
    chain::{Drain, LocalStage, Next, Worker, listen},
    cli::{engine::EngineChoice, link::LinkFlags},
    http::{self, WorkerState},
    package::Package,
    policy::Path as AttentionPath,
    serve::Phase,
    telemetry,
};
use anyhow::Context as _;
use clap::{Args, builder::BoolishValueParser};
use std::{
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;

/// Arguments of `stage`. What both ends of a link must agree on is said at both.
#[derive(Args, Clone, Debug)]
pub struct StageArgs {
    /// Layer package: a directory with `model-package.json`
    #[arg(env = "SKIPPY_PACKAGE")]
    package: PathBuf,
    /// Layers to serve, as A..B
    #[arg(long, env = "SKIPPY_LAYERS")]
    layers: String,
    /// Address on which the stage in front calls
    #[arg(long, env = "SKIPPY_BIND", value_name = "ADDR:PORT", default_value = "127.0.0.1:19000")]
    bind: SocketAddr,
    /// Address for probes and metrics: /livez, /readyz, /metrics; none by default
    #[arg(long, env = "SKIPPY_HTTP", value_name = "ADDR:PORT")]
    http: Option<SocketAddr>,
    /// Cut the layers before these into stages that run back to back in this process
    #[arg(long, env = "SKIPPY_SPLIT", value_delimiter = ',', value_name = "LAYER,..")]
    split: Option<Vec<u32>>,
    /// Tokens of one request, as at the first stage
    #[arg(long, env = "SKIPPY_CTX_SIZE", value_name = "TOKENS")]
    ctx_size: Option<u32>,
    /// Requests that run together, as at the first stage [default: 4]
    #[arg(long, env = "SKIPPY_LANES", value_name = "N")]
    lanes: Option<u32>,
    /// Tokens of a prompt that are read in one step, as at the first stage [default: 512]
    #[arg(long, env = "SKIPPY_BATCH_SIZE", value_name = "TOKENS")]
    batch_size: Option<u32>,
    /// Compute threads; all cores by default
    #[arg(long, env = "SKIPPY_THREADS", value_name = "N")]
    threads: Option<u32>,
    /// Type of the K cache, as at the first stage [default: f16]
    #[arg(long, env = "SKIPPY_CACHE_TYPE_K", value_enum)]
    cache_type_k: Option<CacheType>,
    /// Type of the V cache, as at the first stage [default: f16]
    #[arg(long, env = "SKIPPY_CACHE_TYPE_V", value_enum)]
    cache_type_v: Option<CacheType>,
    /// What runs the layers [default: auto]
    #[arg(long, env = "SKIPPY_ENGINE", value_enum)]
    engine: Option<EngineChoice>,
    /// Layers to put on a GPU; as many as fit by default
    #[arg(long, env = "SKIPPY_GPU_LAYERS", value_name = "N")]
    gpu_layers: Option<u32>,
    /// How to speculate, as at the first stage [default: auto]
    #[arg(long, env = "SKIPPY_SPECULATIVE_STRATEGY", value_name = "NAME")]
    speculative_strategy: Option<String>,
    /// Attention path to force for single tokens, as at the first stage
    #[arg(long, env = "SKIPPY_ATTENTION_DECODE", value_name = "PATH")]
    attention_decode: Option<AttentionPath>,
    /// Attention path to force for short prompts, as at the first stage
    #[arg(long, env = "SKIPPY_ATTENTION_SHORT_PREFILL", value_name = "PATH")]
    attention_short_prefill: Option<AttentionPath>,
    /// Attention path to force for long prompts, as at the first stage
    #[arg(long, env = "SKIPPY_ATTENTION_LONG_PREFILL", value_name = "PATH")]
    attention_long_prefill: Option<AttentionPath>,
    /// Attention path to force for drafts under verification, as at the first stage
    #[arg(long, env = "SKIPPY_ATTENTION_VERIFY", value_name = "PATH")]
    attention_verify: Option<AttentionPath>,
    /// File with measurements of this build on this machine, which opens experimental switches; see `serve --help`
    #[arg(long, env = "SKIPPY_EVIDENCE", value_name = "FILE")]
    evidence: Option<PathBuf>,
    /// Try cuts of families that no parity run has certified
    #[arg(long, env = "SKIPPY_ALLOW_UNCERTIFIED_CUTS", value_parser = BoolishValueParser::new(), num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    allow_uncertified_cuts: Option<bool>,
    /// Hash every selected artifact before loading
    #[arg(long, env = "SKIPPY_VERIFY_PACKAGE_SHA", value_parser = BoolishValueParser::new(), num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    verify_package_sha: Option<bool>,
    /// Seconds that running requests get to finish after SIGTERM [default: 30]
    #[arg(long, env = "SKIPPY_SHUTDOWN_TIMEOUT", value_name = "SECONDS")]
    shutdown_timeout: Option<u32>,
    /// Form of log lines on stderr [default: text]
    #[arg(long, env = "SKIPPY_LOG_FORMAT", value_enum)]
    log_format: Option<LogFormat>,
    #[command(flatten)]
    link: LinkFlags,
}

impl StageArgs {
    /// The settings that `serve` has under the same names.
    fn resolve(self) -> anyhow::Result<ServeConfig> {
        anyhow::ensure!(
            self.link.resume_timeout.is_none(),
            "`--resume-timeout` is a setting of the first stage: requests are resumed there"
        );
        let link = self.link.clone();
        link.target()?;
        link.options()?;
        link.security()?;
        let flags = ServeFlags {
            package: Some(self.package),
            layers: Some(self.layers),
            split: self.split,
            ctx_size: self.ctx_size,
            lanes: self.lanes,
            batch_size: self.batch_size,
            threads: self.threads,
            cache_type_k: self.cache_type_k,
            cache_type_v: self.cache_type_v,
            engine: self.engine,
            gpu_layers: self.gpu_layers,
            speculative_strategy: self.speculative_strategy,
            attention_decode: self.attention_decode,
            attention_short_prefill: self.attention_short_prefill,
            attention_long_prefill: self.attention_long_prefill,
            attention_verify: self.attention_verify,
            evidence: self.evidence,
            allow_uncertified_cuts: self.allow_uncertified_cuts,
            verify_package_sha: self.verify_package_sha,
            shutdown_timeout: self.shutdown_timeout,
            log_format: self.log_format,
            ..ServeFlags::default()
        };
        // A stage without a next one has links too, those that others make.
        Ok(ServeConfig { is_worker: true, link, ..flags.resolve()? })
    }
}

/// Runs `stage` to its end.
///
/// # Errors
/// Whatever kept it from serving.
pub fn run(args: StageArgs) -> anyhow::Result<ExitCode> {
    let (bind, probes) = (args.bind, args.http);
    let config = args.resolve()?;
    let runtime = super::runtime()?;
    let _entered = runtime.enter();
    let _logging = super::start_logging(config.log_format == LogFormat::Json, None)?;
    runtime.block_on(serve(config, bind, probes))
}

async fn serve(config: ServeConfig, bind: SocketAddr, probes: Option<SocketAddr>) -> anyhow::Result<ExitCode> {
    let prometheus = telemetry::install()?;
    // What can be known at once is said at once.
    let package = Package::open(&config.package)?;
    serve_cli::stages(&config, &package)?;
    serve_cli::strategy(&config, &package)?;
    serve_cli::evidence(&config)?;
    let mut signals = http::signals().context("cannot listen for signals")?;
    let listener = TcpListener::bind(bind).await.with_context(|| format!("cannot listen on `{bind}`"))?;
    let (security, address) = (config.link.security()?, listener.local_addr()?);
    // The listener would say so too, but only once everything is loaded.
    security.allow(&address.to_string(), address.ip().to_canonical().is_loopback())?;
    let state = WorkerState::default();
    if let Some(address) = probes {
        let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on `{address}`"))?;
        tracing::info!("probes and metrics on http://{}", listener.local_addr()?);
        tokio::spawn(http::serve_worker(listener, state.clone(), prometheus.clone()));
    }
    // Whether or not anybody scrapes.
    tokio::spawn(async move {
        let mut clock = tokio::time::interval(telemetry::UPKEEP_INTERVAL);
        loop {
            clock.tick().await;
            prometheus.run_upkeep();
        }
    });

    let (sessions, received) = mpsc::channel(1);
    let (runtime, timeout) = (tokio::runtime::Handle::current(), Duration::from_secs(config.shutdown_timeout.into()));
    let options = config.link.options()?;
    let loaded = tokio::task::spawn_blocking(move || load(&config, runtime));
    let (worker, local) = tokio::select! {
        loaded = loaded => loaded.context("loading the model panicked")??,
        _ = signals.recv() => return Ok(ExitCode::SUCCESS),
    };
    let drain = Drain::default();
    let draining = drain.clone();
    let (alive, mut engine_gone) = tokio::sync::oneshot::channel::<()>();
    let serve = move || {
        // Dropped when the thread ends, however it does.
        let _alive = alive;
        worker.serve(received, &draining);
    };
    let engine = std::thread::Builder::new().name("skippy-engine".into()).spawn(serve)?;
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone().cancelled_owned();
    let mut served =
        tokio::spawn(async move { listen::serve(listener, local, security, &options, sessions, stop).await });
    state.set(Phase::Ready);
    tracing::info!(%address, "waiting for the stage in front");
    let mut code = ExitCode::SUCCESS;
    tokio::select! {
        ended = &mut served => {
            ended.context("the links have panicked")??;
            anyhow::bail!("the listener has ended");
        }
        _ = &mut engine_gone => anyhow::bail!("the engine thread has ended; see the log above"),
        _ = signals.recv() => {}
    }
    // The stage in front is told, lets running requests finish, and ends the session.
    state.set(Phase::Draining);
    drain.begin();
    tokio::select! {
        () = drain.is_over() => {}
        () = tokio::time::sleep(timeout) => {
            tracing::warn!("the shutdown timeout has passed with a session open");
            code = ExitCode::FAILURE;
        }
        _ = signals.recv() => code = ExitCode::FAILURE,
    }
    shutdown.cancel();
    served.await.context("the links have panicked")??;
    // Without the listener no session is left; a step may still be running.
    let ended = tokio::task::spawn_blocking(move || engine.join()).await?;
    anyhow::ensure!(ended.is_ok(), "the engine thread panicked");
    Ok(code)
}

/// Loads the layers, and says what they are.
fn load(config: &ServeConfig, runtime: tokio::runtime::Handle) -> anyhow::Result<(Worker, LocalStage)> {
    let start = Instant::now();
    let model = serve_cli::load(config).context("cannot load the layers")?;
    model.publish(start.elapsed());
    let (shape, card) = (model.engine.shape().clone(), &model.card);
    let info = serve_cli::chain::describe(config, &model);
    let local = LocalStage { info: info.clone(), model_id: model.model_id.clone(), vocabulary: card.n_vocab };
    tracing::info!(
        model = card.id,
        layers = %shape.layers,
        engine = info.engine,
        lanes = shape.n_seq_max,
        ctx_size = shape.n_ctx_seq,
        strategy = card.speculation.strategy,
        "layers loaded"
    );
    let worker = match config.link.target()? {
        Some(target) => {
            let next = Next {
                target,
                security: config.link.security()?,
                options: config.link.options()?,
                wire: config.link.wire(),
            };
            Worker::middle(model.engine, info, next, runtime)
        }
        None => Worker::last(model.engine, info, model.text, runtime),
    };
    Ok((worker, local))
}
