//! State that the engine thread publishes and every handle reads, without a lock on the engine.

use std::{
    sync::{
        OnceLock, PoisonError, RwLock,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::serve::{FinishReason, ServeError};

/// Where a server stands. Moves forward only, `Failed` being reachable from everywhere but `Stopped`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// No engine yet.
    Loading,
    /// Takes requests.
    Ready,
    /// Takes no more requests and finishes the running ones.
    Draining,
    /// Drained: the engine thread has let go of every request.
    Stopped,
    /// The model did not load, or the engine cannot go on.
    Failed,
}

impl Phase {
    /// The word for it in status bodies and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// A reading of a server's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Where the server stands.
    pub phase: Phase,
    /// Why, when it failed.
    pub failure: Option<String>,
    /// Which stage on another machine is lost at the moment, and why. Requests are taken meanwhile only where they may wait
    /// for it ([`ServeOptions::resume_timeout`](crate::serve::ServeOptions::resume_timeout)).
    pub unavailable: Option<String>,
    /// Time since the engine thread last showed life; `None` before it runs and after it has ended. It beats before
    /// every step and at least every 250 ms when idle, so the age reaches the duration of the longest step.
    pub beat_age: Option<Duration>,
    /// Lanes that hold a request.
    pub lanes_busy: u32,
    /// Lanes in all; 0 while loading.
    pub lanes: u32,
    /// Requests accepted that have no lane yet.
    pub queued: u32,
    /// KV rows of running requests.
    pub kv_used: u32,
    /// KV rows in all; 0 while loading.
    pub kv_capacity: u32,
}

/// Requests since the start. Every accepted request ends for exactly one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests accepted by [`submit`](crate::serve::ServeHandle::submit).
    pub started: u64,
    finished: [u64; FinishReason::ALL.len()],
}

impl Totals {
    /// Requests that ended for `reason`.
    pub fn finished(&self, reason: FinishReason) -> u64 {
        self.finished[reason as usize]
    }

    /// Requests that ended.
    pub fn finished_in_all(&self) -> u64 {
        self.finished.iter().sum()
    }
}

/// Why no request can be worked on at the moment.
#[derive(Clone, Debug)]
struct Unavailable {
    error: ServeError,
    /// None is taken either.
    refuses: bool,
}

/// The one copy of the published state.
#[derive(Debug)]
pub(super) struct Shared {
    phase: watch::Sender<Phase>,
    failure: OnceLock<ServeError>,
    unavailable: RwLock<Option<Unavailable>>,
    epoch: Instant,
    /// Milliseconds after `epoch`, plus one; 0 while no engine thread runs.
    beat: AtomicU64,
    in_flight: AtomicU32,
    lanes_busy: AtomicU32,
    lanes: AtomicU32,
    kv_used: AtomicU32,
    kv_capacity: AtomicU32,
    started: AtomicU64,
    finished: [AtomicU64; FinishReason::ALL.len()],
}

impl Shared {
    pub(super) fn new() -> Self {
        Self {
            phase: watch::Sender::new(Phase::Loading),
            failure: OnceLock::new(),
            unavailable: RwLock::new(None),
            epoch: Instant::now(),
            beat: AtomicU64::new(0),
            in_flight: AtomicU32::new(0),
            lanes_busy: AtomicU32::new(0),
            lanes: AtomicU32::new(0),
            kv_used: AtomicU32::new(0),
            kv_capacity: AtomicU32::new(0),
            started: AtomicU64::new(0),
            finished: Default::default(),
        }
    }

    pub(super) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(super) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Moves to `next` if that is forward; whether it moved.
    pub(super) fn advance(&self, next: Phase) -> bool {
        self.phase.send_if_modified(|phase| {
            let forward = *phase < next && !(*phase == Phase::Stopped && next == Phase::Failed);
            if forward {
                *phase = next;
            }
            forward
        })
    }

    /// Fails the server for good; the first reason given stays.
    pub(super) fn fail(&self, error: ServeError) {
        self.failure.get_or_init(|| error);
        self.advance(Phase::Failed);
    }

    /// Why no new request is taken, unless ready.
    pub(super) fn refusal(&self) -> Option<ServeError> {
        match self.phase() {
            Phase::Ready => self.unavailable().filter(|it| it.refuses).map(|it| it.error),
            Phase::Loading => Some(ServeError::Loading),
            Phase::Draining | Phase::Stopped => Some(ServeError::Draining),
            Phase::Failed => Some(self.failure()),
        }
    }

    /// No request can be worked on at the moment, and with `refuses` none is taken.
    pub(super) fn set_unavailable(&self, error: &ServeError, refuses: bool) {
        let error = error.clone();
        *self.unavailable.write().unwrap_or_else(PoisonError::into_inner) = Some(Unavailable { error, refuses });
    }

    /// Requests are worked on again.
    pub(super) fn set_available(&self) {
        *self.unavailable.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn unavailable(&self) -> Option<Unavailable> {
        self.unavailable.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn failure(&self) -> ServeError {
        let unknown = || ServeError::Engine("the engine thread ended".into());
        self.failure.get().cloned().unwrap_or_else(unknown)
    }

    /// What a request gets that was let go without an answer.
    pub(super) fn abandoned(&self) -> ServeError {
        self.refusal().unwrap_or_else(|| self.failure())
    }

    pub(super) fn beat(&self) {
        let elapsed = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.beat.store(elapsed + 1, Relaxed);
    }

    pub(super) fn stop_beating(&self) {
        self.beat.store(0, Relaxed);
    }

    pub(super) fn set_capacity(&self, lanes: u32, kv_rows: u32) {
        self.lanes.store(lanes, Relaxed);
        self.kv_capacity.store(kv_rows, Relaxed);
    }

    pub(super) fn set_usage(&self, lanes_busy: u32, kv_rows: u32) {
        self.lanes_busy.store(lanes_busy, Relaxed);
        self.kv_used.store(kv_rows, Relaxed);
    }

    /// Counts a request in, unless `limit` are in flight already.
    pub(super) fn enter(&self, limit: u32) -> bool {
        let entered = self.in_flight.fetch_update(Relaxed, Relaxed, |n| (n < limit).then_some(n + 1)).is_ok();
        if entered {
            self.started.fetch_add(1, Relaxed);
        }
        entered
    }

    /// Counts a request out.
    pub(super) fn leave(&self, reason: FinishReason) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.finished[reason as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn queued(&self) -> u32 {
        self.in_flight.load(Relaxed).saturating_sub(self.lanes_busy.load(Relaxed))
    }

    pub(super) fn totals(&self) -> Totals {
        Totals { started: self.started.load(Relaxed), finished: self.finished.each_ref().map(|n| n.load(Relaxed)) }
    }

    pub(super) fn status(&self) -> Status {
        let phase = self.phase();
        let beat = self.beat.load(Relaxed).checked_sub(1).map(Duration::from_millis);
        Status {
            phase,
            failure: (phase == Phase::Failed).then(|| self.failure().to_string()),
            unavailable: self.unavailable().map(|it| it.error.to_string()),
            beat_age: beat.map(|beat| self.epoch.elapsed().saturating_sub(beat)),
            lanes_busy: self.lanes_busy.load(Relaxed),
            lanes: self.lanes.load(Relaxed),
            queued: self.queued(),
            kv_used: self.kv_used.load(Relaxed),
            kv_capacity: self.kv_capacity.load(Relaxed),
        }
    }
}
