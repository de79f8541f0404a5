//! A stage that computes for others: frames of one session in, hidden rows to the next stage or tokens back.
//!
//! One OS thread owns the engine and serves one session after the other. A session starts with empty sequences and ends
//! with them: what a lost session has left behind is of no use to the next one, which replays what it needs.

use super::{
    Down, Fault, FaultCode, Hello, Link, LinkEnded, LinkError, LinkFrames, LinkOptions, LinkReceiver, LinkSender,
    RemoteOpening, ReplySender, Security, Session, StageInfo, StepFrame, StepReport, Target, Up, WireDtype,
    link::connect,
};
use crate::{
    grammar::GrammarEngine,
    pipeline::{Opening, Tail, TailError, rewind},
    stage::{Boundary, SeqId, StageBatch, StageEngine, StageError, StageInput, StageOutput, TopK},
    telemetry::metrics,
    text::TextModel,
};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, watch};

/// The stages behind this one.
#[derive(Clone, Debug)]
pub struct Next {
    /// Where the next one listens.
    pub target: Target,
    /// How to prove who calls.
    pub security: Security,
    /// How long things may take.
    pub options: LinkOptions,
    /// How hidden rows travel there.
    pub wire: WireDtype,
}

/// A loaded stage that is not the first.
pub struct Worker {
    engine: Box<dyn StageEngine>,
    info: StageInfo,
    place: Place,
    runtime: tokio::runtime::Handle,
}

/// What is behind the stage.
enum Place {
    Middle(Next),
    Last { tail: Tail, text: Arc<dyn TextModel>, grammars: Option<Arc<GrammarEngine>> },
}

/// How often a session looks whether the process is to end.
const GLANCE: Duration = Duration::from_millis(100);

/// The end of a worker, which waits for the end of the session at hand. Clones share it.
#[derive(Clone, Debug)]
pub struct Drain {
    begun: Arc<AtomicBool>,
    /// Whether there is a session.
    busy: watch::Sender<bool>,
}

impl Default for Drain {
    fn default() -> Self {
        Self { begun: Arc::default(), busy: watch::Sender::new(false) }
    }
}

impl Drain {
    /// No more sessions; the stage in front is told and ends the one at hand when its requests are done.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Waits until there is no session.
    pub async fn is_over(&self) {
        // The sender lives as long as this.
        let _ = self.busy.subscribe().wait_for(|busy| !busy).await;
    }

    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    fn admit(&self, stage: u32) -> Result<(), Fault> {
        match self.has_begun() {
            true => Err(Fault { stage, code: FaultCode::Draining, text: "the stage is shutting down".into() }),
            false => Ok(()),
        }
    }
}

/// Microseconds spent on steps that have not come back, the oldest first.
type Spent = Arc<Mutex<VecDeque<(u64, u64)>>>;

impl Worker {
    /// A stage inside the model, which hands rows on to `next`. `info` is what it says of itself.
    pub fn middle(engine: Box<dyn StageEngine>, info: StageInfo, next: Next, runtime: tokio::runtime::Handle) -> Self {
        Self { engine, info, place: Place::Middle(next), runtime }
    }

    /// The last stage, which chooses tokens.
    pub fn last(
        engine: Box<dyn StageEngine>,
        info: StageInfo,
        text: Arc<dyn TextModel>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        let tail = Tail::new(text.clone(), engine.shape().n_seq_max);
        Self { engine, info, place: Place::Last { tail, text, grammars: None }, runtime }
    }

    /// Serves sessions until their sender is gone, and none that begins after `drain` has begun.
    pub fn serve(mut self, mut sessions: mpsc::Receiver<Session>, drain: &Drain) {
        while let Some(session) = sessions.blocking_recv() {
            let peer = session.peer.clone();
            tracing::info!(peer, stage = session.hello.route.len(), "a session begins");
            drain.busy.send_replace(true);
            match self.session(session, drain) {
                Ok(()) => tracing::info!(peer, "the session has ended"),
                Err(fault) => tracing::warn!(peer, %fault, "the session has failed"),
            }
            drain.busy.send_replace(false);
        }
    }

    /// One session, from its welcome to its end. An error has been told the peer.
    fn session(&mut self, session: Session, drain: &Drain) -> Result<(), Fault> {
        let Session { hello, frames, replies, .. } = session;
        let index = u32::try_from(hello.route.len()).unwrap_or(u32::MAX);
        let outcome = drain.admit(index).and_then(|()| self.empty(index)).and_then(|()| self.connect(&hello, index));
        let outcome = outcome.and_then(|link| {
            let mut stages = vec![StageInfo { index, ..self.info.clone() }];
            stages.extend(link.iter().flat_map(|link| link.stages.iter().cloned()));
            let _ = replies.send(Up::Welcome(stages));
            self.work(frames, &replies, link, index, drain)
        });
        if let Err(fault) = &outcome {
            let _ = replies.send(Up::Fault(fault.clone()));
        }
        outcome
    }

    fn empty(&mut self, index: u32) -> Result<(), Fault> {
        if let Place::Last { tail, .. } = &mut self.place {
            tail.clear();
        }
        let sequences = 0..self.engine.shape().n_seq_max;
        sequences.map(SeqId).try_for_each(|seq| self.engine.truncate(seq, 0)).map_err(|error| fault(index, &error))
    }

    /// The link to the stages behind this one, if there are any.
    fn connect(&self, hello: &Hello, index: u32) -> Result<Option<Link>, Fault> {
        let Place::Middle(next) = &self.place else { return Ok(None) };
        let route = hello.route.iter().cloned().chain([self.info.instance.clone()]).collect();
        let hello = Hello { start: self.info.layers.end(), route, wire: next.wire, ..hello.clone() };
        let link = self.runtime.block_on(connect(&next.target, hello, &next.security, &next.options));
        link.map(Some).map_err(|error| match error {
            // A stage further on has said what it is; that is what the first one has to hear.
            LinkError::Refused { fault, .. } => fault,
            LinkError::Unreachable { .. } | LinkError::Timeout { .. } => {
                Fault { stage: index + 1, code: FaultCode::Unavailable, text: error.to_string() }
            }
            error => Fault { stage: index + 1, code: FaultCode::Refused, text: error.to_string() },
        })
    }

    fn work(
        &mut self,
        mut frames: LinkFrames,
        replies: &ReplySender,
        link: Option<Link>,
        index: u32,
        drain: &Drain,
    ) -> Result<(), Fault> {
        let spent = Spent::default();
        let mut downstream = None;
        if let Some(Link { sender, receiver, stages, .. }) = link {
            downstream = Some((sender, stages.first().is_some_and(|stage| stage.takes_top_k)));
            let (replies, spent) = (replies.clone(), spent.clone());
            let back = thread::Builder::new().name("skippy-replies".into());
            back.spawn(move || pass_back(receiver, &replies, &spent, index)).map_err(|error| Fault {
                stage: index,
                code: FaultCode::Engine,
                text: format!("the thread for replies does not start: {error}"),
            })?;
        }
        let mut told = false;
        loop {
            if drain.has_begun() && !std::mem::replace(&mut told, true) {
                let _ = replies.send(Up::Draining { stage: index });
            }
            let frame = match frames.recv_timeout(GLANCE) {
                Ok(Some(frame)) => frame,
                Ok(None) => continue,
                // A session that the peer ends is no fault of anybody.
                Err(LinkEnded::Closed) => return Ok(()),
                Err(ended) => return Err(link_fault(index, &ended)),
            };
            match (frame, &downstream) {
                (Down::Step(frame), None) => self.finish(&frame, replies, index)?,
                (Down::Step(frame), Some((sender, takes_top_k))) => {
                    let frame = self.hand_on(frame, *takes_top_k, &spent, index)?;
                    send(sender, Down::Step(frame), index)?;
                }
                (Down::Open(opening), None) => self.open(opening),
                (frame @ Down::Open(_), Some((sender, _))) => send(sender, frame, index)?,
                (frame @ (Down::Truncate { .. } | Down::Copy { .. }), downstream) => {
                    self.change(&frame).map_err(|error| fault(index, &error))?;
                    downstream.iter().try_for_each(|(sender, _)| send(sender, frame.clone(), index))?;
                }
                // The link answers those itself.
                (Down::Hello(_) | Down::Ping { .. }, _) => {}
            }
        }
    }

    /// A step through a stage inside the model.
    fn hand_on(&mut self, frame: StepFrame, takes_top_k: bool, spent: &Spent, index: u32) -> Result<StepFrame, Fault> {
        let began = Instant::now();
        let input = StageInput::Hidden(boundary(&frame));
        let passed = pass(self.engine.as_mut(), &frame, input, takes_top_k).map_err(|error| fault(index, &error))?;
        let took = began.elapsed();
        metrics::stage_busy(took);
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        spent.lock().unwrap_or_else(PoisonError::into_inner).push_back((frame.step.ticket, us));
        let (hidden, top_k) = passed;
        Ok(StepFrame { hidden, top_k, step: frame.step })
    }

    /// A step through the last stage.
    fn finish(&mut self, frame: &StepFrame, replies: &ReplySender, index: u32) -> Result<(), Fault> {
        let Place::Last { tail, .. } = &mut self.place else { return Ok(()) };
        let began = Instant::now();
        let input = StageInput::Hidden(boundary(frame));
        let engine = self.engine.as_mut();
        let result = rewind(engine, &frame.step).and_then(|()| tail.run(engine, &frame.step, input));
        let result = result.map_err(|error| fault(index, &error))?;
        let took = began.elapsed();
        metrics::stage_busy(took);
        let mut compute_us = vec![0; index as usize + 1];
        if let Some(own) = compute_us.last_mut() {
            *own = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        }
        let _ = replies.send(Up::Done(StepReport { result, compute_us }));
        Ok(())
    }

    fn open(&mut self, RemoteOpening { opening, grammar }: RemoteOpening) {
        let Place::Last { tail, text, grammars } = &mut self.place else { return };
        let compiled = grammar.map(|spec| {
            let engine = match grammars {
                Some(engine) => engine.clone(),
                None => grammars.insert(Arc::new(GrammarEngine::new(text.as_ref())?)).clone(),
            };
            engine.compile(&spec)
        });
        match compiled.transpose() {
            // What is wrong with it is told with its first row.
            Ok(grammar) => drop(tail.open(Opening { grammar, ..opening }, None)),
            Err(error) => drop(tail.open(opening, Some(TailError::Grammar(error)))),
        }
    }

    fn change(&mut self, frame: &Down) -> Result<(), StageError> {
        match *frame {
            Down::Truncate { seq, n_keep } => self.engine.truncate(seq, n_keep),
            Down::Copy { from, to, n_rows } => self.engine.copy(from, to, n_rows),
            _ => Ok(()),
        }
    }
}

/// What leaves a stage inside the model.
pub(super) type Passed = (Vec<f32>, Option<(usize, Vec<i32>)>);

/// Runs a step through a stage that does not own the output. The sequences are cut to where the step begins first.
pub(super) fn pass(
    engine: &mut dyn StageEngine,
    frame: &StepFrame,
    input: StageInput<'_>,
    takes_top_k: bool,
) -> Result<Passed, StageError> {
    let step = &frame.step;
    rewind(engine, step)?;
    let batch = StageBatch { input, rows: &step.rows, tokens: Some(&step.tokens), spans: &step.spans };
    match engine.forward(&batch)? {
        StageOutput::Hidden(boundary) => {
            let top_k = boundary.top_k.filter(|_| takes_top_k).map(|lists| (lists.width, lists.lists.to_vec()));
            Ok((boundary.rows.to_vec(), top_k))
        }
        StageOutput::Logits(_) => Err(StageError::Engine("logits came back instead of hidden rows".into())),
    }
}

fn boundary(frame: &StepFrame) -> Boundary<'_> {
    let top_k = frame.top_k.as_ref().map(|(width, lists)| TopK { width: *width, lists });
    Boundary { rows: &frame.hidden, top_k }
}

fn send(sender: &LinkSender, frame: Down, index: u32) -> Result<(), Fault> {
    sender.send(frame).map_err(|_| Fault {
        stage: index + 1,
        code: FaultCode::Unavailable,
        text: "the link to the next stage has ended".into(),
    })
}

/// Hands replies of the next stage on to the one before, until the link ends; then says so.
fn pass_back(mut receiver: LinkReceiver, replies: &ReplySender, spent: &Spent, index: u32) {
    loop {
        let reply = match receiver.recv_timeout(Duration::MAX) {
            Ok(Some(Up::Done(mut report))) => {
                let mut spent = spent.lock().unwrap_or_else(PoisonError::into_inner);
                let own = spent.front().is_some_and(|(ticket, _)| *ticket == report.result.ticket);
                let own = own.then(|| spent.pop_front()).flatten();
                if let (Some((_, us)), Some(place)) = (own, report.compute_us.get_mut(index as usize)) {
                    *place = us;
                }
                Up::Done(report)
            }
            Ok(Some(reply)) => reply,
            Ok(None) => continue,
            Err(ended) => {
                let _ = replies.send(Up::Fault(link_fault(index + 1, &ended)));
                return;
            }
        };
        if replies.send(reply).is_err() {
            return;
        }
    }
}

fn link_fault(stage: u32, ended: &LinkEnded) -> Fault {
    let code = match ended {
        LinkEnded::Protocol(_) => FaultCode::Protocol,
        _ => FaultCode::Unavailable,
    };
    Fault { stage, code, text: ended.to_string() }
}

fn fault(stage: u32, error: &StageError) -> Fault {
    let code = match error {
        StageError::InvalidBatch(_) => FaultCode::Protocol,
        StageError::KvFull { .. } => FaultCode::KvFull,
        StageError::Unavailable(_) => FaultCode::Unavailable,
        StageError::Unsupported(_) | StageError::Engine(_) => FaultCode::Engine,
    };
    Fault { stage, code, text: error.to_string() }
}
