//! Stages back to back in one process: what `serve --split` runs, and how tests try every cut.

use super::{
    DraftRow, Pieces, SeqId, SpanDecision, StageBatch, StageEngine, StageError, StageInput, StageOutput, StageShape,
    common_step,
};
use crate::package::LayerRange;

/// A chain of stages that behaves like one stage over the union of their layers.
pub struct LocalChain {
    stages: Vec<Box<dyn StageEngine>>,
    shape: StageShape,
}

/// Why stages do not form a chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// No stages.
    #[error("a chain needs at least one stage")]
    Empty,
    /// Two neighbours leave a gap or overlap.
    #[error("stage {index} serves layers {got}, expected it to start at layer {expected}")]
    Range {
        /// Position in the chain, from 0.
        index: usize,
        /// Its layers.
        got: LayerRange,
        /// Where the stage before it ends.
        expected: u32,
    },
    /// Two stages disagree about a size.
    #[error("stage {index} has {what} {got}, the first stage has {expected}")]
    Mismatch {
        /// Position in the chain, from 0.
        index: usize,
        /// Which size.
        what: &'static str,
        /// The stage's value.
        got: u64,
        /// The first stage's value.
        expected: u64,
    },
}

impl LocalChain {
    /// Joins stages in order.
    ///
    /// # Errors
    /// When their layer ranges do not meet, or width, layer count or limits differ.
    pub fn new(stages: Vec<Box<dyn StageEngine>>) -> Result<Self, ChainError> {
        let first = stages.first().ok_or(ChainError::Empty)?.shape().clone();
        let mut end = first.layers.start();
        for (index, stage) in stages.iter().enumerate() {
            let shape = stage.shape();
            if shape.layers.start() != end {
                return Err(ChainError::Range { index, got: shape.layers, expected: end });
            }
            end = shape.layers.end();
            let sizes = |shape: &StageShape| {
                [
                    ("layer count", u64::from(shape.layer_count)),
                    ("hidden width", shape.n_embd as u64),
                    ("kv rows", u64::from(shape.n_ctx)),
                    ("kv rows of a sequence", u64::from(shape.n_ctx_seq)),
                    ("sequences", u64::from(shape.n_seq_max)),
                    ("batch rows", u64::from(shape.n_batch)),
                ]
            };
            for ((what, got), (_, expected)) in sizes(shape).into_iter().zip(sizes(&first)) {
                if got != expected {
                    return Err(ChainError::Mismatch { index, what, got, expected });
                }
            }
        }
        let (n_vocab, drafts) = stages.last().map_or((0, false), |stage| (stage.shape().n_vocab, stage.shape().drafts));
        let layers = LayerRange::new(first.layers.start(), end).map_err(|_| ChainError::Empty)?;
        let prefix_step = stages.iter().map(|stage| stage.shape().prefix_step).fold(1, common_step);
        let pieces = stages.iter().map(|stage| stage.shape().pieces).fold(first.pieces, Pieces::common);
        Ok(Self { shape: StageShape { layers, n_vocab, drafts, pieces, prefix_step, ..first }, stages })
    }
}

impl StageEngine for LocalChain {
    fn shape(&self) -> &StageShape {
        &self.shape
    }

    fn forward(&mut self, batch: &StageBatch<'_>) -> Result<StageOutput<'_>, StageError> {
        run(&mut self.stages, batch, 0)
    }

    fn truncate(&mut self, seq: SeqId, n_keep: u32) -> Result<(), StageError> {
        self.stages.iter_mut().try_for_each(|stage| stage.truncate(seq, n_keep))
    }

    fn copy(&mut self, from: SeqId, to: SeqId, n_rows: u32) -> Result<(), StageError> {
        self.stages.iter_mut().try_for_each(|stage| stage.copy(from, to, n_rows))
    }

    /// The states of all stages, each behind its length.
    fn save(&mut self, seq: SeqId, n_rows: u32) -> Result<Vec<u8>, StageError> {
        if let [only] = &mut self.stages[..] {
            return only.save(seq, n_rows);
        }
        let mut states = Vec::new();
        for stage in &mut self.stages {
            let state = stage.save(seq, n_rows)?;
            states.extend_from_slice(&(state.len() as u64).to_le_bytes());
            states.extend_from_slice(&state);
        }
        Ok(states)
    }

    fn restore(&mut self, seq: SeqId, state: &[u8], n_rows: u32) -> Result<(), StageError> {
        if let [only] = &mut self.stages[..] {
            return only.restore(seq, state, n_rows);
        }
        let mut rest = state;
        let restored = self.stages.iter_mut().try_for_each(|stage| {
            let refuse = || StageError::InvalidBatch("the state of a chain is cut short".into());
            let (len, behind) = rest.split_first_chunk().ok_or_else(refuse)?;
            let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
            let (part, behind) = behind.split_at_checked(len).ok_or_else(refuse)?;
            rest = behind;
            stage.restore(seq, part, n_rows)
        });
        if restored.is_err() {
            // Every stage holds the sequence, or none.
            self.truncate(seq, 0)?;
        }
        restored
    }

    fn n_rows(&self, seq: SeqId) -> u32 {
        self.stages.first().map_or(0, |stage| stage.n_rows(seq))
    }

    fn draft(&mut self, rows: &[DraftRow]) -> Result<&[f32], StageError> {
        let last = self.stages.last_mut().ok_or_else(|| StageError::Engine("an empty chain".into()))?;
        last.draft(rows)
    }

    /// Those of the first stage: every stage decides on the same inputs.
    fn decisions(&self) -> &[SpanDecision] {
        self.stages.first().map_or(&[], |stage| stage.decisions())
    }
}

fn run<'a>(
    stages: &'a mut [Box<dyn StageEngine>],
    batch: &StageBatch<'_>,
    index: usize,
) -> Result<StageOutput<'a>, StageError> {
    let (stage, rest) = stages.split_first_mut().ok_or_else(|| StageError::Engine("an empty chain".into()))?;
    let output = stage.forward(batch).map_err(|error| match index {
        0 => error,
        // The stages before this one have already extended their caches, so no later error leaves the chain as it was.
        _ => StageError::Engine(format!("stage {index}: {error}")),
    })?;
    match output {
        StageOutput::Hidden(rows) if !rest.is_empty() => {
            let tokens = batch.token_ids();
            run(rest, &StageBatch { input: StageInput::Hidden(rows), tokens, ..*batch }, index + 1)
        }
        output => Ok(output),
    }
}
