//! A stage on another machine is lost, and comes back.

use super::Scheduler;
use crate::serve::{
    ServeError,
    lane::{Ending, end_queued},
};
use std::{
    sync::mpsc::RecvTimeoutError,
    time::{Duration, Instant},
};

/// How often the thread asks whether the chain is back.
const ASK: Duration = Duration::from_millis(20);

/// Losses without a single step in between after which requests do not wait any more.
const LOSSES_IN_A_ROW: u32 = 3;

/// Since when a stage is lost, and how.
pub(super) struct Lost {
    since: Instant,
    error: ServeError,
    /// Nobody waits for it (any more).
    given_up: bool,
}

impl Scheduler {
    /// A stage is lost, and with it every row. Running requests wait for it to come back if the operator allows them to,
    /// and go on with the same tokens; else they fail.
    pub(super) fn lose(&mut self, message: String) -> Result<(), ServeError> {
        tracing::error!(message, "a stage of the chain is lost");
        let error = ServeError::StageUnavailable(message);
        // The status first: whoever is told of a failed request must not find the server ready.
        self.shared.set_unavailable(&error, self.limits.resume_timeout.is_none());
        self.prefixes.forget();
        for lane in self.lanes.iter_mut().flatten() {
            lane.start_again(self.text.as_ref());
        }
        self.losses += 1;
        // A request that breaks the chain each time must not hold up the others for ever.
        let given_up = self.losses >= LOSSES_IN_A_ROW;
        self.lost = Some(Lost { since: Instant::now(), error, given_up });
        self.give_up_late()
    }

    /// Whether a stage is about to end. Then waiting requests fail, running ones finish, and the stage is let go.
    pub(super) fn heed_draining(&mut self) -> Result<bool, ServeError> {
        let Some(why) = self.pipeline.draining() else { return Ok(false) };
        let error = ServeError::StageUnavailable(why.to_owned());
        self.shared.set_unavailable(&error, true);
        for job in self.queue.drain(..) {
            end_queued(*job, Ending::Failed(error.clone()));
        }
        if self.lanes.iter().all(Option::is_none) {
            let released = self.pipeline.release();
            self.engine_failed(released)?;
        }
        Ok(true)
    }

    /// Asks for the chain, and starts every request again when it is there.
    pub(super) fn await_chain(&mut self) -> Result<(), ServeError> {
        if self.pipeline.revive() {
            return self.resume();
        }
        self.give_up_late()?;
        match self.inbox.recv_timeout(ASK) {
            Ok(command) => self.obey(command),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.connected = false,
        }
        Ok(())
    }

    /// Fails all requests when they have waited long enough.
    fn give_up_late(&mut self) -> Result<(), ServeError> {
        let Some(lost) = &mut self.lost else { return Ok(()) };
        // Requests that were on their way when the stage was lost still arrive.
        let late = lost.given_up || self.limits.resume_timeout.is_none_or(|timeout| lost.since.elapsed() >= timeout);
        if !late {
            return Ok(());
        }
        lost.given_up = true;
        let error = lost.error.clone();
        self.shared.set_unavailable(&error, true);
        for job in self.queue.drain(..) {
            end_queued(*job, Ending::Failed(error.clone()));
        }
        self.fail_running(&error);
        self.settle_with(false)
    }

    fn resume(&mut self) -> Result<(), ServeError> {
        let Some(lost) = self.lost.take() else { return Ok(()) };
        let running = self.lanes.iter().flatten().count();
        tracing::info!(after_ms = lost.since.elapsed().as_millis() as u64, running, "the chain is whole again");
        self.failures = 0;
        self.shared.set_available();
        let openings: Vec<_> = self.lanes.iter().flatten().map(super::Lane::opening).collect();
        for opening in openings {
            if let Err(error) = self.pipeline.open(opening) {
                return self.engine_failed(error);
            }
        }
        Ok(())
    }
}
