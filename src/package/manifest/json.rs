//! JSON text to a value, without what `serde_json` lets pass: a key that an object states twice.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{Fault, ManifestError, fields::shown};
use crate::package::issue::Code;

/// Parses `bytes` as one JSON document.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, ManifestError> {
    let cap = super::Manifest::MAX_BYTES;
    if bytes.len() as u64 > cap {
        return Err(fault(Code::ManifestTooLarge, "model-package.json", format!("{} bytes", bytes.len()), too_large()));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let got = format!("an invalid byte at offset {}", error.valid_up_to());
        fault(Code::InvalidManifestUtf8, "model-package.json", got, "utf-8 text".into())
    })?;
    let mut json = serde_json::Deserializer::from_str(text);
    let strict: Strict = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = shown_path(&error.path().to_string());
        let error = error.into_inner();
        let place = format!("line {} column {}", error.line(), error.column());
        match error.to_string().strip_prefix(DUPLICATE) {
            Some(key) => {
                let key = key.split('`').next().unwrap_or_default();
                let key = shown(key);
                let field = if path == "." { key } else { format!("{path}.{key}") };
                fault(Code::DuplicateManifestKey, &field, format!("the key again at {place}"), "each key once".into())
            }
            None => {
                let path = if path == "." || path == "?" { "model-package.json" } else { &path };
                fault(Code::InvalidManifestJson, path, error.to_string(), "json".into())
            }
        }
    })?;
    json.end().map_err(|error| {
        fault(Code::InvalidManifestJson, "model-package.json", error.to_string(), "one json document".into())
    })?;
    Ok(strict.0)
}

/// A path made of foreign keys, printable and cut at its front, since its end says where.
fn shown_path(path: &str) -> String {
    const MAX: usize = 160;
    let length = path.chars().count();
    let end: String = path.chars().skip(length.saturating_sub(MAX)).collect();
    format!("{}{}", if length > MAX { "..." } else { "" }, end.escape_debug())
}

fn too_large() -> String {
    format!("at most {} bytes", super::Manifest::MAX_BYTES)
}

fn fault(code: Code, field: &str, got: String, expected: String) -> ManifestError {
    ManifestError { first: Fault { code, field: field.into(), got, expected }, rest: Vec::new() }
}

const DUPLICATE: &str = "duplicate key `";

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("json")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(de::Error::custom(format_args!("{DUPLICATE}{key}`")));
            }
            let Strict(value) = entries.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
