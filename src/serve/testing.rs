//! A deterministic engine and vocabulary for tests of the scheduler and of everything above it.
//!
//! [`FakeEngine`] computes its logits from the *whole token history* of a sequence, so any mix-up between lanes or a
//! wrong position changes the text. It can be stopped before each step ([`FakeEngine::gated`]) and made to fail
//! ([`Probe::inject`]).

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use crate::{
    package::LayerRange,
    serve::ModelCard,
    stage::{Row, SeqId, StageBatch, StageEngine, StageError, StageInput, StageOutput, StageShape},
    text::{Sampler, SamplingParams, TextError, TextModel},
};

/// Token that opens a text in [`FakeText`].
pub const BOS: i32 = 256;
/// Token that ends a text in [`FakeText`].
pub const EOG: i32 = 257;
/// Id of the first extra piece of [`FakeText::with_pieces`].
pub const FIRST_PIECE: i32 = 258;

/// How long a test waits before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(20);

/// One token per byte value, then [`BOS`], [`EOG`] and extra pieces of any bytes. Text is tokenized byte by byte;
/// the extra pieces appear only when the engine answers with them.
#[derive(Clone, Debug, Default)]
pub struct FakeText {
    pieces: Vec<Vec<u8>>,
}

impl FakeText {
    /// Bytes, [`BOS`] and [`EOG`].
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with further tokens from [`FIRST_PIECE`] on.
    pub fn with_pieces<P: Into<Vec<u8>>>(pieces: impl IntoIterator<Item = P>) -> Self {
        Self { pieces: pieces.into_iter().map(Into::into).collect() }
    }
}

impl TextModel for FakeText {
    fn n_vocab(&self) -> u32 {
        258 + self.pieces.len() as u32
    }

    fn tokenize(&self, text: &str, add_special: bool, _parse_special: bool) -> Result<Vec<i32>, TextError> {
        Ok(add_special.then_some(BOS).into_iter().chain(text.bytes().map(i32::from)).collect())
    }

    fn piece(&self, token: i32, render_special: bool) -> Vec<u8> {
        match token {
            BOS if render_special => b"<bos>".to_vec(),
            EOG if render_special => b"<eog>".to_vec(),
            BOS | EOG => Vec::new(),
            _ => match u8::try_from(token) {
                Ok(byte) => vec![byte],
                Err(_) => usize::try_from(token - FIRST_PIECE)
                    .ok()
                    .and_then(|i| self.pieces.get(i).cloned())
                    .unwrap_or_default(),
            },
        }
    }

    fn is_eog(&self, token: i32) -> bool {
        token == EOG
    }

    fn bos(&self) -> Option<i32> {
        Some(BOS)
    }

    fn sampler(&self, params: &SamplingParams) -> Result<Box<dyn Sampler>, TextError> {
        let seed = params.seed.ok_or_else(|| TextError::Sampler("no seed".into()))?;
        Ok(Box::new(FakeSampler { params: params.clone(), state: seed, counts: Vec::new(), scores: Vec::new() }))
    }
}

/// Bias, penalties, `top_k`, temperature, then a draw by the Gumbel trick.
struct FakeSampler {
    params: SamplingParams,
    state: u64,
    counts: Vec<u32>,
    scores: Vec<(f64, i32)>,
}

impl Sampler for FakeSampler {
    fn sample(&mut self, logits: &[f32]) -> i32 {
        self.scores.clear();
        for (token, &logit) in (0..).zip(logits) {
            let biases = self.params.logit_bias.iter().filter(|(id, _)| *id == token);
            let bias: f32 = biases.map(|(_, bias)| bias).sum();
            let count = self.counts.get(token as usize).copied().unwrap_or(0);
            let penalty = self.params.frequency_penalty * count as f32
                + if count > 0 { self.params.presence_penalty } else { 0.0 };
            self.scores.push((f64::from(logit + bias - penalty), token));
        }
        self.scores.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        if self.params.top_k > 0 {
            self.scores.truncate(self.params.top_k as usize);
        }
        if self.params.temperature > 0.0 {
            for (score, _) in &mut self.scores {
                self.state = mix(self.state);
                let uniform = ((self.state >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
                *score = *score / f64::from(self.params.temperature) - (-uniform.ln()).ln();
            }
        }
        self.scores.iter().max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))).map_or(-1, |&(_, token)| token)
    }

    fn accept(&mut self, token: i32) {
        let Ok(token) = usize::try_from(token) else { return };
        if self.counts.len() <= token {
            self.counts.resize(token + 1, 0);
        }
        self.counts[token] += 1;
    }
}

/// splitmix64.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn hash(history: &[i32]) -> u64 {
    history.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &token| mix(hash ^ token as u64))
}

/// The token that the default rule makes most likely after `history`: a printable ASCII character.
pub fn next_token(history: &[i32]) -> i32 {
    32 + (hash(history) % 95) as i32
}

/// The greedy answer of the default rule to `prompt`, `n` tokens long.
pub fn answer(prompt: &[i32], n: usize) -> Vec<i32> {
    let mut history = prompt.to_vec();
    for _ in 0..n {
        history.push(next_token(&history));
    }
    history.split_off(prompt.len())
}

/// What goes wrong in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// [`StageError::KvFull`].
    KvFull,
    /// [`StageError::Engine`].
    Engine,
    /// The engine panics.
    Panic,
    /// The first row of logits holds a NaN.
    Nan,
    /// One logit is missing.
    ShortOutput,
}

/// A look into a [`FakeEngine`] that a server has taken over.
#[derive(Clone, Debug, Default)]
pub struct Probe {
    inner: Arc<ProbeInner>,
}

#[derive(Debug, Default)]
struct ProbeInner {
    faults: Mutex<VecDeque<Fault>>,
    kv_rows: AtomicU32,
    steps: AtomicU64,
}

impl Probe {
    /// Makes the next step without a fault yet go wrong.
    pub fn inject(&self, fault: Fault) {
        self.inner.faults.lock().unwrap_or_else(PoisonError::into_inner).push_back(fault);
    }

    /// KV rows held by all sequences.
    pub fn kv_rows(&self) -> u32 {
        self.inner.kv_rows.load(SeqCst)
    }

    /// Steps begun.
    pub fn steps(&self) -> u64 {
        self.inner.steps.load(SeqCst)
    }

    fn next_fault(&self) -> Option<Fault> {
        self.inner.faults.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
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

type Rule = Box<dyn Fn(&[i32]) -> i32 + Send>;

/// The engine's side of a [`Gate`].
struct Barrier {
    batches: mpsc::Sender<Vec<(Row, i32)>>,
    permits: mpsc::Receiver<()>,
}

/// A [`StageEngine`] whose most likely next token is a function of the sequence's history.
pub struct FakeEngine {
    shape: StageShape,
    histories: Vec<Vec<i32>>,
    logits: Vec<f32>,
    rule: Rule,
    probe: Probe,
    gate: Option<Barrier>,
}

impl FakeEngine {
    /// An engine for `text` with `lanes` sequences, `n_ctx` KV rows and `n_batch` rows a step. Answers by
    /// [`next_token`].
    pub fn new(text: &FakeText, lanes: u32, n_ctx: u32, n_batch: u32) -> Self {
        let shape = StageShape {
            layers: whole(),
            layer_count: whole().len(),
            n_embd: 8,
            n_vocab: text.n_vocab() as usize,
            n_ctx,
            n_ctx_seq: n_ctx,
            n_seq_max: lanes,
            n_batch,
            drafts: false,
        };
        let histories = vec![Vec::new(); lanes as usize];
        Self { shape, histories, logits: Vec::new(), rule: Box::new(next_token), probe: Probe::default(), gate: None }
    }

    /// Answers by `rule`, from the history to the most likely token.
    pub fn with_rule(mut self, rule: impl Fn(&[i32]) -> i32 + Send + 'static) -> Self {
        self.rule = Box::new(rule);
        self
    }

    /// Answers every prompt with `tokens`, then [`EOG`]. No prompt may end in a beginning of `tokens`.
    pub fn replying(self, tokens: impl IntoIterator<Item = impl Into<i32>>) -> Self {
        let tokens: Vec<i32> = tokens.into_iter().map(Into::into).collect();
        self.with_rule(move |history| {
            let given = (0..=tokens.len()).rev().find(|&n| history.ends_with(&tokens[..n])).unwrap_or(0);
            tokens.get(given).copied().unwrap_or(EOG)
        })
    }

    /// Claims to own only `layers`.
    pub fn with_layers(mut self, layers: LayerRange) -> Self {
        self.shape.layers = layers;
        self
    }

    /// Waits before each step for the gate.
    pub fn gated(mut self) -> (Self, Gate) {
        let (batch_sender, batches) = mpsc::channel();
        let (permits, permit_receiver) = mpsc::channel();
        self.gate = Some(Barrier { batches: batch_sender, permits: permit_receiver });
        (self, Gate { batches, permits })
    }

    /// A look inside, for later.
    pub fn probe(&self) -> Probe {
        self.probe.clone()
    }

    fn check(&self, batch: &StageBatch<'_>, tokens: &[i32]) -> Result<(), StageError> {
        let refuse = |message: String| Err(StageError::InvalidBatch(message));
        let rows = batch.rows;
        if rows.is_empty() || rows.len() != tokens.len() || rows.len() > self.shape.n_batch as usize {
            return refuse(format!("{} rows and {} tokens", rows.len(), tokens.len()));
        }
        let mut held: Vec<u32> = self.histories.iter().map(|history| history.len() as u32).collect();
        for row in rows {
            match held.get_mut(row.seq.0 as usize) {
                Some(n) if *n == row.pos => *n += 1,
                _ => return refuse(format!("{row:?} does not follow its sequence")),
            }
        }
        if held.iter().sum::<u32>() > self.shape.n_ctx {
            return Err(StageError::KvFull { rows: rows.len(), n_ctx: self.shape.n_ctx });
        }
        Ok(())
    }

    /// Small pseudo-random values that depend on the history, and 10 for the token of the rule.
    fn push_logits(&mut self, seq: usize) {
        let history = &self.histories[seq];
        let mut state = hash(history);
        let start = self.logits.len();
        for _ in 0..self.shape.n_vocab {
            state = mix(state);
            self.logits.push((state >> 40) as f32 / (1u64 << 24) as f32);
        }
        if let Ok(token) = usize::try_from((self.rule)(history)) {
            self.logits[start + token] = 10.0;
        }
    }

    fn count_rows(&self) {
        let rows: usize = self.histories.iter().map(Vec::len).sum();
        self.probe.inner.kv_rows.store(rows as u32, SeqCst);
    }
}

impl StageEngine for FakeEngine {
    fn shape(&self) -> &StageShape {
        &self.shape
    }

    fn forward(&mut self, batch: &StageBatch<'_>) -> Result<StageOutput<'_>, StageError> {
        let StageInput::Tokens(tokens) = batch.input else {
            return Err(StageError::InvalidBatch("hidden rows".into()));
        };
        self.probe.inner.steps.fetch_add(1, SeqCst);
        if let Some(Barrier { batches, permits }) = &self.gate {
            let record = batch.rows.iter().copied().zip(tokens.iter().copied()).collect();
            if batches.send(record).is_err() || permits.recv().is_err() {
                self.gate = None;
            }
        }
        let fault = self.probe.next_fault();
        match fault {
            Some(Fault::KvFull) => {
                return Err(StageError::KvFull { rows: batch.rows.len(), n_ctx: self.shape.n_ctx });
            }
            Some(Fault::Engine) => return Err(StageError::Engine("injected fault".into())),
            Some(Fault::Panic) => panic!("injected panic"),
            _ => {}
        }
        self.check(batch, tokens)?;
        self.logits.clear();
        for (row, &token) in batch.rows.iter().zip(tokens) {
            let seq = row.seq.0 as usize;
            self.histories[seq].push(token);
            if row.output {
                self.push_logits(seq);
            }
        }
        match (fault, self.logits.first_mut()) {
            (Some(Fault::Nan), Some(first)) => *first = f32::NAN,
            (Some(Fault::ShortOutput), _) => drop(self.logits.pop()),
            _ => {}
        }
        self.count_rows();
        Ok(StageOutput::Logits(&self.logits))
    }

    fn truncate(&mut self, seq: SeqId, n_keep: u32) -> Result<(), StageError> {
        self.histories[seq.0 as usize].truncate(n_keep as usize);
        self.count_rows();
        Ok(())
    }

    fn copy(&mut self, from: SeqId, to: SeqId, n_rows: u32) -> Result<(), StageError> {
        let Some(rows) = self.histories[from.0 as usize].get(..n_rows as usize) else {
            return Err(StageError::InvalidBatch(format!("sequence {} holds fewer than {n_rows} rows", from.0)));
        };
        self.histories[to.0 as usize] = rows.to_vec();
        self.count_rows();
        Ok(())
    }

    fn n_rows(&self, seq: SeqId) -> u32 {
        self.histories[seq.0 as usize].len() as u32
    }
}

/// The model card of a [`FakeEngine`].
pub fn card() -> ModelCard {
    ModelCard {
        id: "fake".into(),
        created: 1_700_000_000,
        layer_count: whole().len(),
        layers: whole(),
        n_ctx: 0,
        n_embd: 8,
        n_vocab: 258,
        package_digest: "0".repeat(64),
        arch: "fake".into(),
        abi: "1.0.0".into(),
        policy: Some(Arc::default()),
    }
}

fn whole() -> LayerRange {
    match LayerRange::new(0, 4) {
        Ok(range) => range,
        Err(error) => unreachable!("{error}"),
    }
}
