//! Artifact entries: one file of the package each.

use serde::Serialize;

use super::{
    Extra,
    fields::{Faults, Fields},
};
use crate::package::{digest::Sha256Digest, issue::Code, path::RelPath};

/// One file of the package.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Artifact {
    /// Where it lies, relative to the package root.
    pub path: RelPath,
    /// Tensors in the fragment.
    pub tensor_count: u64,
    /// Bytes of tensor data in the fragment, without padding; zero exactly when `tensor_count` is.
    pub tensor_bytes: u64,
    /// Size of the file in bytes, above zero.
    pub artifact_bytes: u64,
    /// Digest of the file.
    pub sha256: Sha256Digest,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The three artifacts that belong to no layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shared {
    /// Metadata and tokenizer, no tensors as a rule; every stage needs it.
    pub metadata: Artifact,
    /// Tensors of the input boundary.
    pub embeddings: Artifact,
    /// Tensors of the output boundary.
    pub output: Artifact,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The tensors of one transformer layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerArtifact {
    /// The layer, from 0.
    pub layer_index: u32,
    /// Its file.
    #[serde(flatten)]
    pub artifact: Artifact,
}

/// A multimodal projector.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Projector {
    /// What kind; schema version 1 knows one.
    pub kind: ProjectorKind,
    /// Its file.
    #[serde(flatten)]
    pub artifact: Artifact,
}

/// The kind of a [`Projector`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ProjectorKind {
    /// llama.cpp's multimodal projector.
    Mmproj,
}

impl Artifact {
    /// An artifact without unknown fields.
    pub fn new(path: RelPath, tensor_count: u64, tensor_bytes: u64, artifact_bytes: u64, sha256: Sha256Digest) -> Self {
        Self { path, tensor_count, tensor_bytes, artifact_bytes, sha256, extra: Extra::new() }
    }

    pub(super) fn read(mut fields: Fields, faults: &mut Faults) -> Option<Self> {
        let path = fields.required("path", faults);
        let tensor_count = fields.required::<u64>("tensor_count", faults);
        let tensor_bytes = fields.required::<u64>("tensor_bytes", faults);
        let artifact_bytes = fields.required::<u64>("artifact_bytes", faults);
        let sha256 = fields.required("sha256", faults);
        if artifact_bytes == Some(0) {
            faults.push(Code::EmptyArtifact, fields.name("artifact_bytes"), "0", "a size above 0");
        }
        match (tensor_count, tensor_bytes) {
            (Some(0), Some(bytes)) if bytes > 0 => faults.push(
                Code::InvalidTensorBytes,
                fields.name("tensor_bytes"),
                bytes.to_string(),
                "0, because `tensor_count` is 0",
            ),
            (Some(count), Some(0)) if count > 0 => faults.push(
                Code::InvalidTensorBytes,
                fields.name("tensor_bytes"),
                "0",
                format!("a size above 0, because `tensor_count` is {count}"),
            ),
            _ => {}
        }
        Some(Self {
            path: path?,
            tensor_count: tensor_count?,
            tensor_bytes: tensor_bytes?,
            artifact_bytes: artifact_bytes?,
            sha256: sha256?,
            extra: fields.rest(),
        })
    }
}

impl Shared {
    pub(super) fn read(mut fields: Fields, faults: &mut Faults) -> Option<Self> {
        let mut artifact = |key| fields.object(key, faults).and_then(|entry| Artifact::read(entry, faults));
        let (metadata, embeddings, output) = (artifact("metadata"), artifact("embeddings"), artifact("output"));
        Some(Self { metadata: metadata?, embeddings: embeddings?, output: output?, extra: fields.rest() })
    }
}

impl LayerArtifact {
    pub(super) fn read(mut fields: Fields, faults: &mut Faults) -> Option<Self> {
        let layer_index = fields.required("layer_index", faults);
        let artifact = Artifact::read(fields, faults);
        Some(Self { layer_index: layer_index?, artifact: artifact? })
    }
}

impl Projector {
    pub(super) fn read(mut fields: Fields, faults: &mut Faults) -> Option<Self> {
        let name = fields.name("kind");
        let expected = "`mmproj`, the one kind of schema version 1";
        let kind = match fields.take("kind") {
            Some(value) => match value.as_str() {
                Some("mmproj") => Some(ProjectorKind::Mmproj),
                Some("") => {
                    faults.push(Code::EmptyProjectorKind, name, "\"\"", expected);
                    None
                }
                _ => {
                    faults.push(Code::UnsupportedProjectorKind, name, super::fields::describe(&value), expected);
                    None
                }
            },
            None => {
                faults.push(Code::EmptyProjectorKind, name, "nothing", expected);
                None
            }
        };
        let artifact = Artifact::read(fields, faults);
        Some(Self { kind: kind?, artifact: artifact? })
    }
}
