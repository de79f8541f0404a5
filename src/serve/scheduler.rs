//! The engine thread: steps, endings. Who gets a lane is in `admission`, what happens when a stage is lost in `recovery`.

mod admission;
mod recovery;

use std::{
    any::Any,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, TryRecvError},
    },
    time::{Duration, Instant},
};

use crate::{
    pipeline::{Pipeline, StepResult},
    policy::Resolver,
    serve::{
        FinishReason, Phase, ServeError,
        batch::Batch,
        job::{Job, Limits},
        lane::{Ending, Landed, Lane, end_queued},
        observe,
        pace::Pace,
        prefix::Prefixes,
        shared::Shared,
    },
    stage::{SeqId, StageError},
    text::TextModel,
};
use recovery::Lost;

/// How often the idle thread shows life.
const IDLE_BEAT: Duration = Duration::from_millis(250);

/// How long the thread looks for the result of a step before it looks for requests, when one could start at once.
const GLANCE: Duration = Duration::from_millis(1);

/// The same, when none could.
const LOOK: Duration = Duration::from_millis(20);

/// Failed steps in a row after which the engine counts as broken.
const FAILURES_IN_A_ROW: u32 = 3;

/// What handles send to the engine thread.
pub(super) enum Command {
    /// A checked request.
    Submit(Box<Job>),
    /// Shut down; running requests may go on until then (`None`: for ever).
    Drain(Option<Instant>),
}

/// What the engine thread starts with.
pub(super) struct Parts {
    pub(super) pipeline: Box<dyn Pipeline>,
    pub(super) text: Arc<dyn TextModel>,
    pub(super) shared: Arc<Shared>,
    pub(super) inbox: mpsc::Receiver<Command>,
    pub(super) limits: Limits,
    /// Id of the strategy, when the server speculates.
    pub(super) strategy: Option<Arc<str>>,
    /// How attention paths are decided, when the engine has a choice.
    pub(super) policy: Option<Arc<Resolver>>,
}

/// The engine thread's whole life. However it ends, a panic included, every request gets its last event and the phase
/// says what happened.
pub(super) fn run(parts: Parts) {
    let shared = parts.shared.clone();
    let mut scheduler = Scheduler::new(parts);
    let outcome = catch_unwind(AssertUnwindSafe(|| scheduler.serve()))
        .unwrap_or_else(|panic| Err(ServeError::Engine(format!("the engine thread panicked: {}", message(&*panic)))));
    if let Err(error) = outcome {
        tracing::error!(%error, "the server has failed and takes no more requests");
        // The phase first: whoever is told of a failed request must not find the server ready.
        shared.fail(error);
    }
    scheduler.abandon();
    shared.stop_beating();
    shared.advance(Phase::Draining);
    shared.advance(Phase::Stopped);
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// A step on its way.
struct Flight {
    ticket: u64,
    began: Instant,
    /// Lane, admission number of its request, and what the step holds of it.
    parts: Vec<(usize, u64, Landed)>,
    prompt_rows: usize,
    decoding: usize,
    drafts: usize,
}

struct Scheduler {
    pipeline: Box<dyn Pipeline>,
    text: Arc<dyn TextModel>,
    shared: Arc<Shared>,
    inbox: mpsc::Receiver<Command>,
    limits: Limits,
    strategy: Option<Arc<str>>,
    policy: Option<Arc<Resolver>>,
    n_batch: u32,
    /// Steps on their way, the oldest first.
    flights: VecDeque<Flight>,
    tickets: u64,
    /// When the last step came back.
    landed: Instant,
    /// Set while a stage on another machine is lost.
    lost: Option<Lost>,
    /// Times that one was lost since the last step came back.
    losses: u32,
    /// Waiting requests, the oldest first.
    queue: VecDeque<Box<Job>>,
    /// Lane `i` owns sequence `i`.
    lanes: Vec<Option<Lane>>,
    /// Admission number of each lane's request: the highest is the youngest.
    ages: Vec<u64>,
    admissions: u64,
    /// KV rows promised to the running requests, at most `limits.kv_rows`.
    promised: u32,
    prefixes: Prefixes,
    pace: Pace,
    /// When the shutdown ends the running requests; outer `None`: no shutdown, inner `None`: never.
    drain: Option<Option<Instant>>,
    /// Handles exist that can still send.
    connected: bool,
    failures: u32,
    batch: Batch,
}

impl Scheduler {
    fn new(Parts { pipeline, text, shared, inbox, limits, strategy, policy }: Parts) -> Self {
        let lanes = limits.lanes as usize;
        let n_batch = pipeline.shape().n_batch;
        Self {
            pipeline,
            text,
            shared,
            inbox,
            limits,
            strategy,
            policy,
            n_batch,
            flights: VecDeque::new(),
            tickets: 0,
            landed: Instant::now(),
            lost: None,
            losses: 0,
            queue: VecDeque::new(),
            lanes: (0..lanes).map(|_| None).collect(),
            ages: vec![0; lanes],
            admissions: 0,
            promised: 0,
            prefixes: Prefixes::new(limits.lanes, limits.prefix_step, limits.prefix_cache_bytes),
            pace: Pace::new(limits.pieces, limits.lanes, limits.step_tokens),
            drain: None,
            connected: true,
            failures: 0,
            batch: Batch::default(),
        }
    }

    /// Serves until drained, or until nobody is left who could ask; an error means that the engine is broken.
    fn serve(&mut self) -> Result<(), ServeError> {
        loop {
            self.shared.beat();
            // Here, since a request that ends is still counted while its last step publishes.
            self.publish();
            self.receive();
            self.drop_cancelled()?;
            self.apply_drain()?;
            if self.lost.is_some() {
                self.await_chain()?;
            } else if !self.heed_draining()? {
                self.admit()?;
            }
            if self.is_idle() && (self.drain.is_some() || !self.connected) {
                return Ok(());
            }
            if self.lost.is_none() {
                self.fetch_from_leaders()?;
                while self.flights.len() < self.most_flights() && self.launch()? {}
                self.fail_stuck()?;
            }
            if self.lost.is_none() {
                self.land()?;
            }
        }
    }

    /// Steps that may be on their way together: one for each stage, and one on the line.
    fn most_flights(&self) -> usize {
        match self.pipeline.depth() {
            0 | 1 => 1,
            depth => depth + 1,
        }
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.lanes.iter().all(Option::is_none)
    }

    /// Takes in every command there is; waits for one only when there is nothing else to do.
    fn receive(&mut self) {
        if self.is_idle() && self.drain.is_none() {
            match self.inbox.recv_timeout(IDLE_BEAT) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.connected = false,
            }
        }
        loop {
            match self.inbox.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.connected = false;
                    return;
                }
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(job) => self.queue.push_back(job),
            Command::Drain(deadline) => self.drain = Some(deadline),
        }
    }

    /// Lets go of every request whose client has left or whose time is over.
    fn drop_cancelled(&mut self) -> Result<(), ServeError> {
        let late = self.limits.timeout.map(|timeout| (Instant::now(), timeout));
        let waiting = self.queue.len();
        for _ in 0..waiting {
            let Some(job) = self.queue.pop_front() else { break };
            if job.reply.is_gone() {
                end_queued(*job, Ending::Finished(FinishReason::Cancelled));
            } else if late.is_some_and(|(now, timeout)| job.is_late(now, timeout)) {
                end_queued(*job, Ending::Failed(ServeError::Deadline));
            } else {
                self.queue.push_back(job);
            }
        }
        let mut found = false;
        for lane in self.lanes.iter_mut().flatten() {
            if lane.is_gone() {
                lane.ending = Some(Ending::Finished(FinishReason::Cancelled));
            } else if late.is_some_and(|(now, timeout)| lane.is_late(now, timeout)) {
                lane.ending = Some(Ending::Failed(ServeError::Deadline));
            }
            found |= lane.ending.is_some();
        }
        if found { self.settle() } else { Ok(()) }
    }

    /// During the shutdown nobody waits for a lane, and after its deadline nobody holds one.
    fn apply_drain(&mut self) -> Result<(), ServeError> {
        let Some(deadline) = self.drain else { return Ok(()) };
        for job in self.queue.drain(..) {
            end_queued(*job, Ending::Failed(ServeError::Draining));
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            self.fail_running(&ServeError::Draining);
            return self.settle();
        }
        Ok(())
    }

    /// Sends a step on its way, if there is anything to do; whether there was.
    fn launch(&mut self) -> Result<bool, ServeError> {
        let depth = self.pipeline.depth();
        self.batch.plan(&self.lanes, self.n_batch, self.limits.pieces, &self.pace, depth);
        if !self.batch.compose(&mut self.lanes) {
            return Ok(false);
        }
        self.tickets += 1;
        self.batch.step.ticket = self.tickets;
        let began = Instant::now();
        match self.pipeline.submit(&self.batch.step) {
            Ok(()) => {}
            Err(error @ StageError::KvFull { .. }) => return self.fail_youngest(error).map(|()| false),
            Err(error) => return self.engine_failed(error).map(|()| false),
        }
        for decided in self.pipeline.decisions() {
            let lane = self.lanes.get_mut(decided.seq.0 as usize);
            lane.into_iter().flatten().for_each(|lane| lane.note(&decided.decision));
        }
        let mut parts = Vec::with_capacity(self.batch.parts.len());
        for part in &self.batch.parts {
            if let Some(lane) = &mut self.lanes[part.lane] {
                parts.push((part.lane, self.ages[part.lane], lane.launched(part.rows, part.window, part.output)));
            }
        }
        self.flights.push_back(Flight {
            ticket: self.tickets,
            began,
            parts,
            prompt_rows: self.batch.prompt_rows,
            decoding: self.batch.decoding(),
            drafts: self.batch.drafts,
        });
        Ok(true)
    }

    /// A request that can neither go on nor waits for anything is a fault of ours. It must not wait for ever.
    fn fail_stuck(&mut self) -> Result<(), ServeError> {
        let mut found = false;
        for lane in self.lanes.iter_mut().flatten().filter(|lane| lane.is_stuck()) {
            let message = format!("a request got stuck: {}", lane.describe());
            tracing::error!(message, sequence = lane.seq().0);
            lane.ending = Some(Ending::Failed(ServeError::Engine(message)));
            found = true;
        }
        if found { self.settle() } else { Ok(()) }
    }

    /// Takes in the result of the oldest step, if it comes soon.
    fn land(&mut self) -> Result<(), ServeError> {
        let wait = match self.flights.len() {
            0 => Duration::ZERO,
            // A request that arrives could start at once.
            n if n < self.most_flights() => GLANCE,
            _ => LOOK,
        };
        match self.pipeline.poll(wait) {
            Ok(Some(result)) => self.apply(result),
            Ok(None) => Ok(()),
            Err(error) => self.engine_failed(error),
        }
    }

    /// Gives every lane what the step has brought it.
    fn apply(&mut self, result: StepResult) -> Result<(), ServeError> {
        // Steps from before a fault are of no interest any more.
        let expected = self.flights.front().is_some_and(|flight| flight.ticket == result.ticket);
        let Some(flight) = expected.then(|| self.flights.pop_front()).flatten() else { return Ok(()) };
        let now = Instant::now();
        let mut outcomes = result.outcomes.into_iter().peekable();
        for (index, age, part) in flight.parts {
            let outcome = outcomes.next_if(|(seq, _)| seq.0 as usize == index).map(|(_, outcome)| outcome);
            // The lane may have got another request meanwhile.
            if let Some(lane) = self.lanes[index].as_mut().filter(|_| self.ages[index] == age) {
                lane.land(flight.ticket, part, outcome, self.text.as_ref());
            }
        }
        // A step that had to wait for the one before it did not take the time for itself.
        let took = now.saturating_duration_since(flight.began.max(self.landed));
        self.landed = now;
        observe::step(flight.prompt_rows, flight.decoding, flight.drafts, took);
        self.pace.note(flight.prompt_rows, flight.decoding, took);
        (self.failures, self.losses) = (0, 0);
        self.settle()
    }

    /// The promises rule this out; should the engine see it otherwise, rows that are kept for nobody go first, then one
    /// request pays and its neighbours go on.
    fn fail_youngest(&mut self, error: StageError) -> Result<(), ServeError> {
        if self.prefixes.kept_rows() > 0 {
            tracing::warn!(%error, "the engine ran out of KV rows below its own limit: idle lanes are emptied");
            return self.shrink_kept(0);
        }
        tracing::error!(%error, promised = self.promised, "the engine ran out of KV rows below its own limit");
        let ages = &self.ages;
        let occupied = self.lanes.iter_mut().zip(ages).filter_map(|(lane, age)| Some((lane.as_mut()?, age)));
        if let Some((lane, _)) = occupied.max_by_key(|(_, age)| **age) {
            lane.ending = Some(Ending::Failed(ServeError::Engine(error.to_string())));
        }
        self.settle()
    }

    /// The engine's state is unknown: every running request fails and every sequence is dropped. Waiting ones stay.
    fn engine_failed(&mut self, error: StageError) -> Result<(), ServeError> {
        self.flights.clear();
        if let StageError::Unavailable(message) = error {
            return self.lose(message);
        }
        self.failures += 1;
        tracing::error!(%error, failures_in_a_row = self.failures, "a step of the engine failed");
        let error = match error {
            StageError::Engine(message) => ServeError::Engine(message),
            other => ServeError::Engine(other.to_string()),
        };
        if self.failures >= FAILURES_IN_A_ROW {
            return Err(error);
        }
        self.fail_running(&error);
        self.prefixes.forget();
        // Idle lanes may have kept rows.
        for seq in (0..self.limits.lanes).filter(|seq| self.lanes[*seq as usize].is_none()) {
            let emptied = self.pipeline.truncate(SeqId(seq), 0);
            emptied.map_err(|error| ServeError::Engine(format!("sequence {seq} cannot be dropped: {error}")))?;
        }
        self.settle_with(false)
    }

    fn fail_running(&mut self, error: &ServeError) {
        for lane in self.lanes.iter_mut().flatten() {
            lane.ending = Some(Ending::Failed(error.clone()));
        }
    }

    /// Frees the lanes whose requests are over, then tells their clients: who has the last event finds the lane free.
    fn settle(&mut self) -> Result<(), ServeError> {
        self.settle_with(true)
    }

    /// `keep`: their rows may be of use to others.
    fn settle_with(&mut self, keep: bool) -> Result<(), ServeError> {
        let mut over = Vec::new();
        let mut broken = None;
        for (i, slot) in self.lanes.iter_mut().enumerate() {
            let Some(ending) = slot.as_mut().and_then(|lane| lane.ending.take()) else { continue };
            let Some(lane) = slot.take() else { continue };
            let rows = if keep { lane.legacy(self.prefixes.step()) } else { None };
            if let Err(error) = self.prefixes.keep(self.pipeline.as_mut(), i, rows) {
                broken = Some(ServeError::Engine(format!("sequence {i} cannot be dropped: {error}")));
            }
            self.promised -= lane.kv_rows();
            over.push((lane, ending));
        }
        self.publish();
        for (lane, ending) in over {
            lane.end(ending);
        }
        broken.map_or(Ok(()), Err)
    }

    fn publish(&self) {
        let running = self.lanes.iter().flatten();
        let (busy, kv_used) = running.fold((0, 0), |(busy, rows), lane| (busy + 1, rows + lane.rows()));
        self.shared.set_usage(busy, kv_used);
        observe::levels((busy, self.limits.lanes), (kv_used, self.limits.kv_rows), self.shared.queued());
        self.prefixes.publish();
    }

    /// Fails whatever is left, for the reason that the phase gives. Does not touch the engine.
    fn abandon(&mut self) {
        let error = self.shared.abandoned();
        let lanes: Vec<Lane> = self.lanes.iter_mut().filter_map(Option::take).collect();
        self.promised = 0;
        self.publish();
        for lane in lanes {
            lane.end(Ending::Failed(error.clone()));
        }
        while let Ok(command) = self.inbox.try_recv() {
            self.obey(command);
        }
        for job in self.queue.drain(..) {
            end_queued(*job, Ending::Failed(error.clone()));
        }
    }
}
