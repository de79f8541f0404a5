//! A layer package on disk.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{
    Sha256Digest,
    error::PackageError,
    fragment::{Entry, Part},
    generation::Unsupported,
    manifest::Manifest,
    model::ModelFacts,
    verdicts::Verdicts,
};
use crate::gguf::{GgufFile, Metadata};

/// A package whose manifest has been read and obeys the spec. Artifacts are looked at when they are needed.
#[derive(Debug)]
pub struct Package {
    /// Absolute, links resolved, so that a link out of the package can be told.
    root: PathBuf,
    manifest: Manifest,
    manifest_sha256: Sha256Digest,
    verdicts: Option<Verdicts>,
}

/// What `inspect` shows: the manifest and shared metadata in short. No layer range is needed, no other artifact is read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// Model coordinate.
    pub model_id: String,
    /// Digest of the manifest, the identity of the package.
    pub manifest_sha256: Sha256Digest,
    /// ABI of the fragments.
    pub skippy_abi_version: String,
    /// Layers, MTP blocks counted.
    pub layer_count: u32,
    /// Estimate of the manifest.
    pub activation_width: Option<u32>,
    /// Facts from shared metadata.
    pub model: ModelFacts,
    /// Bytes of all artifacts but projectors.
    pub artifact_bytes: u64,
    /// Bytes of all tensors but projectors'.
    pub tensor_bytes: u64,
    /// Bytes of the largest layer.
    pub largest_layer_bytes: u64,
    /// Paths of the projectors.
    pub projectors: Vec<String>,
    /// The generation defaults in short.
    pub generation: Option<GenerationSummary>,
}

/// Generation defaults in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GenerationSummary {
    /// Declared profile, known or not.
    pub profile: Option<serde_json::Value>,
    /// Recommended strategy.
    pub default_strategy: Option<String>,
    /// Declared strategies.
    pub strategies: Vec<String>,
    /// Declared values that this version does not know.
    pub unsupported: Vec<Unsupported>,
}

impl Package {
    /// Opens the package in `dir` and checks its manifest; no artifact is touched.
    ///
    /// # Errors
    /// When there is no readable manifest, or it breaks a rule.
    pub fn open(dir: &Path) -> Result<Self, PackageError> {
        let (root, bytes) = read_manifest(dir)?;
        let path = root.join(Manifest::FILE_NAME);
        let manifest =
            Manifest::parse(&bytes).map_err(|error| PackageError::Manifest { path, error: Box::new(error) })?;
        Ok(Self { root, manifest, manifest_sha256: Sha256Digest::of(&bytes), verdicts: Verdicts::from_env() })
    }

    /// Remembers verified digests in `verdicts` instead of the user's cache; `None` remembers nothing.
    pub fn with_verdicts(mut self, verdicts: Option<Verdicts>) -> Self {
        self.verdicts = verdicts;
        self
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Digest of the manifest, the identity of the package.
    pub fn manifest_sha256(&self) -> Sha256Digest {
        self.manifest_sha256
    }

    /// The directory, absolute, links resolved.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn verdicts(&self) -> Option<&Verdicts> {
        self.verdicts.as_ref()
    }

    /// Reads the manifest and shared metadata, nothing else (spec, Consumer Validation: metadata-only inspection).
    ///
    /// # Errors
    /// When shared metadata is not the declared file, or does not describe a model.
    pub fn inspect(&self) -> Result<Inspection, PackageError> {
        let (_, model) = self.open_metadata()?;
        let manifest = &self.manifest;
        let parts =
            || manifest.artifacts().filter(|(field, _)| !field.starts_with("projectors")).map(|(_, artifact)| artifact);
        let sum = |sizes: &mut dyn Iterator<Item = u64>| sizes.fold(0u64, u64::saturating_add);
        Ok(Inspection {
            model_id: manifest.model_id.clone(),
            manifest_sha256: self.manifest_sha256,
            skippy_abi_version: manifest.skippy_abi_version.to_string(),
            layer_count: manifest.layer_count,
            activation_width: manifest.activation_width,
            model,
            artifact_bytes: sum(&mut parts().map(|artifact| artifact.artifact_bytes)),
            tensor_bytes: sum(&mut parts().map(|artifact| artifact.tensor_bytes)),
            largest_layer_bytes: manifest.layers.iter().map(|layer| layer.artifact.artifact_bytes).max().unwrap_or(0),
            projectors: manifest.projectors.iter().map(|projector| projector.artifact.path.to_string()).collect(),
            generation: manifest.generation.as_ref().map(|generation| {
                let speculation = generation.speculative_decoding.as_ref();
                let profile = generation.policy.as_ref().and_then(|policy| policy.profile.as_ref());
                GenerationSummary {
                    profile: profile.and_then(|profile| serde_json::to_value(profile).ok()),
                    default_strategy: speculation.and_then(|speculation| speculation.default.clone()),
                    strategies: speculation.map(|s| s.strategies.keys().cloned().collect()).unwrap_or_default(),
                    unsupported: generation.unsupported(),
                }
            }),
        })
    }

    /// Opens shared metadata and reads the model's facts from it.
    /// Key-values of shared metadata, after the same checks as [`inspect`](Self::inspect); no other artifact is opened.
    ///
    /// # Errors
    /// When shared metadata is not the declared file, or does not describe a model.
    pub fn metadata(&self) -> Result<Metadata, PackageError> {
        Ok(self.open_metadata()?.0.gguf().metadata.clone())
    }

    pub(super) fn open_metadata(&self) -> Result<(GgufFile, ModelFacts), PackageError> {
        let entry = Entry::new(Part::Metadata, &self.manifest.shared.metadata);
        let file = entry.open(&self.root)?;
        let model = ModelFacts::read(&file.gguf().metadata, self.manifest.layer_count, &entry)?;
        Ok((file, model))
    }

    /// A package whose manifest may break rules, for a tool that lists every fault.
    pub(super) fn unchecked(root: PathBuf, manifest: Manifest, manifest_sha256: Sha256Digest) -> Self {
        Self { root, manifest, manifest_sha256, verdicts: None }
    }

    /// Difference between the manifest's estimate of the width and the model's: `(manifest, model)`.
    pub fn width_mismatch(&self, model: &ModelFacts) -> Option<(u32, u64)> {
        let estimate = self.manifest.activation_width?;
        (u64::from(estimate) != model.n_embd).then_some((estimate, model.n_embd))
    }
}

/// The real path of `dir` and the bytes of its manifest, not more than one byte over the limit.
pub(super) fn read_manifest(dir: &Path) -> Result<(PathBuf, Vec<u8>), PackageError> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |error| PackageError::Unreadable { path, error }
    };
    let root = dir.canonicalize().map_err(unreadable(dir))?;
    let metadata = fs::metadata(&root).map_err(unreadable(dir))?;
    if !metadata.is_dir() {
        return Err(unreadable(dir)(io::Error::from(io::ErrorKind::NotADirectory)));
    }
    let path = root.join(Manifest::FILE_NAME);
    let found = fs::metadata(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => PackageError::NoManifest { dir: dir.to_owned() },
        _ => unreadable(&path)(error),
    })?;
    if !found.is_file() {
        return Err(unreadable(&path)(io::Error::other("not a regular file")));
    }
    let mut bytes = Vec::new();
    let file = File::open(&path).map_err(unreadable(&path))?;
    file.take(Manifest::MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable(&path))?;
    Ok((root, bytes))
}

#[cfg(test)]
mod tests;
