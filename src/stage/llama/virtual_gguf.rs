//! The GGUF that llama.cpp sees for a stage: a header made in memory, with mapped fragment bytes behind it.
//!
//! The stage becomes a smaller model of the same architecture: its layers are renumbered from 0 and the metadata says
//! so. Boundaries it does not own are filled with placeholders that llama.cpp insists on and the stage never uses:
//! a vocabulary of [`PLACEHOLDER_VOCAB`] nameless tokens, a zero embedding, a unit output norm. No file is written.

use super::LlamaStageError;
use crate::{
    gguf::{self, GgmlType, GgufFile, Metadata, TensorSpec, Value},
    package::StageFiles,
    stage::families::trunk_layers,
};
use std::borrow::Cow;

/// Tokens of a stage without vocabulary. llama.cpp sizes logits by it, so it is small; 32 satisfies every block type.
const PLACEHOLDER_VOCAB: u64 = 32;

/// Zeros that placeholder tensors are read from, however large they are.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// A GGUF as segments that borrow from the fragments.
pub(super) struct VirtualGguf<'a> {
    header: Vec<u8>,
    data: Vec<Cow<'a, [u8]>>,
}

impl VirtualGguf<'_> {
    /// Header and tensor bytes in file order.
    pub(super) fn segments(&self) -> Vec<&[u8]> {
        std::iter::once(self.header.as_slice()).chain(self.data.iter().map(AsRef::as_ref)).collect()
    }
}

/// Lays out the stage that `files` holds.
///
/// # Errors
/// When a fragment lacks a boundary tensor that the stage owns, or the header cannot be encoded.
pub(super) fn build(files: &StageFiles) -> Result<VirtualGguf<'_>, LlamaStageError> {
    let mut tensors = Tensors::default();
    add_boundaries(files, &mut tensors)?;
    for (layer, file) in &files.layers {
        let (from, to) = (format!("blk.{layer}."), format!("blk.{}.", layer - files.range.start()));
        for tensor in &file.gguf().tensors {
            let name = match tensor.name.strip_prefix(&from) {
                Some(rest) => format!("{to}{rest}"),
                None => tensor.name.clone(),
            };
            tensors.map(file, tensor, name);
        }
    }
    let metadata = stage_metadata(files)?;
    let header = gguf::encode_header(&metadata, &tensors.specs, ALIGNMENT)?;
    Ok(tensors.lay_out(header))
}

/// The vocabulary alone: the header of `shared/metadata.gguf`, without tensors.
pub(super) fn build_vocabulary(metadata: &Metadata) -> Result<VirtualGguf<'static>, LlamaStageError> {
    let mut metadata = metadata.clone();
    metadata.remove("general.alignment");
    Ok(Tensors::default().lay_out(gguf::encode_header(&metadata, &[], ALIGNMENT)?))
}

/// Alignment of tensor data, the GGUF default.
const ALIGNMENT: u64 = 32;

#[derive(Default)]
struct Tensors<'a> {
    specs: Vec<TensorSpec>,
    bytes: Vec<Bytes<'a>>,
}

enum Bytes<'a> {
    Mapped(&'a [u8]),
    Owned(Vec<u8>),
    Zeros(u64),
}

impl<'a> Tensors<'a> {
    fn map(&mut self, file: &'a GgufFile, tensor: &gguf::TensorInfo, name: String) {
        self.specs.push(TensorSpec { name, shape: tensor.shape.clone(), ty: tensor.ty });
        self.bytes.push(Bytes::Mapped(file.tensor_bytes(tensor)));
    }

    fn map_all(&mut self, file: &'a GgufFile) {
        for tensor in &file.gguf().tensors {
            self.map(file, tensor, tensor.name.clone());
        }
    }

    fn map_some(&mut self, file: &'a GgufFile, wanted: impl Fn(&str) -> bool) {
        for tensor in file.gguf().tensors.iter().filter(|tensor| wanted(&tensor.name)) {
            self.map(file, tensor, tensor.name.clone());
        }
    }

    fn has(&self, name: &str) -> bool {
        self.specs.iter().any(|spec| spec.name == name)
    }

    fn zeros(&mut self, name: &str, n_embd: u64, columns: u64) -> Result<(), LlamaStageError> {
        let shape = vec![n_embd, columns];
        let ty = smallest_type(n_embd);
        let n_bytes = ty.tensor_bytes(&shape).ok_or_else(|| LlamaStageError::TooLarge { tensor: name.into() })?;
        self.specs.push(TensorSpec { name: name.into(), shape, ty });
        self.bytes.push(Bytes::Zeros(n_bytes));
        Ok(())
    }

    fn ones(&mut self, name: &str, n_embd: u64) {
        self.specs.push(TensorSpec { name: name.into(), shape: vec![n_embd], ty: GgmlType::F32 });
        self.bytes.push(Bytes::Owned((0..n_embd).flat_map(|_| 1f32.to_le_bytes()).collect()));
    }

    fn lay_out(self, header: gguf::Header) -> VirtualGguf<'a> {
        let mut data = Vec::with_capacity(2 * self.bytes.len());
        for bytes in self.bytes {
            let n_bytes = match bytes {
                Bytes::Mapped(bytes) => {
                    data.push(Cow::Borrowed(bytes));
                    bytes.len() as u64
                }
                Bytes::Owned(bytes) => {
                    let n_bytes = bytes.len() as u64;
                    data.push(Cow::Owned(bytes));
                    n_bytes
                }
                Bytes::Zeros(n_bytes) => {
                    push_zeros(&mut data, n_bytes);
                    n_bytes
                }
            };
            push_zeros(&mut data, n_bytes.next_multiple_of(ALIGNMENT) - n_bytes);
        }
        VirtualGguf { header: header.bytes, data }
    }
}

fn push_zeros(data: &mut Vec<Cow<'_, [u8]>>, mut n_bytes: u64) {
    while n_bytes > 0 {
        let n = n_bytes.min(ZEROS.len() as u64);
        data.push(Cow::Borrowed(&ZEROS[..n as usize]));
        n_bytes -= n;
    }
}

/// The type that spends the fewest bytes on a row of `width` zeros.
fn smallest_type(width: u64) -> GgmlType {
    [GgmlType::Q1_0, GgmlType::Q4_0]
        .into_iter()
        .find(|ty| width.is_multiple_of(ty.block_len()))
        .unwrap_or(GgmlType::F16)
}

fn add_boundaries<'a>(files: &'a StageFiles, tensors: &mut Tensors<'a>) -> Result<(), LlamaStageError> {
    let (owns_input, owns_output) = (files.owns_input(), files.owns_output());
    let n_embd = n_embd(files.metadata.gguf())?;
    if let Some(embeddings) = &files.embeddings {
        match (owns_input, owns_output) {
            // The whole model.
            (true, true) => tensors.map_all(embeddings),
            // A tied output, or an MTP block that embeds with the model's own table.
            (false, true) => tensors.map_some(embeddings, |name| name == "token_embd.weight" || every_stage(name)),
            // A first stage looks its rows up before llama.cpp runs (see `embedder.rs`).
            (_, false) => tensors.map_some(embeddings, every_stage),
        }
    }
    tensors.map_some(&files.metadata, every_stage);
    match (&files.output, owns_output) {
        (Some(output), true) => {
            tensors.map_all(output);
            if !tensors.has("token_embd.weight") {
                let columns = output
                    .gguf()
                    .tensor("output.weight")
                    .and_then(|tensor| tensor.shape.get(1).copied())
                    .ok_or(LlamaStageError::NoOutput)?;
                tensors.zeros("token_embd.weight", n_embd, columns)?;
            }
        }
        (None, true) => return Err(LlamaStageError::NoOutput),
        (output, false) => {
            // Rotary factors may live beside the output head.
            if let Some(output) = output {
                tensors.map_some(output, every_stage);
            }
            tensors.zeros("token_embd.weight", n_embd, PLACEHOLDER_VOCAB)?;
            tensors.ones("output_norm.weight", n_embd);
        }
    }
    Ok(())
}

/// Tensors outside the blocks that every layer reads, so that every stage needs them.
fn every_stage(name: &str) -> bool {
    name.starts_with("rope_")
}

fn n_embd(metadata: &gguf::Gguf) -> Result<u64, LlamaStageError> {
    let key = metadata.metadata.arch_key("embedding_length");
    metadata.metadata.uint(&key).filter(|n| *n > 0).ok_or(LlamaStageError::MissingKey { key })
}

/// Arrays of `<arch>.*` that do not have one element per layer, although their length may say so by chance.
const NOT_PER_LAYER: [&str; 2] = ["rope.dimension_sections", "rope.scaling.yarn_ext_factors"];

fn stage_metadata(files: &StageFiles) -> Result<Metadata, LlamaStageError> {
    let source = &files.metadata.gguf().metadata;
    let arch = source.arch().ok_or_else(|| LlamaStageError::MissingKey { key: "general.architecture".into() })?;
    let mut metadata = source.clone();
    metadata.remove("general.alignment");
    let prefix = format!("{arch}.");
    let trunk = trunk_layers(source, files.layer_count);
    for (key, value) in source.iter() {
        let Some(suffix) = key.strip_prefix(&prefix) else { continue };
        if let Value::Array(array) = value
            && (array.len() == files.layer_count as usize || array.len() == trunk as usize)
            && !NOT_PER_LAYER.contains(&suffix)
        {
            let end = (files.range.end() as usize).min(array.len());
            let start = (files.range.start() as usize).min(end);
            metadata.set(key, Value::Array(array.slice(start..end)));
        }
    }
    let n_layers = files.range.len();
    metadata.set(format!("{prefix}block_count"), Value::U32(n_layers));
    if let Some(lead) = source.uint(&format!("{prefix}leading_dense_block_count")) {
        let lead = u32::try_from(lead).unwrap_or(u32::MAX).saturating_sub(files.range.start()).min(n_layers);
        metadata.set(format!("{prefix}leading_dense_block_count"), Value::U32(lead));
    }
    if !files.owns_output() {
        let nextn = format!("{prefix}nextn_predict_layers");
        if metadata.get(&nextn).is_some() {
            metadata.set(&nextn, Value::U32(0));
        }
        drop_vocabulary(&mut metadata, &prefix);
    }
    Ok(metadata)
}

fn drop_vocabulary(metadata: &mut Metadata, prefix: &str) {
    let keys: Vec<String> =
        metadata.iter().map(|(key, _)| key.to_owned()).filter(|key| key.starts_with("tokenizer.")).collect();
    for key in keys {
        metadata.remove(&key);
    }
    metadata.set("tokenizer.ggml.model", Value::Str("no_vocab".into()));
    metadata.set(format!("{prefix}vocab_size"), Value::U32(PLACEHOLDER_VOCAB as u32));
}
