//! The stages of a model end to end: steps of several sequences go in at one end, chosen tokens come out at the other.
//!
//! A [`Pipeline`] is what the scheduler drives. [`Local`] is one engine that owns every layer, in this process; a chain
//! over the network owns the first layers only and hands rows on. Either way the end of the pipeline, the [`Tail`],
//! chooses tokens, verifies drafts and makes new ones, so that no row of logits ever travels.
//!
//! Steps are worked on in the order of their submission, and so is everything else that is asked for: a sequence that is
//! truncated behind a step is truncated there on every stage.

mod local;
mod picker;
mod tail;

use crate::{
    grammar::{Grammar, GrammarError},
    stage::{Row, SeqId, Span, SpanDecision, StageError, StageShape},
    text::{SamplingParams, TextError},
};
use std::time::Duration;

pub(crate) use self::local::rewind;
pub use self::{local::Local, tail::Tail};

/// How tokens behind a sequence are chosen. Sent once, before the first row of a request.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The sequence.
    pub seq: SeqId,
    /// Tokens of the prompt, then those chosen for it before: none, unless the request goes on after a fault.
    pub text: Vec<i32>,
    /// How many of `text` are the prompt.
    pub prompt: u32,
    /// How tokens are chosen. The seed is set if anything is drawn.
    pub sampling: SamplingParams,
    /// What the answer must look like.
    pub grammar: Option<Grammar>,
    /// Go on behind an end-of-generation token.
    pub ignore_eos: bool,
    /// Alternatives to report with each chosen token, and that its log-probability is to be reported.
    pub logprobs: Option<u8>,
    /// Tokens to choose at most, those in `text` included.
    pub budget: u32,
    /// Rows that the sequence may have at most; no draft is made that would need more.
    pub kv_rows: u32,
}

/// One pass of rows through all stages.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Number of the step; results carry it.
    pub ticket: u64,
    /// Token ids `[n_rows]`.
    pub tokens: Vec<i32>,
    /// Rows, those of one sequence side by side. Every row with [`Row::output`] is read by the tail: rows of a prompt
    /// score the next token of the prompt, others choose a token.
    pub rows: Vec<Row>,
    /// One for each sequence. [`Purpose::Verify`](crate::stage::Purpose::Verify) says that each row but the first holds a
    /// draft: it is read if the row before it has chosen just that token. [`Span::drafts`] says that a draft is wanted for
    /// the token after the last one chosen.
    pub spans: Vec<Span>,
}

/// A token with what the client may want to know about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picked {
    /// Id in the vocabulary.
    pub id: i32,
    /// Natural-log probability under the raw logits, when asked for and defined.
    pub logprob: Option<f32>,
    /// The most likely tokens at this place with their log-probabilities, most likely first.
    pub top: Vec<(i32, f32)>,
    /// The grammar lets nothing follow.
    pub over: bool,
}

/// What a step has brought one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Tokens of the prompt, scored by the rows before them, in order.
    pub scored: Vec<Picked>,
    /// Tokens chosen, in order.
    pub chosen: Vec<Picked>,
    /// A guess of the token behind the last one chosen.
    pub draft: Option<i32>,
    /// The draft head was asked and its answer was no guess.
    pub no_guess: bool,
    /// Why no token could be chosen.
    pub fault: Option<TailError>,
}

/// What a step has brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepResult {
    /// The step.
    pub ticket: u64,
    /// In the order of the step's spans; sequences without a row to read have none.
    pub outcomes: Vec<(SeqId, Outcome)>,
}

/// Why the tail could not choose a token for a sequence. Its neighbours are not concerned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TailError {
    /// The logits are unusable.
    #[error("the logits hold NaN")]
    Nan,
    /// The sampler has chosen something that is no token.
    #[error("the sampler chose token {0}, outside the vocabulary")]
    NoToken(i32),
    /// No sampler can be made of the parameters.
    #[error(transparent)]
    Sampler(#[from] TextError),
    /// The grammar failed.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// Rows came for a sequence that was never opened.
    #[error("sequence {} was not opened", (.0).0)]
    NotOpen(SeqId),
    /// What was computed for a draft cannot be undone.
    #[error("the row of a rejected draft cannot be dropped: {0}")]
    Rejected(String),
    /// A tail on another machine says so.
    #[error("{0}")]
    Remote(String),
}

/// Stages end to end. One OS thread owns it.
///
/// Errors: [`StageError::Unavailable`] means that a stage on another machine is lost, and with it all rows on all of them;
/// [`revive`](Self::revive) tells when there is a chain again. Other errors are those of
/// [`StageEngine`](crate::stage::StageEngine).
pub trait Pipeline: Send {
    /// Sizes and limits of all stages together.
    fn shape(&self) -> &StageShape;

    /// Stages that can work at the same time, and so the number of steps that keep all of them busy.
    fn depth(&self) -> usize;

    /// Rows are to come for a sequence: what to do behind the last layer.
    ///
    /// Returns what is wrong with the opening itself, if that is known at once; else it is the [`Outcome::fault`] of the
    /// first row that chooses a token.
    ///
    /// # Errors
    /// [`StageError`].
    fn open(&mut self, opening: Opening) -> Result<Option<TailError>, StageError>;

    /// Begins a step. A sequence that holds more rows than the first position of a span is truncated there first.
    ///
    /// # Errors
    /// [`StageError::InvalidBatch`] and [`StageError::KvFull`] leave everything as it was.
    fn submit(&mut self, step: &Step) -> Result<(), StageError>;

    /// How the policy resolver of the first stage decided for each sequence of the step submitted last.
    fn decisions(&self) -> &[SpanDecision];

    /// The result of the oldest step that has not been answered, if it comes within `wait`.
    ///
    /// # Errors
    /// The step has failed, and every other one in flight.
    fn poll(&mut self, wait: Duration) -> Result<Option<StepResult>, StageError>;

    /// As [`StageEngine::truncate`](crate::stage::StageEngine::truncate).
    ///
    /// # Errors
    /// [`StageError`].
    fn truncate(&mut self, seq: SeqId, n_keep: u32) -> Result<(), StageError>;

    /// As [`StageEngine::copy`](crate::stage::StageEngine::copy).
    ///
    /// # Errors
    /// [`StageError`].
    fn copy(&mut self, from: SeqId, to: SeqId, n_rows: u32) -> Result<(), StageError>;

    /// As [`StageEngine::save`](crate::stage::StageEngine::save).
    ///
    /// # Errors
    /// [`StageError`].
    fn save(&mut self, seq: SeqId, n_rows: u32) -> Result<Vec<u8>, StageError>;

    /// As [`StageEngine::restore`](crate::stage::StageEngine::restore).
    ///
    /// # Errors
    /// [`StageError`].
    fn restore(&mut self, seq: SeqId, state: &[u8], n_rows: u32) -> Result<(), StageError>;

    /// A stage that is about to end, and wants no more requests. Those that run may finish; then
    /// [`release`](Self::release) lets it go.
    fn draining(&self) -> Option<&str> {
        None
    }

    /// Lets go of all stages on other machines: they count as lost from now on.
    fn release(&mut self) -> StageError {
        StageError::Unsupported("do without its stages")
    }

    /// After [`StageError::Unavailable`]: whether there is a chain again. All its sequences are empty then, and closed.
    /// Until then nothing but `truncate` works, which has nothing to do.
    fn revive(&mut self) -> bool {
        true
    }
}
