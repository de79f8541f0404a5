//! From the events of a generation to a choice, whole or in chunks.

use std::sync::Arc;

use super::types::{
    AnswerCall, AnswerFunction, AnswerMessage, ChatChoice, ChatLogprobs, ChunkChoice, ChunkDelta, TokenLogprob,
    TokenText,
};
use crate::{
    chat::{Delta, Reader},
    http::openai::{
        respond::{Choice, End, Output},
        tokens,
    },
    serve::{Event, FinishReason, ServeError, TokenOut},
    text::TextModel,
};

/// Turns the events of one generation into what the model says and thinks.
pub struct Assembler {
    text: Arc<dyn TextModel>,
    reader: Reader,
    /// What the prompt has said of the answer.
    opened: Vec<Delta>,
    /// Log-probabilities that no piece has carried yet, when they are asked for.
    logprobs: Option<Vec<TokenLogprob>>,
    /// Calls that have begun.
    calls: u32,
}

/// One piece of a choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    said: Said,
    logprobs: Option<ChatLogprobs>,
}

#[derive(Clone, Debug, PartialEq)]
enum Said {
    /// The model has its turn.
    Role,
    Content(String),
    Reasoning(String),
    /// A call begins, or more of its arguments.
    Call(AnswerCall),
}

impl Assembler {
    /// For an answer that `reader` reads, and that begins with `opened`.
    pub(super) fn new(text: Arc<dyn TextModel>, reader: Reader, opened: Vec<Delta>, logprobs: bool) -> Self {
        Self { text, reader, opened, logprobs: logprobs.then(Vec::new), calls: 0 }
    }

    /// Pieces for these deltas; the first one carries the log-probabilities that have come.
    fn pieces(&mut self, deltas: Vec<Delta>) -> Vec<Piece> {
        let carry =
            |logprobs: &mut Vec<TokenLogprob>| ChatLogprobs { content: std::mem::take(logprobs), refusal: None };
        let calls = &mut self.calls;
        let mut said = |delta| match delta {
            Delta::Content(text) => Said::Content(text),
            Delta::Reasoning(text) => Said::Reasoning(text),
            Delta::Call(name) => {
                *calls += 1;
                let function = AnswerFunction { name: Some(name), ..AnswerFunction::default() };
                let id = Some(format!("call_{}", uuid::Uuid::new_v4().simple()));
                Said::Call(AnswerCall { index: Some(*calls - 1), id, kind: Some("function"), function })
            }
            Delta::Arguments(arguments) => {
                let function = AnswerFunction { name: None, arguments };
                Said::Call(AnswerCall { index: Some(calls.saturating_sub(1)), id: None, kind: None, function })
            }
        };
        let piece = |delta| Piece { said: said(delta), logprobs: self.logprobs.as_mut().map(carry) };
        deltas.into_iter().map(piece).collect()
    }

    /// What is left when the text has ended.
    fn rest(&mut self) -> Vec<Piece> {
        let mut deltas = self.reader.finish();
        if deltas.is_empty() && self.logprobs.as_ref().is_some_and(|waiting| !waiting.is_empty()) {
            deltas.push(Delta::Content(String::new()));
        }
        self.pieces(deltas)
    }

    fn note(&mut self, out: &[TokenOut]) {
        let Some(waiting) = &mut self.logprobs else { return };
        for token in out {
            let Some(logprob) = token.logprob else { continue };
            let named = |id, logprob| TokenText {
                token: tokens::name(self.text.as_ref(), id),
                logprob,
                bytes: self.text.piece(id, true),
            };
            let top_logprobs = token.top.iter().map(|&(id, logprob)| named(id, logprob)).collect();
            waiting.push(TokenLogprob { token: named(token.id, logprob), top_logprobs });
        }
    }
}

impl Choice for Assembler {
    const OBJECT: &'static str = "chat.completion";
    const CHUNK: &'static str = "chat.completion.chunk";
    const PREFIX: &'static str = "chatcmpl-";
    type Piece = Piece;
    type Delta = ChunkChoice;
    type Whole = ChatChoice;

    fn take(&mut self, event: Event) -> Output<Piece> {
        match event {
            Event::Started { .. } => {
                let opened = std::mem::take(&mut self.opened);
                let mut pieces = vec![Piece { said: Said::Role, logprobs: None }];
                pieces.extend(self.pieces(opened));
                Output { pieces, end: None }
            }
            Event::Prompt(_) => Output::nothing(),
            Event::Delta { text, tokens } => {
                self.note(&tokens);
                let deltas = self.reader.push(&text);
                Output { pieces: self.pieces(deltas), end: None }
            }
            Event::Done { reason: reason @ (FinishReason::Stop | FinishReason::Length), usage, timings } => {
                let pieces = self.rest();
                let reason = match reason {
                    FinishReason::Stop if self.calls > 0 => "tool_calls",
                    reason => reason.label(),
                };
                Output { pieces, end: Some(End::Done(reason, usage, timings)) }
            }
            Event::Done { .. } => Output::end(End::Failed(ServeError::Draining.into())),
            Event::Failed(error) => Output::end(End::Failed(error.into())),
        }
    }

    fn delta(index: u32, Piece { said, logprobs }: Piece) -> ChunkChoice {
        let empty = ChunkDelta::default();
        let delta = match said {
            Said::Role => ChunkDelta { role: Some("assistant"), content: Some(String::new()), ..empty },
            Said::Content(text) => ChunkDelta { content: Some(text), ..empty },
            Said::Reasoning(text) => ChunkDelta { reasoning_content: Some(text), ..empty },
            Said::Call(call) => ChunkDelta { tool_calls: Some([call]), ..empty },
        };
        ChunkChoice { index, delta, logprobs, finish_reason: None }
    }

    fn end(index: u32, reason: &'static str) -> ChunkChoice {
        ChunkChoice { index, delta: ChunkDelta::default(), logprobs: None, finish_reason: Some(reason) }
    }

    fn whole(&self, index: u32, pieces: Vec<Piece>, reason: &'static str) -> ChatChoice {
        let (mut content, mut reasoning) = (String::new(), String::new());
        let mut calls: Vec<AnswerCall> = Vec::new();
        let mut all = self.logprobs.is_some().then(ChatLogprobs::default);
        for Piece { said, logprobs } in pieces {
            match said {
                Said::Role => {}
                Said::Content(text) => content.push_str(&text),
                Said::Reasoning(text) => reasoning.push_str(&text),
                Said::Call(call) if call.id.is_some() => calls.push(AnswerCall { index: None, ..call }),
                Said::Call(more) => {
                    if let Some(call) = calls.last_mut() {
                        call.function.arguments.push_str(&more.function.arguments);
                    }
                }
            }
            if let (Some(all), Some(more)) = (&mut all, logprobs) {
                all.content.extend(more.content);
            }
        }
        let message = AnswerMessage {
            role: "assistant",
            content: Some(content).filter(|content| calls.is_empty() || !content.is_empty()),
            refusal: None,
            reasoning_content: (!reasoning.is_empty()).then_some(reasoning),
            tool_calls: calls,
        };
        ChatChoice { index, message, logprobs: all, finish_reason: reason }
    }
}
