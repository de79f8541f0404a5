//! Why a package, or one of its artifacts, is refused.

use std::{io, path::PathBuf};

use super::{
    Issue, LayerRangeError, RelPath, Sha256Digest,
    issue::Code,
    manifest::{Manifest, ManifestError},
};
use crate::gguf::GgufError;

/// Why a package cannot be opened, selected from or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackageError {
    /// There is no manifest.
    #[error("`{}`: no `{}` in this directory; {}", dir.display(), Manifest::FILE_NAME, Code::MissingManifest.remedy())]
    NoManifest {
        /// The directory looked into.
        dir: PathBuf,
    },
    /// The directory or the manifest cannot be read.
    #[error("`{}`: {error}; {}", path.display(), Code::UnreadableManifest.remedy())]
    Unreadable {
        /// What could not be read.
        path: PathBuf,
        /// The answer of the operating system.
        error: io::Error,
    },
    /// The manifest breaks a rule.
    #[error("`{}`: {error}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// Every broken rule.
        error: Box<ManifestError>,
    },
    /// The layers asked for are not layers of the model.
    #[error(transparent)]
    Range(#[from] LayerRangeError),
    /// An artifact is not what the manifest says.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
}

impl PackageError {
    /// The findings in machine-readable form; none for a bad layer range, which is not the package's fault.
    pub fn issues(&self) -> Vec<Issue> {
        match self {
            Self::NoManifest { dir } => {
                vec![Issue::new(Code::MissingManifest, dir.display().to_string(), self.to_string())]
            }
            Self::Unreadable { path, .. } => {
                vec![Issue::new(Code::UnreadableManifest, path.display().to_string(), self.to_string())]
            }
            Self::Manifest { error, .. } => error.faults().map(Issue::from).collect(),
            Self::Range(_) => Vec::new(),
            Self::Artifact(error) => vec![Issue::from(error)],
        }
    }
}

/// Why one artifact is refused.
#[derive(Debug, thiserror::Error)]
#[error("`{path}` (`{field}`): {fault}; {}", fault.code().remedy())]
pub struct ArtifactError {
    /// The manifest field that declares it, for example `layers[3]`.
    pub field: String,
    /// Its path in the package.
    pub path: RelPath,
    /// What is wrong.
    pub fault: Box<ArtifactFault>,
}

impl From<&ArtifactError> for Issue {
    fn from(error: &ArtifactError) -> Self {
        Issue::new(error.fault.code(), error.path.as_str(), format!("`{}`: {}", error.field, error.fault))
    }
}

/// What is wrong with an artifact.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArtifactFault {
    /// It is not there.
    #[error("the file does not exist")]
    Missing,
    /// A directory, device, socket or pipe.
    #[error("got {got}, expected a regular file")]
    NotAFile {
        /// What it is.
        got: &'static str,
    },
    /// The operating system refused.
    #[error("cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    /// A link leads out of the package.
    #[error("is a link to `{}`, outside the package root `{}`", target.display(), root.display())]
    Outside {
        /// Where the link leads.
        target: PathBuf,
        /// The package root.
        root: PathBuf,
    },
    /// Shorter or longer than `artifact_bytes`.
    #[error("{}: got {got} bytes, expected `artifact_bytes` = {expected}", if got < expected { "truncated" } else { "oversized" })]
    Size {
        /// Size on disk.
        got: u64,
        /// Size in the manifest.
        expected: u64,
    },
    /// The content is not the declared one.
    #[error("damaged or replaced: got sha256 {got}, expected `sha256` = {expected}")]
    Sha256 {
        /// Digest on disk.
        got: Sha256Digest,
        /// Digest in the manifest.
        expected: Sha256Digest,
    },
    /// Somebody wrote to the file meanwhile.
    #[error("changed while it was being verified")]
    Changed,
    /// Not a sound GGUF file.
    #[error("not a usable GGUF fragment: {0}")]
    Gguf(#[source] GgufError),
    /// Another number of tensors than declared.
    #[error("got {got} tensors, expected `tensor_count` = {expected}")]
    TensorCount {
        /// Tensors in the fragment.
        got: u64,
        /// Tensors in the manifest.
        expected: u64,
    },
    /// Other tensor bytes than declared.
    #[error("got {got} bytes of tensors, expected `tensor_bytes` = {expected}")]
    TensorBytes {
        /// Bytes in the fragment.
        got: u64,
        /// Bytes in the manifest.
        expected: u64,
    },
    /// A layer without tensors.
    #[error("got no tensors, expected those of {expected}")]
    NoTensors {
        /// What it should hold.
        expected: String,
    },
    /// A tensor that the artifact must have.
    #[error("tensor `{tensor}` is missing: {why}")]
    MissingTensor {
        /// The tensor.
        tensor: String,
        /// Who needs it.
        why: &'static str,
    },
    /// A tensor of another artifact.
    #[error("got tensor `{tensor}` of {got}, expected only tensors of {expected}")]
    ForeignTensor {
        /// The tensor.
        tensor: String,
        /// The part of the model it belongs to.
        got: String,
        /// The part of the model that the artifact is for.
        expected: String,
    },
    /// A tensor that another artifact has too.
    #[error("tensor `{tensor}` is in `{other}` too")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// The other artifact.
        other: RelPath,
    },
    /// The fragment states another model than shared metadata does.
    #[error("belongs to another model: `{key}` is {got}, expected {expected} as in shared metadata")]
    ForeignKey {
        /// The key.
        key: String,
        /// Its value here.
        got: String,
        /// Its value in shared metadata.
        expected: String,
    },
    /// A tensor is as wide as another model's.
    #[error("belongs to another model: tensor `{tensor}` has shape {shape:?}, expected rows of {expected} elements")]
    ForeignWidth {
        /// The tensor.
        tensor: String,
        /// Its shape, `ne0` first.
        shape: Vec<u64>,
        /// The model's embedding length.
        expected: u64,
    },
    /// Shared metadata lacks a key, or contradicts the manifest.
    #[error("metadata key `{key}`: got {got}, expected {expected}")]
    Metadata {
        /// The key.
        key: String,
        /// Its value.
        got: String,
        /// What it must be.
        expected: String,
    },
}

impl ArtifactFault {
    /// Its stable name.
    pub fn code(&self) -> Code {
        match self {
            Self::Missing => Code::MissingArtifact,
            Self::NotAFile { .. } => Code::ArtifactNotAFile,
            Self::Unreadable(_) => Code::UnreadableArtifact,
            Self::Outside { .. } => Code::ArtifactOutsidePackage,
            Self::Size { .. } => Code::ArtifactSizeMismatch,
            Self::Sha256 { .. } | Self::Changed => Code::ArtifactSha256Mismatch,
            Self::Gguf(_) => Code::InvalidArtifact,
            Self::TensorCount { .. }
            | Self::TensorBytes { .. }
            | Self::NoTensors { .. }
            | Self::MissingTensor { .. } => Code::ArtifactTensorMismatch,
            Self::ForeignTensor { .. } => Code::ForeignTensor,
            Self::DuplicateTensor { .. } => Code::DuplicateTensor,
            Self::ForeignKey { .. } | Self::ForeignWidth { .. } => Code::ForeignArtifact,
            Self::Metadata { .. } => Code::InvalidMetadata,
        }
    }
}
