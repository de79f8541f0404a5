//! Layer packages: one manifest plus one GGUF fragment per transformer layer.

pub mod abi;
mod digest;
pub mod generation;
mod issue;
mod manifest;
mod path;
mod range;

pub use digest::{DigestError, Sha256Digest};
pub use generation::Generation;
pub use issue::{Code, Issue, Severity};
pub use manifest::{
    Artifact, Extra, Fault, Format, LayerArtifact, Manifest, ManifestError, Projector, ProjectorKind, SchemaVersion,
    Shared, SourceFile, SourceModel,
};
pub use path::{RelPath, RelPathError};
pub use range::{LayerRange, LayerRangeError};
