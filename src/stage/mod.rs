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
pub use announce::{Announcer, announce_switches};
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
    /// How a prompt may be cut into passes.
    pub pieces: Pieces,
    /// A beginning of a sequence may be kept, copied or restored at multiples of so many rows, and what follows is what
    /// it would have been, drafts included. 0 when the engine cannot part a sequence at all.
    pub prefix_step: u32,
}

/// How a prompt may be cut into passes so that every row comes out alike, bit for bit, whatever the cuts: at multiples of
/// [`unit`](Self::unit), each piece at most [`most`](Self::most) rows long, and the last one at least a unit, unless the
/// whole prompt is shorter. So a prompt may be read in large pieces or in small ones, or go on behind rows that another
/// request has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Rows of a piece at least.
    pub unit: u32,
    /// Rows of a piece at most. The last one may have up to a unit more, less one.
    pub most: u32,
}

impl Pieces {
    /// Rows of the next piece, where `left` rows of the prompt are left and about `wish` would be welcome.
    pub fn next(self, left: u32, wish: u32) -> u32 {
        let unit = self.unit.max(1);
        let whole = wish.min(self.most) / unit * unit;
        let piece = whole.max(unit);
        // A rest too small for a piece of its own goes along.
        if left < piece.saturating_add(unit) { left } else { piece }
    }

    /// Rows that a prompt of `n` rows may take over from elsewhere at most, at multiples of `step`: the last piece is
    /// computed in any case.
    pub fn spare(self, n: u32, step: u32) -> u32 {
        let step = step.max(1);
        n.saturating_sub(self.unit.max(1)) / step * step
    }

    /// Pieces that suit both.
    pub(crate) fn common(self, other: Self) -> Self {
        Self { unit: common_step(self.unit, other.unit), most: self.most.min(other.most) }
    }
}

/// The least number of rows that is a multiple of both; 0 when one of them is.
pub(crate) fn common_step(a: u32, b: u32) -> u32 {
    if a == 0 || b == 0 {
        return 0;
    }
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x).saturating_mul(b)
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
    /// A stage on another machine is lost, and with it the rows of every sequence.
    #[error("{0}")]
    Unavailable(String),
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

/// Refuses more rows than `seq` holds, or a sequence that the engine does not have.
#[cfg(feature = "engine")]
pub(crate) fn check_held(seq: SeqId, n_rows: u32, held: u32, shape: &StageShape) -> Result<(), StageError> {
    check_seq(seq, shape)?;
    match n_rows > held {
        true => Err(StageError::InvalidBatch(format!("save {n_rows} rows of sequence {}: it holds {held}", seq.0))),
        false => Ok(()),
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

#[cfg(test)]
mod tests {
    use super::{Pieces, common_step};
    use proptest::prelude::*;

    #[test]
    fn stages_part_a_sequence_where_all_of_them_can() {
        for (a, b, expected) in [(1, 1, 1), (1, 16, 16), (6, 4, 12), (0, 16, 0), (16, 0, 0), (u32::MAX, 2, u32::MAX)] {
            assert_eq!(common_step(a, b), expected, "{a} and {b}");
        }
        let both = Pieces { unit: 8, most: 512 }.common(Pieces { unit: 64, most: 256 });
        assert_eq!(both, Pieces { unit: 64, most: 256 });
    }

    #[test]
    fn pieces_end_at_multiples_and_the_rest_goes_along() {
        let pieces = Pieces { unit: 8, most: 48 };
        let cases =
            [(100, 48, 48), (100, 500, 48), (100, 8, 8), (100, 3, 8), (100, 23, 16), (55, 48, 55), (56, 48, 48)];
        for (left, wish, expected) in
            cases.into_iter().chain([(16, 8, 8), (15, 8, 15), (9, 8, 9), (1, 8, 1), (7, 48, 7)])
        {
            assert_eq!(pieces.next(left, wish), expected, "{left} left, {wish} wished");
        }
        for (n, expected) in [(1, 0), (15, 0), (16, 8), (23, 8), (24, 16), (512, 504)] {
            assert_eq!(pieces.spare(n, 8), expected, "{n}");
        }
        assert_eq!(pieces.spare(100, 16), 80);
    }

    proptest! {
        #[test]
        fn a_prompt_is_cut_at_multiples_of_the_unit_whatever_is_wished(
            unit in 1u32..20,
            times in 1u32..9,
            n in 1u32..300,
            taken in 0u32..300,
            wishes in prop::collection::vec(0u32..100, 1..9),
        ) {
            let pieces = Pieces { unit, most: unit * times };
            let mut pos = pieces.spare(n, unit).min(taken / unit * unit);
            let mut wishes = wishes.iter().cycle();
            while pos < n {
                let piece = pieces.next(n - pos, *wishes.next().unwrap());
                prop_assert!(pos % unit == 0 && piece > 0 && piece < pieces.most + unit);
                pos += piece;
                prop_assert!(pos == n || pos % unit == 0);
                prop_assert!(piece >= unit || (pos == n && n < unit));
            }
            prop_assert_eq!(pos, n);
        }
    }
}
