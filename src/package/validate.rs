//! Compares a package with the source model it was cut from (spec, "Publishing Rules").
//!
//! Everything is compared: each tensor of the source is in exactly one artifact, byte for byte; sizes, digests, counts,
//! metadata and the statements about the source hold. Nothing stops at the first difference.

mod compare;

use std::{collections::BTreeMap, path::Path};

use rayon::prelude::*;
use serde::Serialize;

use self::compare::{ArtifactFindings, SourceTensors, check_artifact};
use super::{
    Code, Issue, Manifest, Package, Part, Severity, Sha256Digest,
    fragment::Entry,
    package::read_manifest,
    preflight::entries,
    write::{
        Progress,
        transfer::{SourceFiles, TransferError},
    },
};
use crate::gguf::{GgufError, GgufFile, Metadata, Source, Value};

/// The report.
#[derive(Debug, Serialize)]
pub struct Validation {
    /// Whether no issue is an error.
    pub valid: bool,
    /// Model coordinate of the manifest.
    pub model_id: Option<String>,
    /// Digest of the manifest.
    pub manifest_sha256: Option<Sha256Digest>,
    /// `layer_count` against `<arch>.block_count`.
    pub layer_count: Option<Comparison<u64>>,
    /// `activation_width` against `<arch>.embedding_length`.
    pub activation_width: Option<Comparison<u64>>,
    /// `source_model.sha256` against the source file, or its first shard.
    pub source_sha256: Option<Comparison<Sha256Digest>>,
    /// Tensors of the source.
    pub source_tensors: usize,
    /// Those found in exactly one artifact and equal byte for byte.
    pub equal_tensors: usize,
    /// Tensors of the source that are in no artifact.
    pub missing_tensors: Vec<String>,
    /// Tensors that are in several artifacts.
    pub duplicate_tensors: Vec<TensorIn>,
    /// Tensors that the source does not have.
    pub unknown_tensors: Vec<TensorIn>,
    /// Tensors that differ from the source's.
    pub different_tensors: Vec<TensorIn>,
    /// Metadata keys that differ from the source's.
    pub different_keys: Vec<String>,
    /// Every artifact of the manifest.
    pub artifacts: Vec<ArtifactReport>,
    /// Every finding, errors first.
    pub issues: Vec<Issue>,
}

/// Two values that must be equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Comparison<T> {
    /// What the package says.
    pub package: Option<T>,
    /// What the source says.
    pub source: Option<T>,
    /// Whether they agree.
    #[serde(rename = "match")]
    pub matches: bool,
}

/// A tensor and the artifacts that it was found in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorIn {
    /// The tensor.
    pub tensor: String,
    /// Paths of the artifacts.
    pub artifacts: Vec<String>,
}

/// What was checked about one artifact; nothing where it could not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArtifactReport {
    /// Its path.
    pub path: String,
    /// Whether it is a regular file inside the package, of the declared size.
    pub size_matches: bool,
    /// Whether its content has the declared digest.
    pub sha256_matches: Option<bool>,
    /// Whether it holds as many tensors as declared.
    pub tensor_count_matches: Option<bool>,
    /// Whether they have as many bytes as declared.
    pub tensor_bytes_matches: Option<bool>,
}

/// Why a comparison could not be made at all. Faults of the package are no errors: they are in the report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValidateError {
    /// The source is not a sound GGUF model.
    #[error("cannot read the source: {0}")]
    Source(#[from] GgufError),
    /// Reading failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// No threads.
    #[error("cannot start {jobs} threads: {error}")]
    Threads {
        /// How many were asked for.
        jobs: usize,
        /// Why not.
        error: rayon::ThreadPoolBuildError,
    },
}

/// Compares the package in `dir` with `source`, on `jobs` threads.
///
/// # Errors
/// When the source cannot be read. A package that cannot be read is a finding.
pub fn validate(source: &Path, dir: &Path, jobs: usize, progress: &dyn Progress) -> Result<Validation, ValidateError> {
    let source = Source::open(source)?;
    let files = SourceFiles::open(source.files().iter().map(GgufFile::path))?;
    let mut report = Validation::empty(source.tensors().count());
    let (root, bytes) = match read_manifest(dir) {
        Ok(read) => read,
        Err(error) => {
            report.issues = error.issues();
            return Ok(report);
        }
    };
    report.manifest_sha256 = Some(Sha256Digest::of(&bytes));
    let (manifest, faults) = Manifest::check(&bytes);
    report.issues.extend(faults.iter().map(Issue::from));
    let Some(manifest) = manifest else { return Ok(report) };
    report.model_id = Some(manifest.model_id.clone());
    let package = Package::unchecked(root, manifest, Sha256Digest::of(&bytes));

    let entries: Vec<Entry<'_>> = entries(package.manifest()).collect();
    progress.start(
        files.sizes().iter().sum::<u64>() + entries.iter().map(|entry| entry.artifact.artifact_bytes).sum::<u64>(),
    );
    let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs.max(1)).build();
    let pool = pool.map_err(|error| ValidateError::Threads { jobs, error })?;
    let on_bytes = |bytes| progress.add(bytes);
    let tensors: SourceTensors<'_> = source
        .files()
        .iter()
        .enumerate()
        .flat_map(|(at, file)| file.gguf().tensors.iter().map(move |tensor| (at, file.gguf().data_start, tensor)))
        .map(|(at, data_start, tensor)| (tensor.name.as_str(), (at, data_start + tensor.offset, tensor)))
        .collect();
    let (digests, findings) = pool.install(|| {
        rayon::join(
            || {
                (0..source.files().len())
                    .into_par_iter()
                    .map(|at| files.hash(at, &on_bytes))
                    .collect::<Result<Vec<_>, _>>()
            },
            || {
                let entries = entries.par_iter().with_max_len(1);
                entries
                    .map(|entry| check_artifact(*entry, &package, &tensors, &files, &on_bytes))
                    .collect::<Result<Vec<_>, _>>()
            },
        )
    });
    files.check_unchanged()?;
    let (digests, findings) = (digests?, findings?);

    check_statements(&package, &source, &files.sizes(), &digests, &mut report);
    check_metadata(&findings, source.metadata(), &mut report);
    check_tensors(findings, &source, &mut report);
    report.issues.sort_by_key(|issue| std::cmp::Reverse(issue.severity));
    report.valid = report.issues.iter().all(|issue| issue.severity < Severity::Error);
    Ok(report)
}

impl Validation {
    fn empty(source_tensors: usize) -> Self {
        Self {
            valid: false,
            model_id: None,
            manifest_sha256: None,
            layer_count: None,
            activation_width: None,
            source_sha256: None,
            source_tensors,
            equal_tensors: 0,
            missing_tensors: Vec::new(),
            duplicate_tensors: Vec::new(),
            unknown_tensors: Vec::new(),
            different_tensors: Vec::new(),
            different_keys: Vec::new(),
            artifacts: Vec::new(),
            issues: Vec::new(),
        }
    }

    fn issue(&mut self, code: Code, path: impl Into<String>, message: String) {
        self.issues.push(Issue::new(code, path, message));
    }

    fn compare<T>(&mut self, code: Code, field: &str, package: Option<T>, source: Option<T>) -> Comparison<T>
    where
        T: PartialEq + std::fmt::Display,
    {
        let matches = package == source;
        if !matches {
            let shown = |value: &Option<T>| value.as_ref().map_or("nothing".into(), ToString::to_string);
            let message = format!("`{field}`: got {}, expected {}, as in the source", shown(&package), shown(&source));
            self.issue(code, field, message);
        }
        Comparison { package, source, matches }
    }
}

/// What the manifest states about the source.
fn check_statements(
    package: &Package,
    source: &Source,
    sizes: &[u64],
    digests: &[Sha256Digest],
    report: &mut Validation,
) {
    let manifest = package.manifest();
    let metadata = source.metadata();
    let (stated, found) = (Some(u64::from(manifest.layer_count)), metadata.arch_uint("block_count"));
    report.layer_count = Some(report.compare(Code::LayerCountMismatch, "layer_count", stated, found));
    let found = metadata.arch_uint("embedding_length");
    report.activation_width = Some(match manifest.activation_width.map(u64::from) {
        None => {
            let message = "`activation_width`: got nothing, expected the model's embedding length";
            report.issue(Code::MissingActivationWidth, "activation_width", message.into());
            Comparison { package: None, source: found, matches: true }
        }
        stated => report.compare(Code::ActivationWidthMismatch, "activation_width", stated, found),
    });
    let stated = &manifest.source_model;
    let first = digests.first().copied();
    let sha256 = report.compare(Code::SourceMismatch, "source_model.sha256", Some(stated.sha256), first);
    report.source_sha256 = Some(sha256);
    if stated.files.is_empty() {
        return;
    }
    let (got, expected) = (Some(stated.files.len()), Some(digests.len()));
    if !report.compare(Code::SourceMismatch, "source_model.files", got, expected).matches {
        return;
    }
    for (at, ((file, size), digest)) in stated.files.iter().zip(sizes).zip(digests).enumerate() {
        let field = format!("source_model.files[{at}]");
        if file.size_bytes.is_some() {
            report.compare(Code::SourceMismatch, &format!("{field}.size_bytes"), file.size_bytes, Some(*size));
        }
        if file.sha256.is_some() {
            report.compare(Code::SourceMismatch, &format!("{field}.sha256"), file.sha256, Some(*digest));
        }
    }
}

/// Shared metadata has the source's key-values, all of them and no others. A writer may state the alignment of its
/// fragments, and leave keys of its own.
fn check_metadata(findings: &[ArtifactFindings], source: &Metadata, report: &mut Validation) {
    let fragment = findings.iter().find(|found| found.part == Part::Metadata).and_then(|found| found.metadata.as_ref());
    let Some(fragment) = fragment else { return };
    let mut different = Vec::new();
    for (key, value) in source.iter().filter(|(key, _)| *key != "general.alignment") {
        if !fragment.get(key).is_some_and(|got| same(got, value)) {
            different.push(key.to_owned());
        }
    }
    let own = |key: &str| key == "general.alignment" || key.starts_with("skippy.");
    different.extend(
        fragment.iter().map(|(key, _)| key).filter(|key| source.get(key).is_none() && !own(key)).map(Into::into),
    );
    for key in &different {
        let message = match (fragment.get(key), source.get(key)) {
            (None, _) => format!("metadata key `{key}` of the source is missing"),
            (_, None) => format!("metadata key `{key}` is not in the source"),
            _ => format!("metadata key `{key}` has another value than in the source"),
        };
        report.issue(Code::MetadataMismatch, "shared.metadata", message);
    }
    report.different_keys = different;
}

/// Equality by value; a NaN equals itself.
fn same(a: &Value, b: &Value) -> bool {
    a == b || format!("{a:?}") == format!("{b:?}")
}

/// Each tensor of the source in exactly one artifact, and equal.
fn check_tensors(findings: Vec<ArtifactFindings>, source: &Source, report: &mut Validation) {
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut different = BTreeMap::new();
    for found in findings {
        report.issues.extend(found.issues);
        for (tensor, difference) in found.different {
            different.insert((tensor, found.report.path.clone()), difference);
        }
        for tensor in found.tensors {
            owners.entry(tensor).or_default().push(found.report.path.clone());
        }
        report.artifacts.push(found.report);
    }
    for (_, tensor) in source.tensors() {
        let artifacts = owners.remove(&tensor.name).unwrap_or_default();
        let wrong = artifacts.iter().any(|artifact| different.contains_key(&(tensor.name.clone(), artifact.clone())));
        match artifacts.as_slice() {
            [] => {
                report.issue(
                    Code::MissingTensor,
                    &tensor.name,
                    format!("tensor `{}` of the source is in no artifact", tensor.name),
                );
                report.missing_tensors.push(tensor.name.clone());
            }
            [_] => report.equal_tensors += usize::from(!wrong),
            several => {
                let message =
                    format!("tensor `{}` is in {}: expected exactly one artifact", tensor.name, several.join(", "));
                report.issue(Code::DuplicateTensor, &tensor.name, message);
                report.duplicate_tensors.push(TensorIn { tensor: tensor.name.clone(), artifacts });
            }
        }
    }
    for (tensor, artifacts) in owners {
        let message = format!("tensor `{tensor}` in {} is not in the source", artifacts.join(", "));
        report.issue(Code::UnknownTensor, &tensor, message);
        report.unknown_tensors.push(TensorIn { tensor, artifacts });
    }
    for ((tensor, artifact), difference) in different {
        report.issue(Code::TensorMismatch, &artifact, format!("tensor `{tensor}` in {artifact}: {difference}"));
        report.different_tensors.push(TensorIn { tensor, artifacts: vec![artifact] });
    }
}
