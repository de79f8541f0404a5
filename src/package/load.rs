//! Opens the artifacts of a stage, with every check of the spec's section Consumer Validation.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use super::{
    LayerRange, Package,
    digest::hash_files,
    error::{ArtifactError, ArtifactFault, PackageError},
    fragment::{Entry, Part},
    manifest::fields::shown,
    selection::{EmbeddingsReason, Selection},
    verdicts::FileState,
};
use crate::gguf::GgufFile;

/// Whether the content of files is held against their digests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Sizes and tensor tables only.
    #[default]
    SizesOnly,
    /// SHA-256 of every selected file, unless a verdict about the unchanged file is remembered.
    Sha256,
}

impl Verify {
    /// Name of the environment variable that asks for checksums on local packages.
    pub const ENV: &'static str = "SKIPPY_VERIFY_PACKAGE_SHA";

    /// What [`Verify::ENV`] asks for: nothing when it is unset, empty, `0`, `false`, `no` or `off`.
    pub fn from_env() -> Self {
        Self::from_value(std::env::var_os(Self::ENV).as_deref().map(|value| value.to_string_lossy()).as_deref())
    }

    fn from_value(value: Option<&str>) -> Self {
        match value.map(|value| value.trim().to_ascii_lowercase()).as_deref() {
            None | Some("" | "0" | "false" | "no" | "off") => Self::SizesOnly,
            // Whatever else somebody wrote, they wanted checksums.
            Some(_) => Self::Sha256,
        }
    }
}

/// The opened artifacts of a stage.
#[derive(Debug)]
pub struct StageFiles {
    /// `shared.metadata`
    pub metadata: GgufFile,
    /// `shared.embeddings`, when the selection asked for it.
    pub embeddings: Option<GgufFile>,
    /// Layers with their fragments, in order.
    pub layers: Vec<(u32, GgufFile)>,
    /// `shared.output`, when the selection asked for it. A stage that does not own the output boundary may hold it for
    /// rotary factors (`rope_*`) alone.
    pub output: Option<GgufFile>,
    /// Paths of projectors, for a stage that starts at layer 0.
    pub projectors: Vec<PathBuf>,
    /// Layers of the whole model.
    pub layer_count: u32,
    /// Layers of the stage.
    pub range: LayerRange,
}

impl StageFiles {
    /// Whether the stage takes token ids.
    pub fn owns_input(&self) -> bool {
        self.range.start() == 0
    }

    /// Whether the stage answers with logits.
    pub fn owns_output(&self) -> bool {
        self.range.end() == self.layer_count
    }
}

impl Package {
    /// Opens everything that `selection` names, after every check of the spec: regular files inside the package, of the
    /// declared size and, when asked, digest; fragments with exactly the declared tensors, each belonging to its
    /// artifact, none twice, all of one model.
    ///
    /// # Errors
    /// With the first artifact that fails a check.
    pub fn load(&self, selection: &Selection<'_>, verify: Verify) -> Result<StageFiles, PackageError> {
        if let Some((manifest, model)) = self.width_mismatch(&selection.model) {
            tracing::warn!(
                manifest,
                model,
                "`activation_width` of the manifest is not the model's width: the model's is used"
            );
        }
        let entries: Vec<_> = selection.entries().collect();
        let paths = entries.iter().map(|entry| entry.locate(self.root())).collect::<Result<Vec<_>, _>>()?;
        let states = match verify {
            Verify::SizesOnly => Vec::new(),
            Verify::Sha256 => {
                let verified = self.verify(&entries, &paths);
                verified.into_iter().collect::<Result<Vec<_>, _>>()?
            }
        };
        let (mut metadata, mut embeddings, mut output) = (None, None, None);
        let mut layers = Vec::with_capacity(selection.layers.len());
        let mut owners = HashMap::new();
        for entry in selection.fragments() {
            let file = entry.open(self.root())?;
            entry.check_model(&file, &selection.model)?;
            for tensor in &file.gguf().tensors {
                if let Some(other) = owners.insert(tensor.name.clone(), &entry.artifact.path) {
                    let (tensor, other) = (shown(&tensor.name), other.clone());
                    return Err(entry.error(ArtifactFault::DuplicateTensor { tensor, other }).into());
                }
            }
            match entry.part {
                Part::Metadata => metadata = Some(file),
                Part::Embeddings => {
                    check_embeddings(&entry, &file, selection)?;
                    embeddings = Some(file);
                }
                Part::Output => output = Some(file),
                Part::Layer(index) => layers.push((index, file)),
                Part::Projector(_) => {}
            }
        }
        // The files that were hashed must be the ones that are now mapped.
        for ((entry, path), state) in entries.iter().zip(&paths).zip(&states) {
            if FileState::of(path).ok().as_ref() != Some(state) {
                return Err(entry.error(ArtifactFault::Changed).into());
            }
        }
        let projectors = entries.iter().zip(&paths).filter(|(entry, _)| matches!(entry.part, Part::Projector(_)));
        let projectors = projectors.map(|(_, path)| path.clone()).collect();
        let metadata = match metadata {
            Some(metadata) => metadata,
            None => Entry::new(Part::Metadata, selection.metadata).open(self.root())?,
        };
        let (layer_count, range) = (self.manifest().layer_count, selection.range);
        Ok(StageFiles { metadata, embeddings, layers, output, projectors, layer_count, range })
    }

    /// Holds files against their digests, in parallel; one result for each, in order. Files about which a verdict is
    /// remembered are not read.
    pub(super) fn verify(&self, entries: &[Entry<'_>], paths: &[PathBuf]) -> Vec<Result<FileState, ArtifactError>> {
        let manifest = self.manifest_sha256();
        let states: Vec<_> = paths.iter().map(|path| FileState::of(path)).collect();
        let known = |i: usize| {
            let (entry, state) = (entries.get(i)?, states.get(i)?.as_ref().ok()?);
            self.verdicts().filter(|verdicts| verdicts.holds(manifest, entry.artifact, state))
        };
        let unknown: Vec<usize> = (0..paths.len()).filter(|i| known(*i).is_none()).collect();
        let to_hash: Vec<&Path> = unknown.iter().filter_map(|i| paths.get(*i)).map(PathBuf::as_path).collect();
        let bytes = unknown.iter().filter_map(|i| entries.get(*i)).map(|entry| entry.artifact.artifact_bytes).sum();
        let mut digests: HashMap<usize, _> = unknown.into_iter().zip(hash_files(&to_hash, bytes)).collect();
        let checked = entries.iter().zip(states).enumerate().map(|(i, (entry, state))| {
            let state = state.map_err(|error| entry.error(ArtifactFault::Unreadable(error)))?;
            let Some(digest) = digests.remove(&i) else { return Ok(state) };
            let got = digest.map_err(|error| entry.error(ArtifactFault::Unreadable(error)))?;
            let expected = entry.artifact.sha256;
            if got != expected {
                return Err(entry.error(ArtifactFault::Sha256 { got, expected }));
            }
            let unchanged = paths.get(i).and_then(|path| FileState::of(path).ok()).is_some_and(|now| now == state);
            if !unchanged {
                return Err(entry.error(ArtifactFault::Changed));
            }
            if let Some(verdicts) = self.verdicts() {
                verdicts.store(manifest, entry.artifact, &state);
            }
            Ok(state)
        });
        checked.collect()
    }
}

fn check_embeddings(entry: &Entry<'_>, file: &GgufFile, selection: &Selection<'_>) -> Result<(), ArtifactError> {
    let why = match selection.embeddings {
        Some((_, EmbeddingsReason::Input)) => "the stage owns the input boundary",
        Some((_, EmbeddingsReason::TiedOutput)) => "the model ties its output head to it",
        Some((_, EmbeddingsReason::MtpBlock)) => "the mtp block embeds with it",
        Some((_, EmbeddingsReason::RotaryFactors)) | None => return Ok(()),
    };
    match file.gguf().tensor("token_embd.weight") {
        Some(_) => Ok(()),
        None => Err(entry.error(ArtifactFault::MissingTensor { tensor: "token_embd.weight".into(), why })),
    }
}

#[cfg(test)]
mod tests;
