//! The KV cache of a stage: for each layer one row of latent and rotated key per position, and on full layers one indexer
//! key. Each sequence has a region of its own; positions are rows of it and are never shifted.

use super::{DsaStageError, dims::Dims};
use crate::{
    ggml::{GgmlError, Leaf, Memory},
    gguf::GgmlType,
};

/// Bytes that each tensor of the cache starts at a multiple of.
const ALIGN: usize = 64;

/// Rows of one layer.
pub(super) struct LayerCache {
    /// `[latent + rope, n_seq * n_ctx_seq]`.
    pub(super) rows: Leaf,
    /// Indexer keys `[indexer dim, n_seq * n_ctx_seq]`, on full layers.
    pub(super) keys: Option<Leaf>,
}

/// Rows of all layers and sequences.
pub(super) struct Cache {
    pub(super) layers: Vec<LayerCache>,
    n_ctx_seq: usize,
    row_bytes: usize,
    key_bytes: usize,
}

impl Cache {
    /// Room for `n_seq` sequences of `n_ctx_seq` rows. `full` says of each layer whether it has an indexer.
    pub(super) fn new(
        dims: &Dims,
        ty: GgmlType,
        full: &[bool],
        n_seq: u32,
        n_ctx_seq: u32,
    ) -> Result<Self, DsaStageError> {
        let rows = u64::from(n_seq) * u64::from(n_ctx_seq);
        let bytes = |width: i64| -> Result<usize, DsaStageError> {
            let width = u64::try_from(width).unwrap_or(0);
            let bytes = ty.tensor_bytes(&[width]).and_then(|n| usize::try_from(n).ok());
            bytes.ok_or(DsaStageError::CacheType { ty: ty.name(), width, block: ty.block_len() })
        };
        let (row_bytes, key_bytes) = (bytes(dims.row())?, bytes(dims.indexer_dim)?);
        let too_large = || DsaStageError::Ggml(GgmlError::Alloc("a cache of this size"));
        let count = usize::try_from(rows).map_err(|_| too_large())?;
        let sized = |row: usize| row.checked_mul(count)?.checked_next_multiple_of(ALIGN);
        let (all_rows, all_keys) = (sized(row_bytes).ok_or_else(too_large)?, sized(key_bytes).ok_or_else(too_large)?);
        let keyed = full.iter().filter(|full| **full).count();
        let total = all_rows.checked_mul(full.len()).and_then(|n| n.checked_add(all_keys.checked_mul(keyed)?));
        let memory = Memory::zeroed(total.ok_or_else(too_large)?)?;
        let mut offset = 0;
        let mut take = |width: i64, bytes: usize| {
            let leaf = memory.leaf(ty, &[u64::try_from(width).unwrap_or(0), rows], offset);
            offset += bytes;
            leaf
        };
        let mut layers = Vec::with_capacity(full.len());
        for full in full {
            let rows = take(dims.row(), all_rows)?;
            let keys = if *full { Some(take(dims.indexer_dim, all_keys)?) } else { None };
            layers.push(LayerCache { rows, keys });
        }
        Ok(Self { layers, n_ctx_seq: n_ctx_seq as usize, row_bytes, key_bytes })
    }

    /// First row of a sequence's region.
    pub(super) fn base(&self, seq: u32) -> i64 {
        seq as i64 * self.n_ctx_seq as i64
    }

    /// Bytes of one position in all layers: rows, then indexer keys.
    pub(super) fn bytes_per_position(&self) -> (usize, usize) {
        let keyed = self.layers.iter().filter(|layer| layer.keys.is_some()).count();
        (self.layers.len() * self.row_bytes, keyed * self.key_bytes)
    }

    /// Rows for each position: of attention, and of indexer keys.
    pub(super) fn rows_per_position(&self) -> (usize, usize) {
        (self.layers.len(), self.layers.iter().filter(|layer| layer.keys.is_some()).count())
    }

    /// Copies the first `n_rows` positions of a sequence over those of another one.
    pub(super) fn copy(&mut self, from: u32, to: u32, n_rows: u32) -> Result<(), GgmlError> {
        let (from, to, n) = (from as usize * self.n_ctx_seq, to as usize * self.n_ctx_seq, n_rows as usize);
        for layer in &mut self.layers {
            let bytes = self.row_bytes;
            layer.rows.copy_within(from * bytes, to * bytes, n * bytes)?;
            if let Some(keys) = &mut layer.keys {
                let bytes = self.key_bytes;
                keys.copy_within(from * bytes, to * bytes, n * bytes)?;
            }
        }
        Ok(())
    }

    /// Appends the first `n_rows` positions of a sequence to `state`, layer by layer.
    pub(super) fn save(&self, seq: u32, n_rows: u32, state: &mut Vec<u8>) -> Result<(), GgmlError> {
        let (first, n) = (seq as usize * self.n_ctx_seq, n_rows as usize);
        for (leaf, bytes) in self.parts() {
            leaf.read(first * bytes, n * bytes, state)?;
        }
        Ok(())
    }

    /// Overwrites the first `n_rows` positions of a sequence with those of `state`, which [`save`](Self::save) has
    /// written of `saved` positions.
    pub(super) fn restore(&mut self, seq: u32, n_rows: u32, state: &[u8], saved: u32) -> Result<(), GgmlError> {
        let (first, n, mut at) = (seq as usize * self.n_ctx_seq, n_rows as usize, 0);
        let (row_bytes, key_bytes) = (self.row_bytes, self.key_bytes);
        for layer in &mut self.layers {
            let rows = std::iter::once((&mut layer.rows, row_bytes));
            for (leaf, bytes) in rows.chain(layer.keys.as_mut().map(|keys| (keys, key_bytes))) {
                let part = state.get(at..at + n * bytes).ok_or(GgmlError::Alloc("rows of a saved sequence"))?;
                leaf.write(first * bytes, part)?;
                at += saved as usize * bytes;
            }
        }
        Ok(())
    }

    /// Tensors with the bytes of one position.
    fn parts(&self) -> impl Iterator<Item = (&Leaf, usize)> {
        self.layers.iter().flat_map(|layer| {
            let rows = std::iter::once((&layer.rows, self.row_bytes));
            rows.chain(layer.keys.as_ref().map(|keys| (keys, self.key_bytes)))
        })
    }
}
