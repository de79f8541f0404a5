//! Random-weight slices of a large GLM-DSA model, so that a whole stage of it can be measured on a small machine.
//!
//! A slice is a model of its own, since a package has a fragment for every layer that it counts: the layers asked for
//! become blocks `0..n`, with the exact tensors that [`Config`](crate::package::glm_dsa::Config) derives from the metadata.
//! Each keeps its feed-forward part, dense or of experts, and its IndexShare role; only the first one is made full, because
//! a model that starts on a shared layer cannot be computed. The vocabulary is a tiny one without tokenizer, enough to feed
//! the first block and to compare what leaves the last. Model id, `general.description` and README say what was reduced.
//!
//! [`Dimensions::GLM_5_2`] holds the sizes of GLM-5.2 as its published configuration and converted files state them. No
//! weight of it is used: matrices are random blocks (`blocks.rs`), norms are 1, router and biases are f32.

mod blocks;
mod model;
#[cfg(test)]
mod tests;

#[cfg(feature = "engine")]
pub(crate) use self::blocks::{Blocks, Random};
use self::model::Slice;
use super::{
    LayerRange,
    write::{Progress, WriteError, WriteRequest, Written, write_package},
};
use crate::gguf::{GgmlType, GgufError};
use std::{
    fs::{self, File},
    io::BufWriter,
    path::{Path, PathBuf},
};

/// Sizes of a GLM-DSA model, elements of a row where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dimensions {
    /// Name of the model, fit for a model id.
    pub name: &'static str,
    /// Layers without the MTP block.
    pub trunk_layers: u32,
    /// The first layers, which have one dense feed-forward part each.
    pub dense_lead: u32,
    /// Layers from 0 on that are full, one after the other.
    pub full_lead: u32,
    /// Behind those every so manyth layer is full, the first one this far behind the last of them.
    pub full_every: u32,
    /// Tokens of context.
    pub context_length: u32,
    /// Width of a hidden row.
    pub n_embd: u32,
    /// Attention heads.
    pub n_head: u32,
    /// Width of the query latent.
    pub q_lora: u32,
    /// Width of the key-value latent.
    pub kv_lora: u32,
    /// Rotated elements of a head.
    pub rope_dim: u32,
    /// Elements of a query or key head that are not rotated.
    pub nope_dim: u32,
    /// Elements of a value head.
    pub v_dim: u32,
    /// Base of the rotation's frequencies.
    pub rope_theta: f32,
    /// Epsilon of the RMS norms.
    pub rms_eps: f32,
    /// Indexer heads.
    pub indexer_heads: u32,
    /// Elements of an indexer head.
    pub indexer_dim: u32,
    /// Rows that a query attends to at most.
    pub top_k: u32,
    /// Width of a dense feed-forward part.
    pub n_ff: u32,
    /// Routed experts.
    pub n_expert: u32,
    /// Routed experts that a token uses.
    pub n_expert_used: u32,
    /// Shared experts.
    pub n_expert_shared: u32,
    /// Width of one expert.
    pub n_ff_exp: u32,
    /// What the weights of the routed experts are multiplied by.
    pub expert_scale: f32,
}

impl Dimensions {
    /// GLM-5.2: 78 layers and an MTP block, which slices leave out.
    pub const GLM_5_2: Self = Self {
        name: "glm-5.2",
        trunk_layers: 78,
        dense_lead: 3,
        full_lead: 3,
        full_every: 4,
        context_length: 1 << 20,
        n_embd: 6144,
        n_head: 64,
        q_lora: 2048,
        kv_lora: 512,
        rope_dim: 64,
        nope_dim: 192,
        v_dim: 256,
        rope_theta: 8e6,
        rms_eps: 1e-5,
        indexer_heads: 32,
        indexer_dim: 128,
        top_k: 2048,
        n_ff: 12288,
        n_expert: 256,
        n_expert_used: 8,
        n_expert_shared: 1,
        n_ff_exp: 2048,
        expert_scale: 2.5,
    };

    /// Whether `layer` has an indexer of its own.
    pub fn is_full(&self, layer: u32) -> bool {
        match layer.checked_sub(self.full_lead.saturating_sub(1)) {
            None => true,
            Some(behind) => behind.is_multiple_of(self.full_every.max(1)),
        }
    }
}

/// What to write, and where.
#[derive(Clone, Debug)]
pub struct SynthRequest {
    /// The model.
    pub dimensions: Dimensions,
    /// Its layers.
    pub layers: LayerRange,
    /// Routed experts of each layer, of which a token uses as many as in the whole model.
    pub experts: u32,
    /// Type of the matrices. Those whose rows are not whole blocks of it are q8_0, or f16.
    pub ty: GgmlType,
    /// Where the random numbers start: the same request gives the same tensors.
    pub seed: u64,
    /// The package directory.
    pub out_dir: PathBuf,
    /// Where to leave the model that the package is cut from; it is removed without.
    pub keep_source: Option<PathBuf>,
    /// Threads, at least 1.
    pub jobs: usize,
}

/// Why no slice was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// Layers that the model does not have.
    #[error("layers {layers} are outside {model}, which has layers 0..{trunk} besides its MTP block")]
    Layers {
        /// Those asked for.
        layers: LayerRange,
        /// The model.
        model: &'static str,
        /// How many it has.
        trunk: u32,
    },
    /// Too few experts, or more than the model has.
    #[error("{got} experts: expected {least}, which a token uses, to {most}")]
    Experts {
        /// Those asked for.
        got: u32,
        /// Experts that a token uses.
        least: u32,
        /// Experts of the model.
        most: u32,
    },
    /// A type that no blocks are made of.
    #[error("no random blocks of type {0}: expected f32, f16, q8_0, q4_k, q3_k or q2_k")]
    Type(&'static str),
    /// Dimensions that do not make a model.
    #[error("these dimensions do not make a model: {0}")]
    Contract(#[from] super::glm_dsa::ContractError),
    /// The operating system refused.
    #[error("`{}`: cannot {doing}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The answer.
        error: std::io::Error,
    },
    /// The model could not be written.
    #[error("`{}`: {error}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: GgufError,
    },
    /// The package could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Writes the slice as a model, streamed and piece by piece, then cuts that into a package like any other model. The model
/// needs as much space as the package; it lies beside the package until that is complete.
///
/// # Errors
/// [`SynthError`].
pub fn synthesise(request: &SynthRequest, progress: &dyn Progress) -> Result<Written, SynthError> {
    let slice = Slice::new(request)?;
    let source = Temporary::new(request)?;
    let file = File::create(&source.path).map_err(source.fault("create the file"))?;
    progress.start(slice.bytes());
    let written = slice.write(BufWriter::with_capacity(1 << 20, file), |bytes| progress.add(bytes));
    written.map_err(|error| SynthError::Gguf { path: source.path.clone(), error })?;
    let request = WriteRequest {
        source: source.path.clone(),
        out_dir: request.out_dir.clone(),
        model_id: slice.model_id(),
        source_revision: format!("seed-{}", request.seed),
        source_file: format!("{}.gguf", slice.name()),
        projectors: Vec::new(),
        jobs: request.jobs,
    };
    Ok(write_package(&request, progress)?)
}

/// The model that the package is cut from, removed in the end unless it is to be kept.
struct Temporary {
    path: PathBuf,
    keep: bool,
}

impl Temporary {
    fn new(request: &SynthRequest) -> Result<Self, SynthError> {
        if let Some(path) = &request.keep_source {
            return Ok(Self { path: path.clone(), keep: true });
        }
        let name =
            request.out_dir.file_name().map_or_else(|| "synth".into(), |name| name.to_string_lossy().into_owned());
        let parent = request.out_dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let source = Self { path: parent.join(format!(".{name}.source.gguf")), keep: false };
        fs::create_dir_all(parent).map_err(source.fault("create the directory for the file"))?;
        Ok(source)
    }

    fn fault(&self, doing: &'static str) -> impl FnOnce(std::io::Error) -> SynthError {
        let path = self.path.clone();
        move |error| SynthError::Io { path, doing, error }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.keep {
            // What is left behind is a hidden file, no fault of the package.
            let _ = fs::remove_file(&self.path);
        }
    }
}
