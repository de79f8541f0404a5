//! What a stage computes: token ids or hidden rows in, hidden rows or logits out.
//!
//! [`StageEngine`] is the seam between the scheduler and whatever runs the layers. Nothing above it knows about
//! llama.cpp; nothing below it knows about requests.

mod announce;
mod boundary;
#[cfg(feature = "engine")]
pub mod dsa;
pub mod families;
#[cfg(feature = "engine")]
pub mod llama;
pub mod local_chain;

use crate::{package::LayerRange, policy};
pub use announce::Announcer;
pub use boundary::{Boundary, TopK};

/// One sequence (a *lane*) inside an engine's KV cache: `0..StageShape::n_seq_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u32);

/// One row of a batch: the token at position `pos` of sequence `seq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The sequence whose KV cache the row extends.
    pub seq: SeqId,
    /// Absolute position in the sequence, from 0. Must equal the number of rows the sequence already holds
    /// (counting the earlier rows of the same batch).
    pub pos: u32,
    /// Whether a final stage returns logits for this row. Middle stages return every row.
    pub output: bool,
}

/// What enters a stage.
#[derive(Clone, Copy, Debug)]
pub enum StageInput<'a> {
    /// Token ids `[n_rows]`, for a stage that owns the input boundary.
    Tokens(&'a [i32]),
    /// The previous stage's output.
    Hidden(Boundary<'a>),
}

/// One forward pass. `rows.len()` is at most [`StageShape::n_batch`].
#[derive(Clone, Copy, Debug)]
pub struct StageBatch<'a> {
    /// Tokens or hidden rows, as many as `rows`.
    pub input: StageInput<'a>,
    /// Sequence, position and output wish of each row. The rows of one sequence are neighbours.
    pub rows: &'a [Row],
    /// Token ids `[n_rows]` behind hidden rows: a stage with a draft head embeds them. Not needed with
    /// [`StageInput::Tokens`].
    pub tokens: Option<&'a [i32]>,
    /// What the rows of each sequence are for. A sequence without a span counts as [`Purpose::Decode`] with one row,
    /// as [`Purpose::Prefill`] of its rows with more.
    pub spans: &'a [Span],
}

impl<'a> StageBatch<'a> {
    /// A batch that says nothing about purpose.
    pub fn new(input: StageInput<'a>, rows: &'a [Row]) -> Self {
        Self { input, rows, tokens: None, spans: &[] }
    }

    /// Token ids of the rows, wherever they are.
    pub fn token_ids(&self) -> Option<&'a [i32]> {
        match self.input {
            StageInput::Tokens(tokens) => Some(tokens),
            StageInput::Hidden(_) => self.tokens,
        }
    }

    /// The span of `seq`, if the batch has one.
    pub fn span(&self, seq: SeqId) -> Option<&'a Span> {
        self.spans.iter().find(|span| span.seq == seq)
    }
}

/// What a sequence does in a pass, and how: the inputs of the policy resolver that rows do not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The sequence.
    pub seq: SeqId,
    /// What its rows are for.
    pub purpose: Purpose,
    /// The attention path that the request forces.
    pub path: Option<policy::Path>,
    /// Whether [`StageEngine::draft`] will be asked for this sequence, so that the draft head has to follow it from its
    /// first row on.
    pub drafts: bool,
}

/// What the rows of a sequence are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A piece of a prompt.
    Prefill {
        /// Tokens of the whole prompt: the length that decides between short and long.
        prompt: u32,
    },
    /// The last token chosen.
    Decode,
    /// The last token chosen and drafts behind it.
    Verify,
}

/// Asks for a guess of the token after `token`, which was chosen from the last row of `seq` and is not computed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftRow {
    /// The sequence.
    pub seq: SeqId,
    /// The token chosen last.
    pub token: i32,
}

/// How the resolver decided for one sequence of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpanDecision {
    /// The sequence.
    pub seq: SeqId,
    /// Path and reason.
    pub decision: policy::Decision,
}

/// What leaves a stage, borrowed from the engine until its next call.
#[derive(Clone, Copy, Debug)]
pub enum StageOutput<'a> {
    /// Hidden rows in batch order: the input of the next stage.
    Hidden(Boundary<'a>),
    /// Logits `[n_output_rows, n_vocab]`, row-major f32, one row for each [`Row::output`], in batch order.
    Logits(&'a [f32]),
}

/// Sizes and limits of a loaded stage; constant for its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageShape {
    /// The layers it owns.
    pub layers: LayerRange,
    /// Layers of the whole model, the MTP block counted.
    pub layer_count: u32,
    /// Width of a hidden row.
    pub n_embd: usize,
    /// Columns of a logits row; 0 when the stage does not own the output boundary.
    pub n_vocab: usize,
    /// KV rows of all sequences together.
    pub n_ctx: u32,
    /// KV rows of one sequence at most.
    pub n_ctx_seq: u32,
    /// Sequences the engine can hold.
    pub n_seq_max: u32,
    /// Rows of one forward pass at most.
    pub n_batch: u32,
    /// Whether the stage has a draft head: [`StageEngine::draft`] works.
    pub drafts: bool,
}

impl StageShape {
    /// Whether the stage takes token ids.
    pub fn owns_input(&self) -> bool {
        self.layers.start() == 0
    }

    /// Whether the stage answers with logits.
    pub fn owns_output(&self) -> bool {
        self.layers.end() == self.layer_count
    }
}

/// Why a stage did not compute.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// The batch contradicts the stage (wrong input kind, width, position, sequence): the caller's fault.
    #[error("stage refused the batch: {0}")]
    InvalidBatch(String),
    /// The KV cache has no room for the rows; nothing was changed.
    #[error("kv cache is full: {rows} rows asked, {n_ctx} rows in all")]
    KvFull {
        /// Rows in the refused batch.
        rows: usize,
        /// Capacity of the cache, or of a sequence's part of it.
        n_ctx: u32,
    },
    /// The engine cannot do this at all, whatever the arguments; nothing was changed.
    #[error("the engine cannot {0}")]
    Unsupported(&'static str),
    /// The engine failed; the stage's state is unknown and every sequence must be dropped.
    #[error("stage failed: {0}")]
    Engine(String),
}

/// A stage that can run forward passes. One OS thread owns it.
pub trait StageEngine: Send {
    /// Sizes and limits.
    fn shape(&self) -> &StageShape;

    /// Runs `batch` through the stage's layers and extends the KV cache of its sequences.
    ///
    /// # Errors
    /// [`StageError::InvalidBatch`] and [`StageError::KvFull`] leave the cache as it was.
    fn forward(&mut self, batch: &StageBatch<'_>) -> Result<StageOutput<'_>, StageError>;

    /// Keeps the first `n_keep` rows of `seq` and drops the rest; `n_keep = 0` empties the sequence.
    ///
    /// # Errors
    /// When the engine cannot drop part of a sequence (recurrent state, a sliding window that has moved on).
    fn truncate(&mut self, seq: SeqId, n_keep: u32) -> Result<(), StageError>;

    /// Makes the first `n_rows` rows of `from` also the content of `to`, which is emptied first.
    ///
    /// # Errors
    /// When `from` holds fewer rows, or the engine cannot copy part of a sequence.
    fn copy(&mut self, from: SeqId, to: SeqId, n_rows: u32) -> Result<(), StageError>;

    /// The first `n_rows` rows of `seq` as bytes, for [`restore`](Self::restore): everything that later rows depend on,
    /// that of the draft head included where it has followed the sequence. The sequence stays as it is. The bytes mean
    /// something to this engine only, as long as it lives.
    ///
    /// # Errors
    /// [`StageError::Unsupported`] when the engine cannot take rows out; [`StageError::InvalidBatch`] when `seq` holds
    /// fewer.
    fn save(&mut self, seq: SeqId, n_rows: u32) -> Result<Vec<u8>, StageError> {
        let _ = (seq, n_rows);
        Err(StageError::Unsupported("save rows"))
    }

    /// Makes the first `n_rows` of the rows that `state` was [`save`](Self::save)d with the content of `seq`, which is
    /// emptied first. What is computed behind them is, bit for bit, what it would have been in the first place.
    ///
    /// # Errors
    /// [`StageError::Unsupported`] as for `save`; [`StageError::InvalidBatch`] when `state` holds fewer rows or is not of
    /// this engine. The sequence is empty then.
    fn restore(&mut self, seq: SeqId, state: &[u8], n_rows: u32) -> Result<(), StageError> {
        let _ = (seq, state, n_rows);
        Err(StageError::Unsupported("restore rows"))
    }

    /// Rows that `seq` holds.
    fn n_rows(&self, seq: SeqId) -> u32;

    /// Logits `[rows.len(), n_vocab]`, row-major f32, of the draft head for the token after each row's token. The
    /// sequence itself is not extended, and the guess binds nobody: only [`forward`](Self::forward) decides.
    ///
    /// Every pass of the sequence must have said so before ([`Span::drafts`]).
    ///
    /// # Errors
    /// [`StageError::InvalidBatch`] when the stage has no draft head or it has not followed the sequence.
    fn draft(&mut self, rows: &[DraftRow]) -> Result<&[f32], StageError> {
        Err(StageError::InvalidBatch(format!("{} drafts asked of a stage without a draft head", rows.len())))
    }

    /// How the policy resolver decided for each sequence of the last pass; empty when the engine has no choice.
    fn decisions(&self) -> &[SpanDecision] {
        &[]
    }
}

/// Refuses a sequence that the engine does not have.
#[cfg(feature = "engine")]
pub(crate) fn check_seq(seq: SeqId, shape: &StageShape) -> Result<(), StageError> {
    match seq.0 < shape.n_seq_max {
        true => Ok(()),
        false => Err(StageError::InvalidBatch(format!(
            "sequence {}, allowed 0 to {}",
            seq.0,
            shape.n_seq_max.saturating_sub(1)
        ))),
    }
}

/// Refuses a copy of more rows than `from` holds, onto itself, or of sequences that the engine does not have.
#[cfg(feature = "engine")]
pub(crate) fn check_copy(
    (from, to): (SeqId, SeqId),
    n_rows: u32,
    held: u32,
    shape: &StageShape,
) -> Result<(), StageError> {
    check_seq(from, shape)?;
    check_seq(to, shape)?;
    match n_rows > held || from == to {
        true => Err(StageError::InvalidBatch(format!(
            "copy {n_rows} rows of sequence {} to {}: it holds {held}",
            from.0, to.0
        ))),
        false => Ok(()),
    }
}

/// Refuses an input of the wrong kind, count or width for the stage.
#[cfg(feature = "engine")]
pub(crate) fn check_input(batch: &StageBatch<'_>, shape: &StageShape) -> Result<(), StageError> {
    let (n, width) = (batch.rows.len(), shape.n_embd);
    let fault = match (&batch.input, shape.owns_input()) {
        (StageInput::Tokens(_), false) => {
            format!("token ids for layers {}, which start inside the model", shape.layers)
        }
        (StageInput::Hidden(_), true) => "hidden rows for the first stage".into(),
        (StageInput::Tokens(tokens), true) if tokens.len() != n => format!("{} token ids for {n} rows", tokens.len()),
        (StageInput::Hidden(hidden), false) if hidden.rows.len() != n * width => {
            format!("{} floats for {n} rows of width {width}", hidden.rows.len())
        }
        _ => return Ok(()),
    };
    Err(StageError::InvalidBatch(fault))
}

/// Refuses rows that an engine could only misread: too many, unknown sequences, positions that jump.
#[cfg(feature = "engine")]
pub(crate) fn check_rows(rows: &[Row], shape: &StageShape, held: impl Fn(SeqId) -> u32) -> Result<(), StageError> {
    if rows.is_empty() || rows.len() > shape.n_batch as usize {
        return Err(StageError::InvalidBatch(format!("{} rows, allowed 1 to {}", rows.len(), shape.n_batch)));
    }
    for (index, row) in rows.iter().enumerate() {
        check_seq(row.seq, shape)?;
        let expected = match rows[..index].iter().rev().find(|earlier| earlier.seq == row.seq) {
            Some(earlier) => earlier.pos + 1,
            None => held(row.seq),
        };
        if row.pos != expected {
            return Err(StageError::InvalidBatch(format!(
                "position {} for sequence {}, expected {expected}: positions must not jump",
                row.pos, row.seq.0
            )));
        }
        if row.pos >= shape.n_ctx_seq {
            return Err(StageError::KvFull { rows: rows.len(), n_ctx: shape.n_ctx_seq });
        }
    }
    Ok(())
}
