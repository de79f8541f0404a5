//! All stages in this process.

use super::{Opening, Pipeline, Step, StepResult, Tail, TailError};
use crate::{
    stage::{SeqId, SpanDecision, StageEngine, StageError, StageInput, StageShape},
    telemetry::metrics,
    text::TextModel,
};
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

/// One engine that owns every layer. A step is over when [`submit`](Pipeline::submit) returns.
pub struct Local {
    engine: Box<dyn StageEngine>,
    tail: Tail,
    done: VecDeque<StepResult>,
}

impl Local {
    /// `engine` with the vocabulary of its model.
    pub fn new(engine: Box<dyn StageEngine>, text: Arc<dyn TextModel>) -> Self {
        let tail = Tail::new(text, engine.shape().n_seq_max);
        Self { engine, tail, done: VecDeque::new() }
    }
}

impl Pipeline for Local {
    fn shape(&self) -> &StageShape {
        self.engine.shape()
    }

    fn depth(&self) -> usize {
        1
    }

    fn open(&mut self, opening: Opening) -> Result<Option<TailError>, StageError> {
        Ok(self.tail.open(opening, None))
    }

    fn submit(&mut self, step: &Step) -> Result<(), StageError> {
        let began = Instant::now();
        rewind(self.engine.as_mut(), step)?;
        let result = self.tail.run(self.engine.as_mut(), step, StageInput::Tokens(&step.tokens))?;
        metrics::stage_busy(began.elapsed());
        self.done.push_back(result);
        Ok(())
    }

    fn decisions(&self) -> &[SpanDecision] {
        self.engine.decisions()
    }

    fn poll(&mut self, _wait: Duration) -> Result<Option<StepResult>, StageError> {
        Ok(self.done.pop_front())
    }

    fn truncate(&mut self, seq: SeqId, n_keep: u32) -> Result<(), StageError> {
        self.engine.truncate(seq, n_keep)
    }

    fn copy(&mut self, from: SeqId, to: SeqId, n_rows: u32) -> Result<(), StageError> {
        self.engine.copy(from, to, n_rows)
    }

    fn save(&mut self, seq: SeqId, n_rows: u32) -> Result<Vec<u8>, StageError> {
        self.engine.save(seq, n_rows)
    }

    fn restore(&mut self, seq: SeqId, state: &[u8], n_rows: u32) -> Result<(), StageError> {
        self.engine.restore(seq, state, n_rows)
    }
}

/// Drops the rows of `engine` that are ahead of `step`: those of drafts that were not chosen.
///
/// # Errors
/// When the engine cannot drop them.
pub(crate) fn rewind(engine: &mut dyn StageEngine, step: &Step) -> Result<(), StageError> {
    let mut before = None;
    for row in &step.rows {
        if before != Some(row.seq) && engine.n_rows(row.seq) > row.pos {
            engine.truncate(row.seq, row.pos)?;
        }
        before = Some(row.seq);
    }
    Ok(())
}
