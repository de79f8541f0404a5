//! Stages of either engine from the fragments of a package: what `serve`, `parity` and `bench` have in common.

use crate::{
    cli::machine,
    gguf::Metadata,
    llama::{KvType, LlamaText, Threadpool},
    package::{
        LayerRange, LayerRangeError, Package, PackageError, StageFiles, Verify, generation::Generation, glm_dsa,
    },
    policy::{Exhibit, Overrides, Resolver, ResolverConfig},
    stage::{
        StageEngine,
        dsa::{self, DraftAttention, DsaStage, DsaStageError, DsaStageOptions, Switches},
        families::{self, CutError},
        llama::{LlamaStage, LlamaStageError, LlamaStageOptions, load_vocabulary},
        local_chain::{ChainError, LocalChain},
    },
};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Which engine runs the layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineChoice {
    /// `dsa` for the GLM-DSA architectures on the CPU, else `llama`.
    #[default]
    Auto,
    /// llama.cpp's own graphs.
    Llama,
    /// Sparse attention by policy; GLM-DSA and DeepSeek-V3.2, on the CPU.
    Dsa,
}

/// An engine, decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// llama.cpp's own graphs.
    Llama,
    /// Graphs of our own.
    Dsa,
}

impl Engine {
    /// Its name.
    pub fn label(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Dsa => "dsa",
        }
    }
}

/// How stages are loaded.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Which engine.
    pub engine: EngineChoice,
    /// Limits and cache types; the `dsa` engine has one cache, of the K type.
    pub llama: LlamaStageOptions,
    /// Attention paths forced for this process (`dsa`).
    pub overrides: Overrides,
    /// Evidence for experimental switches (`dsa`).
    pub evidence: Option<Exhibit>,
    /// How the draft head attends, if the package has one (`dsa`).
    pub drafts: Option<DraftAttention>,
}

impl From<LlamaStageOptions> for EngineOptions {
    fn from(llama: LlamaStageOptions) -> Self {
        Self { engine: EngineChoice::Llama, llama, overrides: Overrides::default(), evidence: None, drafts: None }
    }
}

/// Why stages could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The package is broken or incomplete.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// A range outside the model.
    #[error(transparent)]
    Range(#[from] LayerRangeError),
    /// A cut where the engine cannot cut the family.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// A stage of the `llama` engine.
    #[error("layers {layers}: {source}")]
    Llama {
        /// Its layers.
        layers: LayerRange,
        /// Why.
        source: LlamaStageError,
    },
    /// A stage of the `dsa` engine.
    #[error("layers {layers}: {source}")]
    Dsa {
        /// Its layers.
        layers: LayerRange,
        /// Why.
        source: DsaStageError,
    },
    /// The stages do not form a chain.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// An engine that does not have the architecture.
    #[error("the dsa engine serves `glm-dsa` and `deepseek32`, not `{arch}`: use `--engine llama` or `auto`")]
    Architecture {
        /// `general.architecture`.
        arch: String,
    },
    /// Layers on a GPU for an engine that has none.
    #[error("the dsa engine computes on the CPU: use `--engine llama` to put {0} layers on a GPU")]
    GpuLayers(u32),
    /// Forced attention paths for an engine that has no choice.
    #[error(
        "attention paths can be forced for the dsa engine only, and `{arch}` runs on llama.cpp: leave out `--attention-*`"
    )]
    Overrides {
        /// `general.architecture`.
        arch: String,
    },
    /// A vocabulary that llama.cpp refuses.
    #[error(transparent)]
    Vocabulary(#[from] LlamaStageError),
}

/// A chain of stages with what belongs to it.
pub struct LoadedChain {
    /// The stages, back to back.
    pub chain: LocalChain,
    /// The vocabulary.
    pub text: LlamaText,
    /// The resolver of the first stage, of the `dsa` engine.
    pub resolver: Option<Arc<Resolver>>,
}

impl EngineOptions {
    /// The engine for a model.
    ///
    /// # Errors
    /// When the engine asked for does not serve it.
    pub fn engine(&self, metadata: &Metadata) -> Result<Engine, EngineError> {
        let arch = metadata.arch().unwrap_or("unknown");
        let gpu_layers = self.llama.gpu_layers.unwrap_or(0);
        let engine = match (self.engine, dsa::serves(arch)) {
            (EngineChoice::Llama, _) | (EngineChoice::Auto, false) => Ok(Engine::Llama),
            (EngineChoice::Auto, true) if gpu_layers > 0 => Ok(Engine::Llama),
            (EngineChoice::Dsa, true) if gpu_layers > 0 => Err(EngineError::GpuLayers(gpu_layers)),
            (EngineChoice::Auto | EngineChoice::Dsa, true) => Ok(Engine::Dsa),
            (EngineChoice::Dsa, false) => Err(EngineError::Architecture { arch: arch.into() }),
        }?;
        if engine == Engine::Llama && self.overrides != Overrides::default() {
            return Err(EngineError::Overrides { arch: arch.into() });
        }
        Ok(engine)
    }

    /// Checks that a model may be cut before layer `cut`.
    ///
    /// # Errors
    /// [`CutError`], or that the engine does not serve the model.
    pub fn check_cut(&self, metadata: &Metadata, layer_count: u32, cut: u32) -> Result<(), EngineError> {
        match self.engine(metadata)? {
            Engine::Llama => Ok(families::check_cut(metadata, layer_count, cut, self.llama.allow_uncertified_cuts)?),
            Engine::Dsa => Ok(families::check_trunk_cut(metadata, layer_count, cut)?),
        }
    }

    /// Checks the fragments of a stage before anything is loaded: its cut, and for the `dsa` engine the whole contract.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn check(&self, files: &StageFiles) -> Result<(), EngineError> {
        let (metadata, layers) = (&files.metadata.gguf().metadata, files.range);
        if layers.start() > 0 {
            self.check_cut(metadata, files.layer_count, layers.start())?;
        }
        if self.engine(metadata)? == Engine::Dsa {
            let contract = glm_dsa::Config::of_stage(files).and_then(|config| config.check_stage(files));
            contract.map_err(|error| EngineError::Dsa { layers, source: error.into() })?;
        }
        Ok(())
    }

    /// Loads stages, in order, and joins them.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn load(
        &self,
        stages: Vec<StageFiles>,
        generation: Option<&Generation>,
        pool: &Arc<Threadpool>,
    ) -> Result<LoadedChain, EngineError> {
        let metadata = stages.first().map(|files| files.metadata.gguf().metadata.clone()).unwrap_or_default();
        let engine = self.engine(&metadata)?;
        let (mut engines, mut text, mut resolver): (Vec<Box<dyn StageEngine>>, _, _) = (Vec::new(), None, None);
        for files in stages {
            let layers = files.range;
            match engine {
                Engine::Llama => {
                    let stage = LlamaStage::load(files, pool.clone(), &self.llama);
                    let stage = stage.map_err(|source| EngineError::Llama { layers, source })?;
                    text = stage.text();
                    engines.push(Box::new(stage));
                }
                Engine::Dsa => {
                    let own = Arc::new(self.resolver(&files, generation)?);
                    resolver.get_or_insert_with(|| own.clone());
                    let stage = DsaStage::load(files, pool.clone(), own.clone(), &self.dsa(&own));
                    engines.push(Box::new(stage.map_err(|source| EngineError::Dsa { layers, source })?));
                }
            }
        }
        let chain = LocalChain::new(engines)?;
        let text = match text {
            Some(text) => text,
            None => load_vocabulary(&metadata)?,
        };
        Ok(LoadedChain { chain, text, resolver })
    }

    pub(super) fn dsa(&self, resolver: &Resolver) -> DsaStageOptions {
        let LlamaStageOptions { n_ctx_seq, n_batch, n_seq_max, cache_type_k, .. } = self.llama;
        DsaStageOptions {
            n_ctx_seq,
            n_batch,
            n_seq_max,
            cache_type: cache_type_k,
            drafts: self.drafts,
            switches: Switches::of(resolver),
        }
    }

    pub(super) fn resolver(
        &self,
        files: &StageFiles,
        generation: Option<&Generation>,
    ) -> Result<Resolver, EngineError> {
        let layers = files.range;
        let config = glm_dsa::Config::of_stage(files);
        let config = config.map_err(|error| EngineError::Dsa { layers, source: error.into() })?;
        let (start, end) = (layers.start() as usize, layers.end() as usize);
        Ok(Resolver::new(ResolverConfig {
            generation,
            architecture: config.arch.name(),
            top_k: Some(config.top_k),
            roles: config.roles.get(start..end).unwrap_or_default().to_vec(),
            capability: machine::capability(),
            overrides: self.overrides,
            evidence: self.evidence.clone(),
        }))
    }
}

/// The whole model as stages that meet at `cuts`.
///
/// # Errors
/// When a stage cannot be loaded.
pub fn chain(
    package: &Package,
    cuts: &[u32],
    options: &EngineOptions,
    pool: &Arc<Threadpool>,
) -> Result<LoadedChain, EngineError> {
    let mut start = 0;
    let mut stages = Vec::new();
    for end in cuts.iter().copied().chain([package.manifest().layer_count]) {
        let range = LayerRange::new(start, end)?;
        stages.push(package.load(&package.select(range)?, Verify::SizesOnly)?);
        start = end;
    }
    options.load(stages, package.manifest().generation.as_ref(), pool)
}

impl From<super::serve::config::CacheType> for KvType {
    fn from(ty: super::serve::config::CacheType) -> Self {
        use super::serve::config::CacheType;
        match ty {
            CacheType::F32 => Self::F32,
            CacheType::F16 => Self::F16,
            CacheType::Q8_0 => Self::Q8_0,
        }
    }
}
