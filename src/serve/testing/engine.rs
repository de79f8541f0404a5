//! An engine that computes with histories instead of weights.

use super::{
    EOG, FakeText, hash, mix, next_token,
    probe::{Barrier, Call, Fault, Gate, Place, Probe, gate},
    whole,
};
use crate::{
    package::LayerRange,
    policy::{Inputs, Phase, Resolver},
    stage::{
        DraftRow, Pieces, Purpose, Row, SeqId, SpanDecision, StageBatch, StageEngine, StageError, StageInput,
        StageOutput, StageShape,
    },
    text::TextModel as _,
};

type Rule = Box<dyn Fn(&[i32]) -> i32 + Send>;

/// Whether the draft head is right, from the number of drafts of the sequence before.
type Hits = Box<dyn Fn(u32) -> bool + Send>;

/// A [`StageEngine`] whose most likely next token is a function of the sequence's history.
pub struct FakeEngine {
    shape: StageShape,
    histories: Vec<Vec<i32>>,
    /// Rows of each sequence that were computed as part of a prompt, from the first on.
    read: Vec<usize>,
    logits: Vec<f32>,
    rule: Rule,
    hits: Option<Hits>,
    /// Whether every pass of each sequence said that it drafts.
    followed: Vec<bool>,
    /// Drafts given for each sequence.
    drafted: Vec<u32>,
    resolver: Option<Resolver>,
    decisions: Vec<SpanDecision>,
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
            pieces: Pieces { unit: 1, most: u32::MAX },
            prefix_step: 1,
        };
        Self {
            shape,
            histories: vec![Vec::new(); lanes as usize],
            read: vec![0; lanes as usize],
            logits: Vec::new(),
            rule: Box::new(next_token),
            hits: None,
            followed: vec![false; lanes as usize],
            drafted: vec![0; lanes as usize],
            resolver: None,
            decisions: Vec::new(),
            probe: Probe::default(),
            gate: None,
        }
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

    /// Has a draft head: `hits` says of each draft of a sequence, counted from 0, whether it is what the rule answers
    /// next.
    pub fn drafting(mut self, hits: impl Fn(u32) -> bool + Send + 'static) -> Self {
        self.shape.drafts = true;
        self.hits = Some(Box::new(hits));
        self
    }

    /// Lets `resolver` decide on the attention path of every span. Nothing is computed another way for it.
    pub fn deciding(mut self, resolver: Resolver) -> Self {
        self.resolver = Some(resolver);
        self
    }

    fn decide(&mut self, batch: &StageBatch<'_>) {
        self.decisions.clear();
        let Some(resolver) = &self.resolver else { return };
        for span in batch.spans {
            let rows: Vec<&Row> = batch.rows.iter().filter(|row| row.seq == span.seq).collect();
            let phase = match span.purpose {
                Purpose::Prefill { prompt } => resolver.prefill(prompt),
                Purpose::Decode => Phase::Decode,
                Purpose::Verify => Phase::Verify,
            };
            let n_kv = rows.last().map_or(0, |row| row.pos + 1);
            let inputs = Inputs { path: span.path, ..Inputs::new(phase, rows.len() as u32, n_kv) };
            self.decisions.push(SpanDecision { seq: span.seq, decision: resolver.resolve(&inputs) });
        }
    }

    /// Insists on prompts being cut like that, and lets sequences be parted at multiples of `step` only.
    pub fn parting(mut self, pieces: Pieces, step: u32) -> Self {
        (self.shape.pieces, self.shape.prefix_step) = (pieces, step);
        self
    }

    /// Claims to own only `layers`.
    pub fn with_layers(mut self, layers: LayerRange) -> Self {
        self.shape.layers = layers;
        self
    }

    /// Waits before each step for the gate.
    pub fn gated(mut self) -> (Self, Gate) {
        let (barrier, gate) = gate();
        self.gate = Some(barrier);
        (self, gate)
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
        if batch.spans.is_empty() { Ok(()) } else { check_spans(batch).and_then(|()| self.check_pieces(batch)) }
    }

    /// Pieces of prompts follow rows of prompts only, and are cut where the shape allows it.
    fn check_pieces(&self, batch: &StageBatch<'_>) -> Result<(), StageError> {
        let unit = self.shape.pieces.unit;
        for span in batch.spans {
            let Purpose::Prefill { prompt } = span.purpose else { continue };
            let mut rows = batch.rows.iter().filter(|row| row.seq == span.seq).map(|row| row.pos);
            let (Some(first), seq) = (rows.next(), span.seq.0 as usize) else { continue };
            let end = rows.next_back().unwrap_or(first) + 1;
            let cut_well = first % unit == 0 && (end % unit == 0 || end == prompt);
            if !cut_well || (end - first).max(unit) > self.shape.pieces.most.saturating_add(unit - 1) {
                return Err(StageError::InvalidBatch(format!("a piece {first}..{end} of {prompt} rows")));
            }
            if self.read[seq] < first as usize {
                return Err(StageError::InvalidBatch(format!("a prompt goes on behind generated rows at {first}")));
            }
        }
        Ok(())
    }

    /// A faulty copy or restore leaves the sequence in an unknown state.
    fn part(&mut self, seq: SeqId, n_rows: u32) -> Result<(), StageError> {
        if self.probe.next_fault(Place::Part).is_some() {
            self.histories[seq.0 as usize] = vec![33; 3];
            return Err(StageError::Engine("injected fault".into()));
        }
        match self.shape.prefix_step {
            0 => Err(StageError::Unsupported("part a sequence")),
            step if !n_rows.is_multiple_of(step) => {
                Err(StageError::InvalidBatch(format!("{n_rows} rows, not a multiple of {step}")))
            }
            _ => Ok(()),
        }
    }

    /// Small pseudo-random values that depend on the history, and 10 for the token of the rule.
    fn push_logits(&mut self, seq: usize) {
        let history = &self.histories[seq];
        let likely = (self.rule)(history);
        self.push_row(hash(history), likely);
    }

    fn push_row(&mut self, mut state: u64, likely: i32) {
        let start = self.logits.len();
        for _ in 0..self.shape.n_vocab {
            state = mix(state);
            self.logits.push((state >> 40) as f32 / (1u64 << 24) as f32);
        }
        if let Ok(token) = usize::try_from(likely) {
            self.logits[start + token] = 10.0;
        }
    }

    /// Remembers a call; only where there is a draft head, so that long tests stay small.
    fn record(&self, call: Call) {
        if self.hits.is_some() {
            self.probe.record(call);
        }
    }

    fn guess(&mut self, row: &DraftRow) -> Result<(), StageError> {
        let seq = row.seq.0 as usize;
        let refuse = |message: &str| Err(StageError::InvalidBatch(format!("{message} sequence {seq}")));
        let Some(hits) = &self.hits else { return refuse("no draft head for") };
        let Some(history) = self.histories.get(seq).filter(|history| !history.is_empty()) else {
            return refuse("nothing to draft from in");
        };
        if !self.followed[seq] {
            return refuse("the draft head was not told to follow");
        }
        let history: Vec<i32> = history.iter().copied().chain([row.token]).collect();
        let right = (self.rule)(&history);
        let hit = hits(self.drafted[seq]);
        self.drafted[seq] += 1;
        // Other small values than the model's: nobody may take the one for the other.
        self.push_row(mix(hash(&history)), if hit { right } else { (right + 1) % 256 });
        Ok(())
    }

    fn cut(&mut self, seq: SeqId, n_keep: u32) {
        let i = seq.0 as usize;
        self.histories[i].truncate(n_keep as usize);
        self.read[i] = self.read[i].min(n_keep as usize);
    }

    fn restore_state(&mut self, seq: SeqId, state: &[u8], n_rows: u32) -> Result<(), StageError> {
        let i = seq.0 as usize;
        let numbers: Vec<i32> = state.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
        let [followed, read, rows @ ..] = &numbers[..] else {
            return Err(StageError::InvalidBatch("not a state".into()));
        };
        self.histories[i] = rows.to_vec();
        (self.followed[i], self.read[i]) = (*followed != 0, *read as usize);
        self.cut(seq, n_rows);
        self.count_rows();
        Ok(())
    }

    fn count_rows(&self) {
        let rows: usize = self.histories.iter().map(Vec::len).sum();
        self.probe.set_kv_rows(rows as u32);
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
        self.probe.count_step();
        let shown = || batch.rows.iter().copied().zip(tokens.iter().copied()).collect();
        self.gate = self.gate.take().filter(|gate| gate.pass(shown()));
        self.record(Call::Forward(batch.spans.to_vec()));
        let fault = self.probe.next_fault(Place::Forward);
        match fault {
            Some(Fault::KvFull) => {
                return Err(StageError::KvFull { rows: batch.rows.len(), n_ctx: self.shape.n_ctx });
            }
            Some(Fault::Engine) => return Err(StageError::Engine("injected fault".into())),
            Some(Fault::Panic) => panic!("injected panic"),
            _ => {}
        }
        self.check(batch, tokens)?;
        self.decide(batch);
        self.logits.clear();
        for (row, &token) in batch.rows.iter().zip(tokens) {
            let seq = row.seq.0 as usize;
            let drafts = batch.span(row.seq).is_some_and(|span| span.drafts);
            self.followed[seq] = drafts && (row.pos == 0 || self.followed[seq]);
            self.histories[seq].push(token);
            if batch.span(row.seq).is_some_and(|span| matches!(span.purpose, Purpose::Prefill { .. })) {
                self.read[seq] = self.histories[seq].len();
            }
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
        if n_keep > 0 {
            self.record(Call::Truncate(seq, n_keep));
            if self.probe.next_fault(Place::Truncate).is_some() {
                return Err(StageError::Engine("injected fault".into()));
            }
        } else {
            self.drafted[seq.0 as usize] = 0;
        }
        self.cut(seq, n_keep);
        self.count_rows();
        Ok(())
    }

    fn copy(&mut self, from: SeqId, to: SeqId, n_rows: u32) -> Result<(), StageError> {
        self.part(to, n_rows)?;
        let state = self.save(from, n_rows)?;
        self.restore_state(to, &state, n_rows)
    }

    fn save(&mut self, seq: SeqId, n_rows: u32) -> Result<Vec<u8>, StageError> {
        let i = seq.0 as usize;
        if self.shape.prefix_step == 0 {
            return Err(StageError::Unsupported("part a sequence"));
        }
        let Some(rows) = self.histories[i].get(..n_rows as usize) else {
            return Err(StageError::InvalidBatch(format!("sequence {i} holds fewer than {n_rows} rows")));
        };
        let numbers = [i32::from(self.followed[i]), self.read[i] as i32].into_iter().chain(rows.iter().copied());
        Ok(numbers.flat_map(i32::to_le_bytes).collect())
    }

    fn restore(&mut self, seq: SeqId, state: &[u8], n_rows: u32) -> Result<(), StageError> {
        self.part(seq, n_rows)?;
        self.restore_state(seq, state, n_rows)
    }

    fn n_rows(&self, seq: SeqId) -> u32 {
        self.histories[seq.0 as usize].len() as u32
    }

    fn decisions(&self) -> &[SpanDecision] {
        &self.decisions
    }

    fn draft(&mut self, rows: &[DraftRow]) -> Result<&[f32], StageError> {
        self.record(Call::Draft(rows.to_vec()));
        let fault = self.probe.next_fault(Place::Draft);
        if fault == Some(Fault::Draft) {
            return Err(StageError::Engine("injected fault".into()));
        }
        self.logits.clear();
        rows.iter().try_for_each(|row| self.guess(row))?;
        match (fault, self.logits.first_mut()) {
            (Some(Fault::DraftNan), Some(first)) => *first = f32::NAN,
            (Some(Fault::ShortDraft), _) => drop(self.logits.pop()),
            _ => {}
        }
        Ok(&self.logits)
    }
}

/// One span for each sequence, in the order of their rows, which it describes.
fn check_spans(batch: &StageBatch<'_>) -> Result<(), StageError> {
    let refuse = |message: String| Err(StageError::InvalidBatch(message));
    let mut rest = batch.rows;
    for span in batch.spans {
        let n = rest.iter().take_while(|row| row.seq == span.seq).count();
        let (rows, others) = rest.split_at(n);
        rest = others;
        let all_output = rows.iter().all(|row| row.output);
        let fits = match span.purpose {
            Purpose::Prefill { prompt } => rows.last().is_some_and(|row| row.pos < prompt),
            // Tokens that are known already are read again without being asked what follows.
            Purpose::Decode => n == 1,
            Purpose::Verify => n == 2 && all_output && span.drafts,
        };
        if !fits {
            return refuse(format!("{span:?} does not describe {rows:?}"));
        }
    }
    if rest.is_empty() { Ok(()) } else { refuse(format!("{rest:?} without a span")) }
}
