//! One running request.

use std::time::Instant;

use crate::{
    serve::{
        Event, FinishReason, ServeError, TokenOut, Usage,
        job::{Job, Picker},
        observe::{self, Clock},
        output::Output,
    },
    stage::{Row, SeqId},
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

/// A request that holds a lane, and how far it has got.
pub(super) struct Lane {
    job: Job,
    picker: Picker,
    seq: SeqId,
    clock: Clock,
    output: Output,
    /// KV rows held.
    rows: u32,
    /// The token that goes in next, once the prompt is through.
    next: i32,
    /// Tokens chosen.
    generated: u32,
    /// Prompt tokens with their log-probabilities, as far as computed.
    scored: Vec<TokenOut>,
    /// Set once nothing more is to be done.
    pub(super) ending: Option<Ending>,
}

impl Lane {
    /// Starts `job` on `seq` and tells the client so.
    pub(super) fn start(mut job: Job, picker: Picker, seq: SeqId, text: &dyn TextModel) -> Self {
        let mut clock = job.clock;
        clock.admit(Instant::now());
        job.reply.send(Event::Started { prompt_tokens: job.prompt_tokens() });
        let output = Output::new(std::mem::take(&mut job.stops));
        let (next, generated, rows, scored) = (0, 0, 0, Vec::new());
        let mut lane = Self { job, picker, seq, clock, output, rows, next, generated, scored, ending: None };
        if let (true, Some(&first)) = (lane.job.request.prompt_logprobs, lane.job.request.prompt.first()) {
            lane.push_scored(TokenOut { id: first, bytes: text.piece(first, false), logprob: None, top: Vec::new() });
        }
        lane.finish_without_tokens();
        lane
    }

    pub(super) fn is_gone(&self) -> bool {
        self.job.reply.is_gone()
    }

    /// KV rows held.
    pub(super) fn rows(&self) -> u32 {
        self.rows
    }

    /// KV rows promised.
    pub(super) fn kv_rows(&self) -> u32 {
        self.job.kv_rows
    }

    /// Prompt rows it can make use of in one step; 0 once it decodes.
    pub(super) fn prompt_need(&self) -> u32 {
        let left = self.job.prompt_rows.saturating_sub(self.rows);
        if self.job.request.prompt_logprobs { left.min(SCORED_ROWS_PER_STEP) } else { left }
    }

    /// Puts `n` rows of the prompt, or the one next token, into the batch.
    pub(super) fn put_rows(&self, n: u32, tokens: &mut Vec<i32>, rows: &mut Vec<Row>) {
        let prompt = &self.job.request.prompt;
        for pos in self.rows..self.rows + n {
            let place = pos as usize;
            tokens.push(prompt.get(place).copied().unwrap_or(self.next));
            let output = self.job.request.prompt_logprobs || place + 1 >= prompt.len();
            rows.push(Row { seq: self.seq, pos, output });
        }
    }

    /// The step has put `n` rows more into the cache.
    pub(super) fn advance(&mut self, n: u32) {
        self.rows += n;
        self.finish_without_tokens();
    }

    /// Takes the logits of the row at `pos`.
    pub(super) fn read(&mut self, pos: u32, logits: &[f32], text: &dyn TextModel, now: Instant) {
        match self.job.request.prompt.get(pos as usize + 1) {
            Some(&token) => {
                let scored = self.token_out(token, logits, text);
                self.push_scored(scored);
            }
            None => self.ending = self.choose(logits, text, now),
        }
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
        self.generated += 1;
        self.clock.token(now);
        if !self.job.request.ignore_eos && text.is_eog(token) {
            self.flush();
            return Some(Ending::Finished(FinishReason::Stop));
        }
        let (delta, stopped) = self.output.push(self.token_out(token, logits, text));
        if let Some(delta) = delta {
            self.job.reply.send(delta);
        }
        if stopped {
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
        if let Some(delta) = self.output.finish() {
            self.job.reply.send(delta);
        }
    }

    fn token_out(&self, token: i32, logits: &[f32], text: &dyn TextModel) -> TokenOut {
        let bytes = text.piece(token, false);
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
    pub(super) fn end(self, ending: Ending) {
        let prompt_tokens = self.job.prompt_tokens();
        let usage = Usage { prompt_tokens, cached_tokens: 0, completion_tokens: self.generated };
        let computed = self.rows.min(self.job.prompt_rows);
        end(self.job, self.clock, ending, usage, computed);
    }
}

/// Ends a request that has never had a lane.
pub(super) fn end_queued(job: Job, ending: Ending) {
    let clock = job.clock;
    let usage = Usage { prompt_tokens: job.prompt_tokens(), ..Usage::default() };
    end(job, clock, ending, usage, 0);
}

fn end(job: Job, clock: Clock, ending: Ending, usage: Usage, computed: u32) {
    let (reason, error) = match &ending {
        Ending::Finished(reason) => (*reason, None),
        Ending::Failed(error) => (FinishReason::Error, Some(error)),
    };
    let request_id = job.request.request_id.as_str();
    let timings = observe::End { request_id, reason, error, clock: &clock, usage, computed }.record();
    let last = match ending {
        Ending::Finished(FinishReason::Cancelled) => None,
        Ending::Finished(reason) => Some(Event::Done { reason, usage, timings }),
        Ending::Failed(error) => Some(Event::Failed(error)),
    };
    job.reply.end(reason, last);
}
