//! A request that has passed every check, with all it needs on the engine thread.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::{
    pipeline::Opening,
    serve::{
        Event, FinishReason, GenerateRequest, ServeError, ServeOptions,
        drafting::WINDOW,
        observe::Clock,
        prefix::{Footing, Wanted},
        shared::Shared,
    },
    spec::Speculation,
    stage::{Pieces, SeqId, StageShape, common_step},
    text::{StopMatcher, TextModel},
};

/// Numbers that requests are checked against; constant for the life of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) lanes: u32,
    pub(super) max_queue: u32,
    pub(super) ctx_per_request: u32,
    pub(super) kv_rows: u32,
    pub(super) n_vocab: u32,
    /// How prompts are cut.
    pub(super) pieces: Pieces,
    /// Rows of others are reused in multiples of this; 0 when the engine cannot part sequences.
    pub(super) prefix_step: u32,
    /// Time a request may take.
    pub(super) timeout: Option<Duration>,
    /// How long running requests wait for a stage that is lost; `None`: they fail at once.
    pub(super) resume_timeout: Option<Duration>,
    /// Rows of prompts in a step with generating lanes, when the operator says so.
    pub(super) step_tokens: Option<u32>,
    /// Bytes that rows of finished requests may take in host memory.
    pub(super) prefix_cache_bytes: u64,
}

impl Limits {
    /// The operator's options within what the engine can do.
    pub(super) fn new(
        shape: &StageShape,
        text: &Arc<dyn TextModel>,
        speculation: &Speculation,
        options: &ServeOptions,
    ) -> Result<Self, String> {
        if !(shape.owns_input() && shape.owns_output()) {
            return Err(format!(
                "layers {} of {} own {}: completions need every layer",
                shape.layers,
                shape.layer_count,
                if shape.owns_input() { "no output" } else { "no input" },
            ));
        }
        if shape.n_vocab == 0 || shape.n_vocab != text.n_vocab() as usize {
            return Err(format!("the logits have {} columns, the vocabulary {}", shape.n_vocab, text.n_vocab()));
        }
        let window = speculation.kind.window();
        if window > 1 && !shape.drafts {
            return Err(format!("strategy `{}` needs a draft head, the engine has none", speculation.strategy));
        }
        if window > WINDOW {
            return Err(format!("strategy `{}` drafts {} tokens at once, at most 1", speculation.strategy, window - 1));
        }
        // A lane needs a sequence, a row of every batch and a KV row.
        let most = shape.n_seq_max.min(shape.n_batch).min(shape.n_ctx);
        if most == 0 {
            return Err(format!(
                "the engine has {} sequences, {} batch rows and {} KV rows: each must be at least 1",
                shape.n_seq_max, shape.n_batch, shape.n_ctx
            ));
        }
        let lanes = options.lanes.unwrap_or(most).clamp(1, most);
        // What fits into a batch however many other lanes decode, with their drafts.
        let chunk = shape.n_batch.saturating_sub(window * (lanes - 1)).max(1);
        let pieces = fit(shape.pieces, chunk);
        Ok(Self {
            lanes,
            max_queue: options.max_queue.unwrap_or(lanes.saturating_mul(8).clamp(16, 256)),
            ctx_per_request: options.ctx_per_request.unwrap_or(shape.n_ctx / lanes).clamp(1, shape.n_ctx_seq),
            kv_rows: shape.n_ctx,
            n_vocab: text.n_vocab(),
            pieces,
            prefix_step: common_step(pieces.unit, shape.prefix_step),
            timeout: options.request_timeout,
            resume_timeout: options.resume_timeout,
            step_tokens: options.step_tokens,
            prefix_cache_bytes: options.prefix_cache_bytes,
        })
    }

    /// Requests that may be in the house, running and waiting.
    fn in_flight(&self) -> u32 {
        self.lanes.saturating_add(self.max_queue)
    }
}

/// The engine's pieces within `chunk` rows, a rest that goes along with the last one counted.
fn fit(pieces: Pieces, chunk: u32) -> Pieces {
    let unit = pieces.unit.clamp(1, chunk.div_ceil(2));
    let most = (chunk + 1 - unit).min(pieces.most) / unit * unit;
    Pieces { unit, most: most.max(unit) }
}

/// A request that has passed every check.
pub(super) struct Job {
    pub(super) request: GenerateRequest,
    pub(super) stops: StopMatcher,
    /// Tokens to generate at most: `max_tokens` within the context.
    pub(super) budget: u32,
    /// Prompt rows to compute: all when something is generated, all but the last when the prompt is only scored.
    pub(super) prompt_rows: u32,
    /// KV rows it can need at most. The last generated token never enters the cache.
    pub(super) kv_rows: u32,
    pub(super) clock: Clock,
    pub(super) reply: Reply,
}

impl Job {
    /// Checks `request` and counts it in.
    pub(super) fn new(
        mut request: GenerateRequest,
        limits: &Limits,
        shared: &Arc<Shared>,
    ) -> Result<(Self, UnboundedReceiver<Event>), ServeError> {
        check_tokens(&request.prompt, limits.n_vocab)?;
        if request.stop.iter().any(String::is_empty) {
            let message = "`stop` holds an empty string: each must have at least one character".into();
            return Err(ServeError::InvalidRequest { param: Some("stop"), message });
        }
        let n_prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        let n_ctx = limits.ctx_per_request;
        let wanted = request.max_tokens.unwrap_or(u32::MAX);
        if n_prompt_tokens.saturating_add(wanted.min(1)) > n_ctx {
            return Err(ServeError::ContextLength { n_prompt_tokens, n_ctx });
        }
        let budget = wanted.min(n_ctx - n_prompt_tokens);
        let prompt_rows = match (budget, request.prompt_logprobs) {
            (0, false) => 0,
            (0, true) => n_prompt_tokens - 1,
            _ => n_prompt_tokens,
        };
        request.sampling.validate(limits.n_vocab)?;
        // Fixed here, so that what is drawn never depends on which requests came before, nor on who draws.
        request.sampling.seed.get_or_insert_with(|| uuid::Uuid::new_v4().as_u64_pair().0);
        let stops = StopMatcher::new(&request.stop);
        let (reply, events) = Reply::new(shared, limits)?;
        let kv_rows = prompt_rows + budget.saturating_sub(1);
        let clock = Clock::start();
        Ok((Self { request, stops, budget, prompt_rows, kv_rows, clock, reply }, events))
    }

    /// Whether drafts can be of use: the first token comes from the prompt, the last one needs no draft behind it.
    pub(super) fn may_speculate(&self) -> bool {
        !self.request.without_speculation && self.budget > WINDOW
    }

    /// What rows of others it could make use of; `None` when it wants none, or needs every row's logits.
    pub(super) fn wanted(&self, footing: Footing, drafts: bool, pieces: Pieces, step: u32) -> Option<Wanted<'_>> {
        let wants = step > 0 && self.request.cache_prompt && !self.request.prompt_logprobs && self.prompt_rows > 0;
        let most = pieces.spare(self.prompt_rows, step);
        wants.then_some(Wanted { tokens: &self.request.prompt, footing, drafts, most, step })
    }

    /// What the end of the pipeline has to know: how tokens are chosen behind the prompt and those `chosen` before.
    pub(super) fn opening(&self, seq: SeqId, chosen: &[i32]) -> Opening {
        let request = &self.request;
        Opening {
            seq,
            text: request.prompt.iter().chain(chosen).copied().collect(),
            prompt: self.prompt_tokens(),
            sampling: request.sampling.clone(),
            grammar: request.grammar.clone(),
            ignore_eos: request.ignore_eos,
            logprobs: request.logprobs,
            budget: self.budget,
            kv_rows: self.kv_rows,
        }
    }

    /// Whether it has taken longer than it may.
    pub(super) fn is_late(&self, now: Instant, timeout: Duration) -> bool {
        self.clock.age(now) >= timeout
    }

    /// Tokens of the prompt.
    pub(super) fn prompt_tokens(&self) -> u32 {
        u32::try_from(self.request.prompt.len()).unwrap_or(u32::MAX)
    }
}

fn check_tokens(prompt: &[i32], n_vocab: u32) -> Result<(), ServeError> {
    let refuse = |message| Err(ServeError::InvalidRequest { param: Some("prompt"), message });
    if prompt.is_empty() {
        return refuse("`prompt` is empty: it must hold at least one token".into());
    }
    match prompt.iter().find(|&&token| u32::try_from(token).map_or(true, |id| id >= n_vocab)) {
        Some(token) => refuse(format!("`prompt` holds token {token}, the vocabulary has ids 0..{n_vocab}")),
        None => Ok(()),
    }
}

/// The way back to the client. Sees to it that exactly one of `Done` and `Failed` is sent, whatever happens to the
/// request, and that it is counted out.
pub(super) struct Reply {
    events: UnboundedSender<Event>,
    shared: Arc<Shared>,
    ended: bool,
}

impl Reply {
    fn new(shared: &Arc<Shared>, limits: &Limits) -> Result<(Self, UnboundedReceiver<Event>), ServeError> {
        if !shared.enter(limits.in_flight()) {
            return Err(ServeError::QueueFull { max_queue: limits.max_queue });
        }
        let (events, receiver) = mpsc::unbounded_channel();
        Ok((Self { events, shared: shared.clone(), ended: false }, receiver))
    }

    /// Sends an event that does not end the request.
    pub(super) fn send(&self, event: Event) {
        // A client that has left is noticed by `is_gone`.
        let _ = self.events.send(event);
    }

    /// Whether the client has left.
    pub(super) fn is_gone(&self) -> bool {
        self.events.is_closed()
    }

    /// Ends the request: it is counted out before the client learns of it.
    pub(super) fn end(mut self, reason: FinishReason, last: Option<Event>) {
        self.close(reason, last);
    }

    fn close(&mut self, reason: FinishReason, last: Option<Event>) {
        self.ended = true;
        self.shared.leave(reason);
        if let Some(event) = last {
            let _ = self.events.send(event);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.ended {
            self.close(FinishReason::Error, Some(Event::Failed(self.shared.abandoned())));
        }
    }
}
