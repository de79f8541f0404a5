//! From a validated request to generations, and from their events to the texts and log-probabilities of the answer.

use std::sync::Arc;

use super::{
    types::{Alternatives, Choice, Logprobs},
    validate::{ValidPrompt, Validated},
};
use crate::{
    http::{
        AppState,
        error::ApiError,
        openai::{
            respond::{self, End, Output},
            tokens,
        },
        tokenize::{ids_of, refused},
    },
    serve::{Event, FinishReason, GenerateRequest, ServeError, TokenOut},
    text::{TextModel, Utf8Stream},
};

/// A generation to submit, and what to make of its events.
pub type Planned = respond::Planned<Assembler>;

/// One generation for each choice, in the order of their indices.
///
/// # Errors
/// When a prompt cannot be tokenized, has no token, or does not fit into the context: found out here already, before the prompt
/// is copied for each choice. When a constraint cannot be enforced.
pub(in crate::http) async fn plan(
    valid: &Validated,
    state: &AppState,
    request_id: &str,
) -> Result<Vec<Planned>, ApiError> {
    let loaded = state.loaded()?;
    let (text, n_ctx) = (&loaded.text, loaded.card.n_ctx);
    let grammar = match valid.common.constraint.clone() {
        Some(constraint) => Some(constraint.compile(state).await?),
        None => None,
    };
    let mut planned = Vec::new();
    for prompt in &valid.prompts {
        let tokens = tokens_of(prompt, text).await?;
        let n_prompt_tokens = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        if n_prompt_tokens > n_ctx {
            return Err(ServeError::ContextLength { n_prompt_tokens, n_ctx }.into());
        }
        let echo: Option<String> = valid.echo.then(|| match prompt {
            ValidPrompt::Text(text) => text.clone(),
            ValidPrompt::Tokens(tokens) => pieces(text.as_ref(), tokens),
        });
        for i in 0..valid.common.n {
            planned.push(Planned {
                request: GenerateRequest {
                    logprobs: valid.logprobs,
                    grammar: grammar.clone(),
                    prompt_logprobs: valid.echo && valid.logprobs.is_some(),
                    ..valid.common.request(request_id, tokens.clone(), i)
                },
                choice: Assembler::new(text.clone(), echo.clone(), valid.logprobs.is_some()),
                counts_prompt: i == 0,
            });
        }
    }
    Ok(planned)
}

async fn tokens_of(prompt: &ValidPrompt, text: &Arc<dyn TextModel>) -> Result<Vec<i32>, ApiError> {
    let content = match prompt {
        ValidPrompt::Tokens(tokens) => return Ok(tokens.clone()),
        ValidPrompt::Text(content) => content,
    };
    let tokens = ids_of(text, content.clone(), true, true).await?.map_err(|error| refused("prompt", &error))?;
    match (tokens.is_empty(), text.bos()) {
        (false, _) => Ok(tokens),
        (true, Some(bos)) => Ok(vec![bos]),
        (true, None) => {
            Err(ApiError::invalid("prompt", "`prompt` is empty, and this model has no token that opens a text"))
        }
    }
}

fn pieces(text: &dyn TextModel, tokens: &[i32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|&token| text.piece(token, false)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Text, with the log-probabilities of its tokens when asked for.
pub type Piece = (String, Option<Logprobs>);

/// Turns the events of one generation into text and log-probabilities.
pub struct Assembler {
    text: Arc<dyn TextModel>,
    /// Prompt to show first, until shown.
    echo: Option<String>,
    logprobs: bool,
    offsets: Offsets,
}

impl respond::Choice for Assembler {
    const OBJECT: &'static str = "text_completion";
    const CHUNK: &'static str = "text_completion";
    const PREFIX: &'static str = "cmpl-";
    type Piece = Piece;
    type Delta = Choice;
    type Whole = Choice;

    fn take(&mut self, event: Event) -> Output<Piece> {
        match event {
            // With log-probabilities the prompt is shown when they are there.
            Event::Started { .. } if self.logprobs => Output::nothing(),
            Event::Started { .. } => self.echo.take().map_or(Output::nothing(), |echo| Output::piece((echo, None))),
            Event::Prompt(tokens) => {
                let echo = self.echo.take().unwrap_or_default();
                self.offsets.align(&echo, &tokens);
                Output::piece((echo, Some(self.logprobs_of(&tokens))))
            }
            Event::Delta { text, tokens } if text.is_empty() && (tokens.is_empty() || !self.logprobs) => {
                Output::nothing()
            }
            Event::Delta { text, tokens } => {
                let logprobs = self.logprobs.then(|| self.logprobs_of(&tokens));
                Output::piece((text, logprobs))
            }
            Event::Done { reason: reason @ (FinishReason::Stop | FinishReason::Length), usage, timings } => {
                Output::end(End::Done(reason.label(), usage, timings))
            }
            Event::Done { .. } => Output::end(End::Failed(ServeError::Draining.into())),
            Event::Failed(error) => Output::end(End::Failed(error.into())),
        }
    }

    fn delta(index: u32, (text, logprobs): Piece) -> Choice {
        Choice { text, index, logprobs, finish_reason: None }
    }

    fn end(index: u32, reason: &'static str) -> Choice {
        Choice { text: String::new(), index, logprobs: None, finish_reason: Some(reason) }
    }

    fn whole(&self, index: u32, pieces: Vec<Piece>, reason: &'static str) -> Choice {
        let logprobs = self.logprobs.then(Logprobs::default);
        let mut choice = Choice { text: String::new(), index, logprobs, finish_reason: Some(reason) };
        for (text, logprobs) in pieces {
            choice.text.push_str(&text);
            if let (Some(all), Some(more)) = (&mut choice.logprobs, logprobs) {
                all.extend(more);
            }
        }
        choice
    }
}

impl Assembler {
    fn new(text: Arc<dyn TextModel>, echo: Option<String>, logprobs: bool) -> Self {
        Self { text, echo, logprobs, offsets: Offsets::default() }
    }

    fn logprobs_of(&mut self, tokens: &[TokenOut]) -> Logprobs {
        let mut logprobs = Logprobs::default();
        for token in tokens {
            logprobs.text_offset.push(self.offsets.next(&token.bytes));
            logprobs.tokens.push(tokens::name(self.text.as_ref(), token.id));
            logprobs.token_logprobs.push(token.logprob);
            logprobs.top_logprobs.push(token.logprob.map(|logprob| self.alternatives(token, logprob)));
        }
        logprobs
    }

    /// The most likely tokens and the chosen one, by name. Of two tokens with one name the likelier is shown.
    fn alternatives(&self, token: &TokenOut, logprob: f32) -> Alternatives {
        let mut shown: Vec<(String, f32)> = Vec::with_capacity(token.top.len() + 1);
        let chosen = (token.id, logprob);
        for (id, logprob) in token.top.iter().copied().chain([chosen]) {
            let name = tokens::name(self.text.as_ref(), id);
            if shown.iter().all(|(other, _)| *other != name) {
                shown.push((name, logprob));
            }
        }
        Alternatives(shown)
    }
}

/// Counts characters: where in the text a token begins.
#[derive(Debug, Default)]
struct Offsets {
    utf8: Utf8Stream,
    chars: usize,
    /// Characters that the tokens have in front and the shown prompt has not: a space that the tokenizer put there.
    extra: usize,
}

impl Offsets {
    /// Finds out whether the tokens of the prompt spell one more space in front than the prompt shown.
    fn align(&mut self, shown: &str, tokens: &[TokenOut]) {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.bytes.iter().copied()).collect();
        let spelled = String::from_utf8_lossy(&bytes);
        self.extra = usize::from(spelled.strip_prefix(' ') == Some(shown) && spelled != shown);
    }

    /// The place of a token with these bytes; moves on behind it.
    fn next(&mut self, bytes: &[u8]) -> usize {
        let place = self.chars.saturating_sub(self.extra);
        let mut text = String::new();
        self.utf8.push(bytes, &mut text);
        self.chars += text.chars().count();
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        http::openai::respond::Choice as _,
        serve::{
            Timings, Usage,
            testing::{BOS, EOG, FIRST_PIECE, FakeText},
        },
    };

    fn assembler(pieces: &[&[u8]], echo: Option<&str>) -> Assembler {
        let text: Arc<dyn TextModel> = Arc::new(FakeText::with_pieces(pieces.iter().copied()));
        Assembler::new(text, echo.map(str::to_owned), true)
    }

    /// Tokens as the scheduler reports them: control tokens have no bytes.
    fn tokens(assembler: &Assembler, ids: &[i32]) -> Vec<TokenOut> {
        let token = |&id: &i32| TokenOut {
            id,
            bytes: assembler.text.piece(id, false),
            logprob: Some(-1.0),
            top: vec![(id, -1.0)],
        };
        ids.iter().map(token).collect()
    }

    fn only_piece(output: Output<Piece>) -> (String, Logprobs) {
        match (<[Piece; 1]>::try_from(output.pieces), output.end) {
            (Ok([(text, Some(logprobs))]), None) => (text, logprobs),
            other => panic!("{other:?}"),
        }
    }

    fn offsets(output: Output<Piece>) -> Vec<usize> {
        only_piece(output).1.text_offset
    }

    #[test]
    fn offsets_count_characters_over_events() {
        let mut assembler = assembler(&[b"a\xc3", b"\xa9b", "ü".as_bytes()], None);
        let (a, b) = (FIRST_PIECE, FIRST_PIECE + 1);
        let delta = |text: &str, tokens| Event::Delta { text: text.to_owned(), tokens };
        let first = delta("aéb", tokens(&assembler, &[a, b]));
        let second = delta("ü!", tokens(&assembler, &[FIRST_PIECE + 2, EOG, 33]));
        assert_eq!(offsets(assembler.take(first)), [0, 1]);
        assert_eq!(offsets(assembler.take(second)), [3, 4, 4]);
    }

    /// Some tokenizers put a space in front of a text: the prompt shown is the client's, and offsets point into it.
    #[test]
    fn offsets_of_an_echo_ignore_the_space_that_the_tokenizer_added() {
        let mut assembler = assembler(&[b" Hi", b" you"], Some("Hi"));
        let prompt = Event::Prompt(tokens(&assembler, &[BOS, FIRST_PIECE]));
        let (text, logprobs) = only_piece(assembler.take(prompt));
        assert_eq!(text, "Hi");
        assert_eq!(logprobs.tokens, ["<bos>", " Hi"]);
        assert_eq!(logprobs.text_offset, [0, 0]);
        let delta = Event::Delta { text: " you".to_owned(), tokens: tokens(&assembler, &[FIRST_PIECE + 1]) };
        assert_eq!(offsets(assembler.take(delta)), [2]);
    }

    #[test]
    fn tokens_of_one_name_are_shown_once_with_the_likelier() {
        let mut assembler = assembler(&[b"x", b"x"], None);
        let token = TokenOut {
            id: FIRST_PIECE + 1,
            bytes: b"x".to_vec(),
            logprob: Some(-2.0),
            top: vec![(FIRST_PIECE, -0.5), (33, -1.0)],
        };
        let (_, logprobs) = only_piece(assembler.take(Event::Delta { text: "x".to_owned(), tokens: vec![token] }));
        let wanted = Alternatives(vec![("x".to_owned(), -0.5), ("!".to_owned(), -1.0)]);
        assert_eq!(logprobs.top_logprobs, [Some(wanted)]);
    }

    #[test]
    fn a_generation_that_was_cut_off_is_an_error() {
        let mut assembler = assembler(&[], None);
        for reason in [FinishReason::Cancelled, FinishReason::Error] {
            let event = Event::Done { reason, usage: Usage::default(), timings: Timings::default() };
            assert!(matches!(assembler.take(event).end, Some(End::Failed(_))));
        }
    }
}
