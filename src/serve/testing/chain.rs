//! Stages on other machines, as far as the scheduler can see them: results come late, and stages come and go.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{FakeEngine, FakeText};
use crate::{
    pipeline::{Local, Opening, Pipeline, Step, StepResult, TailError},
    stage::{SeqId, SpanDecision, StageError, StageShape},
};

/// A [`Pipeline`] over a [`FakeEngine`] whose results come one question later than they could.
pub struct FakeChain {
    inner: Local,
    depth: usize,
    held: VecDeque<StepResult>,
    /// The next question gets no answer.
    late: bool,
    lost: bool,
    line: Line,
}

/// What happens to a [`FakeChain`], from outside. Clones share it.
#[derive(Clone, Default)]
pub struct Line {
    /// The chain is lost at the step with this ticket, 0 for never; once.
    lose_at: Arc<AtomicU64>,
    /// The chain is lost at every step.
    lose_always: Arc<AtomicBool>,
    /// Questions until the chain is back; `u64::MAX` for never.
    away: Arc<AtomicU64>,
    draining: Arc<Mutex<Option<String>>>,
    most_in_flight: Arc<AtomicU64>,
}

impl Line {
    /// Loses the chain at step `ticket`, for so many questions.
    pub fn lose(&self, ticket: u64, away: u64) {
        self.away.store(away, Ordering::SeqCst);
        self.lose_at.store(ticket, Ordering::SeqCst);
    }

    /// Loses the chain at every step, or no more.
    pub fn lose_always(&self, always: bool) {
        self.lose_always.store(always, Ordering::SeqCst);
    }

    /// Brings it back at the next question.
    pub fn bring_back(&self) {
        self.away.store(0, Ordering::SeqCst);
    }

    /// A stage is about to end.
    pub fn drain(&self, why: &str) {
        *self.draining.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
    }

    /// Steps that were on their way together at most.
    pub fn most_in_flight(&self) -> u64 {
        self.most_in_flight.load(Ordering::SeqCst)
    }

    fn is_draining(&self) -> bool {
        self.draining.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl FakeChain {
    /// `depth` stages.
    pub fn new(engine: FakeEngine, text: &FakeText, depth: usize) -> (Self, Line) {
        let line = Line::default();
        let inner = Local::new(Box::new(engine), Arc::new(text.clone()));
        let (held, late, lost) = (VecDeque::new(), true, false);
        (Self { inner, depth, held, late, lost, line: line.clone() }, line)
    }

    fn lose(&mut self) -> StageError {
        self.lost = true;
        self.held.clear();
        StageError::Unavailable("stage 1: gone".into())
    }

    fn check(&self) -> Result<(), StageError> {
        if self.lost { Err(StageError::Unavailable("stage 1: still gone".into())) } else { Ok(()) }
    }
}

impl Pipeline for FakeChain {
    fn shape(&self) -> &StageShape {
        self.inner.shape()
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn open(&mut self, opening: Opening) -> Result<Option<TailError>, StageError> {
        self.check()?;
        self.inner.open(opening)
    }

    fn submit(&mut self, step: &Step) -> Result<(), StageError> {
        self.check()?;
        let due = self.line.lose_at.compare_exchange(step.ticket, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if due || self.line.lose_always.load(Ordering::SeqCst) {
            return Err(self.lose());
        }
        self.inner.submit(step)?;
        self.held.extend(self.inner.poll(Duration::ZERO)?);
        self.line.most_in_flight.fetch_max(self.held.len() as u64, Ordering::SeqCst);
        Ok(())
    }

    fn decisions(&self) -> &[SpanDecision] {
        self.inner.decisions()
    }

    fn poll(&mut self, _wait: Duration) -> Result<Option<StepResult>, StageError> {
        self.check()?;
        self.late = !self.late;
        if self.late { Ok(self.held.pop_front()) } else { Ok(None) }
    }

    fn truncate(&mut self, seq: SeqId, n_keep: u32) -> Result<(), StageError> {
        self.inner.truncate(seq, n_keep)
    }

    fn copy(&mut self, from: SeqId, to: SeqId, n_rows: u32) -> Result<(), StageError> {
        self.check()?;
        self.inner.copy(from, to, n_rows)
    }

    fn save(&mut self, _seq: SeqId, _n_rows: u32) -> Result<Vec<u8>, StageError> {
        Err(StageError::Unsupported("save rows"))
    }

    fn restore(&mut self, _seq: SeqId, _state: &[u8], _n_rows: u32) -> Result<(), StageError> {
        Err(StageError::Unsupported("restore rows"))
    }

    fn draining(&self) -> Option<&str> {
        self.line.is_draining().then_some("stage 1 is shutting down")
    }

    fn release(&mut self) -> StageError {
        *self.line.draining.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.lose()
    }

    fn revive(&mut self) -> bool {
        let left = self.line.away.load(Ordering::SeqCst);
        if left > 0 {
            if left < u64::MAX {
                self.line.away.store(left - 1, Ordering::SeqCst);
            }
            return false;
        }
        let emptied = (0..self.shape().n_seq_max).all(|seq| self.inner.truncate(SeqId(seq), 0).is_ok());
        self.lost = !emptied;
        emptied
    }
}
