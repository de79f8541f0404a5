//! Projectors: files beside the model that a package carries whole.

use std::path::Path;

use super::{
    WriteError,
    layout::{ArtifactPlan, Piece},
};
use crate::{gguf::GgufFile, package::RelPath};

/// A projector to be copied.
pub(super) struct ProjectorSource {
    file: GgufFile,
    /// Its path in the package.
    pub(super) path: RelPath,
}

impl ProjectorSource {
    pub(super) fn open(path: &Path) -> Result<Self, WriteError> {
        let file = GgufFile::open(path)?;
        let metadata = &file.gguf().metadata;
        if metadata.arch() != Some("clip") {
            let problem = match metadata.arch() {
                Some(arch) => format!("`general.architecture` is `{}`", arch.escape_debug()),
                None => "has no `general.architecture`".into(),
            };
            return Err(WriteError::NotAProjector { path: path.into(), problem });
        }
        if file.gguf().tensors.is_empty() {
            return Err(WriteError::NotAProjector { path: path.into(), problem: "has no tensors".into() });
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let rel = RelPath::new(format!("projectors/{name}"));
        let rel = rel.map_err(|error| WriteError::ProjectorName { path: path.into(), error })?;
        Ok(Self { file, path: rel })
    }

    pub(super) fn plan(&self, file: usize, len: u64) -> ArtifactPlan {
        let whole = Piece { tensor: None, file, source_offset: 0, n_bytes: len, offset: 0 };
        let tensors = &self.file.gguf().tensors;
        ArtifactPlan {
            role: None,
            path: self.path.to_string(),
            header: Vec::new(),
            pieces: vec![whole],
            file_len: len,
            tensors: tensors.len(),
            tensor_bytes: tensors.iter().map(|tensor| tensor.n_bytes).sum(),
        }
    }
}

pub(super) fn check_unique(plans: &[ArtifactPlan], projector: &ProjectorSource) -> Result<(), WriteError> {
    if plans.iter().filter(|plan| plan.path == projector.path.as_str()).count() == 1 {
        return Ok(());
    }
    Err(WriteError::DuplicateProjector { path: projector.file.path().into() })
}
