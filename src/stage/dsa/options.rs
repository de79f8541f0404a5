//! How a stage is loaded, and why that fails.

use crate::{
    ggml::GgmlError,
    gguf::GgmlType,
    llama::KvType,
    package::{LayerRange, generation::Switch, glm_dsa::ContractError},
    policy::{Path, Resolver},
};

/// How the MTP block attends. Measured on the bundled model, both foresee equally well (0.83 and 0.83 of greedy tokens
/// behind prompts of 24 tokens, 0.78 and 0.79 behind 300); a selection stays cheap however long the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftAttention {
    /// To every visible row.
    Dense,
    /// To what its own indexer selects; densely where the block has none.
    #[default]
    Sparse,
}

/// How a stage is loaded.
#[derive(Clone, Copy, Debug)]
pub struct DsaStageOptions {
    /// KV rows of one sequence.
    pub n_ctx_seq: u32,
    /// Rows of one forward pass at most; raised to the number of sequences.
    pub n_batch: u32,
    /// Sequences.
    pub n_seq_max: u32,
    /// Type of cached rows and indexer keys.
    pub cache_type: KvType,
    /// How to draft; `None` leaves the MTP block out.
    pub drafts: Option<DraftAttention>,
    /// Experimental switches.
    pub switches: Switches,
}

/// The experimental switches that are open. The results are the same up to rounding either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Path compact-flash attends to the selected rows where they lie, in one kernel, in place of gathering them first.
    pub selected_row_flash: bool,
    /// In passes of many rows, route weights are applied before the down projection of the routed experts.
    pub moe_weighted_down: bool,
    /// In passes of many rows, gate and up of the shared expert are one operation.
    pub moe_merged_shared_gate_up: bool,
}

impl Switches {
    /// Those that the package declares and evidence opens.
    pub fn of(resolver: &Resolver) -> Self {
        Self {
            selected_row_flash: resolver.is_open(Switch::SelectedRowFlash),
            moe_weighted_down: resolver.is_open(Switch::MoeWeightedDown),
            moe_merged_shared_gate_up: resolver.is_open(Switch::MoeMergedSharedGateUp),
        }
    }

    /// How attention runs where `path` is decided. The fused form of compact-flash is what direct-sparse runs.
    pub(super) fn executed(self, path: Path) -> Path {
        match path {
            Path::CompactFlash if self.selected_row_flash => Path::DirectSparse,
            path => path,
        }
    }
}

impl KvType {
    /// The type in a GGUF.
    pub(super) fn ggml(self) -> GgmlType {
        match self {
            Self::F32 => GgmlType::F32,
            Self::F16 => GgmlType::F16,
            Self::Q8_0 => GgmlType::Q8_0,
        }
    }
}

/// Why a stage could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DsaStageError {
    /// The package is not a GLM-DSA model that can be computed.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// ggml could not set something up.
    #[error(transparent)]
    Ggml(#[from] GgmlError),
    /// A tensor cannot be used where it lies.
    #[error("{file}: `{tensor}`: {source}")]
    Tensor {
        /// The fragment.
        file: String,
        /// The tensor.
        tensor: String,
        /// Why.
        source: GgmlError,
    },
    /// A tensor that the contract promised.
    #[error("{file}: no tensor `{tensor}`")]
    MissingTensor {
        /// The fragment.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// A matrix type that this CPU cannot multiply.
    #[error("{file}: `{tensor}` has type {ty}, which ggml cannot multiply on this machine")]
    Type {
        /// The fragment.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: &'static str,
    },
    /// The stage needs the embedding table and has none.
    #[error("the stage needs `token_embd.weight`, but `shared/embeddings.gguf` was not selected")]
    NoEmbeddings,
    /// The stage owns the output and has no norm and head.
    #[error("the stage owns the output but `shared/output.gguf` was not selected")]
    NoOutput,
    /// A stage of the MTP block alone.
    #[error("layers {layers} hold no trunk layer: the MTP block starts at {trunk} and belongs to the stage before")]
    NoTrunk {
        /// The stage.
        layers: LayerRange,
        /// Trunk layers of the model.
        trunk: u32,
    },
    /// A cache row that the type cannot hold.
    #[error("a cache of type {ty} holds rows in blocks of {block}, but a row of this model has {width} elements")]
    CacheType {
        /// The type.
        ty: &'static str,
        /// Elements of a row.
        width: u64,
        /// Elements of a block.
        block: u64,
    },
}
