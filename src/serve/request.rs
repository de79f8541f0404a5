//! What a client asks for and what it gets back.

use crate::{
    grammar::Grammar,
    policy::{Path, Reason},
    serve::ServeError,
    telemetry::labels::Endpoint,
    text::SamplingParams,
};

/// One generation.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// Names the request in logs; never a metric label.
    pub request_id: String,
    /// Where it came in, for metrics.
    pub endpoint: Endpoint,
    /// Token ids of the prompt, at least one, each inside the vocabulary.
    pub prompt: Vec<i32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Texts that end the generation; not part of the answer. None may be empty.
    pub stop: Vec<String>,
    /// Tokens to generate at most; `None` means until the context ends. Clamped to what the context leaves, which
    /// ends with [`FinishReason::Length`]. 0 reads the prompt at most (for `prompt_logprobs`) and generates nothing.
    pub max_tokens: Option<u32>,
    /// Log-probabilities of generated tokens, with this many alternatives each (0: of the chosen token only). They
    /// come from the raw logits: bias, penalties, temperature and truncation do not change them.
    pub logprobs: Option<u8>,
    /// Also answer with the prompt's own log-probabilities ([`Event::Prompt`]).
    pub prompt_logprobs: bool,
    /// Control tokens whose text is part of the answer. Others have none.
    pub shown: Vec<i32>,
    /// Go on after an end-of-generation token. Under a grammar such tokens are never chosen while anything else may
    /// come, and the end of the grammar is the end of the answer.
    pub ignore_eos: bool,
    /// What the answer must look like: only tokens that it allows are chosen, whatever the sampling. The answer ends
    /// with [`FinishReason::Stop`] where nothing more can follow.
    pub grammar: Option<Grammar>,
    /// The attention path that this request forces, where the engine has a choice.
    pub path: Option<Path>,
    /// Never draft, whatever the server's strategy. Changes how long the answer takes, not what it is.
    pub without_speculation: bool,
    /// Whether rows of earlier requests may stand in for the beginning of the prompt. Changes how long the answer takes,
    /// not what it is.
    pub cache_prompt: bool,
}

impl Default for GenerateRequest {
    fn default() -> Self {
        Self {
            request_id: String::new(),
            endpoint: Endpoint::Completions,
            prompt: Vec::new(),
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            max_tokens: None,
            logprobs: None,
            prompt_logprobs: false,
            shown: Vec::new(),
            ignore_eos: false,
            path: None,
            without_speculation: false,
            cache_prompt: true,
            grammar: None,
        }
    }
}

/// What a request's receiver gets: `Started`, then `Prompt` when asked for, then deltas, then exactly one of `Done`
/// and `Failed`. A request that never starts gets `Failed` alone.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The request has a lane; from here on errors are the server's.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: u32,
    },
    /// Every prompt token; the first one has no log-probability. Only with [`GenerateRequest::prompt_logprobs`].
    Prompt(Vec<TokenOut>),
    /// More text. Deltas joined are the whole answer, whatever way it was cut.
    Delta {
        /// Text that is complete: no half character, nothing that may still become a stop string. May be empty when
        /// a token has no text.
        text: String,
        /// Tokens whose last byte is in the text so far. A token that a stop string cuts into is listed whole, one
        /// behind the cut is not listed.
        tokens: Vec<TokenOut>,
    },
    /// The end of a generation that went well.
    Done {
        /// Why it ended.
        reason: FinishReason,
        /// What it cost.
        usage: Usage,
        /// How long it took.
        timings: Timings,
    },
    /// The end of one that did not.
    Failed(ServeError),
}

/// One token of an answer or a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenOut {
    /// Id in the vocabulary.
    pub id: i32,
    /// The bytes it stands for; not necessarily UTF-8 by itself, empty for a control token.
    pub bytes: Vec<u8>,
    /// Natural-log probability under the raw logits, when asked for and defined.
    pub logprob: Option<f32>,
    /// The most likely tokens at this place with their log-probabilities, most likely first.
    pub top: Vec<(i32, f32)>,
}

/// Why a request ended; a closed set, one metric label value each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FinishReason {
    /// The model ended its text, a stop string appeared, or the grammar lets nothing follow.
    Stop,
    /// `max_tokens` or the context was used up.
    Length,
    /// The client left.
    Cancelled,
    /// The server failed it.
    Error,
}

impl FinishReason {
    /// Every reason.
    pub const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Cancelled, Self::Error];

    /// The label value in metrics and logs; for `Stop` and `Length` also OpenAI's `finish_reason`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Error => "error",
        }
    }
}

/// Token counts of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that did not have to be computed again.
    pub cached_tokens: u32,
    /// Tokens the model produced: an end-of-generation token counts, as do tokens whose text a stop string cut off.
    pub completion_tokens: u32,
}

/// Where the time of one request went, and which way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timings {
    /// From submission to the lane, ms.
    pub queue_ms: f64,
    /// From the lane to the first token (or to the end of the prompt, when none is generated), ms.
    pub prefill_ms: f64,
    /// From the first token to the last, ms.
    pub decode_ms: f64,
    /// Prompt tokens per second of `prefill_ms`; 0 when no prompt was computed.
    pub prompt_per_second: f64,
    /// Tokens after the first per second of `decode_ms`; 0 when there is none.
    pub predicted_per_second: f64,
    /// Attention paths that read the prompt, in the order of their first use; empty when the engine has no choice.
    pub prefill_paths: Vec<Path>,
    /// Attention paths of the passes past the prompt, likewise.
    pub decode_paths: Vec<Path>,
    /// Why a path was taken that is not the one asked for, each reason once.
    pub fallback_reasons: Vec<Reason>,
    /// What drafting did; `None` when the request did not speculate.
    pub drafts: Option<Drafts>,
}

/// What drafting did for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafts {
    /// Drafts verified.
    pub drafts: u32,
    /// Drafts that the model chose too.
    pub accepted: u32,
    /// Forward passes past the prompt. Each gives one token, and one more when its draft was accepted and the text went
    /// on.
    pub forwards: u32,
}
