//! What a pass hands on, put back into batch order.

use super::spans::SpanPlan;
use crate::stage::{Row, StageShape};
use std::ops::Range;

/// Results of the last pass.
#[derive(Default)]
pub(super) struct Out {
    /// `[n_rows, n_embd]`, of a stage that does not own the output.
    pub(super) hidden: Vec<f32>,
    /// `[n_rows, top_k]`, likewise.
    pub(super) lists: Vec<i32>,
    /// `[n_output_rows, n_vocab]`, of a stage that owns the output.
    pub(super) logits: Vec<f32>,
    /// Which row of the logits each row of the batch has.
    places: Vec<Option<usize>>,
    n_embd: usize,
    n_vocab: usize,
    top_k: usize,
}

impl Out {
    /// Makes room for the results of a batch.
    pub(super) fn clear(&mut self, rows: &[Row], shape: &StageShape, top_k: usize) {
        (self.n_embd, self.n_vocab, self.top_k) = (shape.n_embd, shape.n_vocab, top_k);
        let mut n_outputs = 0;
        self.places.clear();
        self.places.extend(rows.iter().map(|row| {
            let place = row.output.then_some(n_outputs);
            n_outputs += usize::from(row.output);
            place
        }));
        self.logits.clear();
        self.hidden.clear();
        self.lists.clear();
        if shape.owns_output() {
            self.logits.resize(n_outputs * self.n_vocab, 0.0);
        } else {
            self.hidden.resize(rows.len() * self.n_embd, 0.0);
            self.lists.resize(rows.len() * top_k, -1);
        }
    }

    /// Hidden rows of the batch's `rows`, in that order.
    pub(super) fn take_hidden(&mut self, rows: impl Iterator<Item = usize>, values: &[f32]) {
        for (row, values) in rows.zip(values.chunks_exact(self.n_embd)) {
            self.hidden[row * self.n_embd..][..self.n_embd].copy_from_slice(values);
        }
    }

    /// Logits of those of the batch's `rows` that want some, in that order.
    pub(super) fn take_logits(&mut self, rows: impl Iterator<Item = usize>, values: &[f32]) {
        let places = &self.places;
        for (place, values) in rows.filter_map(|row| places[row]).zip(values.chunks_exact(self.n_vocab)) {
            self.logits[place * self.n_vocab..][..self.n_vocab].copy_from_slice(values);
        }
    }

    /// The selection of the span at `rows` of the batch, one list for each chunk of its plan. Rows that see no more than
    /// top-k rows list them all.
    pub(super) fn take_lists(&mut self, rows: Range<usize>, plan: &SpanPlan<'_>, chunks: &[&[i32]]) {
        let out = &mut self.lists[rows.start * self.top_k..rows.end * self.top_k];
        for (row, list) in (0..plan.covered).zip(out.chunks_exact_mut(self.top_k)) {
            let visible = plan.work.pos + row + 1;
            for (entry, at) in list.iter_mut().zip(0..) {
                *entry = if at < visible { at as i32 } else { -1 };
            }
        }
        for (chunk, list) in plan.chunks.iter().zip(chunks) {
            out[chunk.first as usize * self.top_k..][..list.len()].copy_from_slice(list);
        }
    }
}
