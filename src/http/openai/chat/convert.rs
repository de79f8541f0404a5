//! From a validated request to generations: render the template, tokenize the prompt.

use std::sync::Arc;

use super::{choice::Assembler, validate::Validated};
use crate::{
    chat::{Conversation, Reader, Template},
    http::{error::ApiError, openai::respond::Planned, tokenize::refused},
    serve::{GenerateRequest, ServeError},
    telemetry::labels::Endpoint,
    text::{TextError, TextModel},
};

/// One generation for each choice.
///
/// # Errors
/// When the template does not want the conversation, or the prompt does not fit into `n_ctx` tokens.
pub async fn plan(
    valid: &Validated,
    text: &Arc<dyn TextModel>,
    n_ctx: u32,
    request_id: &str,
) -> Result<Vec<Planned<Assembler>>, ApiError> {
    let (template, conversation, vocabulary) = (valid.template.clone(), valid.conversation.clone(), text.clone());
    // A template is a program, which may take its time.
    let prompt = tokio::task::spawn_blocking(move || prompt(&template, &conversation, vocabulary.as_ref()));
    let Prompt { tokens, thinking } = prompt.await.map_err(|_| ApiError::panicked())??;
    let n_prompt_tokens = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    let wanted = valid.common.max_tokens.unwrap_or(1).min(1);
    if n_prompt_tokens.saturating_add(wanted) > n_ctx {
        let error = ApiError::from(ServeError::ContextLength { n_prompt_tokens, n_ctx });
        return Err(error.with_param("messages"));
    }
    let reasoning = valid.template.traits().reasoning;
    let marks = reasoning.iter().flat_map(|markers| [markers.open, markers.close]);
    let shown: Vec<i32> = marks.filter_map(|mark| control_token(text.as_ref(), mark)).collect();
    let plan = |i| Planned {
        request: GenerateRequest {
            endpoint: Endpoint::Chat,
            logprobs: valid.logprobs,
            shown: shown.clone(),
            ..valid.common.request(request_id, tokens.clone(), i)
        },
        choice: Assembler::new(text.clone(), Reader::new(reasoning, thinking), valid.logprobs.is_some()),
        counts_prompt: i == 0,
    };
    Ok((0..valid.common.n).map(plan).collect())
}

struct Prompt {
    tokens: Vec<i32>,
    thinking: bool,
}

fn prompt(template: &Template, conversation: &Conversation, text: &dyn TextModel) -> Result<Prompt, ApiError> {
    let rendered =
        template.render(conversation).map_err(|error| ApiError::invalid("messages", format!("`messages`: {error}")))?;
    let tokens = tokens_of(&rendered.text, text).map_err(|error| refused("messages", &error))?;
    if tokens.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "`messages`: the model's chat template makes an empty prompt of them",
        ));
    }
    Ok(Prompt { tokens, thinking: rendered.thinking })
}

/// Control tokens count wherever they are written out, as in Hugging Face's and llama.cpp's servers. A prompt opens with
/// BOS if the tokenizer wants that, and with one: templates write it too.
fn tokens_of(prompt: &str, text: &dyn TextModel) -> Result<Vec<i32>, TextError> {
    let mut tokens = text.tokenize(prompt, false, true)?;
    if let Some(bos) = text.bos() {
        let wanted = text.tokenize("", true, false)?.first() == Some(&bos);
        if wanted && tokens.first() != Some(&bos) {
            tokens.insert(0, bos);
        }
    }
    Ok(tokens)
}

/// The control token that is written like this: its text would not be part of an answer.
fn control_token(text: &dyn TextModel, mark: &str) -> Option<i32> {
    match text.tokenize(mark, false, true).ok()?.as_slice() {
        [token] if text.piece(*token, false).is_empty() && !text.is_eog(*token) => Some(*token),
        _ => None,
    }
}
