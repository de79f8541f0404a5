//! Why a model breaks the contract.

use std::path::{Path, PathBuf};

use crate::gguf::{GgmlType, GgufFile};

/// Why metadata or tensors are not those of a GLM-DSA model that can be computed. Names key or tensor, what was got and
/// what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContractError {
    /// Another error, with the file it was found in.
    #[error("`{}`: {error}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<ContractError>,
    },
    /// A key that must be there.
    #[error("metadata key `{key}` is missing: expected {expected}")]
    MissingKey {
        /// The key.
        key: String,
        /// What it must hold.
        expected: String,
    },
    /// A key with a value of the wrong type or out of range.
    #[error("metadata key `{key}` is {got}, expected {expected}")]
    Key {
        /// The key.
        key: String,
        /// Type and value, in short.
        got: String,
        /// What it must hold.
        expected: String,
    },
    /// A tensor that must be there.
    #[error("tensor `{tensor}` is missing: expected shape {expected:?}")]
    MissingTensor {
        /// The tensor.
        tensor: String,
        /// Its shape, row length first.
        expected: Vec<u64>,
    },
    /// A tensor that nothing would compute with, so that the output would differ from what the model was trained for.
    #[error("got tensor `{tensor}`, which is no part of {part}: expected only tensors that the engine computes with")]
    UnknownTensor {
        /// The tensor.
        tensor: String,
        /// The part of the model it was found in.
        part: String,
    },
    /// The key-value projection of old files, in one piece.
    #[error(
        "got tensor `{tensor}`, the unsplit projection of old files, expected `attn_k_b` and `attn_v_b`: repack the model \
         with the split tensors"
    )]
    UnsplitKvB {
        /// The tensor.
        tensor: String,
    },
    /// A tensor of another shape.
    #[error("tensor `{tensor}` has shape {got:?}, expected {expected:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape, row length first.
        got: Vec<u64>,
        /// The shape that follows from the metadata.
        expected: Vec<u64>,
    },
    /// A tensor of a type that cannot be used in its place.
    #[error("tensor `{tensor}` has type {got}, expected {expected}")]
    Type {
        /// The tensor.
        tensor: String,
        /// Its type.
        got: GgmlType,
        /// The types that can be used.
        expected: &'static str,
    },
    /// A layer with an indexer that it should not have, or without the one that it needs.
    #[error("layer {layer} is {role} by {source_of_role}, but {problem}")]
    Role {
        /// The layer.
        layer: u32,
        /// `full` or `shared`.
        role: &'static str,
        /// Where the role comes from.
        source_of_role: String,
        /// What contradicts it.
        problem: String,
    },
    /// The layer asked for is not in the model.
    #[error("got layer {layer}, expected one of the model's {layer_count}")]
    NoSuchLayer {
        /// The layer.
        layer: u32,
        /// Layers of the model, MTP block counted.
        layer_count: u32,
    },
}

impl ContractError {
    /// The same error, naming the file it was found in.
    pub(super) fn in_file(self, file: &GgufFile) -> Self {
        self.in_path(file.path())
    }

    fn in_path(self, path: &Path) -> Self {
        match self {
            named @ Self::InFile { .. } => named,
            error => Self::InFile { path: path.to_owned(), error: Box::new(error) },
        }
    }

    /// The error without the file name, for those who look at the kind of fault.
    pub fn kind(&self) -> &Self {
        match self {
            Self::InFile { error, .. } => error.kind(),
            error => error,
        }
    }
}
