//! From a validated request to generations: render the template, tokenize the prompt, see what the answer is held to.

use super::{
    choice::Assembler,
    guide::{Guide, guide},
    validate::Validated,
};
use crate::{
    chat::Reader,
    http::{
        AppState,
        error::ApiError,
        openai::{constraint, respond::Planned},
        tokenize::refused,
    },
    serve::{GenerateRequest, ServeError},
    telemetry::labels::Endpoint,
    text::{TextError, TextModel},
};

/// One generation for each choice.
///
/// # Errors
/// When the template does not want the conversation, the prompt does not fit into the context, or something cannot be
/// enforced.
pub(in crate::http) async fn plan(
    valid: &Validated,
    state: &AppState,
    request_id: &str,
) -> Result<Vec<Planned<Assembler>>, ApiError> {
    let loaded = state.loaded()?;
    let n_ctx = loaded.card.n_ctx;
    let (asked, shared) = (valid.clone(), state.clone());
    // A template is a program, and a grammar is compiled: both may take their time.
    let prompt = tokio::task::spawn_blocking(move || prompt(&asked, &shared));
    let Prompt { tokens, thinking, guide } = prompt.await.map_err(|_| ApiError::panicked())??;
    let n_prompt_tokens = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    let wanted = valid.common.max_tokens.unwrap_or(1).min(1);
    if n_prompt_tokens.saturating_add(wanted) > n_ctx {
        let error = ApiError::from(ServeError::ContextLength { n_prompt_tokens, n_ctx });
        return Err(error.with_param("messages"));
    }
    let markers = valid.template.traits().reasoning.filter(|_| !guide.verbatim);
    // What the prompt has opened is read first, as if the model had said it.
    let mut reader = Reader::new(markers, thinking, guide.calls);
    let opened = reader.push(&guide.opening);
    let plan = |i| Planned {
        request: GenerateRequest {
            endpoint: Endpoint::Chat,
            logprobs: valid.logprobs,
            grammar: guide.grammar.clone(),
            shown: guide.shown.clone(),
            ..valid.common.request(request_id, tokens.clone(), i)
        },
        choice: Assembler::new(loaded.text.clone(), reader.clone(), opened.clone(), valid.logprobs.is_some()),
        counts_prompt: i == 0,
    };
    Ok((0..valid.common.n).map(plan).collect())
}

struct Prompt {
    tokens: Vec<i32>,
    thinking: bool,
    guide: Guide,
}

fn prompt(valid: &Validated, state: &AppState) -> Result<Prompt, ApiError> {
    let loaded = state.loaded()?;
    let rendered = valid.template.render(&valid.conversation);
    let rendered = rendered.map_err(|error| ApiError::invalid("messages", format!("`messages`: {error}")))?;
    let text = loaded.text.as_ref();
    let grammars = |param: &str| loaded.grammar_engine().map_err(|error| constraint::refusal(param, &error));
    let guide = guide(valid, &rendered, text, grammars)?;
    let tokens = tokens_of(&(rendered.text + &guide.opening), text).map_err(|error| refused("messages", &error))?;
    if tokens.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "`messages`: the model's chat template makes an empty prompt of them",
        ));
    }
    Ok(Prompt { tokens, thinking: rendered.thinking, guide })
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
