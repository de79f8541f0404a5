//! From a resolved configuration to a loaded engine.

use super::config::ServeConfig;
use crate::{
    chat::{TemplateError, Templates},
    cli::{
        engine::{Engine, EngineError, EngineOptions, LoadedChain},
        machine,
    },
    gguf::{GgufFile, Metadata},
    kernels::{self, cpu},
    llama::{LlamaError, Threadpool},
    package::{LayerRange, LayerRangeError, Package, PackageError, StageFiles, Verify, glm_dsa},
    policy::{Evidence, EvidenceError, Exhibit, Role},
    serve::ModelCard,
    spec::{self, DraftHead, Speculation, StrategyError, StrategyPlan},
    stage::{StageEngine, announce_switches, dsa::DraftAttention, llama::LlamaStageOptions},
    telemetry::{
        labels::LoadPhase,
        metrics::{self, ModelInfo},
    },
    text::TextModel,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Tokens of one request when neither the operator nor the model says less.
const DEFAULT_CTX_SIZE: u32 = 4096;

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The package is broken or incomplete.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// The evidence file cannot be used.
    #[error(transparent)]
    Evidence(#[from] EvidenceError),
    /// `--layers` does not fit the model.
    #[error(transparent)]
    Range(#[from] LayerRangeError),
    /// `--split` cuts outside `--layers`.
    #[error("`split` {cut} is not inside the layers served, {layers}")]
    SplitOutside {
        /// The cut.
        cut: u32,
        /// The layers served.
        layers: LayerRange,
    },
    /// This process would have nobody to talk to.
    #[error(
        "layers {layers} of 0..{layer_count} lack {missing}: say with `--next` where the layers behind them are, run layers \
         that are not the first with `skippy-stage stage`, or leave out `--layers` to serve the whole model"
    )]
    Incomplete {
        /// The layers asked for.
        layers: LayerRange,
        /// Layers of the model.
        layer_count: u32,
        /// Which boundary is missing.
        missing: &'static str,
    },
    /// Nobody is needed behind these layers.
    #[error("layers {layers} end the model: leave out `--next`, or let `--layers` end before layer {}", .layers.end())]
    NothingBehind {
        /// The layers asked for.
        layers: LayerRange,
    },
    /// Nobody can be in front of these layers.
    #[error("layers {layers} begin the model: `skippy-stage serve` runs them, `stage` those behind")]
    NothingBefore {
        /// The layers asked for.
        layers: LayerRange,
    },
    /// The stages could not be loaded.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Compute threads could not be started.
    #[error(transparent)]
    Threads(LlamaError),
    /// A strategy that cannot be served.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
}

/// A model ready to serve.
pub struct LoadedModel {
    /// The engine.
    pub engine: Box<dyn StageEngine>,
    /// Its vocabulary.
    pub text: Arc<dyn TextModel>,
    /// What clients are told.
    pub card: ModelCard,
    /// Time spent on opening and checking the package.
    pub verified_in: Duration,
    /// Id of the model in the package, whatever clients call it.
    pub model_id: String,
    /// Bytes of the tensors loaded.
    pub tensor_bytes: u64,
    /// What runs the layers.
    pub kind: Engine,
    /// Whether the first layer takes the selection of a layer before it (IndexShare).
    pub takes_top_k: bool,
}

impl LoadedModel {
    /// Tells metrics what has been loaded, which `took` so long in all.
    pub fn publish(&self, took: Duration) {
        metrics::load_finished(LoadPhase::Verify, self.verified_in);
        metrics::load_finished(LoadPhase::Load, took.saturating_sub(self.verified_in));
        let card = &self.card;
        metrics::set_model_info(&ModelInfo {
            model: &card.id,
            package_digest: &card.package_digest,
            architecture: &card.arch,
            layer_start: card.layers.start(),
            layer_end: card.layers.end(),
            abi: &card.abi,
        });
        if let Some(resolver) = &card.policy {
            announce_switches(resolver);
        }
    }
}

/// The stages that `config` asks for, in order. Checks the package's manifest, the range and every cut.
///
/// # Errors
/// [`LoadError`], before anything large is read.
pub fn stages(config: &ServeConfig, package: &Package) -> Result<Vec<LayerRange>, LoadError> {
    let layer_count = package.manifest().layer_count;
    let layers = match config.layers {
        Some(layers) => layers.within(layer_count)?,
        None => LayerRange::new(0, layer_count)?,
    };
    let (has_input, has_output) = (layers.start() == 0, layers.end() == layer_count);
    let has_next = config.link.next.is_some();
    if has_output && has_next {
        return Err(LoadError::NothingBehind { layers });
    }
    if has_input && config.is_worker {
        return Err(LoadError::NothingBefore { layers });
    }
    let missing = match (has_input || config.is_worker, has_output || has_next) {
        (false, false) => Some("the input and the output"),
        (false, true) => Some("the input"),
        (true, false) => Some("the output"),
        (true, true) => None,
    };
    if let Some(missing) = missing {
        return Err(LoadError::Incomplete { layers, layer_count, missing });
    }
    let mut stages = Vec::with_capacity(config.split.len() + 1);
    let mut start = layers.start();
    for cut in &config.split {
        if *cut <= layers.start() || *cut >= layers.end() {
            return Err(LoadError::SplitOutside { cut: *cut, layers });
        }
        stages.push(LayerRange::new(start, *cut)?);
        start = *cut;
    }
    stages.push(LayerRange::new(start, layers.end())?);
    Ok(stages)
}

/// Opens and checks the fragments of every stage: what `--check` does, and the first step of loading.
///
/// # Errors
/// [`LoadError`].
pub fn open(config: &ServeConfig, package: &Package) -> Result<Vec<StageFiles>, LoadError> {
    let verify = if config.verify_package_sha { Verify::Sha256 } else { Verify::SizesOnly };
    let files = stages(config, package)?
        .into_iter()
        .map(|range| Ok(package.load(&package.select(range)?, verify)?))
        .collect::<Result<Vec<_>, LoadError>>()?;
    let options = engine_options(config, 1, 1);
    files.iter().try_for_each(|file| options.check(file))?;
    Ok(files)
}

/// The strategy asked for, as far as the package allows it.
///
/// # Errors
/// [`LoadError::Strategy`].
pub fn strategy(config: &ServeConfig, package: &Package) -> Result<StrategyPlan, LoadError> {
    let manifest = package.manifest();
    let declared = manifest.generation.as_ref().and_then(|generation| generation.speculative_decoding.as_ref());
    Ok(spec::plan(&config.strategies(&manifest.model_id), declared)?)
}

/// How a model of these stages will speculate: the strategy asked for, held against the tensors and the engine.
///
/// # Errors
/// [`LoadError::Strategy`], or that the engine does not serve the model.
pub fn speculation(config: &ServeConfig, package: &Package, files: &[StageFiles]) -> Result<Speculation, LoadError> {
    let engine = match files.first() {
        Some(files) => engine_options(config, 1, 1).engine(&files.metadata.gguf().metadata)?,
        None => Engine::Llama,
    };
    let nextn_layers = match files.last() {
        // The draft head is on another machine, which will say whether it is there.
        Some(last) if last.range.end() < last.layer_count => declared_nextn(last),
        _ => nextn_layers(files),
    };
    let head = DraftHead { nextn_layers: &nextn_layers, engine: engine == Engine::Dsa };
    Ok(strategy(config, package)?.fit(head)?)
}

fn starts_on_a_shared_layer(files: &StageFiles) -> bool {
    let config = glm_dsa::Config::of_stage(files).ok();
    config.and_then(|config| config.role(files.range.start())) == Some(Role::Shared)
}

/// The layers at the end of the model that its metadata calls NextN.
fn declared_nextn(files: &StageFiles) -> Vec<u32> {
    let declared = files.metadata.gguf().metadata.arch_uint("nextn_predict_layers").unwrap_or(0);
    let n = u32::try_from(declared).unwrap_or(u32::MAX).min(files.layer_count);
    (files.layer_count - n..files.layer_count).collect()
}

/// Layers with NextN tensors.
fn nextn_layers(files: &[StageFiles]) -> Vec<u32> {
    let has_nextn = |layer: u32, file: &GgufFile| {
        let prefix = format!("blk.{layer}.nextn.");
        file.gguf().tensors.iter().any(|tensor| tensor.name.starts_with(&prefix))
    };
    let layers = files.iter().flat_map(|files| &files.layers);
    layers.filter(|(layer, file)| has_nextn(*layer, file)).map(|(layer, _)| *layer).collect()
}

/// The evidence for experimental switches that `config` names, not yet held against this build and machine.
///
/// # Errors
/// [`LoadError::Evidence`].
pub fn evidence(config: &ServeConfig) -> Result<Option<Evidence>, LoadError> {
    Ok(config.evidence.as_deref().map(Evidence::open).transpose()?)
}

/// Loads the model that `config` asks for.
///
/// # Errors
/// [`LoadError`].
pub fn load(config: &ServeConfig) -> Result<LoadedModel, LoadError> {
    let start = Instant::now();
    let package = Package::open(&config.package)?;
    let files = open(config, &package)?;
    let verified_in = start.elapsed();
    let metadata = files.first().map(|files| files.metadata.gguf().metadata.clone()).unwrap_or_default();
    let trained = metadata.arch_uint("context_length").and_then(|n| u32::try_from(n).ok());
    let ctx_size = config.ctx_size.unwrap_or_else(|| trained.unwrap_or(DEFAULT_CTX_SIZE).clamp(1, DEFAULT_CTX_SIZE));
    let pool = Arc::new(Threadpool::new(config.threads).map_err(LoadError::Threads)?);
    tracing::info!(kernels = %kernels::isa(), ggml = cpu::load().unwrap_or_default(), "code for this CPU");
    let speculation = speculation(config, &package, &files)?;
    let exhibit = |evidence| Exhibit::here(evidence, &machine::capability(), config.threads);
    let options = EngineOptions {
        evidence: evidence(config)?.map(exhibit).transpose()?,
        ..engine_options(config, ctx_size, speculation.kind.window())
    };
    let kind = options.engine(&metadata)?;
    if kind == Engine::Llama && config.evidence.is_some() {
        tracing::warn!("the evidence has no effect: the experimental switches are those of the dsa engine");
    }
    let takes_top_k = kind == Engine::Dsa && files.first().is_some_and(starts_on_a_shared_layer);
    let mut tensor_bytes = 0u64;
    for range in stages(config, &package)? {
        tensor_bytes = tensor_bytes.saturating_add(package.select(range)?.tensor_bytes());
    }
    let LoadedChain { chain, text, resolver } = options.load(files, package.manifest().generation.as_ref(), &pool)?;

    let shape = chain.shape();
    let manifest = package.manifest();
    let card = ModelCard {
        id: config.model_name.clone().unwrap_or_else(|| manifest.model_id.clone()),
        created: manifest.created_at_unix_secs.unwrap_or(0),
        layer_count: shape.layer_count,
        layers: shape.layers,
        n_ctx: ctx_size,
        n_embd: u32::try_from(shape.n_embd).unwrap_or(u32::MAX),
        n_vocab: text.n_vocab(),
        package_digest: package.manifest_sha256().to_string(),
        arch: metadata.arch().unwrap_or("unknown").to_owned(),
        abi: manifest.skippy_abi_version.to_string(),
        policy: resolver,
        chat: templates(&metadata, &text),
        speculation,
    };
    let (engine, text) = (Box::new(chain), Arc::new(text));
    let model_id = manifest.model_id.clone();
    Ok(LoadedModel { engine, text, card, verified_in, model_id, tensor_bytes, kind, takes_top_k })
}

/// The model's chat templates. Without them it still completes texts.
fn templates(metadata: &Metadata, text: &dyn TextModel) -> Result<Arc<Templates>, TemplateError> {
    let token = |id: Option<i32>| id.map(|id| String::from_utf8_lossy(&text.piece(id, true)).into_owned());
    let eos = metadata.uint("tokenizer.ggml.eos_token_id").and_then(|id| i32::try_from(id).ok());
    let templates = Templates::new(
        metadata.str("tokenizer.chat_template"),
        metadata.str("tokenizer.chat_template.tool_use"),
        &token(text.bos()).unwrap_or_default(),
        &token(eos).unwrap_or_default(),
    );
    if let Err(error) = &templates {
        tracing::warn!(%error, "conversations are refused");
    }
    templates.map(Arc::new)
}

/// `window` is what a request puts into a batch past its prompt: the chosen token, and drafts behind it.
fn engine_options(config: &ServeConfig, ctx_size: u32, window: u32) -> EngineOptions {
    EngineOptions {
        engine: config.engine,
        llama: LlamaStageOptions {
            n_ctx_seq: ctx_size,
            // Room for the other lanes beside a piece of a prompt of that size.
            n_batch: config.batch_size + window * (config.lanes - 1),
            n_seq_max: config.lanes,
            cache_type_k: config.cache_type_k.into(),
            cache_type_v: config.cache_type_v.into(),
            gpu_layers: config.gpu_layers,
            allow_uncertified_cuts: config.allow_uncertified_cuts,
        },
        overrides: config.overrides(),
        evidence: None,
        drafts: (window > 1).then(DraftAttention::default),
    }
}
