//! Wire types of `POST /v1/chat/completions`.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{IgnoredAny, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use crate::http::{
    openai::params::Params,
    wire::{UnknownFieldLog, wire_struct},
};

wire_struct! {
    /// The request, as sent. [`super::fields`] says what each field does.
    pub struct ChatRequest {
        /// The conversation.
        messages: Vec<WireMessage>,
        /// What the model may call.
        tools: Vec<WireTool>,
        /// Whether it may, must, or must not.
        tool_choice: Value,
        /// Whether it may make several calls at once.
        parallel_tool_calls: bool,
        /// Whether to report log-probabilities.
        logprobs: bool,
        /// Alternatives reported per token.
        top_logprobs: u32,
        /// Variables for the template.
        chat_template_kwargs: Map<String, Value>,
        /// How much to think.
        reasoning_effort: String,
        /// What to answer with.
        modalities: Vec<String>,
        /// Whether to keep the answer.
        store: bool,
        /// Class of service.
        service_tier: String,
        /// Newer name of `user`.
        safety_identifier: String,
        /// Groups requests whose prompts begin alike.
        prompt_cache_key: String,
        /// Voice of a spoken answer.
        audio: IgnoredAny,
        /// A guess of the answer.
        prediction: IgnoredAny,
        /// How long the answer should be.
        verbosity: IgnoredAny,
        /// Search on the web.
        web_search_options: IgnoredAny,
        /// Old form of tools.
        functions: IgnoredAny,
        /// Old form of the choice of a tool.
        function_call: IgnoredAny,
        ..params: Params,
    }
}

wire_struct! {
    /// One message. Keys that are not known are skipped.
    pub struct WireMessage {
        /// Who says it.
        role: String,
        /// What is said.
        content: Content,
        /// Name of the participant.
        name: String,
        /// What the model thought.
        reasoning_content: String,
        /// What the model said instead of an answer.
        refusal: String,
        /// Calls that the model made.
        tool_calls: Vec<WireCall>,
        /// The call that this is the result of.
        tool_call_id: String,
    }
}

wire_struct! {
    /// A call that the model made.
    pub struct WireCall {
        /// What its result refers to.
        id: String,
        /// `function`.
        kind as "type": String,
        /// What was called.
        function: WireCalled,
    }
}

wire_struct! {
    /// The function of a call.
    pub struct WireCalled {
        /// Its name.
        name: String,
        /// JSON of the arguments as text; an object is taken too.
        arguments: Value,
    }
}

wire_struct! {
    /// A tool.
    pub struct WireTool {
        /// `function`.
        kind as "type": String,
        /// The function.
        function: WireFunction,
    }
}

wire_struct! {
    /// A function that may be called.
    pub struct WireFunction {
        /// Its name.
        name: String,
        /// What it does.
        description: String,
        /// JSON schema of its arguments.
        parameters: Map<String, Value>,
        /// Whether the schema must hold.
        strict: bool,
    }
}

wire_struct! {
    /// One part of a message's content.
    pub struct Part {
        /// What it is.
        kind as "type": String,
        /// Text of a `text` part.
        text: String,
        /// Text of a `refusal` part.
        refusal: String,
    }
}

/// `content`: a string or an array of parts.
#[derive(Debug)]
pub enum Content {
    /// `"text"`.
    Text(String),
    /// `[{"type": "text", "text": "text"}]`.
    Parts(Vec<Part>),
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;

        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of parts")
            }

            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(Content::Parts(parts))
            }
        }

        deserializer.deserialize_any(ContentVisitor)
    }
}

impl ChatRequest {
    /// Warns of unknown fields.
    pub(in crate::http) fn warn(&self, log: &UnknownFieldLog) {
        log.warn("chat.completions", &self.unknown);
        self.params.warn(log);
        for message in self.messages.iter().flatten() {
            log.warn("messages", &message.unknown);
        }
        for tool in self.tools.iter().flatten() {
            log.warn("tools", &tool.unknown);
            if let Some(function) = &tool.function {
                log.warn("tools.function", &function.unknown);
            }
        }
    }
}

/// A choice of the answer in one piece.
#[derive(Debug, Serialize)]
pub struct ChatChoice {
    /// Place among the choices.
    pub index: u32,
    /// The answer.
    pub message: AnswerMessage,
    /// Log-probabilities of every token generated, when asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: &'static str,
}

/// What the model says.
#[derive(Debug, Serialize)]
pub struct AnswerMessage {
    /// `assistant`.
    pub role: &'static str,
    /// What is said; null when there are calls and nothing is.
    pub content: Option<String>,
    /// Always null: OpenAI's models refuse in a field of its own.
    pub refusal: Option<String>,
    /// What was thought first, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls, if any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<AnswerCall>,
}

/// A call that the model makes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnswerCall {
    /// Place among the calls of the choice; in chunks only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// What the result refers to; in the first chunk of a call only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`, likewise.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// What is called.
    pub function: AnswerFunction,
}

/// The function of a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AnswerFunction {
    /// Its name; in the first chunk of a call only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// JSON of the arguments, or more of it.
    pub arguments: String,
}

/// A choice in a chunk.
#[derive(Debug, Serialize)]
pub struct ChunkChoice {
    /// Place among the choices.
    pub index: u32,
    /// What is added.
    pub delta: ChunkDelta,
    /// Log-probabilities of tokens that came with it, when asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`; null while more comes.
    pub finish_reason: Option<&'static str>,
}

/// What a chunk adds; one of its fields, or none in the last chunk.
#[derive(Debug, Default, Serialize)]
pub struct ChunkDelta {
    /// `assistant`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// More of what is said; empty in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// More of what is thought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// More of one call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[AnswerCall; 1]>,
}

/// Log-probabilities in the chat shape.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChatLogprobs {
    /// One entry a token.
    pub content: Vec<TokenLogprob>,
    /// Always null.
    pub refusal: Option<Vec<TokenLogprob>>,
}

/// Log-probability of a token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenLogprob {
    /// Its text.
    #[serde(flatten)]
    pub token: TokenText,
    /// The most likely tokens at its place, as many as asked for.
    pub top_logprobs: Vec<TokenText>,
}

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenText {
    /// Its text.
    pub token: String,
    /// Under the raw logits.
    pub logprob: f32,
    /// Its bytes, which need not be UTF-8 by themselves.
    pub bytes: Vec<u8>,
}
