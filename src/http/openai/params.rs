//! Request fields that all generating endpoints share: how they are written, and what they may hold.

use super::{
    fields::{MAX_CHOICES, MAX_LOGIT_BIAS, MAX_STOP_BYTES, MAX_STOPS},
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
        /// Seed of the draw.
        seed: i64,
        /// Texts that end the answer.
        stop: Stop,
        /// Penalty on tokens that occurred.
        presence_penalty: f64,
        /// Penalty per occurrence.
        frequency_penalty: f64,
        /// Added to logits.
        logit_bias: LogitBias,
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
    /// For the access log.
    pub user: Option<String>,
}

impl Common {
    /// Checks `params` against the model `served`, which has token ids `0..n_vocab`.
    ///
    /// # Errors
    /// The first field at fault.
    pub fn validate(params: Params, served: &str, n_vocab: u32) -> Result<Self, ApiError> {
        if params.model.as_ref().is_some_and(|model| model != served) {
            return Err(ApiError::unknown_model(served));
        }
        let n = within("n", params.n, 1, MAX_CHOICES)?.unwrap_or(1);
        let attention_path = attention_path(params.attention_path.as_deref())?;
        let stream = params.stream.unwrap_or(false);
        if params.stream_options.is_some() && !stream {
            return Err(ApiError::invalid("stream_options", "`stream_options` is only possible with `stream`: true"));
        }
        let sampling = SamplingParams {
            temperature: number("temperature", params.temperature, 0.0, 2.0)?.unwrap_or(1.0),
            top_p: above_zero("top_p", number("top_p", params.top_p, 0.0, 1.0)?)?.unwrap_or(1.0),
            top_k: top_k(params.top_k)?,
            min_p: number("min_p", params.min_p, 0.0, 1.0)?.unwrap_or(0.0),
            seed: params.seed.map(i64::cast_unsigned),
            presence_penalty: number("presence_penalty", params.presence_penalty, -2.0, 2.0)?.unwrap_or(0.0),
            frequency_penalty: number("frequency_penalty", params.frequency_penalty, -2.0, 2.0)?.unwrap_or(0.0),
            logit_bias: logit_bias(params.logit_bias, n_vocab)?,
            ..SamplingParams::default()
        };
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
            user: params.user.map(|user| capped(&user, 64)),
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
        });
    }
}

impl Params {
    /// Warns of unknown fields in nested objects.
    pub(in crate::http) fn warn(&self, log: &UnknownFieldLog) {
        if let Some(options) = &self.stream_options {
            log.warn("stream_options", &options.unknown);
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

fn number(name: &'static str, value: Option<f64>, low: f64, high: f64) -> Result<Option<f32>, ApiError> {
    match value {
        Some(value) if !(low..=high).contains(&value) => {
            Err(ApiError::invalid(name, format!("`{name}` must be between {low} and {high}, got {value}")))
        }
        _ => Ok(value.map(|value| value as f32)),
    }
}

fn attention_path(name: Option<&str>) -> Result<Option<Path>, ApiError> {
    let known = |name: &str| {
        let message = || format!("`attention_path` must be one of {}", Path::VALUES.join(", "));
        Path::from_label(name).ok_or_else(|| ApiError::invalid("attention_path", message()))
    };
    name.map(known).transpose()
}

fn above_zero(name: &'static str, value: Option<f32>) -> Result<Option<f32>, ApiError> {
    match value {
        Some(value) if value <= 0.0 => Err(ApiError::invalid(name, format!("`{name}` must be above 0"))),
        _ => Ok(value),
    }
}

fn top_k(value: Option<i64>) -> Result<i32, ApiError> {
    match value {
        None | Some(-1) => Ok(0),
        Some(k) => i32::try_from(k).ok().filter(|k| *k >= 0).ok_or_else(|| {
            ApiError::invalid("top_k", format!("`top_k` must be -1 or between 0 and {}, got {k}", i32::MAX))
        }),
    }
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

fn logit_bias(biases: Option<LogitBias>, n_vocab: u32) -> Result<Vec<(i32, f32)>, ApiError> {
    let biases = biases.map(|biases| biases.0).unwrap_or_default();
    let refuse = |message: String| ApiError::invalid("logit_bias", message);
    if biases.len() > MAX_LOGIT_BIAS {
        return Err(refuse(format!(
            "`logit_bias` has {} entries, at most {} are possible",
            biases.len(),
            MAX_LOGIT_BIAS
        )));
    }
    let checked = |(token, bias): (i64, f64)| {
        let id = i32::try_from(token).ok().filter(|_| (0..i64::from(n_vocab)).contains(&token));
        let id =
            id.ok_or_else(|| refuse(format!("`logit_bias` names token {token}, the vocabulary has ids 0..{n_vocab}")))?;
        if !(-100.0..=100.0).contains(&bias) {
            return Err(refuse(format!("`logit_bias` of token {token} must be between -100 and 100, got {bias}")));
        }
        Ok((id, bias as f32))
    };
    biases.into_iter().map(checked).collect()
}
