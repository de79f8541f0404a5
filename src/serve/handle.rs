//! The side of a server that request handlers hold.

use std::{
    sync::{Arc, OnceLock, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::sync::{mpsc::UnboundedReceiver, watch};

use crate::{
    chain::ChainStatus,
    chat::{TemplateError, Templates},
    grammar::{GrammarEngine, GrammarError},
    package::LayerRange,
    pipeline::{Local, Pipeline},
    policy::Resolver,
    serve::{
        Event, GenerateRequest, Phase, ServeError, Status, Totals,
        job::{Job, Limits},
        scheduler::{self, Command, Parts},
        shared::Shared,
    },
    spec::Speculation,
    stage::StageEngine,
    text::TextModel,
};

/// Limits that the operator may set; `None` takes the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServeOptions {
    /// Requests that run together. Default and maximum: what the engine can hold.
    pub lanes: Option<u32>,
    /// Requests that may wait for a lane. Default: 8 for each lane, at least 16, at most 256.
    pub max_queue: Option<u32>,
    /// Tokens of one request at most, prompt and answer together. Default: the engine's KV rows divided by the
    /// lanes, so that no request without `max_tokens` has to wait for another; maximum: all KV rows.
    pub ctx_per_request: Option<u32>,
    /// Time that a request may take from its submission to its last token, waiting included; it fails with
    /// [`ServeError::Deadline`] after that. Default: none.
    pub request_timeout: Option<Duration>,
    /// How long running requests wait for a stage on another machine that is lost, to go on with the same tokens when it is
    /// back. Default: they fail at once with [`ServeError::StageUnavailable`].
    pub resume_timeout: Option<Duration>,
    /// Rows of prompts in a step in which other requests generate. Default: as many as take about as long as the generating
    /// requests themselves, by measured times. It has no influence on results.
    pub step_tokens: Option<u32>,
    /// Bytes of host memory that may hold the rows of finished requests, for prompts that begin alike; 0 keeps none, there
    /// or in idle lanes.
    pub prefix_cache_bytes: u64,
}

impl ServeOptions {
    /// What `serve` sets [`prefix_cache_bytes`](Self::prefix_cache_bytes) to when the operator does not say: 256 MiB.
    pub const PREFIX_CACHE_BYTES: u64 = 256 << 20;
}

/// What is served.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCard {
    /// The name clients use.
    pub id: String,
    /// Unix time of its making, seconds.
    pub created: u64,
    /// Layers of the whole model.
    pub layer_count: u32,
    /// Layers served by this process.
    pub layers: LayerRange,
    /// Tokens of one request at most. [`Starter::start`] sets it to the limit that holds.
    pub n_ctx: u32,
    /// Width of a hidden row.
    pub n_embd: u32,
    /// Tokens of the vocabulary.
    pub n_vocab: u32,
    /// SHA-256 of the package manifest, hex.
    pub package_digest: String,
    /// `general.architecture` of the model.
    pub arch: String,
    /// Runtime ABI version of the package.
    pub abi: String,
    /// How attention paths are decided; `None` when the engine has no choice.
    pub policy: Option<Arc<Resolver>>,
    /// How it speculates.
    pub speculation: Speculation,
    /// How conversations become prompts, or why they cannot.
    pub chat: Result<Arc<Templates>, TemplateError>,
}

/// What exists once the model is loaded.
pub struct Loaded {
    /// Vocabulary and samplers.
    pub text: Arc<dyn TextModel>,
    /// What is served.
    pub card: ModelCard,
    limits: Limits,
    commands: mpsc::Sender<Command>,
    grammars: OnceLock<Result<Arc<GrammarEngine>, GrammarError>>,
}

impl Loaded {
    /// What compiles grammars for this vocabulary. The first call makes it, which takes a fraction of a second: not for
    /// async code.
    ///
    /// # Errors
    /// When the vocabulary is of no use for grammars; every call says so.
    pub fn grammar_engine(&self) -> Result<Arc<GrammarEngine>, GrammarError> {
        self.grammars.get_or_init(|| GrammarEngine::new(self.text.as_ref()).map(Arc::new)).clone()
    }
}

/// A server, loading or loaded. Clones share it; when all are gone it finishes its requests and ends.
#[derive(Clone)]
pub struct ServeHandle {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    chain: Arc<ChainStatus>,
    loaded: OnceLock<Loaded>,
    options: ServeOptions,
}

/// The right to end the loading phase of one [`ServeHandle`], once. Dropped unused, the server counts as failed.
pub struct Starter {
    inner: Arc<Inner>,
}

/// Starts serving `engine` at once.
///
/// # Errors
/// Those of [`Starter::start`].
pub fn spawn(
    engine: Box<dyn StageEngine>,
    text: Arc<dyn TextModel>,
    card: ModelCard,
    options: ServeOptions,
) -> Result<(ServeHandle, JoinHandle<()>), ServeError> {
    let (handle, starter) = ServeHandle::loading(options);
    let thread = starter.start(engine, text, card)?;
    Ok((handle, thread))
}

impl ServeHandle {
    /// A server without a model yet: it answers [`status`](Self::status) and refuses requests with
    /// [`ServeError::Loading`] until the starter is used.
    pub fn loading(options: ServeOptions) -> (Self, Starter) {
        let (shared, chain, loaded) = (Arc::new(Shared::new()), Arc::default(), OnceLock::new());
        let inner = Arc::new(Inner { shared, chain, loaded, options });
        (Self { inner: inner.clone() }, Starter { inner })
    }

    /// Hands in a request. Never waits: the events arrive on the receiver, and dropping it cancels the request.
    ///
    /// # Errors
    /// When the request is invalid or too long, the queue is full, or the server is not ready.
    pub fn submit(&self, request: GenerateRequest) -> Result<UnboundedReceiver<Event>, ServeError> {
        let loaded = self.loaded()?;
        if let Some(refusal) = self.inner.shared.refusal() {
            return Err(refusal);
        }
        let (job, events) = Job::new(request, &loaded.limits, &self.inner.shared)?;
        match loaded.commands.send(Command::Submit(Box::new(job))) {
            Ok(()) => Ok(events),
            Err(_) => Err(self.inner.shared.abandoned()),
        }
    }

    /// Vocabulary and model card.
    ///
    /// # Errors
    /// [`ServeError::Loading`] or [`ServeError::LoadFailed`] while there is no model. They stay available when the
    /// server drains or its engine fails.
    pub fn loaded(&self) -> Result<&Loaded, ServeError> {
        self.inner.loaded.get().ok_or_else(|| self.inner.shared.refusal().unwrap_or(ServeError::Loading))
    }

    /// What is served, once loaded.
    pub fn model(&self) -> Option<&ModelCard> {
        self.inner.loaded.get().map(|loaded| &loaded.card)
    }

    /// The vocabulary, once loaded.
    pub fn text(&self) -> Option<&Arc<dyn TextModel>> {
        self.inner.loaded.get().map(|loaded| &loaded.text)
    }

    /// A reading of the state. Never touches the engine.
    pub fn status(&self) -> Status {
        self.inner.shared.status()
    }

    /// What is known of the stages behind this process's own; written by whoever connects to them.
    pub fn chain_status(&self) -> Arc<ChainStatus> {
        self.inner.chain.clone()
    }

    /// Requests since the start.
    pub fn totals(&self) -> Totals {
        self.inner.shared.totals()
    }

    /// Watches the phase.
    pub fn phases(&self) -> watch::Receiver<Phase> {
        self.inner.shared.phases()
    }

    /// Starts the shutdown: new and waiting requests fail with [`ServeError::Draining`], running ones may go on for
    /// `limit` and fail likewise after that. A second call replaces the limit.
    pub fn drain(&self, limit: Duration) {
        let shared = &self.inner.shared;
        let loading = shared.phase() == Phase::Loading;
        shared.advance(Phase::Draining);
        let deadline = Instant::now().checked_add(limit);
        let sent = self.inner.loaded.get().is_some_and(|loaded| loaded.commands.send(Command::Drain(deadline)).is_ok());
        if loading && !sent {
            shared.advance(Phase::Stopped);
        }
    }

    /// Waits until every request is done and the server has stopped or failed.
    pub async fn stopped(&self) -> Phase {
        let mut phases = self.phases();
        let last = phases.wait_for(|phase| matches!(phase, Phase::Stopped | Phase::Failed)).await;
        last.map_or(Phase::Stopped, |phase| *phase)
    }
}

impl Starter {
    /// Ends loading: spawns the engine thread, and the server is ready. The thread ends after
    /// [`ServeHandle::drain`] or when every handle is gone.
    ///
    /// # Errors
    /// [`ServeError::Draining`] when the shutdown came first; [`ServeError::LoadFailed`], which the server then
    /// reports too, when the engine does not own input and output or the thread cannot be spawned.
    pub fn start(
        self,
        engine: Box<dyn StageEngine>,
        text: Arc<dyn TextModel>,
        card: ModelCard,
    ) -> Result<JoinHandle<()>, ServeError> {
        let pipeline = Box::new(Local::new(engine, text.clone()));
        self.start_chain(pipeline, text, card)
    }

    /// The same with stages that may be anywhere.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn start_chain(
        self,
        pipeline: Box<dyn Pipeline>,
        text: Arc<dyn TextModel>,
        card: ModelCard,
    ) -> Result<JoinHandle<()>, ServeError> {
        let serve = self.prepare(pipeline, text, card)?;
        let thread = thread::Builder::new().name("skippy-engine".into()).spawn(serve);
        thread.map_err(|error| self.give_up(format!("the engine thread does not start: {error}")))
    }

    /// Everything but the thread: makes the server ready and returns what the thread has to do.
    pub(super) fn prepare(
        &self,
        pipeline: Box<dyn Pipeline>,
        text: Arc<dyn TextModel>,
        mut card: ModelCard,
    ) -> Result<impl FnOnce() + Send + 'static, ServeError> {
        let shared = self.inner.shared.clone();
        if shared.phase() != Phase::Loading {
            return Err(shared.abandoned());
        }
        let limits = Limits::new(pipeline.shape(), &text, &card.speculation, &self.inner.options);
        let limits = limits.map_err(|error| self.give_up(error))?;
        let policy = card.policy.clone();
        let strategy = card.speculation.is_enabled().then(|| Arc::from(card.speculation.strategy.as_str()));
        card.n_ctx = limits.ctx_per_request;
        shared.set_capacity(limits.lanes, limits.kv_rows);
        let (commands, inbox) = mpsc::channel();
        // First the model, then the phase: whoever sees `Ready` finds the model.
        let grammars = OnceLock::new();
        let loaded = Loaded { text: text.clone(), card, limits, commands: commands.clone(), grammars };
        let _ = self.inner.loaded.set(loaded);
        // A probe must not find the server ready and its thread without a sign of life.
        shared.beat();
        if !shared.advance(Phase::Ready) {
            // The shutdown came between the check above and here.
            let _ = commands.send(Command::Drain(Some(Instant::now())));
        }
        Ok(move || scheduler::run(Parts { pipeline, text, shared, inbox, limits, strategy, policy }))
    }

    /// Ends loading: there will be no model. The message says why.
    pub fn failed(self, message: impl Into<String>) {
        self.give_up(message.into());
    }

    fn give_up(&self, message: String) -> ServeError {
        let error = ServeError::LoadFailed(message);
        self.inner.shared.fail(error.clone());
        error
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        if self.inner.shared.phase() == Phase::Loading {
            self.give_up("loading ended without a result".into());
        }
    }
}
