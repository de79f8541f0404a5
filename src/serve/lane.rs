//! One running request.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    policy::Decision,
    serve::{
        Event, FinishReason, ServeError, TokenOut, Usage,
        drafting::{Drafting, WINDOW},
        job::{Job, Picker},
        observe::{self, Clock},
        output::Output,
        paths::Paths,
        prefix::{Footing, Rows, Wanted},
    },
    stage::{DraftRow, Pieces, Purpose, Row, SeqId, Span},
    text::{LogSoftmax, TextModel, top_n},
};

/// Prompt rows of one request in one step at most, while each of them returns logits: a row of logits is as wide as
/// the vocabulary.
const SCORED_ROWS_PER_STEP: u32 = 64;

/// Why a lane is done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ending {
    Finished(FinishReason),
    Failed(ServeError),
}

/// A running request whose prompt begins alike: it is waited for, since reading the same at the same time would take as
/// long for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leader {
    /// Its lane.
    pub(super) lane: usize,
    /// Its admission number.
    pub(super) age: u64,
    /// Rows awaited.
    pub(super) rows: u32,
}

/// A request that holds a lane, and how far it has got.
pub(super) struct Lane {
    job: Job,
    picker: Picker,
    seq: SeqId,
    clock: Clock,
    output: Output,
    /// Text and tokens of the step at hand.
    said: Option<Event>,
    /// KV rows held.
    rows: u32,
    /// How many of them another request has computed.
    cached: u32,
    footing: Footing,
    /// The draft head follows the prompt.
    followed: bool,
    /// Whose rows of the same prompt are awaited.
    leader: Option<Leader>,
    /// The token that goes in next, once the prompt is through.
    next: i32,
    /// Tokens chosen.
    generated: u32,
    /// Tokens chosen before the pass at hand.
    generated_before: u32,
    drafting: Drafting,
    paths: Paths,
    /// Prompt tokens with their log-probabilities, as far as computed.
    scored: Vec<TokenOut>,
    /// Set once nothing more is to be done.
    pub(super) ending: Option<Ending>,
}

impl Lane {
    /// Starts `job` on `seq` and tells the client so. `strategy` is how the server speculates, if it does.
    pub(super) fn start(
        mut job: Job,
        picker: Picker,
        (seq, footing): (SeqId, Footing),
        strategy: Option<&Arc<str>>,
        text: &dyn TextModel,
    ) -> Self {
        let mut clock = job.clock;
        clock.admit(Instant::now());
        job.reply.send(Event::Started { prompt_tokens: job.prompt_tokens() });
        let output = Output::new(std::mem::take(&mut job.stops));
        let drafting = Drafting::new(strategy.filter(|_| job.may_speculate()).cloned());
        let mut lane = Self {
            job,
            picker,
            seq,
            clock,
            output,
            rows: 0,
            cached: 0,
            footing,
            followed: drafting.is_on(),
            leader: None,
            next: 0,
            generated: 0,
            generated_before: 0,
            drafting,
            said: None,
            paths: Paths::default(),
            scored: Vec::new(),
            ending: None,
        };
        if let (true, Some(&first)) = (lane.job.request.prompt_logprobs, lane.job.request.prompt.first()) {
            lane.push_scored(TokenOut { id: first, bytes: text.piece(first, false), logprob: None, top: Vec::new() });
        }
        lane.finish_without_tokens();
        lane
    }

    pub(super) fn is_gone(&self) -> bool {
        self.job.reply.is_gone()
    }

    /// Whether it has taken longer than it may.
    pub(super) fn is_late(&self, now: Instant, timeout: Duration) -> bool {
        self.clock.age(now) >= timeout
    }

    pub(super) fn seq(&self) -> SeqId {
        self.seq
    }

    /// KV rows held.
    pub(super) fn rows(&self) -> u32 {
        self.rows
    }

    /// KV rows promised.
    pub(super) fn kv_rows(&self) -> u32 {
        self.job.kv_rows
    }

    /// Prompt rows still to be computed by this lane; 0 once it decodes, and while it waits for a leader.
    pub(super) fn prompt_need(&self) -> u32 {
        if self.leader.is_some() { 0 } else { self.job.prompt_rows.saturating_sub(self.rows) }
    }

    /// Rows of the prompt that one step may hold.
    pub(super) fn piece_limit(&self) -> u32 {
        if self.job.request.prompt_logprobs { SCORED_ROWS_PER_STEP } else { u32::MAX }
    }

    /// Whether it is past its prompt.
    pub(super) fn decodes(&self) -> bool {
        self.rows >= self.job.prompt_rows
    }

    /// Rows of the sequence that were computed for its prompt, or taken over.
    fn prompt_held(&self) -> &[i32] {
        let n = self.rows.min(self.job.prompt_rows) as usize;
        self.job.request.prompt.get(..n).unwrap_or_default()
    }

    /// What rows of others it could make use of.
    pub(super) fn wanted(&self, pieces: Pieces, step: u32) -> Option<Wanted<'_>> {
        self.job.wanted(self.footing, self.followed, pieces, step)
    }

    /// Rows that `wanted` could take over from this lane now.
    pub(super) fn shared_now(&self, wanted: &Wanted<'_>) -> u32 {
        wanted.shared(self.prompt_held(), self.footing, self.followed)
    }

    /// Rows that `wanted` could take over once this lane has read its prompt; 0 when it is through, or reads nothing
    /// itself.
    pub(super) fn shared_later(&self, wanted: &Wanted<'_>) -> u32 {
        if self.prompt_need() == 0 {
            return 0;
        }
        let prompt = self.job.request.prompt.get(..self.job.prompt_rows as usize).unwrap_or_default();
        wanted.shared(prompt, self.footing, self.followed)
    }

    /// The first rows of the prompt are there: `rows` of them, computed by others.
    pub(super) fn take_over(&mut self, rows: u32) {
        (self.rows, self.cached, self.leader) = (rows, rows, None);
    }

    /// Waits for rows of `leader`.
    pub(super) fn wait_for(&mut self, leader: Leader) {
        self.leader = Some(leader);
    }

    pub(super) fn leader(&self) -> Option<Leader> {
        self.leader
    }

    /// What of its rows may be of use to others: those of the prompt, to a multiple of `step`.
    pub(super) fn legacy(&self, step: u32) -> Option<Rows> {
        let held = self.prompt_held();
        let whole = held.len() / step.max(1) as usize * step.max(1) as usize;
        let wished = self.job.request.cache_prompt && self.leader.is_none() && whole > 0;
        wished.then(|| Rows { tokens: held[..whole].to_vec(), footing: self.footing, followed: self.followed })
    }

    /// What to ask the draft head: for the token after the chosen one. Nothing while the prompt is being read, when the
    /// request does not draft (any more), and when its budget leaves room for one token only. What the budget leaves is
    /// also what is left of the KV rows promised, since the last token never enters the cache.
    pub(super) fn question(&self) -> Option<DraftRow> {
        let wanted = self.drafting.is_on() && self.decodes();
        (wanted && self.rows + WINDOW <= self.job.kv_rows).then_some(DraftRow { seq: self.seq, token: self.next })
    }

    /// The draft head has answered with something that is no guess.
    pub(super) fn stop_drafting(&mut self) {
        self.drafting.unusable();
    }

    /// Puts the next `n` rows of the prompt into the batch.
    pub(super) fn put_prompt(&self, n: u32, tokens: &mut Vec<i32>, rows: &mut Vec<Row>) -> Span {
        let prompt = &self.job.request.prompt;
        for (pos, &token) in (self.rows..).zip(prompt.iter().skip(self.rows as usize).take(n as usize)) {
            let output = self.job.request.prompt_logprobs || pos as usize + 1 >= prompt.len();
            tokens.push(token);
            rows.push(Row { seq: self.seq, pos, output });
        }
        self.span(Purpose::Prefill { prompt: self.job.prompt_tokens() })
    }

    /// Puts the chosen token and, behind it, a draft into the batch.
    pub(super) fn put_window(&mut self, draft: Option<i32>, tokens: &mut Vec<i32>, rows: &mut Vec<Row>) -> Span {
        self.drafting.open(draft);
        for (pos, token) in (self.rows..).zip([Some(self.next), draft].into_iter().flatten()) {
            tokens.push(token);
            rows.push(Row { seq: self.seq, pos, output: true });
        }
        self.span(if draft.is_some() { Purpose::Verify } else { Purpose::Decode })
    }

    fn span(&self, purpose: Purpose) -> Span {
        Span { seq: self.seq, purpose, path: self.job.request.path, drafts: self.drafting.is_on() }
    }

    /// Takes the logits of the row at `pos`. Those of a draft's row count only if the model has chosen the draft and the
    /// text goes on.
    pub(super) fn read(&mut self, pos: u32, logits: &[f32], text: &dyn TextModel, now: Instant) {
        match self.job.request.prompt.get(pos as usize + 1) {
            Some(&token) => {
                let scored = self.token_out(token, logits, text);
                self.push_scored(scored);
            }
            None if self.ending.is_some() || self.drafting.is_rejected() => {}
            None => self.ending = self.choose(logits, text, now),
        }
    }

    /// The step has put `n` rows more into the cache. Returns how many rows of the sequence to keep when the last one is
    /// that of a draft which the model has not chosen. A request that is over loses all its rows anyway.
    pub(super) fn advance(&mut self, n: u32) -> Option<u32> {
        self.send_said();
        if n > 0 && self.rows >= self.job.prompt_rows {
            self.drafting.close(self.generated - self.generated_before);
        }
        self.generated_before = self.generated;
        self.rows += n;
        self.finish_without_tokens();
        if n < WINDOW || !self.drafting.is_rejected() || self.ending.is_some() {
            return None;
        }
        self.rows -= 1;
        Some(self.rows)
    }

    /// How the attention of its rows ran in the last step.
    pub(super) fn note(&mut self, decision: &Decision) {
        self.paths.note(decision);
    }

    fn push_scored(&mut self, token: TokenOut) {
        self.scored.push(token);
        if self.scored.len() == self.job.request.prompt.len() {
            self.job.reply.send(Event::Prompt(std::mem::take(&mut self.scored)));
        }
    }

    /// A request that generates nothing is over when its prompt is through.
    fn finish_without_tokens(&mut self) {
        if self.job.budget == 0 && self.rows >= self.job.prompt_rows {
            self.ending = Some(Ending::Finished(FinishReason::Length));
        }
    }

    /// Chooses the next token and sends what it adds to the text. The order of the checks matters: an end of the text
    /// counts even when the budget ends with the same token.
    fn choose(&mut self, logits: &[f32], text: &dyn TextModel, now: Instant) -> Option<Ending> {
        let token = match self.picker.pick(logits) {
            Ok(token) => token,
            Err(error) => return Some(Ending::Failed(error)),
        };
        self.drafting.verify(token);
        self.generated += 1;
        self.clock.token(now);
        let over = self.picker.is_over();
        if text.is_eog(token) && (over || !self.job.request.ignore_eos) {
            self.flush();
            return Some(Ending::Finished(FinishReason::Stop));
        }
        let (delta, stopped) = self.output.push(self.token_out(token, logits, text));
        self.say(delta);
        if stopped {
            return Some(Ending::Finished(FinishReason::Stop));
        }
        if over {
            self.flush();
            return Some(Ending::Finished(FinishReason::Stop));
        }
        if self.generated >= self.job.budget {
            self.flush();
            return Some(Ending::Finished(FinishReason::Length));
        }
        self.next = token;
        None
    }

    fn flush(&mut self) {
        let delta = self.output.finish();
        self.say(delta);
    }

    /// Joins a delta to what the step has said so far: one event, and one wake-up of the receiver, for all its tokens.
    fn say(&mut self, delta: Option<Event>) {
        self.said = match (self.said.take(), delta) {
            (Some(Event::Delta { mut text, mut tokens }), Some(Event::Delta { text: more, tokens: further })) => {
                text.push_str(&more);
                tokens.extend(further);
                Some(Event::Delta { text, tokens })
            }
            (said, delta) => said.or(delta),
        };
    }

    /// Sends what the step has said.
    fn send_said(&mut self) {
        if let Some(delta) = self.said.take() {
            self.job.reply.send(delta);
        }
    }

    fn token_out(&self, token: i32, logits: &[f32], text: &dyn TextModel) -> TokenOut {
        let bytes = text.piece(token, self.job.request.shown.contains(&token));
        let Some(n) = self.job.request.logprobs.or(self.job.request.prompt_logprobs.then_some(0)) else {
            return TokenOut { id: token, bytes, logprob: None, top: Vec::new() };
        };
        let norm = LogSoftmax::new(logits);
        let chosen = usize::try_from(token).ok().and_then(|id| logits.get(id));
        let logprob = chosen.map(|&logit| norm.log_prob(logit));
        let mut top = top_n(logits, usize::from(n));
        top.iter_mut().for_each(|(_, value)| *value = norm.log_prob(*value));
        TokenOut { id: token, bytes, logprob, top }
    }

    /// Ends the request: metrics, log line and last event. The lane must have been given back before.
    pub(super) fn end(mut self, ending: Ending) {
        self.send_said();
        let prompt_tokens = self.job.prompt_tokens();
        let usage = Usage { prompt_tokens, cached_tokens: self.cached, completion_tokens: self.generated };
        let computed = self.rows.min(self.job.prompt_rows).saturating_sub(self.cached);
        end(self.job, self.clock, ending, usage, computed, &self.drafting, self.paths);
    }
}

/// Ends a request that has never had a lane.
pub(super) fn end_queued(job: Job, ending: Ending) {
    let clock = job.clock;
    let usage = Usage { prompt_tokens: job.prompt_tokens(), ..Usage::default() };
    end(job, clock, ending, usage, 0, &Drafting::default(), Paths::default());
}

fn end(job: Job, clock: Clock, ending: Ending, usage: Usage, computed: u32, drafting: &Drafting, paths: Paths) {
    let (reason, error) = match &ending {
        Ending::Finished(reason) => (*reason, None),
        Ending::Failed(error) => (FinishReason::Error, Some(error)),
    };
    let request_id = job.request.request_id.as_str();
    let endpoint = job.request.endpoint;
    let end = observe::End { request_id, endpoint, reason, error, clock: &clock, usage, computed, drafting };
    let timings = end.record(paths);
    let last = match ending {
        Ending::Finished(FinishReason::Cancelled) => None,
        Ending::Finished(reason) => Some(Event::Done { reason, usage, timings }),
        Ending::Failed(error) => Some(Event::Failed(error)),
    };
    job.reply.end(reason, last);
}
