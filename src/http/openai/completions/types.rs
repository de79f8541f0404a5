//! Wire types of `POST /v1/completions`.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, IgnoredAny, SeqAccess, Visitor},
};

use crate::http::{openai::params::Params, wire::wire_struct};

wire_struct! {
    /// The request, as sent. [`super::fields`] says what each field does.
    pub struct CompletionRequest {
        /// Text or token ids, one or several.
        prompt: Prompt,
        /// Alternatives reported per token.
        logprobs: u32,
        /// Whether the answer begins with the prompt.
        echo: bool,
        /// Candidates to choose from.
        best_of: u32,
        /// Text behind the insertion.
        suffix: IgnoredAny,
        ..params: Params,
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

impl Logprobs {
    /// Appends those of further tokens.
    pub fn extend(&mut self, more: Self) {
        self.tokens.extend(more.tokens);
        self.token_logprobs.extend(more.token_logprobs);
        self.top_logprobs.extend(more.top_logprobs);
        self.text_offset.extend(more.text_offset);
    }
}
