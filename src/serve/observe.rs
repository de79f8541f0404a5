//! What the scheduler tells metrics and logs.

use std::time::{Duration, Instant};

use crate::{
    policy::{Path, Reason},
    serve::{FinishReason, ServeError, Timings, Usage, drafting::Drafting, paths::Paths},
    telemetry::{
        labels::{Endpoint, Finish, PromptSource, StepPhase},
        metrics,
    },
};

/// Moments in the life of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    submitted: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self { submitted: Instant::now(), admitted: None, first_token: None, last_token: None }
    }

    /// Time since the request came.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.submitted)
    }

    /// The request has got its lane.
    pub(super) fn admit(&mut self, now: Instant) {
        self.admitted = Some(now);
        metrics::request_admitted(now.saturating_duration_since(self.submitted));
    }

    /// A token has been chosen.
    pub(super) fn token(&mut self, now: Instant) {
        match self.last_token.replace(now) {
            Some(before) => metrics::next_token(now.saturating_duration_since(before)),
            None => {
                self.first_token = Some(now);
                let admitted = self.admitted.unwrap_or(self.submitted);
                metrics::first_token(
                    now.saturating_duration_since(self.submitted),
                    now.saturating_duration_since(admitted),
                );
            }
        }
    }

    fn decoding(&self) -> Option<Duration> {
        Some(self.last_token?.saturating_duration_since(self.first_token?))
    }

    /// Where the time went, for a request that ends at `now` with `computed` of its prompt tokens computed.
    fn timings(&self, now: Instant, computed: u32, generated: u32) -> Timings {
        let admitted = self.admitted.unwrap_or(now);
        let prefill = self.admitted.map(|admitted| self.first_token.unwrap_or(now).saturating_duration_since(admitted));
        let (prefill, decode) = (prefill.unwrap_or_default(), self.decoding().unwrap_or_default());
        Timings {
            queue_ms: millis(admitted.saturating_duration_since(self.submitted)),
            prefill_ms: millis(prefill),
            decode_ms: millis(decode),
            prompt_per_second: per_second(computed, prefill),
            predicted_per_second: per_second(generated.saturating_sub(1), decode),
            ..Timings::default()
        }
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn per_second(tokens: u32, duration: Duration) -> f64 {
    if duration.is_zero() { 0.0 } else { f64::from(tokens) / duration.as_secs_f64() }
}

/// The end of one request.
pub(super) struct End<'a> {
    pub(super) request_id: &'a str,
    pub(super) endpoint: Endpoint,
    pub(super) reason: FinishReason,
    pub(super) error: Option<&'a ServeError>,
    pub(super) clock: &'a Clock,
    pub(super) usage: Usage,
    /// Prompt tokens that went through the layers.
    pub(super) computed: u32,
    pub(super) drafting: &'a Drafting,
}

impl End<'_> {
    /// Counts the request as finished and writes its log line.
    pub(super) fn record(&self, paths: Paths) -> Timings {
        let now = Instant::now();
        let Paths { prefill, decode, fallback } = paths;
        let drafts = self.drafting.counts();
        let timings = Timings {
            prefill_paths: prefill,
            decode_paths: decode,
            fallback_reasons: fallback,
            drafts,
            ..self.clock.timings(now, self.computed, self.usage.completion_tokens)
        };
        let in_all = now.saturating_duration_since(self.clock.submitted);
        if self.computed > 0 {
            metrics::prompt_tokens(PromptSource::Computed, u64::from(self.computed));
        }
        if self.usage.cached_tokens > 0 {
            metrics::prompt_tokens(PromptSource::Cached, u64::from(self.usage.cached_tokens));
        }
        metrics::request_finished(self.endpoint, finish(self.reason), in_all, self.clock.decoding());
        let to_first =
            self.clock.first_token.map(|first| millis(first.saturating_duration_since(self.clock.submitted)));
        tracing::info!(
            request_id = self.request_id,
            endpoint = self.endpoint.label(),
            finish_reason = self.reason.label(),
            error = self.error.map(tracing::field::display),
            prompt_tokens = self.usage.prompt_tokens,
            cached_tokens = self.usage.cached_tokens,
            completion_tokens = self.usage.completion_tokens,
            ttft_ms = to_first,
            queue_ms = timings.queue_ms,
            prefill_ms = timings.prefill_ms,
            decode_ms = timings.decode_ms,
            tokens_per_second = timings.predicted_per_second,
            total_ms = millis(in_all),
            strategy = self.drafting.strategy().unwrap_or("disabled"),
            drafts = drafts.map(|drafts| drafts.drafts),
            drafts_accepted = drafts.map(|drafts| drafts.accepted),
            forwards = drafts.map(|drafts| drafts.forwards),
            prefill_path = labels(&timings.prefill_paths, Path::label),
            decode_path = labels(&timings.decode_paths, Path::label),
            fallback_reasons = labels(&timings.fallback_reasons, Reason::label),
            "request finished"
        );
        timings
    }
}

/// Labels in one string; `None` for none, so that the field is absent.
fn labels<T: Copy>(values: &[T], label: impl Fn(T) -> &'static str) -> Option<String> {
    let labels: Vec<_> = values.iter().map(|&value| label(value)).collect();
    (!labels.is_empty()).then(|| labels.join(","))
}

fn finish(reason: FinishReason) -> Finish {
    match reason {
        FinishReason::Stop => Finish::Stop,
        FinishReason::Length => Finish::Length,
        FinishReason::Cancelled => Finish::Cancelled,
        FinishReason::Error => Finish::Error,
    }
}

/// A forward pass over `prompt_rows` rows of prompts, one row of each of `decoding` lanes and `drafts` rows of drafts is
/// over.
pub(super) fn step(prompt_rows: usize, decoding: usize, drafts: usize, took: Duration) {
    let phase = match (prompt_rows, decoding, drafts) {
        (0, _, 0) => StepPhase::Decode,
        (0, _, _) => StepPhase::Verify,
        (_, 0, _) => StepPhase::Prefill,
        _ => StepPhase::Mixed,
    };
    metrics::engine_step(phase, prompt_rows + decoding + drafts, took);
}

/// Lanes and KV rows in use and in all, and requests that wait.
pub(super) fn levels(lanes: (u32, u32), kv_rows: (u32, u32), queued: u32) {
    metrics::set_requests(lanes.0 as usize, queued as usize);
    metrics::set_lanes(lanes.0 as usize, lanes.1 as usize);
    metrics::set_kv_cells(kv_rows.0 as usize, kv_rows.1 as usize);
}
