//! Everything that is wrong with a package, in one report.

use std::{collections::HashMap, path::Path};

use serde::Serialize;

use super::{
    ArtifactError, Code, Issue, LayerRange, Manifest, Package, PackageError, Severity, Sha256Digest,
    error::ArtifactFault,
    fragment::{Entry, Part},
    manifest::fields::shown,
    model::ModelFacts,
    package::read_manifest,
};

/// What to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreflightOptions {
    /// Report what each of these stages would load. Empty: one stage that owns the whole model.
    pub stages: Vec<LayerRange>,
    /// Hash every artifact. Remembered verdicts are not used.
    pub verify_sha256: bool,
}

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PreflightReport {
    /// Whether the package can be served: no issue is an error.
    pub ok: bool,
    /// Model coordinate, when the manifest could be read so far.
    pub model_id: Option<String>,
    /// Digest of the manifest, when there is one.
    pub manifest_sha256: Option<Sha256Digest>,
    /// Facts from shared metadata, when it could be read.
    pub model: Option<ModelFacts>,
    /// Whether artifacts were hashed.
    pub sha256_verified: bool,
    /// Every finding, errors first.
    pub issues: Vec<Issue>,
    /// What each stage would load.
    pub stages: Vec<PreflightStage>,
}

/// What one stage would load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PreflightStage {
    /// First layer.
    pub layer_start: u32,
    /// One past the last layer.
    pub layer_end: u32,
    /// Paths of the artifacts.
    pub parts: Vec<String>,
    /// Those that are not on disk.
    pub missing_parts: Vec<String>,
    /// Bytes of all parts.
    pub bytes: u64,
}

/// Checks the package in `dir` and goes on after each fault as far as it makes sense.
pub fn preflight(dir: &Path, options: &PreflightOptions) -> PreflightReport {
    let mut issues = Vec::new();
    let mut report = PreflightReport {
        ok: false,
        model_id: None,
        manifest_sha256: None,
        model: None,
        sha256_verified: false,
        issues: Vec::new(),
        stages: Vec::new(),
    };
    match read_manifest(dir) {
        Err(error) => issues.extend(error.issues()),
        Ok((root, bytes)) => {
            report.manifest_sha256 = Some(Sha256Digest::of(&bytes));
            let (manifest, faults) = Manifest::check(&bytes);
            issues.extend(faults.iter().map(Issue::from));
            if let Some(manifest) = manifest {
                report.model_id = Some(manifest.model_id.clone());
                let sound = faults.is_empty();
                let package = Package::unchecked(root, manifest, Sha256Digest::of(&bytes));
                warn(package.manifest(), &mut issues);
                report.model = check_artifacts(&package, options.verify_sha256, &mut issues);
                report.sha256_verified = options.verify_sha256;
                report.stages = if sound { stages(&package, &options.stages, &mut issues) } else { Vec::new() };
            }
        }
    }
    issues.sort_by_key(|issue| std::cmp::Reverse(issue.severity));
    report.ok = issues.iter().all(|issue| issue.severity < Severity::Error);
    report.issues = issues;
    report
}

/// What the spec recommends, and what this version cannot do.
fn warn(manifest: &Manifest, issues: &mut Vec<Issue>) {
    if manifest.activation_width.is_none() {
        let message = "`activation_width`: got nothing, expected the model's embedding length";
        issues.push(Issue::new(Code::MissingActivationWidth, "activation_width", message));
    }
    if manifest.created_at_unix_secs.is_none() {
        let message = "`created_at_unix_secs`: got nothing, expected the time of writing";
        issues.push(Issue::new(Code::MissingCreatedAt, "created_at_unix_secs", message));
    }
    let unsupported = manifest.generation.iter().flat_map(|generation| generation.unsupported());
    issues.extend(unsupported.map(|unsupported| Issue::from(&unsupported)));
}

/// Opens every artifact, and hashes it when `hash` says so.
fn check_artifacts(package: &Package, hash: bool, issues: &mut Vec<Issue>) -> Option<ModelFacts> {
    let manifest = package.manifest();
    let model = package.open_metadata();
    let model = model.map_err(|error| issues.extend(error.issues())).ok().map(|(_, model)| model);
    if let Some((got, expected)) = model.as_ref().and_then(|model| package.width_mismatch(model)) {
        let message = format!("`activation_width`: got {got}, expected {expected}, the model's embedding length");
        issues.push(Issue::new(Code::ActivationWidthMismatch, "activation_width", message));
    }
    let mut found = (Vec::new(), Vec::new());
    let mut owners = HashMap::new();
    for entry in entries(manifest) {
        let mut check = || -> Result<(), ArtifactError> {
            let path = entry.locate(package.root())?;
            found.0.push(entry);
            found.1.push(path);
            if matches!(entry.part, Part::Projector(_)) {
                return Ok(());
            }
            let file = entry.open(package.root())?;
            for tensor in &file.gguf().tensors {
                if let Some(other) = owners.insert(tensor.name.clone(), &entry.artifact.path) {
                    let (tensor, other) = (shown(&tensor.name), other.clone());
                    return Err(entry.error(ArtifactFault::DuplicateTensor { tensor, other }));
                }
            }
            model.as_ref().map_or(Ok(()), |model| entry.check_model(&file, model))
        };
        match check() {
            // Reported when its facts were read.
            Err(_) if entry.part == Part::Metadata => {}
            Err(error) => issues.push(Issue::from(&error)),
            Ok(()) => {}
        }
    }
    if hash {
        let verified = package.verify(&found.0, &found.1);
        issues.extend(verified.iter().filter_map(|result| result.as_ref().err()).map(Issue::from));
    }
    model
}

/// Every artifact of the manifest, shared ones first.
pub(super) fn entries(manifest: &Manifest) -> impl Iterator<Item = Entry<'_>> {
    let shared = &manifest.shared;
    let shared = [
        Entry::new(Part::Metadata, &shared.metadata),
        Entry::new(Part::Embeddings, &shared.embeddings),
        Entry::new(Part::Output, &shared.output),
    ];
    let layers = manifest.layers.iter().map(|layer| Entry::new(Part::Layer(layer.layer_index), &layer.artifact));
    let projectors = manifest.projectors.iter().enumerate();
    let projectors = projectors.map(|(i, projector)| Entry::new(Part::Projector(i), &projector.artifact));
    shared.into_iter().chain(layers).chain(projectors)
}

fn stages(package: &Package, ranges: &[LayerRange], issues: &mut Vec<Issue>) -> Vec<PreflightStage> {
    let whole = LayerRange::new(0, package.manifest().layer_count);
    let ranges = if ranges.is_empty() { whole.into_iter().collect() } else { ranges.to_vec() };
    let mut stages = Vec::with_capacity(ranges.len());
    for range in ranges {
        let selection = match package.select(range) {
            Ok(selection) => selection,
            Err(PackageError::Range(error)) => {
                issues.push(Issue::new(Code::InvalidField, "stages", error.to_string()));
                continue;
            }
            // The artifact in question has been reported; without it the selection is not known.
            Err(_) => continue,
        };
        let (mut parts, mut missing_parts) = (Vec::new(), Vec::new());
        for entry in selection.entries() {
            let path = &entry.artifact.path;
            parts.push(path.to_string());
            if !path.below(package.root()).exists() {
                missing_parts.push(path.to_string());
            }
        }
        let (layer_start, layer_end) = (range.start(), range.end());
        stages.push(PreflightStage { layer_start, layer_end, parts, missing_parts, bytes: selection.artifact_bytes() });
    }
    stages
}

#[cfg(test)]
mod tests;
