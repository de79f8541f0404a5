//! What a completion request may ask for. Turns wire fields into values that cannot be wrong, or into a 400 that names
//! the field.

use super::{
    fields::{DEFAULT_MAX_TOKENS, MAX_LOGPROBS},
    types::{CompletionRequest, Prompt},
};
use crate::http::{
    error::ApiError,
    openai::{
        fields::MAX_CHOICES,
        params::{Common, within},
    },
    tokenize::in_vocabulary,
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
    /// Alternatives per token.
    pub logprobs: Option<u8>,
    /// Whether the answer begins with the prompt.
    pub echo: bool,
    /// What it shares with other requests; `max_tokens` is there.
    pub common: Common,
}

/// Checks `request` against the model `served`, which has token ids `0..n_vocab`.
///
/// # Errors
/// The first field at fault.
pub fn validate(request: CompletionRequest, served: &str, n_vocab: u32) -> Result<Validated, ApiError> {
    let mut common = Common::validate(request.params, served, n_vocab)?;
    common.max_tokens.get_or_insert(DEFAULT_MAX_TOKENS);
    let n = common.n;
    if request.suffix.is_some() {
        return Err(ApiError::unsupported("suffix", "`suffix` is not supported: leave it out"));
    }
    let prompts = prompts(request.prompt, n_vocab)?;
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
    let logprobs = within("logprobs", request.logprobs, 0, MAX_LOGPROBS)?.and_then(|n| u8::try_from(n).ok());
    Ok(Validated { prompts, logprobs, echo: request.echo.unwrap_or(false), common })
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
