//! One running request.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    pipeline::{Opening, Outcome, Picked},
    policy::Decision,
    serve::{
        Event, FinishReason, ServeError, TokenOut, Usage,
        drafting::Drafting,
        job::Job,
        observe::{self, Clock},
        output::Output,
        paths::Paths,
        prefix::{Footing, Rows, Wanted},
    },
    stage::{Pieces, Purpose, Row, SeqId, Span},
    text::TextModel,
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

/// What a step held of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landed {
    /// Its rows were past the prompt.
    pub(super) window: bool,
    /// It was to bring tokens, chosen or scored.
    pub(super) output: bool,
    /// Nothing can follow before it is through: it was to choose a token.
    pub(super) awaited: bool,
}

/// A request that holds a lane, and how far it has got.
pub(super) struct Lane {
    job: Job,
    seq: SeqId,
    clock: Clock,
    output: Output,
    /// Text and tokens of the step at hand.
    said: Option<Event>,
    /// KV rows held, those of steps in flight included.
    rows: u32,
    /// How many of them another request has computed.
    cached: u32,
    footing: Footing,
    /// The draft head follows the prompt.
    followed: bool,
    /// Whose rows of the same prompt are awaited.
    leader: Option<Leader>,
    /// Tokens chosen. The last one goes in next.
    chosen: Vec<i32>,
    /// The guess behind it.
    draft: Option<i32>,
    /// Steps in flight with rows of this lane.
    flying: u32,
    /// One of them chooses the next token.
    awaits: bool,
    /// Ticket of the step that landed last.
    landed: u64,
    drafting: Drafting,
    paths: Paths,
    /// Prompt tokens with their log-probabilities, as far as computed; `None` when they are sent, or nobody wants them.
    scored: Option<Vec<TokenOut>>,
    /// Set once nothing more is to be done.
    pub(super) ending: Option<Ending>,
}

impl Lane {
    /// Starts `job` on `seq` and tells the client so. `strategy` is how the server speculates, if it does.
    pub(super) fn start(
        mut job: Job,
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
            seq,
            clock,
            output,
            rows: 0,
            cached: 0,
            footing,
            followed: drafting.is_on(),
            leader: None,
            chosen: Vec::new(),
            draft: None,
            flying: 0,
            awaits: false,
            landed: 0,
            drafting,
            said: None,
            paths: Paths::default(),
            scored: None,
            ending: None,
        };
        if lane.job.request.prompt_logprobs {
            lane.score_from_the_start(text);
        }
        lane.finish_without_tokens();
        lane
    }

    /// What the end of the pipeline has to know of it.
    pub(super) fn opening(&self) -> Opening {
        self.job.opening(self.seq, &self.chosen)
    }

    /// All its rows are lost: it starts again, with the tokens that have been chosen for an answer.
    pub(super) fn start_again(&mut self, text: &dyn TextModel) {
        (self.rows, self.cached, self.leader) = (0, 0, None);
        (self.flying, self.awaits, self.draft) = (0, false, None);
        self.followed = self.drafting.is_on();
        if self.scored.is_some() {
            self.score_from_the_start(text);
        }
    }

    fn score_from_the_start(&mut self, text: &dyn TextModel) {
        self.scored = Some(Vec::new());
        if let Some(&first) = self.job.request.prompt.first() {
            self.push_scored(TokenOut { id: first, bytes: text.piece(first, false), logprob: None, top: Vec::new() });
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.job.reply.is_gone()
    }

    /// Whether it has taken longer than it may.
    pub(super) fn is_late(&self, now: Instant, timeout: Duration) -> bool {
        self.clock.age(now) >= timeout
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
        if self.scored.is_some() { SCORED_ROWS_PER_STEP } else { u32::MAX }
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

    /// Whether the token of its next row is known: it is past its prompt, and what was chosen last has arrived.
    pub(super) fn is_ready(&self) -> bool {
        self.decodes() && !self.awaits && self.next().is_some()
    }

    /// Whether nothing is left to do for it, nothing on its way, and nobody else's rows awaited.
    pub(super) fn is_stuck(&self) -> bool {
        let can_go_on = self.flying > 0 || self.leader.is_some() || self.prompt_need() > 0 || self.is_ready();
        !can_go_on && self.ending.is_none()
    }

    /// How far it has got, for a log line that should never be written.
    pub(super) fn describe(&self) -> String {
        let Self { rows, cached, flying, awaits, landed, .. } = self;
        let (prompt, chosen) = (self.job.prompt_rows, self.chosen.len());
        format!(
            "{rows} rows, {cached} of them cached, {prompt} of the prompt, {chosen} tokens chosen, {flying} steps in flight, awaited {awaits}, last step {landed}"
        )
    }

    pub(super) fn seq(&self) -> SeqId {
        self.seq
    }

    /// The token of its next row, once the prompt is through.
    fn next(&self) -> Option<i32> {
        self.chosen.get(self.rows.checked_sub(self.job.prompt_rows)? as usize).copied()
    }

    /// Whether its next row is that of the token chosen last: all others of the answer are there.
    fn is_at_the_end(&self) -> bool {
        (self.rows - self.job.prompt_rows) as usize + 1 == self.chosen.len()
    }

    /// Whether there is a guess to put behind the token chosen last.
    pub(super) fn has_draft(&self) -> bool {
        self.draft.is_some() && self.drafting.is_on() && self.is_at_the_end()
    }

    /// Ticket of the step that landed last.
    pub(super) fn landed(&self) -> u64 {
        self.landed
    }

    /// Puts the next `n` rows of the prompt into the batch. The last one chooses a token, unless there are some from
    /// before.
    pub(super) fn put_prompt(&self, n: u32, tokens: &mut Vec<i32>, rows: &mut Vec<Row>) -> Span {
        let prompt = &self.job.request.prompt;
        for (pos, &token) in (self.rows..).zip(prompt.iter().skip(self.rows as usize).take(n as usize)) {
            let is_last = pos as usize + 1 >= prompt.len();
            let output = if is_last { self.chosen.is_empty() } else { self.scored.is_some() };
            tokens.push(token);
            rows.push(Row { seq: self.seq, pos, output });
        }
        self.span(Purpose::Prefill { prompt: self.job.prompt_tokens() })
    }

    /// Puts the next token of the answer into the batch and, behind the last one chosen, the guess if there is room.
    pub(super) fn put_window(&mut self, with_draft: bool, tokens: &mut Vec<i32>, rows: &mut Vec<Row>) -> Span {
        let output = self.is_at_the_end();
        let draft = self.draft.take().filter(|_| with_draft && output);
        if output {
            self.drafting.open(draft);
        }
        for (pos, token) in (self.rows..).zip([self.next(), draft].into_iter().flatten()) {
            tokens.push(token);
            rows.push(Row { seq: self.seq, pos, output });
        }
        self.span(if draft.is_some() { Purpose::Verify } else { Purpose::Decode })
    }

    fn span(&self, purpose: Purpose) -> Span {
        Span { seq: self.seq, purpose, path: self.job.request.path, drafts: self.drafting.is_on() }
    }

    /// A step with `n` rows of this lane is on its way. `window`: not of its prompt; `output`: it brings tokens.
    pub(super) fn launched(&mut self, n: u32, window: bool, output: bool) -> Landed {
        self.rows += n;
        self.flying += 1;
        let awaited = output && self.decodes();
        self.awaits |= awaited;
        Landed { window, output, awaited }
    }

    /// The step `ticket` is through, which held `rows` of this lane.
    pub(super) fn land(&mut self, ticket: u64, rows: Landed, outcome: Option<Outcome>, text: &dyn TextModel) {
        self.flying = self.flying.saturating_sub(1);
        self.landed = ticket;
        let now = Instant::now();
        let outcome = match outcome {
            Some(outcome) => outcome,
            None if rows.output && self.ending.is_none() => {
                self.ending = Some(Ending::Failed(ServeError::Engine("a step brought no token".into())));
                return;
            }
            None => Outcome::default(),
        };
        for scored in outcome.scored {
            let scored = self.token_out(scored, text);
            self.push_scored(scored);
        }
        let before = self.chosen.len();
        for picked in outcome.chosen {
            if self.ending.is_none() {
                self.ending = self.choose(picked, text, now);
            }
        }
        if let (Some(fault), None) = (outcome.fault, &self.ending) {
            self.ending = Some(Ending::Failed(fault.into()));
        }
        self.send_said();
        if rows.awaited {
            self.awaits = false;
            self.draft = outcome.draft;
            if outcome.no_guess {
                self.drafting.unusable();
            }
            if rows.window {
                self.drafting.close((self.chosen.len() - before) as u32);
                // The row of a draft that was not chosen counts for nothing.
                self.rows -= u32::from(self.drafting.is_rejected());
            }
        }
        self.finish_without_tokens();
    }

    /// How the attention of its rows ran in the last step.
    pub(super) fn note(&mut self, decision: &Decision) {
        self.paths.note(decision);
    }

    fn push_scored(&mut self, token: TokenOut) {
        let Some(scored) = &mut self.scored else { return };
        scored.push(token);
        if scored.len() == self.job.request.prompt.len()
            && let Some(scored) = self.scored.take()
        {
            self.job.reply.send(Event::Prompt(scored));
        }
    }

    /// A request that generates nothing is over when its prompt is through.
    fn finish_without_tokens(&mut self) {
        if self.job.budget == 0 && self.decodes() && self.flying == 0 && self.ending.is_none() {
            self.ending = Some(Ending::Finished(FinishReason::Length));
        }
    }

    /// Takes the next token and sends what it adds to the text. The order of the checks matters: an end of the text
    /// counts even when the budget ends with the same token.
    fn choose(&mut self, picked: Picked, text: &dyn TextModel, now: Instant) -> Option<Ending> {
        let (token, over) = (picked.id, picked.over);
        self.drafting.verify(token);
        self.chosen.push(token);
        self.clock.token(now);
        if text.is_eog(token) && (over || !self.job.request.ignore_eos) {
            self.flush();
            return Some(Ending::Finished(FinishReason::Stop));
        }
        let (delta, stopped) = self.output.push(self.token_out(picked, text));
        self.say(delta);
        if stopped {
            return Some(Ending::Finished(FinishReason::Stop));
        }
        if over {
            self.flush();
            return Some(Ending::Finished(FinishReason::Stop));
        }
        if self.generated() >= self.job.budget {
            self.flush();
            return Some(Ending::Finished(FinishReason::Length));
        }
        None
    }

    fn generated(&self) -> u32 {
        u32::try_from(self.chosen.len()).unwrap_or(u32::MAX)
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

    fn token_out(&self, Picked { id, logprob, top, .. }: Picked, text: &dyn TextModel) -> TokenOut {
        TokenOut { id, bytes: text.piece(id, self.job.request.shown.contains(&id)), logprob, top }
    }

    /// Ends the request: metrics, log line and last event. The lane must have been given back before.
    pub(super) fn end(mut self, ending: Ending) {
        self.send_said();
        let prompt_tokens = self.job.prompt_tokens();
        let usage = Usage { prompt_tokens, cached_tokens: self.cached, completion_tokens: self.generated() };
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
