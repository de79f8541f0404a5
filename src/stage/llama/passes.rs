//! Running the groups of a batch one after the other, and putting their output back into batch order.

use super::{LlamaStage, groups::Member};
use crate::{
    llama::{DecodeInput, LlamaError},
    stage::{Boundary, SeqId, StageBatch, StageEngine as _, StageError, StageInput},
};

/// The per-row arrays of one pass, reused.
#[derive(Default)]
pub(super) struct Pass {
    tokens: Vec<i32>,
    hidden: Vec<f32>,
    pos: Vec<i32>,
    seq: Vec<u32>,
    output: Vec<i8>,
}

impl LlamaStage {
    /// One pass over the rows of `group`.
    pub(super) fn run(&mut self, batch: &StageBatch<'_>, group: &[Member]) -> Result<(), StageError> {
        // A stage that hands rows on needs them all: llama.cpp drops rows without output before the last layer.
        let every_row = !self.shape.owns_output();
        let n_embd = self.shape.n_embd;
        self.pass.clear();
        for member in group {
            let (seq, pos, output) = match member {
                Member::Row(index) => {
                    let row = batch.rows[*index];
                    (row.seq, row.pos, every_row || row.output)
                }
                Member::Bridge(seq) => (*seq, self.n_rows(*seq), every_row),
            };
            self.pass.push(seq, pos, output);
            match (&batch.input, member) {
                (StageInput::Tokens(tokens), Member::Row(index)) => self.pass.tokens.push(tokens[*index]),
                (StageInput::Tokens(_), Member::Bridge(_)) => self.pass.tokens.push(0),
                (StageInput::Hidden(Boundary { rows, .. }), Member::Row(index)) => {
                    self.pass.hidden.extend_from_slice(&rows[index * n_embd..(index + 1) * n_embd]);
                }
                (StageInput::Hidden(_), Member::Bridge(_)) => {
                    self.pass.hidden.resize(self.pass.hidden.len() + n_embd, 0.0)
                }
            }
        }
        let Pass { tokens, hidden, pos, seq, output } = &mut self.pass;
        let input = match (&batch.input, &mut self.embedder) {
            (StageInput::Tokens(_), Some(embedder)) => {
                let rows = embedder.embed(tokens).map_err(|e| StageError::InvalidBatch(e.to_string()))?;
                DecodeInput::Embeddings(rows)
            }
            (StageInput::Tokens(_), None) => DecodeInput::Tokens(tokens),
            (StageInput::Hidden(_), _) => DecodeInput::Embeddings(hidden),
        };
        self.context.decode(input, pos, seq, output).map_err(|error| match error {
            LlamaError::KvFull => StageError::KvFull { rows: batch.rows.len(), n_ctx: self.shape.n_ctx_seq },
            LlamaError::Batch(what) => StageError::InvalidBatch(what),
            other => StageError::Engine(other.to_string()),
        })?;
        group.iter().try_for_each(|member| match member {
            Member::Row(_) => Ok(()),
            Member::Bridge(seq) => self.forget(*seq, self.n_rows(*seq)),
        })
    }

    pub(super) fn forget(&mut self, seq: SeqId, n_keep: u32) -> Result<(), StageError> {
        self.context.remove_from(seq.0, n_keep).map_err(|e| StageError::Engine(e.to_string()))
    }

    /// Runs group after group and puts their output rows into batch order.
    pub(super) fn run_groups(&mut self, batch: &StageBatch<'_>, groups: &[Vec<Member>]) -> Result<(), StageError> {
        let owns_output = self.shape.owns_output();
        let width = if owns_output { self.shape.n_vocab } else { self.shape.n_embd };
        // Where the output of each row goes, in rows.
        let mut n_outputs = 0;
        let places: Vec<Option<usize>> = batch
            .rows
            .iter()
            .map(|row| {
                let wanted = !owns_output || row.output;
                n_outputs += usize::from(wanted);
                wanted.then(|| n_outputs - 1)
            })
            .collect();
        let mut output = std::mem::take(&mut self.output);
        output.resize(n_outputs * width, 0.0);
        for (done, group) in groups.iter().enumerate() {
            if let Err(error) = self.run(batch, group) {
                self.take_back(batch, &groups[..done])?;
                return Err(error);
            }
            let from = if owns_output { self.context.logits() } else { self.context.hidden() };
            let mut from = from.chunks_exact(width.max(1));
            for member in group {
                match member {
                    Member::Row(index) => {
                        let Some(place) = places[*index] else { continue };
                        let row = from.next().ok_or_else(|| StageError::Engine("a row of output is missing".into()))?;
                        output[place * width..(place + 1) * width].copy_from_slice(row);
                    }
                    // Gives a row exactly when every row does.
                    Member::Bridge(_) if !owns_output => drop(from.next()),
                    Member::Bridge(_) => {}
                }
            }
        }
        self.output = output;
        Ok(())
    }

    /// Undoes the groups that were done before one failed, so that a refused batch changes nothing.
    fn take_back(&mut self, batch: &StageBatch<'_>, done: &[Vec<Member>]) -> Result<(), StageError> {
        for member in done.iter().flatten() {
            if let Member::Row(index) = member {
                let seq = batch.rows[*index].seq;
                self.forget(seq, self.n_rows(seq))?;
            }
        }
        Ok(())
    }
}

impl Pass {
    fn clear(&mut self) {
        self.tokens.clear();
        self.hidden.clear();
        self.pos.clear();
        self.seq.clear();
        self.output.clear();
    }

    fn push(&mut self, seq: SeqId, pos: u32, output: bool) {
        self.seq.push(seq.0);
        // `check_rows` keeps positions below `n_ctx_seq`, which llama.cpp counts in 31 bits.
        self.pos.push(i32::try_from(pos).unwrap_or(i32::MAX));
        self.output.push(i8::from(output));
    }
}
