//! Wire types of `POST /v1/completions`.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use crate::{
    http::wire::wire_struct,
    policy::Path,
    serve::{Drafts, Timings, Usage},
};

wire_struct! {
    /// The request, as sent. [`super::fields`] says what each field does.
    pub struct CompletionRequest {
        /// Model id.
        model: String,
        /// Text or token ids, one or several.
        prompt: Prompt,
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
        /// Alternatives reported per token.
        logprobs: u32,
        /// Whether the answer begins with the prompt.
        echo: bool,
        /// Choices per prompt.
        n: u32,
        /// Candidates to choose from.
        best_of: u32,
        /// Whether to go on after an end-of-generation token.
        ignore_eos: bool,
        /// Attention path to force.
        attention_path: String,
        /// Whether the server may speculate.
        speculative: bool,
        /// Whether to stream.
        stream: bool,
        /// Options of the stream.
        stream_options: StreamOptions,
        /// Text behind the insertion.
        suffix: IgnoredAny,
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

/// `prompt`: one of four JSON shapes.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// `"text"`.
    Text(String),
    /// `[1, 2, 3]`; also the empty array.
    Tokens(Vec<i64>),
    /// `["text", "text"]`.
    Texts(Vec<String>),
    /// `[[1, 2], [3]]`.
    TokenLists(Vec<Vec<i64>>),
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, an array of token ids, or an array of either")
    }

    fn visit_str<E>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Prompt, E> {
        Ok(Prompt::Text(text))
    }

    /// The first element decides what the others must be.
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prompt, A::Error> {
        match seq.next_element::<Element>()? {
            None => Ok(Prompt::Tokens(Vec::new())),
            Some(Element::Token(first)) => rest(first, seq).map(Prompt::Tokens),
            Some(Element::Text(first)) => rest(first, seq).map(Prompt::Texts),
            Some(Element::Tokens(first)) => rest(first, seq).map(Prompt::TokenLists),
        }
    }
}

fn rest<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(first: T, mut seq: A) -> Result<Vec<T>, A::Error> {
    let mut all = vec![first];
    while let Some(next) = seq.next_element()? {
        all.push(next);
    }
    Ok(all)
}

/// First element of a prompt array.
enum Element {
    Token(i64),
    Text(String),
    Tokens(Vec<i64>),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ElementVisitor;

        impl<'de> Visitor<'de> for ElementVisitor {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token id, a string or an array of token ids")
            }

            fn visit_i64<E>(self, token: i64) -> Result<Element, E> {
                Ok(Element::Token(token))
            }

            fn visit_u64<E: Error>(self, token: u64) -> Result<Element, E> {
                let unexpected = serde::de::Unexpected::Unsigned(token);
                i64::try_from(token).map(Element::Token).map_err(|_| E::invalid_value(unexpected, &self))
            }

            fn visit_str<E>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Element, A::Error> {
                let mut tokens = Vec::new();
                while let Some(token) = seq.next_element()? {
                    tokens.push(token);
                }
                Ok(Element::Tokens(tokens))
            }
        }

        deserializer.deserialize_any(ElementVisitor)
    }
}

/// `stop`: a string or several.
#[derive(Clone, Debug, PartialEq)]
pub struct Stop(pub Vec<String>);

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StopVisitor;

        impl<'de> Visitor<'de> for StopVisitor {
            type Value = Stop;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of strings")
            }

            fn visit_str<E>(self, text: &str) -> Result<Stop, E> {
                Ok(Stop(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Stop, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = seq.next_element()? {
                    texts.push(text);
                }
                Ok(Stop(texts))
            }
        }

        deserializer.deserialize_any(StopVisitor)
    }
}

/// `logit_bias`: `{"id": bias}` as OpenAI has it, or `[[id, bias]]`. A null bias is as good as none.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitBias(pub Vec<(i64, f64)>);

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BiasVisitor;

        impl<'de> Visitor<'de> for BiasVisitor {
            type Value = LogitBias;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from token id to bias, or an array of [token id, bias]")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LogitBias, A::Error> {
                let mut biases = Vec::new();
                while let Some((key, bias)) = map.next_entry::<String, Option<f64>>()? {
                    let token = key.parse().map_err(|_| A::Error::custom("has a key that is not a token id"))?;
                    biases.extend(bias.map(|bias| (token, bias)));
                }
                Ok(LogitBias(biases))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<LogitBias, A::Error> {
                let mut biases = Vec::new();
                while let Some(BiasPair(token, bias)) = seq.next_element()? {
                    biases.extend(bias.map(|bias| (token, bias)));
                }
                Ok(LogitBias(biases))
            }
        }

        deserializer.deserialize_any(BiasVisitor)
    }
}

/// `[id, bias]`.
struct BiasPair(i64, Option<f64>);

impl<'de> Deserialize<'de> for BiasPair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairVisitor;

        impl<'de> Visitor<'de> for PairVisitor {
            type Value = BiasPair;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of token id and bias")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<BiasPair, A::Error> {
                let token = seq.next_element()?.ok_or_else(|| A::Error::invalid_length(0, &self))?;
                let bias = seq.next_element()?.ok_or_else(|| A::Error::invalid_length(1, &self))?;
                match seq.next_element::<IgnoredAny>()? {
                    None => Ok(BiasPair(token, bias)),
                    Some(_) => Err(A::Error::invalid_length(3, &self)),
                }
            }
        }

        deserializer.deserialize_seq(PairVisitor)
    }
}

/// The answer, and each chunk of a stream: they have one shape.
#[derive(Debug, Serialize)]
pub struct Completion<'a> {
    /// `cmpl-…`, the same in all chunks.
    pub id: &'a str,
    /// `text_completion`.
    pub object: &'static str,
    /// Unix time of the request, seconds.
    pub created: u64,
    /// Model id.
    pub model: &'a str,
    /// Build and package.
    pub system_fingerprint: &'a str,
    /// One for each prompt and `n`; one in a chunk, none in the usage chunk.
    pub choices: Vec<Choice>,
    /// Token counts: absent, null or given, as the request wants it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<UsageBody>>,
    /// Where the time went; with the end of a single choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<TimingsBody>,
}

/// One answer.
#[derive(Debug, Serialize)]
pub struct Choice {
    /// Text, or more of it.
    pub text: String,
    /// Place among the choices.
    pub index: u32,
    /// Log-probabilities of the tokens in `text`, when asked for.
    pub logprobs: Option<Logprobs>,
    /// `stop` or `length`; null while more comes.
    pub finish_reason: Option<&'static str>,
}

/// Log-probabilities in the completions shape: parallel arrays, one entry a token.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Logprobs {
    /// Texts of the tokens.
    pub tokens: Vec<String>,
    /// Of the tokens; null for the first token of a prompt.
    pub token_logprobs: Vec<Option<f32>>,
    /// Most likely tokens at that place, with the chosen one.
    pub top_logprobs: Vec<Option<Alternatives>>,
    /// Where each token begins in the text, in characters.
    pub text_offset: Vec<usize>,
}

/// Tokens with their log-probabilities, written as an object in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Alternatives(pub Vec<(String, f32)>);

impl Serialize for Alternatives {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, logprob)| (name, logprob)))
    }
}

/// `usage`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct UsageBody {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PromptTokensDetails {
    cached_tokens: u32,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> Self {
        let Usage { prompt_tokens, cached_tokens, completion_tokens } = usage;
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        }
    }
}

/// `timings`.
#[derive(Clone, Debug, Serialize)]
pub struct TimingsBody {
    queue_ms: f64,
    prefill_ms: f64,
    decode_ms: f64,
    prompt_per_second: f64,
    predicted_per_second: f64,
    #[serde(flatten)]
    drafts: Option<DraftsBody>,
    #[serde(flatten)]
    paths: Option<PathsBody>,
}

/// What drafting did; absent when the request did not speculate.
#[derive(Clone, Copy, Debug, Serialize)]
struct DraftsBody {
    draft_n: u32,
    draft_n_accepted: u32,
    forwards: u32,
}

/// How attention ran; absent when the engine has no choice. Several paths stand in the order of their first use, joined
/// by commas.
#[derive(Clone, Debug, Serialize)]
struct PathsBody {
    prefill_path: String,
    decode_path: String,
    fallback_reasons: Vec<&'static str>,
}

impl From<Timings> for TimingsBody {
    fn from(timings: Timings) -> Self {
        let has_paths = !(timings.prefill_paths.is_empty() && timings.decode_paths.is_empty());
        Self {
            queue_ms: timings.queue_ms,
            prefill_ms: timings.prefill_ms,
            decode_ms: timings.decode_ms,
            prompt_per_second: timings.prompt_per_second,
            predicted_per_second: timings.predicted_per_second,
            drafts: timings.drafts.map(|Drafts { drafts, accepted, forwards }| DraftsBody {
                draft_n: drafts,
                draft_n_accepted: accepted,
                forwards,
            }),
            paths: has_paths.then(|| PathsBody {
                prefill_path: joined(&timings.prefill_paths),
                decode_path: joined(&timings.decode_paths),
                fallback_reasons: timings.fallback_reasons.iter().map(|reason| reason.label()).collect(),
            }),
        }
    }
}

fn joined(paths: &[Path]) -> String {
    paths.iter().map(|path| path.label()).collect::<Vec<_>>().join(",")
}
