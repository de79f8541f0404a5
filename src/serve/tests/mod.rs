//! The scheduler on the fake engine.

mod answers;
mod batching;
mod chains;
mod deadlines;
mod draft_faults;
mod faults;
mod grammar;
mod lifecycle;
mod paths;
mod prefixes;
mod speculation;

use std::{sync::Arc, thread::JoinHandle};

use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    testing::{FakeEngine, FakeText, Gate, Probe, card},
    *,
};
use crate::{
    pipeline::Local,
    text::{SamplingParams, TextModel},
};

/// A running server with all that tests want to look at.
struct House {
    handle: ServeHandle,
    thread: JoinHandle<()>,
    probe: Probe,
}

impl House {
    fn open(engine: FakeEngine, text: FakeText, options: ServeOptions) -> Self {
        Self::with_card(engine, text, card(), options)
    }

    fn with_card(engine: FakeEngine, text: FakeText, card: ModelCard, options: ServeOptions) -> Self {
        let probe = engine.probe();
        let (handle, thread) = spawn(Box::new(engine), Arc::new(text), card, options).unwrap();
        Self { handle, thread, probe }
    }

    /// `lanes` lanes, `n_ctx` KV rows, any request may use them all.
    fn plain(lanes: u32, n_ctx: u32, n_batch: u32) -> Self {
        let text = FakeText::new();
        Self::open(FakeEngine::new(&text, lanes, n_ctx, n_batch), text, roomy())
    }

    /// The same, stopped before each step.
    fn gated(lanes: u32, n_ctx: u32, n_batch: u32) -> (Self, Gate) {
        let text = FakeText::new();
        let (engine, gate) = FakeEngine::new(&text, lanes, n_ctx, n_batch).gated();
        (Self::open(engine, text, roomy()), gate)
    }

    /// Answers every prompt with `reply`, the tokens being its bytes and then `pieces` by index.
    fn replying(tokens: &[i32], pieces: &[&[u8]]) -> Self {
        let text = FakeText::with_pieces(pieces.iter().copied());
        Self::open(FakeEngine::new(&text, 4, 4096, 64).replying(tokens.to_vec()), text, roomy())
    }

    fn submit(&self, request: GenerateRequest) -> UnboundedReceiver<Event> {
        self.handle.submit(request).unwrap()
    }

    fn answer(&self, request: GenerateRequest) -> Answer {
        collect(self.submit(request))
    }

    /// Nothing is held: no lane, no KV row, nobody waits.
    fn assert_empty(&self) {
        let status = self.handle.status();
        assert_eq!((status.lanes_busy, status.queued, status.kv_used, self.probe.kv_rows()), (0, 0, 0, 0));
        let totals = self.handle.totals();
        assert_eq!(totals.started, totals.finished_in_all());
    }
}

/// What the engine thread would do, to be done here.
fn prepare(starter: &Starter, engine: FakeEngine, text: FakeText, card: ModelCard) -> impl FnOnce() + Send + 'static {
    let text: Arc<dyn TextModel> = Arc::new(text);
    starter.prepare(Box::new(Local::new(Box::new(engine), text.clone())), text, card).unwrap()
}

fn roomy() -> ServeOptions {
    ServeOptions {
        ctx_per_request: Some(u32::MAX),
        max_queue: Some(1000),
        step_tokens: Some(u32::MAX),
        ..ServeOptions::default()
    }
}

/// A greedy request.
fn ask(prompt: &str, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        prompt: ids(prompt),
        max_tokens: Some(max_tokens),
        sampling: SamplingParams::greedy(),
        ..GenerateRequest::default()
    }
}

fn ids(text: &str) -> Vec<i32> {
    text.bytes().map(i32::from).collect()
}

fn text_of(ids: &[i32]) -> String {
    ids.iter().map(|&id| char::from(u8::try_from(id).unwrap())).collect()
}

/// What the fake engine's own rule answers to `prompt`.
fn expected(prompt: &str, n: usize) -> String {
    text_of(&testing::answer(&ids(prompt), n))
}

/// Everything that came for one request.
#[derive(Debug, Default)]
struct Answer {
    started: Option<u32>,
    prompt: Option<Vec<TokenOut>>,
    text: String,
    tokens: Vec<TokenOut>,
    done: Option<(FinishReason, Usage, Timings)>,
    error: Option<ServeError>,
}

impl Answer {
    fn reason(&self) -> FinishReason {
        self.done.as_ref().unwrap_or_else(|| panic!("{self:?}")).0
    }

    fn usage(&self) -> Usage {
        self.done.as_ref().unwrap_or_else(|| panic!("{self:?}")).1
    }

    fn timings(&self) -> &Timings {
        &self.done.as_ref().unwrap_or_else(|| panic!("{self:?}")).2
    }
}

/// Receives everything and checks the order of events on the way.
fn collect(mut events: UnboundedReceiver<Event>) -> Answer {
    let mut answer = Answer::default();
    while let Some(event) = events.blocking_recv() {
        assert!(answer.done.is_none() && answer.error.is_none(), "an event after the last: {event:?}");
        assert!(answer.started.is_some() || matches!(event, Event::Started { .. } | Event::Failed(_)), "{event:?}");
        match event {
            Event::Started { prompt_tokens } => {
                assert_eq!(answer.started.replace(prompt_tokens), None, "started twice");
            }
            Event::Prompt(tokens) => {
                assert!(answer.tokens.is_empty() && answer.text.is_empty(), "the prompt after the answer");
                assert_eq!(answer.prompt.replace(tokens), None, "two prompts");
            }
            Event::Delta { text, tokens } => {
                answer.text.push_str(&text);
                answer.tokens.extend(tokens);
            }
            Event::Done { reason, usage, timings } => answer.done = Some((reason, usage, timings)),
            Event::Failed(error) => answer.error = Some(error),
        }
    }
    assert!(answer.done.is_some() || answer.error.is_some(), "no last event: {answer:?}");
    answer
}
