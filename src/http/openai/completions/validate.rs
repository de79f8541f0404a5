//! What a completion request may ask for. Turns wire fields into values that cannot be wrong, or into a 400 that names
//! the field.

use super::{
    fields::{self, DEFAULT_MAX_TOKENS, MAX_CHOICES, MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_STOP_BYTES, MAX_STOPS},
    types::{CompletionRequest, LogitBias, Prompt},
};
use crate::{
    http::{
        error::{ApiError, capped},
        tokenize::in_vocabulary,
    },
    policy::Path,
    text::SamplingParams,
};

/// A prompt whose token ids, if it has them, are inside the vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub enum ValidPrompt {
    /// To be tokenized.
    Text(String),
    /// At least one token.
    Tokens(Vec<i32>),
}

/// A request that can be carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Validated {
    /// At least one.
    pub prompts: Vec<ValidPrompt>,
    /// Choices for each prompt, at least 1.
    pub n: u32,
    /// Tokens to generate at most.
    pub max_tokens: u32,
    /// Checked against their ranges.
    pub sampling: SamplingParams,
    /// None is empty.
    pub stop: Vec<String>,
    /// Alternatives per token.
    pub logprobs: Option<u8>,
    /// Whether the answer begins with the prompt.
    pub echo: bool,
    /// Whether an end-of-generation token counts for nothing.
    pub ignore_eos: bool,
    /// Attention path to force.
    pub attention_path: Option<Path>,
    /// Whether the server may speculate.
    pub speculative: bool,
    /// Whether to stream.
    pub stream: bool,
    /// Whether a usage chunk is wanted.
    pub include_usage: bool,
    /// For the access log.
    pub user: Option<String>,
}

/// Checks `request` against the model `served`, which has token ids `0..n_vocab`.
///
/// # Errors
/// The first field at fault.
pub fn validate(request: CompletionRequest, served: &str, n_vocab: u32) -> Result<Validated, ApiError> {
    if request.model.as_ref().is_some_and(|model| model != served) {
        return Err(ApiError::unknown_model(served));
    }
    if request.suffix.is_some() {
        return Err(ApiError::unsupported("suffix", "`suffix` is not supported: leave it out"));
    }
    let prompts = prompts(request.prompt, n_vocab)?;
    let n = within("n", request.n, 1, MAX_CHOICES)?.unwrap_or(1);
    if request.best_of.is_some_and(|best_of| best_of != n) {
        let message = format!("`best_of` must equal `n` ({n}): choosing among more candidates is not supported");
        return Err(ApiError::unsupported("best_of", message));
    }
    let choices = u64::from(n).saturating_mul(prompts.len() as u64);
    if choices > u64::from(MAX_CHOICES) {
        let message =
            format!("`n` times the number of prompts is {choices}, at most {MAX_CHOICES} choices are possible");
        return Err(ApiError::invalid(if n > 1 { "n" } else { "prompt" }, message));
    }
    let attention_path = attention_path(request.attention_path.as_deref())?;
    let stream = request.stream.unwrap_or(false);
    if request.stream_options.is_some() && !stream {
        return Err(ApiError::invalid("stream_options", "`stream_options` is only possible with `stream`: true"));
    }
    let sampling = SamplingParams {
        temperature: number("temperature", request.temperature, 0.0, 2.0)?.unwrap_or(1.0),
        top_p: above_zero("top_p", number("top_p", request.top_p, 0.0, 1.0)?)?.unwrap_or(1.0),
        top_k: top_k(request.top_k)?,
        min_p: number("min_p", request.min_p, 0.0, 1.0)?.unwrap_or(0.0),
        seed: request.seed.map(i64::cast_unsigned),
        presence_penalty: number("presence_penalty", request.presence_penalty, -2.0, 2.0)?.unwrap_or(0.0),
        frequency_penalty: number("frequency_penalty", request.frequency_penalty, -2.0, 2.0)?.unwrap_or(0.0),
        logit_bias: logit_bias(request.logit_bias, n_vocab)?,
    };
    let logprobs = within("logprobs", request.logprobs, 0, MAX_LOGPROBS)?.and_then(|n| u8::try_from(n).ok());
    Ok(Validated {
        prompts,
        n,
        max_tokens: request.max_completion_tokens.or(request.max_tokens).unwrap_or(DEFAULT_MAX_TOKENS),
        sampling,
        stop: stop(request.stop.map(|stop| stop.0).unwrap_or_default())?,
        logprobs,
        echo: request.echo.unwrap_or(false),
        ignore_eos: request.ignore_eos.unwrap_or(false),
        attention_path,
        speculative: request.speculative.unwrap_or(true),
        stream,
        include_usage: request.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
        user: request.user.map(|user| capped(&user, 64)),
    })
}

fn prompts(prompt: Option<Prompt>, n_vocab: u32) -> Result<Vec<ValidPrompt>, ApiError> {
    let tokens = |place: &str, tokens: &[i64]| {
        if tokens.is_empty() {
            return Err(ApiError::invalid("prompt", format!("`{place}` is empty: it must hold at least one token id")));
        }
        in_vocabulary("prompt", tokens, n_vocab).map(ValidPrompt::Tokens)
    };
    match prompt {
        None => Err(ApiError::invalid("prompt", "`prompt` is required")),
        Some(Prompt::Text(text)) => Ok(vec![ValidPrompt::Text(text)]),
        Some(Prompt::Texts(texts)) => Ok(texts.into_iter().map(ValidPrompt::Text).collect()),
        Some(Prompt::Tokens(ids)) => Ok(vec![tokens("prompt", &ids)?]),
        Some(Prompt::TokenLists(lists)) => {
            lists.iter().enumerate().map(|(place, ids)| tokens(&format!("prompt[{place}]"), ids)).collect()
        }
    }
}

fn within(name: &'static str, value: Option<u32>, low: u32, high: u32) -> Result<Option<u32>, ApiError> {
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
            fields::MAX_LOGIT_BIAS
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
