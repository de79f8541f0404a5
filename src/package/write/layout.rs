//! What will be written: every artifact, byte for byte, before any of it exists.
//!
//! A [`Layout`] is computed from the source's headers alone. The writer streams each [`ArtifactPlan`] to disk and then
//! compares the disk with the same plan; resuming is the comparison alone.

use std::collections::BTreeMap;

use crate::{
    gguf::{GgufError, Metadata, Source, TensorInfo, TensorSpec, Value, encode_header},
    package::classify::{ClassifyError, Role, classify},
};

/// Key of a fragment that says which artifact it is: [`Role::label`].
pub const ROLE_KEY: &str = "skippy.artifact";
/// Key of a layer fragment that says which layer it is.
pub const LAYER_INDEX_KEY: &str = "skippy.layer_index";

/// All artifacts cut from a source model.
#[derive(Debug)]
pub struct Layout {
    /// `general.architecture`.
    pub arch: String,
    /// Blocks of the model, MTP blocks counted (`<arch>.block_count`).
    pub layer_count: u32,
    /// Width of a hidden row (`<arch>.embedding_length`).
    pub activation_width: u32,
    /// Metadata, embeddings, layers in order, output.
    pub artifacts: Vec<ArtifactPlan>,
}

/// One file of the package: a header made here, then ranges of source files, each padded.
#[derive(Debug)]
pub struct ArtifactPlan {
    /// What the file is for; `None` for a projector, which is copied whole.
    pub role: Option<Role>,
    /// Path below the package root.
    pub path: String,
    /// The bytes before the tensor data.
    pub header: Vec<u8>,
    /// Tensors in file order.
    pub pieces: Vec<Piece>,
    /// Size of the file.
    pub file_len: u64,
    /// Tensors in the file.
    pub tensors: usize,
    /// Bytes of tensor data, padding not counted.
    pub tensor_bytes: u64,
}

/// One range of a source file and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The tensor; nothing when a file is copied whole.
    pub tensor: Option<TensorSpec>,
    /// Index of the source file.
    pub file: usize,
    /// Where its bytes are in that file.
    pub source_offset: u64,
    /// How many there are, without padding.
    pub n_bytes: u64,
    /// Where they go in the artifact.
    pub offset: u64,
}

/// A run of bytes of an artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// The bytes of a source file.
    Source(&'a Piece),
    /// This many zeros.
    Zeros(u64),
}

impl Piece {
    /// What it is, for messages.
    pub fn name(&self) -> &str {
        self.tensor.as_ref().map_or("(whole file)", |tensor| &tensor.name)
    }
}

impl ArtifactPlan {
    /// The file from front to back.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        let ends = self.pieces.iter().skip(1).map(|piece| piece.offset).chain([self.file_len]);
        let pieces = self.pieces.iter().zip(ends).flat_map(|(piece, end)| {
            [Segment::Source(piece), Segment::Zeros(end.saturating_sub(piece.offset + piece.n_bytes))]
        });
        [Segment::Bytes(&self.header)].into_iter().chain(pieces)
    }
}

/// Why a model cannot be cut into layers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A key that the package is built on is absent or of the wrong type.
    #[error("metadata key `{key}` is {got}, expected {expected}: this is not a complete text model")]
    Key {
        /// The key.
        key: String,
        /// What was found.
        got: String,
        /// What is needed.
        expected: &'static str,
    },
    /// A tensor has no place.
    #[error(transparent)]
    Classify(#[from] ClassifyError),
    /// A block beyond the model's own count.
    #[error("tensor `{tensor}` is of block {block}, but `{key}` is {layer_count}: expected blocks 0..{layer_count}")]
    BlockOutOfRange {
        /// The tensor.
        tensor: String,
        /// Its block.
        block: u32,
        /// `<arch>.block_count`.
        key: String,
        /// Its value.
        layer_count: u32,
    },
    /// Blocks that the model counts but has no tensors of.
    #[error(
        "`{key}` is {layer_count}, but {} of these blocks have no tensors, the first is block {}: the model is \
         incomplete, or its last blocks (MTP) were stripped without correcting the count", missing.len(), missing.first().unwrap_or(&0)
    )]
    EmptyBlocks {
        /// `<arch>.block_count`.
        key: String,
        /// Its value.
        layer_count: u32,
        /// The blocks, at most as many as the model has tensors.
        missing: Vec<u32>,
    },
    /// Fewer tensors than blocks.
    #[error("`{key}` is {layer_count}, but the model has only {tensors} tensors")]
    MoreBlocksThanTensors {
        /// `<arch>.block_count`.
        key: String,
        /// Its value.
        layer_count: u32,
        /// Tensors of the model.
        tensors: usize,
    },
    /// A fragment's header cannot be encoded.
    #[error("cannot lay out {role}: {error}")]
    Header {
        /// The artifact.
        role: Role,
        /// Why not.
        error: GgufError,
    },
}

impl Layout {
    /// Gives every tensor of `source` to one artifact and lays the artifacts out.
    ///
    /// # Errors
    /// When the source is not a complete decoder-only model.
    pub fn new(source: &Source) -> Result<Self, LayoutError> {
        let metadata = source.metadata();
        let arch = metadata.arch().ok_or_else(|| key_error(metadata, "general.architecture", "a string"))?.to_owned();
        let layer_count = positive(metadata, metadata.arch_key("block_count"))?;
        let activation_width = positive(metadata, metadata.arch_key("embedding_length"))?;

        let mut owned = tensors_by_role(source, &arch, layer_count)?;
        let roles = [Role::Metadata, Role::Embeddings].into_iter();
        let roles = roles.chain((0..layer_count).map(Role::Layer)).chain([Role::Output]);
        let artifacts = roles.map(|role| {
            let tensors = owned.remove(&role).unwrap_or_default();
            lay_out(source, role, &tensors).map_err(|error| LayoutError::Header { role, error })
        });
        let artifacts = artifacts.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { arch, layer_count, activation_width, artifacts })
    }
}

type Owned<'a> = BTreeMap<Role, Vec<(usize, &'a TensorInfo)>>;

fn tensors_by_role<'a>(source: &'a Source, arch: &str, layer_count: u32) -> Result<Owned<'a>, LayoutError> {
    let key = || source.metadata().arch_key("block_count");
    let tensors = source.tensors().count();
    // Keeps a count of billions from becoming as many artifacts.
    if layer_count as usize > tensors {
        return Err(LayoutError::MoreBlocksThanTensors { key: key(), layer_count, tensors });
    }
    let mut owned = Owned::new();
    for (file, tensor) in source.tensors() {
        let role = classify(arch, &tensor.name)?;
        if let Role::Layer(block) = role
            && block >= layer_count
        {
            let tensor = tensor.name.clone();
            return Err(LayoutError::BlockOutOfRange { tensor, block, key: key(), layer_count });
        }
        owned.entry(role).or_default().push((file, tensor));
    }
    let missing: Vec<u32> = (0..layer_count).filter(|&layer| !owned.contains_key(&Role::Layer(layer))).collect();
    if missing.is_empty() { Ok(owned) } else { Err(LayoutError::EmptyBlocks { key: key(), layer_count, missing }) }
}

fn lay_out(source: &Source, role: Role, tensors: &[(usize, &TensorInfo)]) -> Result<ArtifactPlan, GgufError> {
    let alignment = source.files().first().map_or(crate::gguf::DEFAULT_ALIGNMENT, |file| file.gguf().alignment);
    let specs: Vec<TensorSpec> = tensors
        .iter()
        .map(|(_, tensor)| TensorSpec { name: tensor.name.clone(), shape: tensor.shape.clone(), ty: tensor.ty })
        .collect();
    let header = encode_header(&fragment_metadata(source.metadata(), role), &specs, alignment)?;
    let header_len = header.bytes.len() as u64;
    let pieces = tensors.iter().zip(specs).zip(&header.offsets).map(|(((file, tensor), spec), offset)| Piece {
        tensor: Some(spec),
        file: *file,
        source_offset: source.files().get(*file).map_or(0, |file| file.gguf().data_start) + tensor.offset,
        n_bytes: tensor.n_bytes,
        offset: header_len + offset,
    });
    Ok(ArtifactPlan {
        role: Some(role),
        path: role.path(),
        pieces: pieces.collect(),
        file_len: header_len + header.data_len,
        tensors: tensors.len(),
        tensor_bytes: header.sizes.iter().sum(),
        header: header.bytes,
    })
}

/// Key-values of a fragment. `shared/metadata.gguf` has the source's, all of them; the others have what a reader needs
/// to refuse a fragment in the wrong place.
fn fragment_metadata(source: &Metadata, role: Role) -> Metadata {
    if role == Role::Metadata {
        return source.clone();
    }
    let mut metadata = Metadata::default();
    for key in ["general.architecture", "general.alignment"] {
        if let Some(value) = source.get(key) {
            metadata.set(key, value.clone());
        }
    }
    metadata.set(ROLE_KEY, role.label());
    if let Role::Layer(index) = role {
        metadata.set(LAYER_INDEX_KEY, Value::U32(index));
    }
    metadata
}

fn positive(metadata: &Metadata, key: String) -> Result<u32, LayoutError> {
    let number = metadata.uint(&key).and_then(|number| u32::try_from(number).ok()).filter(|&number| number > 0);
    number.ok_or_else(|| key_error(metadata, &key, "a number from 1 to 4294967295"))
}

fn key_error(metadata: &Metadata, key: &str, expected: &'static str) -> LayoutError {
    let got = match metadata.get(key) {
        None => "missing".into(),
        Some(value) => match value.as_uint() {
            Some(number) => number.to_string(),
            None => format!("of type {}", value.value_type().name()),
        },
    };
    LayoutError::Key { key: key.into(), got, expected }
}
