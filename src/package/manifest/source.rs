//! Where a package comes from.

use serde::Serialize;
use serde_json::Value;

use super::{
    Extra,
    fields::{Faults, Fields, quoted},
};
use crate::package::{digest::Sha256Digest, issue::Code};

/// The source model that the package was cut from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SourceModel {
    /// Path that the writer read, kept for provenance; never opened by a consumer.
    pub path: String,
    /// Digest of the source file (of the first shard, for a split one).
    pub sha256: Sha256Digest,
    /// Repository, for example `org/repo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    /// Commit of the repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The file, or the first shard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_file: Option<String>,
    /// Coordinate, for example `org/repo:distribution`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canonical_ref: Option<String>,
    /// Distribution within the repository, for example `Q4_K_M`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution_id: Option<String>,
    /// Every source file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<SourceFile>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One source file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SourceFile {
    /// Name within the repository.
    pub path: String,
    /// Size in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Digest of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Sha256Digest>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

impl SourceModel {
    /// A source known by path and digest only.
    pub fn new(path: impl Into<String>, sha256: Sha256Digest) -> Self {
        Self {
            path: path.into(),
            sha256,
            repo: None,
            revision: None,
            primary_file: None,
            canonical_ref: None,
            distribution_id: None,
            files: Vec::new(),
            extra: Extra::new(),
        }
    }

    pub(super) fn read(mut fields: Fields, faults: &mut Faults) -> Option<Self> {
        let path = fields.required_as("path", Code::EmptySourceModelPath, Code::EmptySourceModelPath, faults);
        let sha256 =
            fields.required_as("sha256", Code::InvalidSourceModelSha256, Code::InvalidSourceModelSha256, faults);
        let repo = fields.optional("repo", faults);
        let revision = fields.optional("revision", faults);
        let primary_file = fields.optional("primary_file", faults);
        let canonical_ref = fields.optional("canonical_ref", faults);
        let distribution_id = fields.optional("distribution_id", faults);
        let name = fields.name("files");
        let files = fields.list("files", faults).unwrap_or_default();
        let files = files.into_iter().enumerate();
        let files = files.filter_map(|(i, file)| SourceFile::read(file, format!("{name}[{i}]"), faults)).collect();
        Some(Self {
            path: path?,
            sha256: sha256?,
            repo,
            revision,
            primary_file,
            canonical_ref,
            distribution_id,
            files,
            extra: fields.rest(),
        })
    }
}

impl SourceFile {
    fn read(value: Value, path: String, faults: &mut Faults) -> Option<Self> {
        let mut fields = Fields::open(value, path, Code::InvalidField, faults)?;
        let path = fields.required("path", faults);
        let size_bytes = fields.optional("size_bytes", faults);
        let sha256 = fields.optional("sha256", faults);
        Some(Self { path: path?, size_bytes, sha256, extra: fields.rest() })
    }
}

/// Why a model id is no model coordinate, or `None` when it may be one.
pub(super) fn model_id_fault(id: &str) -> Option<(Code, String, &'static str)> {
    let got = quoted(id);
    if id.trim().is_empty() {
        return Some((Code::EmptyModelId, got, "a model coordinate such as `org/repo:distribution`"));
    }
    let mut start = id.chars();
    let drive = matches!((start.next(), start.next(), start.next()),
        (Some(letter), Some(':'), Some('/')) if letter.is_ascii_alphabetic());
    let rooted = ["/", "./", "../", "~", "file:"].iter().any(|prefix| id.starts_with(prefix));
    let file_name = id.to_ascii_lowercase().ends_with(".gguf");
    let odd = id.contains('\\') || id.chars().any(char::is_control) || id == "." || id == "..";
    let expected = "a model coordinate such as `org/repo:distribution`, not a file name";
    (drive || rooted || file_name || odd).then_some((Code::InvalidModelId, got, expected))
}
