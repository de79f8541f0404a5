//! Request fields that all generating endpoints share: how they are written, and what they may hold.

use std::collections::BTreeMap;

use super::{
    constraint::{Constraint, ResponseFormat},
    fields::{MAX_CHOICES, MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE, MAX_STOP_BYTES, MAX_STOPS},
    sampling::sampling,
    values::{LogitBias, Stop},
};
use crate::{
    http::{
        error::{ApiError, capped},
        middleware::access_log::LogFields,
        policy,
        wire::{UnknownFieldLog, wire_struct},
    },
    policy::Path,
    serve::{GenerateRequest, ModelCard},
    text::SamplingParams,
};

wire_struct! {
    /// The shared fields, as sent. [`super::fields`] says what each of them does.
    pub struct Params {
        /// Model id.
        model: String,
        /// Tokens to generate at most.
        max_tokens: u32,
        /// Newer name of `max_tokens`.
        max_completion_tokens: u32,
        /// Sampling temperature.
        temperature: f64,
        /// Nucleus sampling.
        top_p: f64,
        /// Top-k sampling.
        top_k: i64,
        /// Minimum relative probability.
        min_p: f64,
        /// Locally typical sampling.
        typical_p: f64,
        /// Seed of the draw.
        seed: i64,
        /// Texts that end the answer.
        stop: Stop,
        /// Penalty on tokens that occurred, as a factor.
        repetition_penalty: f64,
        /// Penalty on tokens that occurred.
        presence_penalty: f64,
        /// Penalty per occurrence.
        frequency_penalty: f64,
        /// Added to logits.
        logit_bias: LogitBias,
        /// DRY: strength.
        dry_multiplier: f64,
        /// DRY: growth.
        dry_base: f64,
        /// DRY: repetitions without a penalty.
        dry_allowed_length: i64,
        /// DRY: how far to look back.
        dry_penalty_last_n: i64,
        /// DRY: what ends a repetition.
        dry_sequence_breakers: Vec<String>,
        /// XTC: how often.
        xtc_probability: f64,
        /// XTC: from which probability on.
        xtc_threshold: f64,
        /// What the answer must look like.
        response_format: ResponseFormat,
        /// The same as a grammar.
        grammar: String,
        /// Choices per prompt.
        n: u32,
        /// Whether to go on after an end-of-generation token.
        ignore_eos: bool,
        /// Attention path to force.
        attention_path: String,
        /// Whether the server may speculate.
        speculative: bool,
        /// Whether rows of earlier requests may be used.
        cache_prompt: bool,
        /// Whether to stream.
        stream: bool,
        /// Options of the stream.
        stream_options: StreamOptions,
        /// Name of the end user.
        user: String,
        /// Notes for the log.
        metadata: BTreeMap<String, Option<String>>,
    }
}

wire_struct! {
    /// `stream_options`.
    pub struct StreamOptions {
        /// Whether a last chunk carries the usage.
        include_usage: bool,
    }
}

/// The shared part of a request that can be carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Common {
    /// Choices for each prompt, at least 1.
    pub n: u32,
    /// Tokens to generate at most, if the request says so.
    pub max_tokens: Option<u32>,
    /// Checked against their ranges.
    pub sampling: SamplingParams,
    /// None is empty.
    pub stop: Vec<String>,
    /// Whether an end-of-generation token counts for nothing.
    pub ignore_eos: bool,
    /// Attention path to force.
    pub attention_path: Option<Path>,
    /// Whether the server may speculate.
    pub speculative: bool,
    /// Whether rows of earlier requests may be used.
    pub cache_prompt: bool,
    /// Whether to stream.
    pub stream: bool,
    /// Whether a usage chunk is wanted.
    pub include_usage: bool,
    /// What the answer must look like.
    pub constraint: Option<Constraint>,
    /// For the access log.
    pub user: Option<String>,
    /// For the access log, as JSON.
    pub metadata: Option<String>,
}

impl Common {
    /// Checks `params` against the model `served`, which has token ids `0..n_vocab`.
    ///
    /// # Errors
    /// The first field at fault.
    pub fn validate(mut params: Params, served: &str, n_vocab: u32) -> Result<Self, ApiError> {
        if params.model.as_ref().is_some_and(|model| model != served) {
            return Err(ApiError::unknown_model(served));
        }
        let n = within("n", params.n, 1, MAX_CHOICES)?.unwrap_or(1);
        let attention_path = attention_path(params.attention_path.as_deref())?;
        let stream = params.stream.unwrap_or(false);
        if params.stream_options.is_some() && !stream {
            return Err(ApiError::invalid("stream_options", "`stream_options` is only possible with `stream`: true"));
        }
        let sampling = sampling(&mut params, n_vocab)?;
        Ok(Self {
            n,
            max_tokens: params.max_completion_tokens.or(params.max_tokens),
            sampling,
            stop: stop(params.stop.map(|stop| stop.0).unwrap_or_default())?,
            ignore_eos: params.ignore_eos.unwrap_or(false),
            attention_path,
            speculative: params.speculative.unwrap_or(true),
            cache_prompt: params.cache_prompt.unwrap_or(true),
            stream,
            include_usage: params.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
            constraint: Constraint::of(params.response_format, params.grammar)?,
            user: params.user.map(|user| capped(&user, 64)),
            metadata: params.metadata.map(metadata).transpose()?,
        })
    }

    /// Refuses what the model served cannot do.
    ///
    /// # Errors
    /// The field at fault.
    pub fn suits(&self, card: &ModelCard) -> Result<(), ApiError> {
        if self.attention_path.is_some() && card.policy.is_none() {
            return Err(ApiError::unsupported("attention_path", format!("`attention_path`: {}", policy::FIXED)));
        }
        Ok(())
    }

    /// The generation of choice `i` of a prompt.
    pub fn request(&self, request_id: &str, prompt: Vec<i32>, i: u32) -> GenerateRequest {
        let mut sampling = self.sampling.clone();
        sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(u64::from(i)));
        GenerateRequest {
            request_id: request_id.to_owned(),
            prompt,
            sampling,
            stop: self.stop.clone(),
            max_tokens: self.max_tokens,
            ignore_eos: self.ignore_eos,
            path: self.attention_path,
            without_speculation: !self.speculative,
            cache_prompt: self.cache_prompt,
            ..GenerateRequest::default()
        }
    }

    /// Tells the access log.
    pub(in crate::http) fn note(&self, log: &LogFields) {
        log.update(|fields| {
            fields.stream = self.stream;
            fields.user.clone_from(&self.user);
            fields.metadata.clone_from(&self.metadata);
        });
    }
}

impl Params {
    /// Warns of unknown fields in nested objects.
    pub(in crate::http) fn warn(&self, log: &UnknownFieldLog) {
        if let Some(options) = &self.stream_options {
            log.warn("stream_options", &options.unknown);
        }
        if let Some(format) = &self.response_format {
            log.warn("response_format", &format.unknown);
        }
    }
}

/// An integer within its range.
///
/// # Errors
/// When it is outside.
pub(in crate::http) fn within(
    name: &'static str,
    value: Option<u32>,
    low: u32,
    high: u32,
) -> Result<Option<u32>, ApiError> {
    match value {
        Some(value) if !(low..=high).contains(&value) => {
            Err(ApiError::invalid(name, format!("`{name}` must be between {low} and {high}, got {value}")))
        }
        _ => Ok(value),
    }
}

fn attention_path(name: Option<&str>) -> Result<Option<Path>, ApiError> {
    let known = |name: &str| {
        let message = || format!("`attention_path` must be one of {}", Path::VALUES.join(", "));
        Path::from_label(name).ok_or_else(|| ApiError::invalid("attention_path", message()))
    };
    name.map(known).transpose()
}

/// `stop` strings within their limits.
fn stop(stops: Vec<String>) -> Result<Vec<String>, ApiError> {
    let fault = if stops.len() > MAX_STOPS {
        format!("`stop` holds {} strings, at most {MAX_STOPS} are possible", stops.len())
    } else if let Some(place) = stops.iter().position(String::is_empty) {
        format!("`stop` holds an empty string at place {place}: each must have at least one character")
    } else if stops.iter().any(|stop| stop.len() > MAX_STOP_BYTES) {
        format!("`stop` holds a string of more than {MAX_STOP_BYTES} bytes")
    } else {
        return Ok(stops);
    };
    Err(ApiError::invalid("stop", fault))
}

/// Pairs within their limits, as JSON for the log.
fn metadata(pairs: BTreeMap<String, Option<String>>) -> Result<String, ApiError> {
    let refuse = |why: String| Err(ApiError::invalid("metadata", format!("`metadata` {why}")));
    let fits = |text: &str, most| text.chars().count() <= most;
    if pairs.len() > MAX_METADATA {
        return refuse(format!("has {} pairs, at most {MAX_METADATA} are possible", pairs.len()));
    }
    if pairs.keys().any(|key| !fits(key, MAX_METADATA_KEY)) {
        return refuse(format!("has a key of more than {MAX_METADATA_KEY} characters"));
    }
    if pairs.values().flatten().any(|value| !fits(value, MAX_METADATA_VALUE)) {
        return refuse(format!("has a value of more than {MAX_METADATA_VALUE} characters"));
    }
    let json = serde_json::to_string(&pairs).unwrap_or_default();
    Ok(capped(&json, 256))
}
