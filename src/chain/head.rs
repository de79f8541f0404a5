//! The first stage of a chain: a [`Pipeline`] whose later stages are on other machines.

use super::{
    ChainStatus, Down, Hello, Link, LinkError, LinkOptions, RemoteOpening, Security, StageInfo, StepFrame, Target, Up,
    link::connect, worker::pass,
};
use crate::{
    package::LayerRange,
    pipeline::{Opening, Pipeline, Step, StepResult, TailError},
    stage::{SeqId, SpanDecision, StageEngine, StageError, StageInput, StageShape, common_step},
    telemetry::metrics,
};
use std::{
    collections::VecDeque,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};
use tokio_util::task::AbortOnDropHandle;

/// Time between two attempts to connect: at first, and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Time that a step may take on the way, besides the operator's bound: for each row in flight.
const ROW_TIME: Duration = Duration::from_secs(2);

/// Where the chain goes on, and as whom.
#[derive(Clone, Debug)]
pub struct Onward {
    /// Where the next stage listens.
    pub target: Target,
    /// How to prove who calls.
    pub security: Security,
    /// How long things may take on the link.
    pub options: LinkOptions,
    /// How long a step may take on all later stages, besides 2 s for each row in flight.
    pub step_timeout: Duration,
    /// What the chain has to be.
    pub hello: Hello,
}

impl Onward {
    /// Calls the next stage again and again, with growing pauses, for as long as `go_on` says so; it is told each failure.
    async fn reach(&self, status: &ChainStatus, mut go_on: impl FnMut(&LinkError) -> bool) -> Result<Link, LinkError> {
        let mut pause = BACK_OFF.0;
        loop {
            match connect(&self.target, self.hello.clone(), &self.security, &self.options).await {
                Ok(link) => return Ok(link),
                Err(error) => {
                    status.lost(&error.to_string());
                    if !go_on(&error) {
                        return Err(error);
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACK_OFF.1);
        }
    }
}

/// A chain that begins in this process.
pub struct Chain {
    engine: Box<dyn StageEngine>,
    /// Of all stages together.
    shape: StageShape,
    onward: Onward,
    runtime: tokio::runtime::Handle,
    status: Arc<ChainStatus>,
    link: Option<Link>,
    /// Where a new link arrives while there is none, and who makes it.
    coming: Option<(mpsc::Receiver<Link>, AbortOnDropHandle<()>)>,
    /// Why the chain will not last, once a stage has said so.
    draining: Option<String>,
    /// Steps on their way, the oldest first: ticket, when they went, rows.
    flying: VecDeque<(u64, Instant, usize)>,
}

impl Chain {
    /// Waits until the chain stands, trying again and again. `engine` owns the first layers; `go_on` says whether to try
    /// once more after an attempt that failed, and is told why.
    ///
    /// # Errors
    /// The last failure, when `go_on` says no.
    pub fn connect(
        engine: Box<dyn StageEngine>,
        onward: Onward,
        runtime: tokio::runtime::Handle,
        status: Arc<ChainStatus>,
        go_on: impl FnMut(&LinkError) -> bool,
    ) -> Result<Self, LinkError> {
        let link = runtime.block_on(onward.reach(&status, go_on))?;
        let shape = whole(engine.shape(), &link.stages);
        status.up(&link);
        let flying = VecDeque::new();
        Ok(Self { engine, shape, onward, runtime, status, link: Some(link), coming: None, draining: None, flying })
    }

    /// Stages of the chain, this one included; 1 while the others are lost.
    pub fn stages(&self) -> usize {
        self.link.as_ref().map_or(0, |link| link.stages.len()) + 1
    }

    /// The link is gone: every row on every stage counts as lost.
    fn lose(&mut self, why: String) -> StageError {
        (self.link, self.draining) = (None, None);
        self.flying.clear();
        self.status.lost(&why);
        self.reconnect();
        StageError::Unavailable(why)
    }

    /// Tries to reach the next stage in the background.
    fn reconnect(&mut self) {
        let (sender, coming) = mpsc::channel();
        let (onward, status) = (self.onward.clone(), self.status.clone());
        let attempts = self.runtime.spawn(async move {
            let again = |error: &LinkError| {
                tracing::warn!(%error, "the chain does not stand yet");
                true
            };
            if let Ok(link) = onward.reach(&status, again).await {
                let _ = sender.send(link);
            }
        });
        // A worker has one session: whoever is still trying gives way.
        self.coming = Some((coming, AbortOnDropHandle::new(attempts)));
    }

    fn send(&mut self, frame: Down) -> Result<(), StageError> {
        let sent = match &self.link {
            Some(link) => link.sender.send(frame),
            None => return Err(StageError::Unavailable(self.status.reason())),
        };
        match sent {
            Ok(()) => Ok(()),
            // The receiving side knows why.
            Err(_) => {
                let why = self.ended();
                Err(self.lose(why))
            }
        }
    }

    /// Why the link has ended.
    fn ended(&mut self) -> String {
        let deadline = Instant::now() + Duration::from_millis(100);
        while let Some(link) = &mut self.link {
            match link.receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Some(Up::Fault(fault))) => return fault.to_string(),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(ended) => return ended.to_string(),
            }
        }
        "the link to the next stage has ended".into()
    }

    /// How long the oldest step may still take.
    fn patience(&self) -> Option<Duration> {
        let (_, sent, _) = self.flying.front()?;
        let rows: usize = self.flying.iter().map(|(_, _, rows)| rows).sum();
        let most = self.onward.step_timeout + ROW_TIME * u32::try_from(rows).unwrap_or(u32::MAX);
        Some(most.saturating_sub(sent.elapsed()))
    }
}

impl Pipeline for Chain {
    fn shape(&self) -> &StageShape {
        &self.shape
    }

    fn depth(&self) -> usize {
        self.stages()
    }

    fn open(&mut self, opening: Opening) -> Result<Option<TailError>, StageError> {
        let grammar = opening.grammar.as_ref().map(|grammar| grammar.spec().clone());
        let opening = Opening { grammar: None, ..opening };
        self.send(Down::Open(RemoteOpening { opening, grammar })).map(|()| None)
    }

    fn submit(&mut self, step: &Step) -> Result<(), StageError> {
        let Some(takes_top_k) = self.link.as_ref().map(|link| link.stages.first().is_some_and(|it| it.takes_top_k))
        else {
            return Err(StageError::Unavailable(self.status.reason()));
        };
        let began = Instant::now();
        let mut frame = StepFrame { step: step.clone(), ..StepFrame::default() };
        (frame.hidden, frame.top_k) =
            pass(self.engine.as_mut(), &frame, StageInput::Tokens(&step.tokens), takes_top_k)?;
        metrics::stage_busy(began.elapsed());
        self.send(Down::Step(frame))?;
        self.flying.push_back((step.ticket, Instant::now(), step.rows.len()));
        Ok(())
    }

    fn decisions(&self) -> &[SpanDecision] {
        self.engine.decisions()
    }

    fn poll(&mut self, wait: Duration) -> Result<Option<StepResult>, StageError> {
        let patience = self.patience();
        let Some(link) = &mut self.link else { return Err(StageError::Unavailable(self.status.reason())) };
        self.status.measured(link.rtt());
        match link.receiver.recv_timeout(patience.map_or(wait, |patience| wait.min(patience))) {
            Ok(Some(Up::Done(report))) => {
                let Some((ticket, ..)) = self.flying.pop_front() else {
                    return Err(self.lose(format!("step {} came back that was never sent", report.result.ticket)));
                };
                if ticket != report.result.ticket {
                    let got = report.result.ticket;
                    return Err(self.lose(format!("step {got} came back, expected step {ticket}")));
                }
                Ok(Some(report.result))
            }
            Ok(Some(Up::Fault(fault))) => Err(self.lose(fault.to_string())),
            Ok(Some(Up::Draining { stage })) => {
                self.draining = Some(format!("stage {stage} is shutting down"));
                Ok(None)
            }
            Ok(Some(Up::Welcome(_) | Up::Pong { .. })) => Ok(None),
            Ok(None) if patience.is_some_and(|patience| patience <= wait) => {
                let bound = self.onward.step_timeout.as_secs();
                Err(self.lose(format!("a step has not come back in time ({bound} s and 2 s for each row)")))
            }
            Ok(None) => Ok(None),
            Err(ended) => Err(self.lose(format!("stage 1: {ended}"))),
        }
    }

    fn truncate(&mut self, seq: SeqId, n_keep: u32) -> Result<(), StageError> {
        self.engine.truncate(seq, n_keep)?;
        match self.link {
            // Lost rows need not be dropped.
            None => Ok(()),
            Some(_) => self.send(Down::Truncate { seq, n_keep }).or(Ok(())),
        }
    }

    fn copy(&mut self, from: SeqId, to: SeqId, n_rows: u32) -> Result<(), StageError> {
        self.engine.copy(from, to, n_rows)?;
        self.send(Down::Copy { from, to, n_rows })
    }

    fn save(&mut self, _seq: SeqId, _n_rows: u32) -> Result<Vec<u8>, StageError> {
        Err(StageError::Unsupported("save rows of stages on other machines"))
    }

    fn restore(&mut self, _seq: SeqId, _state: &[u8], _n_rows: u32) -> Result<(), StageError> {
        Err(StageError::Unsupported("restore rows of stages on other machines"))
    }

    fn draining(&self) -> Option<&str> {
        self.draining.as_deref()
    }

    fn release(&mut self) -> StageError {
        let why = self.draining.take().unwrap_or_else(|| "the chain was given up".into());
        self.lose(why)
    }

    fn revive(&mut self) -> bool {
        if self.link.is_some() {
            return true;
        }
        let Some(link) = self.coming.as_ref().and_then(|(coming, _)| coming.try_recv().ok()) else { return false };
        self.coming = None;
        let shape = whole(self.engine.shape(), &link.stages);
        if shape != self.shape {
            let why = format!("the chain has come back as another one: {shape:?}, expected {:?}", self.shape);
            tracing::error!(why);
            let _ = self.lose(why);
            return false;
        }
        let sequences = (0..self.shape.n_seq_max).map(SeqId);
        for seq in sequences {
            if let Err(error) = self.engine.truncate(seq, 0) {
                let _ = self.lose(format!("sequence {} of the first stage cannot be emptied: {error}", seq.0));
                return false;
            }
        }
        self.status.up(&link);
        self.link = Some(link);
        true
    }
}

/// Sizes and limits of the first stage and those behind it together.
fn whole(first: &StageShape, stages: &[StageInfo]) -> StageShape {
    let last = stages.last();
    let end = last.map_or(first.layers.end(), |stage| stage.layers.end());
    StageShape {
        layers: LayerRange::new(first.layers.start(), end).unwrap_or(first.layers),
        n_vocab: last.map_or(0, |stage| stage.n_vocab as usize),
        drafts: last.is_some_and(|stage| stage.drafts),
        pieces: stages.iter().fold(first.pieces, |pieces, stage| pieces.common(stage.pieces)),
        prefix_step: stages.iter().fold(first.prefix_step, |step, stage| common_step(step, stage.prefix_step)),
        ..first.clone()
    }
}
