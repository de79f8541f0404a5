//! Token ids to hidden rows for the first stage of a split model.
//!
//! llama.cpp could look the rows up itself, but only in a model with the full vocabulary, and such a model reserves
//! (and clears) logits for every row of a batch: 512 rows of gemma-3 would cost 512 MiB that a first stage never uses.
//! So the first stage runs without vocabulary, like every stage but the last, and its rows are read from the mapped
//! `shared/embeddings.gguf`: the table is never copied into anonymous memory.

use super::LlamaStageError;
use crate::{
    gguf::{GgufFile, TensorInfo},
    llama::dequantise_row,
    stage::families::EmbeddingScale,
};

const TABLE: &str = "token_embd.weight";

pub(super) struct Embedder {
    file: GgufFile,
    table: TensorInfo,
    n_embd: usize,
    row_bytes: usize,
    scale: Option<f32>,
    rows: Vec<f32>,
}

impl Embedder {
    /// Takes over `shared/embeddings.gguf`.
    ///
    /// # Errors
    /// When the table is missing, has another width than the model, or a type that ggml cannot convert.
    pub(super) fn new(file: GgufFile, n_embd: usize, scale: EmbeddingScale) -> Result<Self, LlamaStageError> {
        let table = file.gguf().tensor(TABLE).cloned().ok_or(LlamaStageError::NoEmbeddings)?;
        if table.shape.len() != 2 || table.shape.first() != Some(&(n_embd as u64)) {
            return Err(LlamaStageError::EmbeddingShape { shape: table.shape, n_embd });
        }
        let row_bytes = table.ty.tensor_bytes(&[n_embd as u64]).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let scale = match scale {
            EmbeddingScale::One => None,
            // In single precision, as llama.cpp computes it.
            EmbeddingScale::SqrtWidth => Some((n_embd as f32).sqrt()),
        };
        let mut embedder = Self { file, table, n_embd, row_bytes, scale, rows: Vec::new() };
        embedder.embed(&[0])?;
        Ok(embedder)
    }

    /// Hidden rows `[tokens.len(), n_embd]`.
    ///
    /// # Errors
    /// When a token id is outside the table.
    pub(super) fn embed(&mut self, tokens: &[i32]) -> Result<&[f32], LlamaStageError> {
        let bytes = self.file.tensor_bytes(&self.table);
        self.rows.resize(tokens.len() * self.n_embd, 0.0);
        for (token, row) in tokens.iter().zip(self.rows.chunks_exact_mut(self.n_embd)) {
            let outside = || LlamaStageError::TokenId { token: *token, n_vocab: self.table.shape[1] };
            let index = usize::try_from(*token).map_err(|_| outside())?;
            let start = index.checked_mul(self.row_bytes).ok_or_else(outside)?;
            let packed = bytes.get(start..start + self.row_bytes).ok_or_else(outside)?;
            dequantise_row(self.table.ty, packed, row)
                .ok_or(LlamaStageError::EmbeddingType { ty: self.table.ty.name() })?;
            if let Some(scale) = self.scale {
                row.iter_mut().for_each(|x| *x *= scale);
            }
        }
        Ok(&self.rows)
    }
}
