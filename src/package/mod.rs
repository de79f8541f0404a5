//! Layer packages: one manifest plus one GGUF fragment per transformer layer.
//!
//! A package is read in steps, each of which looks at no more than it needs: [`Package::open`] the manifest,
//! [`Package::inspect`] shared metadata, [`Package::select`] the headers that decide what a stage needs, and
//! [`Package::load`] everything that the stage owns.

pub mod abi;
pub mod classify;
mod digest;
mod error;
mod fragment;
pub mod generation;
pub mod glm_dsa;
mod issue;
mod load;
mod manifest;
mod model;
#[allow(clippy::module_inception)]
mod package;
mod path;
pub mod plan;
mod preflight;
mod range;
mod selection;
pub mod synth;
#[cfg(test)]
pub(crate) mod testing;
pub mod validate;
mod verdicts;
pub mod write;

pub use digest::{DigestError, Sha256Digest, hash_file, hash_files, hash_reader, progress_bar};
pub use error::{ArtifactError, ArtifactFault, PackageError};
pub use fragment::{Entry, Part};
pub use generation::Generation;
pub use issue::{Code, Issue, Severity};
pub use load::{StageFiles, Verify};
pub use manifest::{
    Artifact, Extra, Fault, Format, LayerArtifact, Manifest, ManifestError, Projector, ProjectorKind, SchemaVersion,
    Shared, SourceFile, SourceModel,
};
pub use model::ModelFacts;
pub use package::{GenerationSummary, Inspection, Package};
pub use path::{RelPath, RelPathError};
pub use preflight::{PreflightOptions, PreflightReport, PreflightStage, preflight};
pub use range::{LayerRange, LayerRangeError};
pub use selection::{EmbeddingsReason, OutputReason, Selection};
pub use verdicts::{FileState, Verdicts};
