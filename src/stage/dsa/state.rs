//! Sequences as bytes: rows and indexer keys of every layer, and what the draft head knows.
//!
//! `n` positions are stored as: `n`; whether the draft head has followed them; the cache rows; then, where it has, how many
//! of its own rows are computed, these rows, token and hidden row of each position that waits, and the hidden rows where a
//! sequence may be parted. Numbers are little-endian u32. Only the engine that has written them reads them.

use super::{DsaStage, mtp::Follower};
use crate::{
    ggml::GgmlError,
    stage::{SeqId, StageError},
};

/// Why bytes are not the state of a sequence of this stage.
const CUT_SHORT: GgmlError = GgmlError::Alloc("the rest of a saved sequence");

impl DsaStage {
    pub(super) fn save_rows(&self, seq: SeqId, n_rows: u32) -> Result<Vec<u8>, GgmlError> {
        let (rows, keys) = self.cache.bytes_per_position();
        let mut state = Vec::with_capacity((rows + keys) * n_rows as usize + 8);
        let follower = self.drafts.as_ref().and_then(|drafts| drafts.followed(seq, n_rows));
        put(&mut state, &[n_rows, u32::from(follower.is_some())]);
        self.cache.save(seq.0, n_rows, &mut state)?;
        if let (Some(drafts), Some(follower)) = (&self.drafts, &follower) {
            put(&mut state, &[follower.rows]);
            drafts.cache.save(seq.0, follower.rows, &mut state)?;
            for (token, hidden) in &follower.waiting {
                put(&mut state, &[token.cast_unsigned()]);
                put_floats(&mut state, hidden);
            }
            follower.marks.iter().for_each(|hidden| put_floats(&mut state, hidden));
        }
        Ok(state)
    }

    /// Leaves the sequence with `n_rows` rows, or fails and leaves bytes in it that no row count covers.
    pub(super) fn restore_rows(&mut self, seq: SeqId, state: &[u8], n_rows: u32) -> Result<(), StageError> {
        let refuse = |what: String| StageError::InvalidBatch(what);
        let mut state = Bytes(state);
        let (saved, followed) = (state.number().unwrap_or(0), state.number().unwrap_or(0));
        if n_rows > saved || saved > self.shape.n_ctx_seq {
            return Err(refuse(format!("restore {n_rows} rows of a state that holds {saved}")));
        }
        let restored = self.restore_parts(seq, &mut state, (saved, n_rows), followed != 0);
        restored.map_err(|error| refuse(error.to_string()))?;
        self.rows_held[seq.0 as usize] = n_rows;
        Ok(())
    }

    fn restore_parts(
        &mut self,
        seq: SeqId,
        state: &mut Bytes<'_>,
        (saved, n_rows): (u32, u32),
        followed: bool,
    ) -> Result<(), GgmlError> {
        let position = |(rows, keys): (usize, usize)| rows + keys;
        let trunk = state.take(position(self.cache.bytes_per_position()) * saved as usize)?;
        self.cache.restore(seq.0, n_rows, trunk, saved)?;
        let Some(drafts) = self.drafts.as_mut().filter(|_| followed) else { return Ok(()) };
        let n_embd = self.shape.n_embd;
        let rows = state.number()?;
        let head = state.take(position(drafts.cache.bytes_per_position()) * rows as usize)?;
        drafts.cache.restore(seq.0, rows.min(n_rows), head, rows)?;
        let waiting = saved.checked_sub(rows).ok_or(CUT_SHORT)?;
        let mut follower = Follower::at(rows);
        for _ in 0..waiting {
            let token = state.number()?.cast_signed();
            follower.waiting.push((token, state.floats(n_embd)?));
        }
        while !state.0.is_empty() {
            follower.marks.push(state.floats(n_embd)?);
        }
        follower.truncate(n_rows);
        drafts.adopt(seq, follower);
        Ok(())
    }
}

fn put(state: &mut Vec<u8>, numbers: &[u32]) {
    numbers.iter().for_each(|number| state.extend_from_slice(&number.to_le_bytes()));
}

fn put_floats(state: &mut Vec<u8>, floats: &[f32]) {
    floats.iter().for_each(|float| state.extend_from_slice(&float.to_le_bytes()));
}

/// What is left of a state.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], GgmlError> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(CUT_SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u32, GgmlError> {
        let (number, rest) = self.0.split_first_chunk().ok_or(CUT_SHORT)?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*number))
    }

    fn floats(&mut self, n: usize) -> Result<Vec<f32>, GgmlError> {
        let (chunks, _) = self.take(n * size_of::<f32>())?.as_chunks();
        Ok(chunks.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect())
    }
}
