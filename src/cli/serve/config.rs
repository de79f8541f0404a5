//! Flags of `serve`: each has an environment twin `SKIPPY_*` and a key in the TOML file of `--config`.
//!
//! Precedence: flag, environment, file, default. The first two are clap's; [`ServeFlags::or`] adds the file and
//! [`ServeFlags::resolve`] the defaults.

use super::{
    keys::{self, Secret},
    models::{self, ModelTables},
};
use crate::{
    cli::{
        engine::EngineChoice,
        link::{LinkFlagError, LinkFlags},
    },
    http::{ApiKeys, CorsOrigin, KeyError},
    package::LayerRange,
    policy::{Overrides, Path as AttentionPath},
    serve::ServeOptions,
    spec::Requested,
};
use clap::{Args, ValueEnum, builder::BoolishValueParser};
use serde::{Deserialize, Serialize};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// Element type of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheType {
    /// 32-bit floats: nothing is rounded between passes.
    F32,
    /// 16-bit floats.
    F16,
    /// 8-bit blocks.
    #[value(name = "q8_0")]
    #[serde(rename = "q8_0")]
    Q8_0,
}

impl CacheType {
    /// The flag's value.
    pub fn label(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
        }
    }
}

/// Form of log lines on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object for each line.
    Json,
}

/// `--prefix-cache-mib` when it is not given.
const PREFIX_CACHE_MIB: u32 = (ServeOptions::PREFIX_CACHE_BYTES >> 20) as u32;

/// What may be set, all optional: from the command line, the environment or a file.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServeFlags {
    /// Layer package: a directory with `model-package.json`
    #[arg(env = "SKIPPY_PACKAGE")]
    pub package: Option<PathBuf>,
    /// Layers to serve, as A..B; all by default
    #[arg(long, env = "SKIPPY_LAYERS")]
    pub layers: Option<String>,
    /// Cut the layers before these into stages that run back to back in this process
    #[arg(long, env = "SKIPPY_SPLIT", value_delimiter = ',', value_name = "LAYER,..")]
    pub split: Option<Vec<u32>>,
    /// Address to listen on
    #[arg(long, env = "SKIPPY_BIND", value_name = "ADDR:PORT")]
    pub bind: Option<SocketAddr>,
    /// Model name that clients see; the package's `model_id` by default
    #[arg(long, env = "SKIPPY_MODEL_NAME", value_name = "NAME")]
    pub model_name: Option<String>,
    /// Tokens of one request, prompt and answer together; the model's own length up to 4096 by default
    #[arg(long, env = "SKIPPY_CTX_SIZE", value_name = "TOKENS")]
    pub ctx_size: Option<u32>,
    /// Requests that run together [default: 4]
    #[arg(long, env = "SKIPPY_LANES", value_name = "N")]
    pub lanes: Option<u32>,
    /// Requests that may wait for a lane; 8 for each lane, 16 to 256, by default
    #[arg(long, env = "SKIPPY_MAX_QUEUE", value_name = "N")]
    pub max_queue: Option<u32>,
    /// Tokens of a prompt that are read in one step [default: 512]
    #[arg(long, env = "SKIPPY_BATCH_SIZE", value_name = "TOKENS")]
    pub batch_size: Option<u32>,
    /// Compute threads; all cores by default
    #[arg(long, env = "SKIPPY_THREADS", value_name = "N")]
    pub threads: Option<u32>,
    /// Type of the K cache [default: f16]
    #[arg(long, env = "SKIPPY_CACHE_TYPE_K", value_enum)]
    pub cache_type_k: Option<CacheType>,
    /// Type of the V cache [default: f16]
    #[arg(long, env = "SKIPPY_CACHE_TYPE_V", value_enum)]
    pub cache_type_v: Option<CacheType>,
    /// What runs the layers [default: auto]
    #[arg(long, env = "SKIPPY_ENGINE", value_enum)]
    pub engine: Option<EngineChoice>,
    /// Layers to put on a GPU; as many as fit by default
    #[arg(long, env = "SKIPPY_GPU_LAYERS", value_name = "N")]
    pub gpu_layers: Option<u32>,
    /// How to speculate: auto, disabled, mtp, or the id of a strategy that the package declares [default: auto]
    #[arg(long, env = "SKIPPY_SPECULATIVE_STRATEGY", value_name = "NAME")]
    pub speculative_strategy: Option<String>,
    /// Whether `speculative_strategy` comes from a file, where entries of single models go before it.
    #[arg(skip)]
    #[serde(skip)]
    pub strategy_from_file: bool,
    /// What a file says about single models.
    #[arg(skip)]
    #[serde(default)]
    pub models: ModelTables,
    /// Attention path to force for single tokens: dense, direct-sparse, compact-flash, sparse-chunked or fallback; the package's policy by default
    #[arg(long, env = "SKIPPY_ATTENTION_DECODE", value_name = "PATH")]
    pub attention_decode: Option<AttentionPath>,
    /// Attention path to force for short prompts; see `--attention-decode`
    #[arg(long, env = "SKIPPY_ATTENTION_SHORT_PREFILL", value_name = "PATH")]
    pub attention_short_prefill: Option<AttentionPath>,
    /// Attention path to force for long prompts; see `--attention-decode`
    #[arg(long, env = "SKIPPY_ATTENTION_LONG_PREFILL", value_name = "PATH")]
    pub attention_long_prefill: Option<AttentionPath>,
    /// Attention path to force for drafts under verification; see `--attention-decode`
    #[arg(long, env = "SKIPPY_ATTENTION_VERIFY", value_name = "PATH")]
    pub attention_verify: Option<AttentionPath>,
    /// File with measurements of this build on this machine, as `bench phase-e` writes it: what opens experimental switches that the package declares
    #[arg(long, env = "SKIPPY_EVIDENCE", value_name = "FILE")]
    pub evidence: Option<PathBuf>,
    /// Try cuts of families that no parity run has certified
    #[arg(long, env = "SKIPPY_ALLOW_UNCERTIFIED_CUTS", value_parser = BoolishValueParser::new(), num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub allow_uncertified_cuts: Option<bool>,
    /// Hash every selected artifact before loading
    #[arg(long, env = "SKIPPY_VERIFY_PACKAGE_SHA", value_parser = BoolishValueParser::new(), num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub verify_package_sha: Option<bool>,
    /// API key that clients must send, as `Authorization: Bearer` or `X-Api-Key`; may be given several times. Others on this
    /// machine can read command lines: `--api-key-file` and the environment are safer
    #[arg(long, env = "SKIPPY_API_KEY", hide_env_values = true, value_delimiter = ',', value_name = "KEY,..")]
    pub api_key: Option<Vec<Secret>>,
    /// File with API keys, one on each line
    #[arg(long, env = "SKIPPY_API_KEY_FILE", value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Origin whose pages may call the API from a browser, `*` for all; may be given several times [default: none]
    #[arg(long, env = "SKIPPY_CORS_ORIGIN", value_delimiter = ',', value_name = "ORIGIN,..")]
    pub cors_origin: Option<Vec<String>>,
    /// Largest request body, in MiB [default: 32]
    #[arg(long, env = "SKIPPY_BODY_LIMIT_MIB", value_name = "MIB")]
    pub body_limit_mib: Option<u32>,
    /// Seconds between comments that keep a silent stream open, 0 for none [default: 15]
    #[arg(long, env = "SKIPPY_KEEPALIVE", value_name = "SECONDS")]
    pub keepalive: Option<u32>,
    /// Seconds after which a connection without a request is closed, 0 for never; longer than that of proxies [default: 90]
    #[arg(long, env = "SKIPPY_IDLE_TIMEOUT", value_name = "SECONDS")]
    pub idle_timeout: Option<u32>,
    /// Seconds that one generation may take, waiting included, 0 for any [default: 0]
    #[arg(long, env = "SKIPPY_REQUEST_TIMEOUT", value_name = "SECONDS")]
    pub request_timeout: Option<u32>,
    /// Tokens of prompts that are read in one step while others generate; by measured times by default
    #[arg(long, env = "SKIPPY_STEP_TOKENS", value_name = "TOKENS")]
    pub step_tokens: Option<u32>,
    /// MiB of memory that hold finished requests, for prompts that begin alike, 0 for none [default: 256]
    #[arg(long, env = "SKIPPY_PREFIX_CACHE_MIB", value_name = "MIB")]
    pub prefix_cache_mib: Option<u32>,
    /// Seconds without a sign of life of the engine after which probes fail; longer than its longest step [default: 300]
    #[arg(long, env = "SKIPPY_WATCHDOG", value_name = "SECONDS")]
    pub watchdog: Option<u32>,
    /// Seconds to go on accepting after SIGTERM, while load balancers notice [default: 0]
    #[arg(long, env = "SKIPPY_DRAIN_DELAY", value_name = "SECONDS")]
    pub drain_delay: Option<u32>,
    /// Seconds that running requests get to finish after SIGTERM [default: 30]
    #[arg(long, env = "SKIPPY_SHUTDOWN_TIMEOUT", value_name = "SECONDS")]
    pub shutdown_timeout: Option<u32>,
    /// OpenTelemetry collector to send spans of requests to, as `http://host:4318`; only in builds with `otlp` [default: none]
    #[arg(long, env = "SKIPPY_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Form of log lines on stderr [default: text]
    #[arg(long, env = "SKIPPY_LOG_FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,
    /// Where the chain goes on.
    #[command(flatten)]
    #[serde(default)]
    pub link: LinkFlags,
}

/// What holds once flags, environment, file and defaults are joined. Printed by `--print-config`, as TOML that
/// `--config` reads back.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ServeConfig {
    /// Layer package directory.
    pub package: PathBuf,
    /// Layers to serve; all when absent.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    pub layers: Option<LayerRange>,
    /// Cuts between stages in this process, ascending.
    pub split: Vec<u32>,
    /// Address to listen on.
    pub bind: SocketAddr,
    /// Model name that clients see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// Tokens of one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ctx_size: Option<u32>,
    /// Requests that run together.
    pub lanes: u32,
    /// Requests that may wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queue: Option<u32>,
    /// Tokens of a prompt that are read in one step.
    pub batch_size: u32,
    /// Compute threads.
    pub threads: u32,
    /// Type of the K cache.
    pub cache_type_k: CacheType,
    /// Type of the V cache.
    pub cache_type_v: CacheType,
    /// What runs the layers.
    pub engine: EngineChoice,
    /// Layers to put on a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_layers: Option<u32>,
    /// How to speculate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative_strategy: Option<String>,
    /// Whether the layers are not the first: others hand rows to them. Set by `skippy-stage stage`.
    #[serde(skip)]
    pub is_worker: bool,
    /// Whether the command line or the environment says so; then no model has another one.
    #[serde(skip)]
    pub strategy_on_command_line: bool,
    /// Attention path forced for single tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_decode: Option<AttentionPath>,
    /// Attention path forced for short prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_short_prefill: Option<AttentionPath>,
    /// Attention path forced for long prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_long_prefill: Option<AttentionPath>,
    /// Attention path forced for drafts under verification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_verify: Option<AttentionPath>,
    /// Evidence for experimental switches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<PathBuf>,
    /// Try cuts that are not certified.
    pub allow_uncertified_cuts: bool,
    /// Hash every selected artifact before loading.
    pub verify_package_sha: bool,
    /// Who may use the API. Never printed.
    #[serde(skip)]
    pub api_keys: ApiKeys,
    /// File with API keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_file: Option<PathBuf>,
    /// Origins whose pages may call the API.
    pub cors_origin: Vec<String>,
    /// Largest request body, MiB.
    pub body_limit_mib: u32,
    /// Seconds between keep-alive comments.
    pub keepalive: u32,
    /// Seconds after which a connection without a request is closed.
    pub idle_timeout: u32,
    /// Seconds that one generation may take.
    pub request_timeout: u32,
    /// Tokens of prompts read beside generating requests; `None` for as many as measured times allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_tokens: Option<u32>,
    /// MiB of memory that hold finished requests.
    pub prefix_cache_mib: u32,
    /// Seconds without a sign of life after which probes fail.
    pub watchdog: u32,
    /// Seconds to go on accepting after SIGTERM.
    pub drain_delay: u32,
    /// Seconds that running requests get to finish.
    pub shutdown_timeout: u32,
    /// Collector of spans.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
    /// Form of log lines.
    pub log_format: LogFormat,
    /// Where the chain goes on. Behind all but the last, as TOML wants tables.
    #[serde(skip_serializing_if = "is_default")]
    pub link: LinkFlags,
    /// What holds for single models. Last, as TOML wants tables.
    #[serde(skip_serializing_if = "ModelTables::is_empty")]
    pub models: ModelTables,
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {what} `{path}`: {source}")]
    Read {
        /// What is in it.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not the TOML we expect.
    #[error("config file `{path}`: {message}")]
    Parse {
        /// Its path.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
    /// Nothing to serve.
    #[error("no package given: pass a directory, set SKIPPY_PACKAGE, or put `package` into the config file")]
    NoPackage,
    /// A package on a hub.
    #[error(
        "`{0}` is a reference to a hub, which cannot be served yet: download the repository and pass its directory"
    )]
    Hub(String),
    /// Keys that nobody could use.
    #[error("`{field}`: {source}")]
    Key {
        /// The flag, without dashes, and its file.
        field: String,
        /// Which one, and why.
        source: KeyError,
    },
    /// Links that cannot be made.
    #[error(transparent)]
    Link(#[from] LinkFlagError),
    /// A value outside its range.
    #[error("`{field}` {message}")]
    Value {
        /// The flag, without dashes.
        field: &'static str,
        /// What it must be and what it is.
        message: String,
    },
}

/// Joins the fields of two flag sets, the first one winning. Those after the second semicolon have been joined.
macro_rules! first_of {
    ($first:ident, $second:ident; $($field:ident),*; $($joined:ident),*) => {
        ServeFlags { $($field: $first.$field.or($second.$field),)* $($joined),* }
    };
}

impl ServeFlags {
    /// Reads the file of `--config`.
    ///
    /// # Errors
    /// When it cannot be read, is not TOML, or has an unknown key.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            what: "config file",
            path: path.to_owned(),
            source,
        })?;
        let flags: Self = toml::from_str(&text).map_err(|e| ConfigError::Parse {
            path: path.to_owned(),
            message: e.to_string().split_whitespace().collect::<Vec<_>>().join(" "),
        })?;
        Ok(Self { strategy_from_file: true, ..flags })
    }

    /// These flags, and those of `file` where none is set.
    pub fn or(self, file: Self) -> Self {
        let strategy_from_file = self.speculative_strategy.is_none() && file.strategy_from_file;
        let models = if self.models.is_empty() { file.models } else { self.models };
        let link = self.link.or(file.link);
        first_of!(self, file; package, layers, split, bind, model_name, ctx_size, lanes, max_queue, batch_size,
            threads, cache_type_k, cache_type_v, engine, gpu_layers, attention_decode, attention_short_prefill, attention_long_prefill, attention_verify, evidence, allow_uncertified_cuts, verify_package_sha, api_key, api_key_file,
            cors_origin, body_limit_mib, keepalive, idle_timeout, request_timeout, step_tokens, prefix_cache_mib, watchdog, drain_delay, shutdown_timeout, log_format, otlp_endpoint, speculative_strategy; strategy_from_file, models, link)
    }

    /// Fills in defaults and checks ranges.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn resolve(self) -> Result<ServeConfig, ConfigError> {
        let cores = std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1));
        let layers = match self.layers.as_deref() {
            Some(text) => {
                Some(text.parse().map_err(|e| ConfigError::Value { field: "layers", message: format!("{e}") })?)
            }
            None => None,
        };
        let package = self.package.ok_or(ConfigError::NoPackage)?;
        if package.to_str().is_some_and(|reference| reference.starts_with("hf://")) {
            return Err(ConfigError::Hub(package.display().to_string()));
        }
        let split = self.split.unwrap_or_default();
        if let Some(pair) = split.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(ConfigError::Value {
                field: "split",
                message: format!("must ascend, got {} before {}", pair[0], pair[1]),
            });
        }
        let api_keys = keys::read(self.api_key.as_deref(), self.api_key_file.as_deref())?;
        let cors_origin = self.cors_origin.unwrap_or_default();
        for origin in &cors_origin {
            let parsed = origin.parse::<CorsOrigin>();
            parsed.map_err(|error| ConfigError::Value { field: "cors-origin", message: error.to_string() })?;
        }
        let strategy_on_command_line = self.speculative_strategy.is_some() && !self.strategy_from_file;
        Ok(ServeConfig {
            package,
            layers,
            split,
            bind: self.bind.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 9337))),
            model_name: self.model_name,
            ctx_size: within_opt("ctx-size", self.ctx_size, 1, 1 << 24)?,
            lanes: within("lanes", self.lanes.unwrap_or(4), 1, 256)?,
            max_queue: within_opt("max-queue", self.max_queue, 1, 1 << 20)?,
            batch_size: within("batch-size", self.batch_size.unwrap_or(512), 1, 1 << 16)?,
            threads: within("threads", self.threads.unwrap_or(cores), 1, 512)?,
            cache_type_k: self.cache_type_k.unwrap_or(CacheType::F16),
            cache_type_v: self.cache_type_v.unwrap_or(CacheType::F16),
            engine: self.engine.unwrap_or_default(),
            gpu_layers: self.gpu_layers,
            is_worker: false,
            strategy_on_command_line,
            speculative_strategy: self.speculative_strategy,
            attention_decode: self.attention_decode,
            attention_short_prefill: self.attention_short_prefill,
            attention_long_prefill: self.attention_long_prefill,
            attention_verify: self.attention_verify,
            evidence: self.evidence,
            allow_uncertified_cuts: self.allow_uncertified_cuts.unwrap_or(false),
            verify_package_sha: self.verify_package_sha.unwrap_or(false),
            api_keys,
            api_key_file: self.api_key_file,
            cors_origin,
            body_limit_mib: within("body-limit-mib", self.body_limit_mib.unwrap_or(32), 1, 4096)?,
            keepalive: self.keepalive.unwrap_or(15),
            idle_timeout: self.idle_timeout.unwrap_or(90),
            request_timeout: self.request_timeout.unwrap_or(0),
            step_tokens: self.step_tokens.map(|n| within("step-tokens", n, 1, u32::MAX)).transpose()?,
            prefix_cache_mib: within(
                "prefix-cache-mib",
                self.prefix_cache_mib.unwrap_or(PREFIX_CACHE_MIB),
                0,
                1 << 22,
            )?,
            watchdog: within("watchdog", self.watchdog.unwrap_or(300), 1, u32::MAX)?,
            drain_delay: self.drain_delay.unwrap_or(0),
            shutdown_timeout: self.shutdown_timeout.unwrap_or(30),
            otlp_endpoint: self.otlp_endpoint,
            log_format: self.log_format.unwrap_or(LogFormat::Text),
            link: checked(self.link)?,
            models: if strategy_on_command_line { ModelTables::new() } else { self.models },
        })
    }
}

impl ServeConfig {
    /// The strategies asked for, level by level, for the model `model_id`.
    pub fn strategies(&self, model_id: &str) -> Requested {
        let strategy = self.speculative_strategy.as_deref();
        models::requested(self.strategy_on_command_line, strategy, &self.models, model_id)
    }

    /// The attention paths forced for this process.
    pub fn overrides(&self) -> Overrides {
        Overrides {
            decode: self.attention_decode,
            short_prefill: self.attention_short_prefill,
            long_prefill: self.attention_long_prefill,
            verify: self.attention_verify,
        }
    }
}

/// Links as far as they can be checked here. Without a next stage there are none.
fn checked(link: LinkFlags) -> Result<LinkFlags, ConfigError> {
    if link.target()?.is_none() && !is_default(&link) {
        let message = "is missing: other settings of links mean nothing without it".into();
        return Err(ConfigError::Value { field: "next", message });
    }
    link.options()?;
    link.step_timeout()?;
    link.security()?;
    Ok(link)
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn within(field: &'static str, value: u32, low: u32, high: u32) -> Result<u32, ConfigError> {
    match (low..=high).contains(&value) {
        true => Ok(value),
        false => Err(ConfigError::Value { field, message: format!("must be between {low} and {high}, got {value}") }),
    }
}

fn within_opt(field: &'static str, value: Option<u32>, low: u32, high: u32) -> Result<Option<u32>, ConfigError> {
    value.map(|value| within(field, value, low, high)).transpose()
}

fn as_text<S: serde::Serializer>(range: &Option<LayerRange>, serializer: S) -> Result<S::Ok, S::Error> {
    match range {
        Some(range) => serializer.collect_str(range),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
