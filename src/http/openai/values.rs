//! Values of request fields that have several JSON shapes.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

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
