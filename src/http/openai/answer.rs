//! What answers of all generating endpoints have in common: the envelope, usage and timings.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::{
    http::middleware::access_log::Fields,
    policy::Path,
    serve::{Drafts, ModelCard, Timings, Usage},
    telemetry::metrics::VERSION,
};

/// An answer with choices of type `C`, or one chunk of a stream.
#[derive(Debug, Serialize)]
pub struct Body<'a, C> {
    /// The same in all chunks.
    pub id: &'a str,
    /// What it is.
    pub object: &'static str,
    /// Unix time of the request, seconds.
    pub created: u64,
    /// Model id.
    pub model: &'a str,
    /// Build and package.
    pub system_fingerprint: &'a str,
    /// One for each prompt and `n`; one in a chunk, none in the usage chunk.
    pub choices: Vec<C>,
    /// Token counts: absent, null or given, as the request wants it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<UsageBody>>,
    /// Where the time went; with the end of a single choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<TimingsBody>,
}

/// What all chunks of an answer have in common.
#[derive(Debug)]
pub(in crate::http) struct Head {
    id: String,
    created: u64,
    model: String,
    system_fingerprint: String,
}

impl Head {
    /// A fresh head for an answer of `card`'s model, whose id begins with `prefix`.
    pub(in crate::http) fn new(prefix: &str, card: &ModelCard) -> Self {
        let digest: String = card.package_digest.chars().take(12).collect();
        Self {
            id: format!("{prefix}{}", uuid::Uuid::new_v4().simple()),
            created: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            model: card.id.clone(),
            system_fingerprint: format!("skippy-{VERSION}-{digest}"),
        }
    }

    /// An answer or a chunk with these choices.
    pub(in crate::http) fn with<C>(&self, object: &'static str, choices: Vec<C>) -> Body<'_, C> {
        Body {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.system_fingerprint,
            choices,
            usage: None,
            timings: None,
        }
    }
}

/// Usage of all choices together.
#[derive(Debug, Default)]
pub(in crate::http) struct Tally {
    /// The sum.
    pub(in crate::http) usage: Usage,
    /// Why the last choice ended.
    pub(in crate::http) finish_reason: Option<&'static str>,
}

impl Tally {
    /// Counts a choice that has ended. Several choices of one prompt count it once.
    pub(in crate::http) fn add(&mut self, reason: &'static str, usage: Usage, counts_prompt: bool) {
        if counts_prompt {
            self.usage.prompt_tokens += usage.prompt_tokens;
            self.usage.cached_tokens += usage.cached_tokens;
        }
        self.usage.completion_tokens += usage.completion_tokens;
        self.finish_reason = Some(reason);
    }

    /// Tells the access log.
    pub(in crate::http) fn note(&self, fields: &mut Fields) {
        fields.prompt_tokens = self.usage.prompt_tokens;
        fields.completion_tokens = self.usage.completion_tokens;
        fields.finish_reason = self.finish_reason;
    }
}

/// `usage`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct UsageBody {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PromptTokensDetails {
    cached_tokens: u32,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> Self {
        let Usage { prompt_tokens, cached_tokens, completion_tokens } = usage;
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        }
    }
}

/// `timings`.
#[derive(Clone, Debug, Serialize)]
pub struct TimingsBody {
    queue_ms: f64,
    prefill_ms: f64,
    decode_ms: f64,
    prompt_per_second: f64,
    predicted_per_second: f64,
    #[serde(flatten)]
    drafts: Option<DraftsBody>,
    #[serde(flatten)]
    paths: Option<PathsBody>,
}

/// What drafting did; absent when the request did not speculate.
#[derive(Clone, Copy, Debug, Serialize)]
struct DraftsBody {
    draft_n: u32,
    draft_n_accepted: u32,
    forwards: u32,
}

/// How attention ran; absent when the engine has no choice. Several paths stand in the order of their first use, joined
/// by commas.
#[derive(Clone, Debug, Serialize)]
struct PathsBody {
    prefill_path: String,
    decode_path: String,
    fallback_reasons: Vec<&'static str>,
}

impl From<Timings> for TimingsBody {
    fn from(timings: Timings) -> Self {
        let has_paths = !(timings.prefill_paths.is_empty() && timings.decode_paths.is_empty());
        Self {
            queue_ms: timings.queue_ms,
            prefill_ms: timings.prefill_ms,
            decode_ms: timings.decode_ms,
            prompt_per_second: timings.prompt_per_second,
            predicted_per_second: timings.predicted_per_second,
            drafts: timings.drafts.map(|Drafts { drafts, accepted, forwards }| DraftsBody {
                draft_n: drafts,
                draft_n_accepted: accepted,
                forwards,
            }),
            paths: has_paths.then(|| PathsBody {
                prefill_path: joined(&timings.prefill_paths),
                decode_path: joined(&timings.decode_paths),
                fallback_reasons: timings.fallback_reasons.iter().map(|reason| reason.label()).collect(),
            }),
        }
    }
}

fn joined(paths: &[Path]) -> String {
    paths.iter().map(|path| path.label()).collect::<Vec<_>>().join(",")
}
