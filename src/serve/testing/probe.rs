//! What tests see of an engine that a server has taken over, and how they interfere.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use crate::stage::{DraftRow, Row, SeqId, Span};

/// How long a test waits before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(20);

/// What goes wrong in a call of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `StageError::KvFull`.
    KvFull,
    /// `StageError::Engine`.
    Engine,
    /// The engine panics.
    Panic,
    /// The first row of logits holds a NaN.
    Nan,
    /// One logit is missing.
    ShortOutput,
    /// `StageError::Engine` from the draft head.
    Draft,
    /// The first row of the draft head's logits holds a NaN.
    DraftNan,
    /// One logit of the draft head is missing.
    ShortDraft,
    /// `StageError::Engine` when part of a sequence is to be dropped.
    Truncate,
    /// `StageError::Engine` when rows are to be copied or restored.
    Part,
}

impl Fault {
    /// Which call it spoils.
    fn place(self) -> Place {
        match self {
            Self::KvFull | Self::Engine | Self::Panic | Self::Nan | Self::ShortOutput => Place::Forward,
            Self::Draft | Self::DraftNan | Self::ShortDraft => Place::Draft,
            Self::Truncate => Place::Truncate,
            Self::Part => Place::Part,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Forward,
    Draft,
    Truncate,
    Part,
}

/// One call of an engine that drafts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// A pass, with what its rows were for.
    Forward(Vec<Span>),
    /// The draft head was asked.
    Draft(Vec<DraftRow>),
    /// A sequence was cut to so many rows, more than none.
    Truncate(SeqId, u32),
}

/// A look into a [`FakeEngine`](super::FakeEngine) that a server has taken over.
#[derive(Clone, Debug, Default)]
pub struct Probe {
    inner: Arc<ProbeInner>,
}

#[derive(Debug, Default)]
struct ProbeInner {
    faults: Mutex<VecDeque<Fault>>,
    kv_rows: AtomicU32,
    steps: AtomicU64,
    calls: Mutex<Vec<Call>>,
}

impl Probe {
    /// Makes the next call that this fault can spoil and that has none yet go wrong.
    pub fn inject(&self, fault: Fault) {
        locked(&self.inner.faults).push_back(fault);
    }

    /// KV rows held by all sequences.
    pub fn kv_rows(&self) -> u32 {
        self.inner.kv_rows.load(SeqCst)
    }

    /// Steps begun.
    pub fn steps(&self) -> u64 {
        self.inner.steps.load(SeqCst)
    }

    pub(super) fn set_kv_rows(&self, rows: u32) {
        self.inner.kv_rows.store(rows, SeqCst);
    }

    pub(super) fn count_step(&self) {
        self.inner.steps.fetch_add(1, SeqCst);
    }

    pub(super) fn record(&self, call: Call) {
        locked(&self.inner.calls).push(call);
    }

    /// Calls of an engine that drafts, so far.
    pub fn calls(&self) -> Vec<Call> {
        locked(&self.inner.calls).clone()
    }

    /// The next fault that waits for such a call.
    pub(super) fn next_fault(&self, place: Place) -> Option<Fault> {
        let mut faults = locked(&self.inner.faults);
        let i = faults.iter().position(|fault| fault.place() == place)?;
        faults.remove(i)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stops an engine before each step. Dropped, the engine runs freely.
pub struct Gate {
    batches: mpsc::Receiver<Vec<(Row, i32)>>,
    permits: mpsc::Sender<()>,
}

impl Gate {
    /// Waits until the engine stands before a step and returns its rows with their tokens.
    ///
    /// # Panics
    /// When no step comes.
    pub fn batch(&self) -> Vec<(Row, i32)> {
        match self.batches.recv_timeout(PATIENCE) {
            Ok(batch) => batch,
            Err(error) => panic!("no step came: {error}"),
        }
    }

    /// Lets the step go on that [`Gate::batch`] has shown.
    pub fn open(&self) {
        let _ = self.permits.send(());
    }

    /// [`Gate::batch`], then [`Gate::open`].
    pub fn step(&self) -> Vec<(Row, i32)> {
        let batch = self.batch();
        self.open();
        batch
    }
}

/// The engine's side of a [`Gate`].
pub(super) struct Barrier {
    batches: mpsc::Sender<Vec<(Row, i32)>>,
    permits: mpsc::Receiver<()>,
}

/// Both sides of a gate.
pub(super) fn gate() -> (Barrier, Gate) {
    let (batch_sender, batches) = mpsc::channel();
    let (permits, permit_receiver) = mpsc::channel();
    (Barrier { batches: batch_sender, permits: permit_receiver }, Gate { batches, permits })
}

impl Barrier {
    /// Shows a batch and waits for leave to go on; whether the gate is still there.
    pub(super) fn pass(&self, batch: Vec<(Row, i32)>) -> bool {
        self.batches.send(batch).is_ok() && self.permits.recv().is_ok()
    }
}
