//! Which artifacts a stage loads (spec, Layer Selection).

use super::{
    LayerRange, Package,
    error::PackageError,
    fragment::{Entry, Part},
    manifest::{Artifact, LayerArtifact, Projector},
    model::ModelFacts,
};
use crate::gguf::GgufFile;

/// The artifacts of one stage.
#[derive(Debug)]
pub struct Selection<'p> {
    package: &'p Package,
    /// The layers.
    pub range: LayerRange,
    /// Facts from shared metadata.
    pub model: ModelFacts,
    /// `shared.metadata`
    pub metadata: &'p Artifact,
    /// `shared.embeddings` and why it is needed.
    pub embeddings: Option<(&'p Artifact, EmbeddingsReason)>,
    /// The layers' entries, in order.
    pub layers: &'p [LayerArtifact],
    /// `shared.output` and why it is needed.
    pub output: Option<(&'p Artifact, OutputReason)>,
    /// All projectors for a stage that starts at layer 0, none otherwise.
    pub projectors: &'p [Projector],
}

/// Why a stage loads `shared.embeddings`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingsReason {
    /// The stage owns the input boundary.
    Input,
    /// The stage owns the output boundary and the model has no `output.weight`: its head is the token embedding.
    TiedOutput,
    /// The stage owns an MTP block without `nextn.embed_tokens.weight`: the block embeds with the model's own table.
    MtpBlock,
    /// The writer keeps rotary factors, which every layer reads, in this artifact.
    RotaryFactors,
}

/// Why a stage loads `shared.output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputReason {
    /// The stage owns the output boundary.
    Output,
    /// The writer keeps rotary factors, which every layer reads, in this artifact. Nothing else in it is for the stage.
    RotaryFactors,
}

impl Package {
    /// The artifacts of a stage that owns `range`. Reads the headers of shared metadata and of those fragments that
    /// decide the matter; no tensor data.
    ///
    /// # Errors
    /// When the range is not within the model, or an artifact that had to be looked at is refused.
    pub fn select(&self, range: LayerRange) -> Result<Selection<'_>, PackageError> {
        let manifest = self.manifest();
        let range = range.within(manifest.layer_count)?;
        let (metadata, model) = self.open_metadata()?;
        let owns_output = range.end() == manifest.layer_count;
        let factors = if has_rotary_factors(&metadata) { None } else { self.find_rotary_factors()? };
        let output = match factors {
            _ if owns_output => Some(OutputReason::Output),
            Some(Part::Output) => Some(OutputReason::RotaryFactors),
            _ => None,
        };
        let embeddings = if range.start() == 0 {
            Some(EmbeddingsReason::Input)
        } else if owns_output && self.output_is_tied()? {
            Some(EmbeddingsReason::TiedOutput)
        } else if self.needs_embeddings_for_mtp(range, &model)? {
            Some(EmbeddingsReason::MtpBlock)
        } else if factors == Some(Part::Embeddings) {
            Some(EmbeddingsReason::RotaryFactors)
        } else {
            None
        };
        let layers = manifest.layers.get(range.start() as usize..range.end() as usize).unwrap_or_default();
        Ok(Selection {
            package: self,
            range,
            model,
            metadata: &manifest.shared.metadata,
            embeddings: embeddings.map(|reason| (&manifest.shared.embeddings, reason)),
            layers,
            output: output.map(|reason| (&manifest.shared.output, reason)),
            projectors: if range.start() == 0 { &manifest.projectors } else { &[] },
        })
    }

    /// Whether the output head is the token embedding. Also true of a stage that owns the whole model.
    ///
    /// # Errors
    /// When `shared.output` is refused.
    pub fn output_is_tied(&self) -> Result<bool, PackageError> {
        let output = Entry::new(Part::Output, &self.manifest().shared.output).open(self.root())?;
        Ok(output.gguf().tensor("output.weight").is_none())
    }

    fn needs_embeddings_for_mtp(&self, range: LayerRange, model: &ModelFacts) -> Result<bool, PackageError> {
        for layer in range.iter().filter(|layer| model.is_mtp(*layer)) {
            let Some(entry) = self.manifest().layer(layer) else { continue };
            let fragment = Entry::new(Part::Layer(layer), &entry.artifact).open(self.root())?;
            if fragment.gguf().tensor(&format!("blk.{layer}.nextn.embed_tokens.weight")).is_none() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The shared artifact that holds rotary factors, for packages whose metadata fragment does not. A fragment that
    /// is not on disk was not fetched because the stage does not need it, by the spec's own rules.
    fn find_rotary_factors(&self) -> Result<Option<Part>, PackageError> {
        let shared = &self.manifest().shared;
        for (part, artifact) in [(Part::Embeddings, &shared.embeddings), (Part::Output, &shared.output)] {
            if !artifact.path.below(self.root()).exists() {
                continue;
            }
            if has_rotary_factors(&Entry::new(part, artifact).open(self.root())?) {
                return Ok(Some(part));
            }
        }
        Ok(None)
    }
}

/// Tensors outside the blocks that every layer reads.
fn has_rotary_factors(file: &GgufFile) -> bool {
    file.gguf().tensors.iter().any(|tensor| tensor.name.starts_with("rope_"))
}

impl<'p> Selection<'p> {
    /// The package selected from.
    pub fn package(&self) -> &'p Package {
        self.package
    }

    /// Everything selected: shared artifacts, layers, projectors.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'p>> {
        self.fragments()
            .chain(self.projectors.iter().enumerate().map(|(i, entry)| Entry::new(Part::Projector(i), &entry.artifact)))
    }

    /// What is merged into the stage: everything but projectors.
    pub(super) fn fragments(&self) -> impl Iterator<Item = Entry<'p>> {
        let metadata = Entry::new(Part::Metadata, self.metadata);
        let embeddings = self.embeddings.map(|(artifact, _)| Entry::new(Part::Embeddings, artifact));
        let output = self.output.map(|(artifact, _)| Entry::new(Part::Output, artifact));
        let layers = self.layers.iter().map(|layer| Entry::new(Part::Layer(layer.layer_index), &layer.artifact));
        std::iter::once(metadata).chain(embeddings).chain(layers).chain(output)
    }

    /// Bytes of everything selected.
    pub fn artifact_bytes(&self) -> u64 {
        self.entries().fold(0, |sum, entry| sum.saturating_add(entry.artifact.artifact_bytes))
    }

    /// Bytes of tensors that the stage holds.
    pub fn tensor_bytes(&self) -> u64 {
        self.fragments().fold(0, |sum, entry| sum.saturating_add(entry.artifact.tensor_bytes))
    }
}

#[cfg(test)]
mod tests;
