//! One artifact against the manifest and the source.

use std::{collections::HashMap, fs::File};

use super::ArtifactReport;
use crate::{
    gguf::{GgufFile, Metadata, TensorInfo},
    package::{
        ArtifactFault, Issue, Package, Part,
        digest::hash_file,
        fragment::Entry,
        write::transfer::{OnBytes, SourceFiles, TransferError},
    },
};

/// Tensors of the source by name: number of the file, offset in it, and the rest.
pub(super) type SourceTensors<'s> = HashMap<&'s str, (usize, u64, &'s TensorInfo)>;

/// What was found.
pub(super) struct ArtifactFindings {
    pub(super) part: Part,
    pub(super) report: ArtifactReport,
    /// Key-values of the fragment, for shared metadata.
    pub(super) metadata: Option<Metadata>,
    /// Its tensors; none for a projector, which is no part of the source.
    pub(super) tensors: Vec<String>,
    /// Those that differ from the source's, and how.
    pub(super) different: Vec<(String, String)>,
    pub(super) issues: Vec<Issue>,
}

/// Checks one artifact as far as it can be read.
pub(super) fn check_artifact(
    entry: Entry<'_>,
    package: &Package,
    source: &SourceTensors<'_>,
    files: &SourceFiles,
    on_bytes: OnBytes<'_>,
) -> Result<ArtifactFindings, TransferError> {
    let artifact = entry.artifact;
    let mut found = ArtifactFindings {
        part: entry.part,
        report: ArtifactReport {
            path: artifact.path.to_string(),
            size_matches: false,
            sha256_matches: None,
            tensor_count_matches: None,
            tensor_bytes_matches: None,
        },
        metadata: None,
        tensors: Vec::new(),
        different: Vec::new(),
        issues: Vec::new(),
    };
    let path = match entry.locate(package.root()) {
        Ok(path) => path,
        Err(error) => {
            found.issues.push(Issue::from(&error));
            return Ok(found);
        }
    };
    found.report.size_matches = true;
    let mut fault = |fault: ArtifactFault| found.issues.push(Issue::from(&entry.error(fault)));
    match hash_file(&path, &|bytes| on_bytes(bytes)) {
        Ok(got) => {
            found.report.sha256_matches = Some(got == artifact.sha256);
            if got != artifact.sha256 {
                fault(ArtifactFault::Sha256 { got, expected: artifact.sha256 });
            }
        }
        Err(error) => fault(ArtifactFault::Unreadable(error)),
    }
    let fragment = match GgufFile::open(&path) {
        Ok(fragment) => fragment,
        Err(error) => {
            fault(ArtifactFault::Gguf(error));
            return Ok(found);
        }
    };
    let tensors = &fragment.gguf().tensors;
    let bytes = tensors.iter().fold(0u64, |sum, tensor| sum.saturating_add(tensor.n_bytes));
    found.report.tensor_count_matches = Some(tensors.len() as u64 == artifact.tensor_count);
    found.report.tensor_bytes_matches = Some(bytes == artifact.tensor_bytes);
    if let Err(error) = entry.check_opened(&fragment) {
        found.issues.push(Issue::from(&error));
    }
    if matches!(entry.part, Part::Projector(_)) {
        return Ok(found);
    }
    if entry.part == Part::Metadata {
        found.metadata = Some(fragment.gguf().metadata.clone());
    }
    let file = File::open(&path).map_err(TransferError::io(&path, "open the file"))?;
    for tensor in tensors {
        found.tensors.push(tensor.name.clone());
        let Some((shard, offset, original)) = source.get(tensor.name.as_str()) else { continue };
        let difference = match describe_difference(tensor, original) {
            Some(difference) => Some(difference),
            None => {
                let here = (&file, path.as_path(), fragment.gguf().data_start + tensor.offset);
                let at = files.first_difference((*shard, *offset), here, tensor.n_bytes)?;
                at.map(|at| format!("byte {at} of {} differs from the source", tensor.n_bytes))
            }
        };
        found.different.extend(difference.map(|difference| (tensor.name.clone(), difference)));
    }
    Ok(found)
}

fn describe_difference(got: &TensorInfo, expected: &TensorInfo) -> Option<String> {
    if got.ty != expected.ty {
        return Some(format!("got type {}, expected {}", got.ty.name(), expected.ty.name()));
    }
    (got.shape != expected.shape).then(|| format!("got shape {:?}, expected {:?}", got.shape, expected.shape))
}
