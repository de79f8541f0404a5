//! Why a GGUF file is refused.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{GgmlType, rules};

/// Why a GGUF file was not read or written. The message names the key or tensor, what was found and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// Another error, with the file it happened in.
    #[error("`{}`: {error}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<GgufError>,
    },
    /// The operating system refused.
    #[error("cannot {doing}: {error}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The answer.
        error: io::Error,
    },

    /// The file does not start with the GGUF magic.
    #[error("starts with `{head}`: this looks like {looks_like}, not a GGUF file")]
    NotGguf {
        /// The first bytes, printable.
        head: String,
        /// A guess at what it is.
        looks_like: &'static str,
    },
    /// A byte-swapped version number.
    #[error("this is a big-endian GGUF file (version reads as {got:#010x}); convert it to little-endian first")]
    BigEndian {
        /// The version as a little-endian number.
        got: u32,
    },
    /// A version other than 2 and 3.
    #[error("GGUF version is {got}, expected 2 or 3; convert the model again with current tools")]
    Version {
        /// The version found.
        got: u32,
    },
    /// The file ends too early.
    #[error("the file ends inside {what}: need {need} bytes at offset {at}, have {have}")]
    Truncated {
        /// What was being read.
        what: String,
        /// Offset in the file.
        at: u64,
        /// Bytes needed there.
        need: u64,
        /// Bytes left there.
        have: u64,
    },
    /// A count that the bytes left cannot hold.
    #[error("{what} is {got}, but the {have} bytes left can hold at most {most}")]
    Count {
        /// Which count.
        what: String,
        /// Its value.
        got: u64,
        /// Bytes left in the file.
        have: u64,
        /// The most that fit into them.
        most: u64,
    },
    /// A count or length over a fixed limit.
    #[error("{what} is {got}, over the limit of {most}")]
    Limit {
        /// Which count or length.
        what: String,
        /// Its value.
        got: u64,
        /// The limit.
        most: u64,
    },

    /// A key that is empty, too long, not UTF-8 or holds a NUL.
    #[error("metadata key {index} `{key}` {problem}")]
    KeyName {
        /// Position among the keys, from 0.
        index: u64,
        /// The key, printable and cut.
        key: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// A key twice in one file.
    #[error("metadata key `{key}` appears twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// An unknown value type.
    #[error("metadata key `{key}` has unknown value type {got}, expected 0..=12")]
    ValueType {
        /// The key.
        key: String,
        /// The type found.
        got: u32,
    },
    /// An unknown array element type.
    #[error("metadata key `{key}` is an array of unknown element type {got}, expected 0..=12")]
    ArrayType {
        /// The key.
        key: String,
        /// The type found.
        got: u32,
    },
    /// An array of arrays.
    #[error("metadata key `{key}` is an array of arrays, which is not supported")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// A bool that is neither 0 nor 1.
    #[error("{what} has bool byte {got}, expected 0 or 1")]
    Bool {
        /// Where.
        what: String,
        /// The byte.
        got: u8,
    },
    /// `general.alignment` of the wrong type.
    #[error("metadata key `general.alignment` has type {got}, expected u32")]
    AlignmentType {
        /// The type found.
        got: &'static str,
    },
    /// An alignment out of bounds.
    #[error("alignment is {got}, expected a power of two from 8 to {}", rules::MAX_ALIGNMENT)]
    Alignment {
        /// The value found.
        got: u64,
    },

    /// A tensor name that is empty, too long, not UTF-8 or holds a NUL.
    #[error("name of tensor {index} `{name}` {problem}")]
    TensorName {
        /// Position among the tensors, from 0.
        index: u64,
        /// The name, printable and cut.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A tensor twice in one file.
    #[error("tensor `{tensor}` appears twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// A number of dimensions other than 1 to 4.
    #[error("tensor `{tensor}` has {got} dimensions, expected 1 to {}", rules::MAX_DIMS)]
    Dims {
        /// The tensor.
        tensor: String,
        /// Dimensions found.
        got: u64,
    },
    /// A dimension of 0, or a shape whose size does not fit.
    #[error("tensor `{tensor}` has shape {shape:?}: {problem}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape, `ne0` first.
        shape: Vec<u64>,
        /// What is wrong.
        problem: &'static str,
    },
    /// A row that is not a whole number of blocks.
    #[error("tensor `{tensor}` of type {} has rows of {ne0} elements, not a multiple of its block of {}",
            ty.name(), ty.block_len())]
    Row {
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: GgmlType,
        /// Elements in a row.
        ne0: u64,
    },
    /// An unknown or removed tensor type.
    #[error("tensor `{tensor}` has unknown or removed ggml type {got}")]
    TensorType {
        /// The tensor.
        tensor: String,
        /// The type found.
        got: u32,
    },
    /// An offset that is not a multiple of the alignment.
    #[error("tensor `{tensor}` is at offset {got}, not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        got: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// An offset that overlaps the tensor before it or leaves a hole after it.
    #[error(
        "tensor `{tensor}` is at offset {got}, expected {expected}: tensors must follow one another without overlap or gap"
    )]
    Offset {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        got: u64,
        /// The end of the tensor before it, aligned.
        expected: u64,
    },
    /// Tensor data beyond the end of the file.
    #[error("tensor `{tensor}` needs {need} bytes of file, have {have}: the file is truncated or the offset is wrong")]
    Outside {
        /// The tensor.
        tensor: String,
        /// The file size that would hold its data.
        need: u64,
        /// The file size.
        have: u64,
    },

    /// The writer was given more or fewer bytes than a tensor has.
    #[error("tensor `{tensor}` was given {got} bytes, expected {expected}")]
    TensorSize {
        /// The tensor.
        tensor: String,
        /// Bytes given.
        got: u64,
        /// Bytes of the tensor.
        expected: u64,
    },
    /// The writer was given data after its last tensor.
    #[error("all {count} tensors are written, but more data was given")]
    NoMoreTensors {
        /// Tensors of the file.
        count: usize,
    },
    /// The writer was finished before its last tensor.
    #[error("{written} of {count} tensors are written; tensor `{next}` is missing")]
    Unfinished {
        /// Tensors written whole.
        written: usize,
        /// Tensors of the file.
        count: usize,
        /// The first one that is not.
        next: String,
    },

    /// Not a regular file.
    #[error("is not a regular file")]
    NotAFile,
    /// A directory without a model.
    #[error("directory holds no .gguf file")]
    NoModel,
    /// A directory with several models.
    #[error("directory holds {} models ({}); name one of them", found.len(), found.join(", "))]
    SeveralModels {
        /// File names, or first-shard names.
        found: Vec<String>,
    },
    /// A shard whose file name does not say so, or says something else than its metadata.
    #[error("is shard {no} of {count} by its metadata, so its name must end in `{}`, which it does not", expected)]
    ShardFileName {
        /// Shard number from 1.
        no: u64,
        /// Number of shards.
        count: u64,
        /// The expected end of its name.
        expected: String,
    },
    /// A file named like a shard whose metadata says nothing of it.
    #[error("is named as shard {no} of {count}, but has no metadata key `split.count`")]
    ShardWithoutKeys {
        /// Shard number from 1.
        no: u32,
        /// Number of shards.
        count: u32,
    },
    /// A missing or contradicting `split.*` key.
    #[error("metadata key `{key}` is {got}, expected {expected}")]
    SplitKey {
        /// The key.
        key: &'static str,
        /// What it is.
        got: String,
        /// What it should be.
        expected: String,
    },
    /// A shard that is not there.
    #[error("shard {no} of {count} is missing")]
    MissingShard {
        /// Shard number from 1.
        no: u32,
        /// Number of shards.
        count: u32,
    },
    /// A tensor in two shards.
    #[error("tensor `{tensor}` is also in `{}`", other.display())]
    TensorInTwoShards {
        /// The tensor.
        tensor: String,
        /// The shard that had it first.
        other: PathBuf,
    },
}

impl GgufError {
    /// The same error, naming the file it happened in.
    pub(super) fn in_file(self, path: &Path) -> Self {
        match self {
            named @ Self::InFile { .. } => named,
            error => Self::InFile { path: path.to_owned(), error: Box::new(error) },
        }
    }

    /// The error without the file name, for those who look at the kind of fault.
    pub fn kind(&self) -> &Self {
        match self {
            Self::InFile { error, .. } => error.kind(),
            error => error,
        }
    }
}

/// Foreign text made fit for a message: control characters escaped, cut to 80 characters.
pub(super) fn shown(text: &[u8]) -> String {
    const MOST: usize = 80;
    let text = String::from_utf8_lossy(text.get(..4 * MOST).unwrap_or(text));
    let mut out: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        out.push('…');
    }
    out
}
