//! One artifact on disk: found, measured, opened and held against what the manifest says of it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    RelPath,
    error::{ArtifactError, ArtifactFault},
    manifest::{
        Artifact,
        fields::{quoted, shown},
    },
    model::ModelFacts,
};
use crate::gguf::{GgufFile, TensorInfo};

/// What an artifact is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// `shared.metadata`
    Metadata,
    /// `shared.embeddings`
    Embeddings,
    /// `shared.output`
    Output,
    /// The entry of a layer.
    Layer(u32),
    /// `projectors[i]`
    Projector(usize),
}

impl Part {
    /// The manifest field.
    pub fn field(self) -> String {
        match self {
            Self::Metadata => "shared.metadata".into(),
            Self::Embeddings => "shared.embeddings".into(),
            Self::Output => "shared.output".into(),
            Self::Layer(index) => format!("layers[{index}]"),
            Self::Projector(index) => format!("projectors[{index}]"),
        }
    }

    /// In words.
    pub fn words(self) -> String {
        match self {
            Self::Metadata => "shared metadata".into(),
            Self::Embeddings => "the input boundary".into(),
            Self::Output => "the output boundary".into(),
            Self::Layer(index) => format!("layer {index}"),
            Self::Projector(_) => "a projector".into(),
        }
    }
}

/// An artifact with its part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry<'p> {
    /// What it is for.
    pub part: Part,
    /// What the manifest says.
    pub artifact: &'p Artifact,
}

impl<'p> Entry<'p> {
    pub(super) fn new(part: Part, artifact: &'p Artifact) -> Self {
        Self { part, artifact }
    }

    /// `fault`, with the name of this artifact.
    pub(super) fn error(&self, fault: ArtifactFault) -> ArtifactError {
        ArtifactError { field: self.part.field(), path: self.artifact.path.clone(), fault: Box::new(fault) }
    }

    /// Finds the file below `root` (absolute, without links) and checks that it is a regular file of the declared size.
    pub(super) fn locate(&self, root: &Path) -> Result<PathBuf, ArtifactError> {
        locate(root, &self.artifact.path, self.artifact.artifact_bytes).map_err(|fault| self.error(fault))
    }

    /// Locates and maps the fragment, and checks that its tensors are the declared ones and its own.
    pub(super) fn open(&self, root: &Path) -> Result<GgufFile, ArtifactError> {
        let path = self.locate(root)?;
        let file = GgufFile::open(&path).map_err(|error| self.error(ArtifactFault::Gguf(error)))?;
        self.check_opened(&file)?;
        Ok(file)
    }

    /// Checks that the tensors of the opened fragment are the declared ones and its own.
    pub(super) fn check_opened(&self, file: &GgufFile) -> Result<(), ArtifactError> {
        self.check_declared(file).and_then(|()| self.check_own(file)).map_err(|fault| self.error(fault))
    }

    fn check_declared(&self, file: &GgufFile) -> Result<(), ArtifactFault> {
        let tensors = &file.gguf().tensors;
        let bytes = tensors.iter().fold(0u64, |sum, tensor| sum.saturating_add(tensor.n_bytes));
        // A tensor of another layer says more than a wrong count, so swapped fragments are named as such.
        if let (Some(tensor), Part::Layer(_)) = (tensors.first(), self.part) {
            self.check_tensor(tensor)?;
        }
        if tensors.len() as u64 != self.artifact.tensor_count {
            return Err(ArtifactFault::TensorCount { got: tensors.len() as u64, expected: self.artifact.tensor_count });
        }
        if bytes != self.artifact.tensor_bytes {
            return Err(ArtifactFault::TensorBytes { got: bytes, expected: self.artifact.tensor_bytes });
        }
        Ok(())
    }

    fn check_own(&self, file: &GgufFile) -> Result<(), ArtifactFault> {
        let tensors = &file.gguf().tensors;
        tensors.iter().try_for_each(|tensor| self.check_tensor(tensor))?;
        match self.part {
            Part::Layer(_) if tensors.is_empty() => Err(ArtifactFault::NoTensors { expected: self.part.words() }),
            _ => Ok(()),
        }
    }

    fn check_tensor(&self, tensor: &TensorInfo) -> Result<(), ArtifactFault> {
        let home = match (block_number(&tensor.name), tensor.name.as_str()) {
            (Some(index), _) => Some(Part::Layer(index)),
            (None, "token_embd.weight") => Some(Part::Embeddings),
            (None, "output.weight" | "output_norm.weight") => Some(Part::Output),
            // Writers differ in where they put the rest, so it may be in any artifact but a layer's.
            (None, _) => None,
        };
        let got = match (home, self.part) {
            (_, Part::Projector(_)) => return Ok(()),
            (None, Part::Layer(_)) => "no layer".into(),
            (None, _) => return Ok(()),
            (Some(home), part) if home == part => return Ok(()),
            (Some(home), _) => home.words(),
        };
        Err(ArtifactFault::ForeignTensor { tensor: shown(&tensor.name), got, expected: self.part.words() })
    }

    /// Checks that the fragment belongs to the model that shared metadata describes.
    pub(super) fn check_model(&self, file: &GgufFile, model: &ModelFacts) -> Result<(), ArtifactError> {
        let check = || {
            let metadata = &file.gguf().metadata;
            if let Some(arch) = metadata.arch().filter(|arch| *arch != model.arch) {
                return Err(ArtifactFault::ForeignKey {
                    key: "general.architecture".into(),
                    got: quoted(arch),
                    expected: quoted(&model.arch),
                });
            }
            let width = metadata.arch_key("embedding_length");
            if let Some(got) = metadata.uint(&width).filter(|got| *got != model.n_embd) {
                let expected = model.n_embd.to_string();
                return Err(ArtifactFault::ForeignKey { key: shown(&width), got: got.to_string(), expected });
            }
            for tensor in &file.gguf().tensors {
                let as_wide_as_the_model = matches!(tensor.name.as_str(), "token_embd.weight" | "output_norm.weight")
                    || (block_number(&tensor.name).is_some()
                        && [".attn_norm.weight", ".ffn_norm.weight"].iter().any(|end| tensor.name.ends_with(end)));
                if as_wide_as_the_model && tensor.shape.first() != Some(&model.n_embd) {
                    let (tensor, shape) = (shown(&tensor.name), tensor.shape.clone());
                    return Err(ArtifactFault::ForeignWidth { tensor, shape, expected: model.n_embd });
                }
            }
            Ok(())
        };
        check().map_err(|fault| self.error(fault))
    }
}

/// N of `blk.N.*`.
pub(super) fn block_number(tensor: &str) -> Option<u32> {
    let (number, _) = tensor.strip_prefix("blk.")?.split_once('.')?;
    number.parse().ok()
}

/// The regular file of `expected` bytes at `path` below `root`, links resolved.
fn locate(root: &Path, path: &RelPath, expected: u64) -> Result<PathBuf, ArtifactFault> {
    let file = match path.below(root).canonicalize() {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ArtifactFault::Missing),
        Err(error) => return Err(ArtifactFault::Unreadable(error)),
    };
    if !file.starts_with(root) {
        return Err(ArtifactFault::Outside { target: file, root: root.to_owned() });
    }
    let metadata = fs::metadata(&file).map_err(ArtifactFault::Unreadable)?;
    if !metadata.is_file() {
        let got = if metadata.is_dir() { "a directory" } else { "a device, socket or pipe" };
        return Err(ArtifactFault::NotAFile { got });
    }
    match metadata.len() {
        got if got != expected => Err(ArtifactFault::Size { got, expected }),
        _ => Ok(file),
    }
}
