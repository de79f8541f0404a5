//! Grammars in Lark, as llguidance reads it: what is refused before it does.
//!
//! Schemas inside (`%json {...}`) are checked like any other. What would change more than which texts are possible, or
//! nothing at all in this server, is refused by name.

use serde::de::IgnoredAny;
use serde_json::Value;

use crate::grammar::{GrammarError, schema};

/// Brackets inside brackets at most.
const MAX_NESTING: usize = 64;

/// Attributes of rules that this server has no use for.
const UNSUPPORTED: [&str; 4] = ["temperature", "capture", "stop_capture", "stop"];

/// `text` with the schemas in it made ready.
///
/// # Errors
/// When it uses what is not supported. Faults of its grammar are found later.
pub(super) fn prepare(text: &str) -> Result<String, GrammarError> {
    let mut ready = String::with_capacity(text.len());
    let mut rest = text;
    let mut depth = 0usize;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '"' => quoted(rest, '"'),
            '/' if rest.starts_with("//") => comment(rest),
            '/' => quoted(rest, '/'),
            '#' => comment(rest),
            '(' | '[' | '{' => {
                depth += 1;
                if depth > MAX_NESTING {
                    let message = format!("it has more than {MAX_NESTING} brackets inside one another");
                    return Err(GrammarError::TooLarge(message));
                }
                1
            }
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                1
            }
            '<' => return Err(invalid("tokens (`<...>`) are not supported, only text is")),
            '%' => {
                let word = word(&rest[1..]);
                ready.push_str(&rest[..1 + word.len()]);
                rest = &rest[1 + word.len()..];
                match word {
                    "json" => {
                        let (schema, length) = json_prefix::<Value>(rest)?;
                        ready.push_str(&schema::prepare(&schema)?.to_string());
                        length
                    }
                    "regex" => {
                        let (_, length) = json_prefix::<IgnoredAny>(rest)?;
                        ready.push_str(&rest[..length]);
                        length
                    }
                    "llguidance" => return Err(invalid("`%llguidance` is not supported")),
                    _ => 0,
                }
            }
            c if c.is_ascii_alphanumeric() || c == '_' => {
                let word = word(rest);
                let behind = rest[word.len()..].trim_start();
                if UNSUPPORTED.contains(&word) && (behind.starts_with(['=', ',', ']'])) {
                    return Err(invalid(&format!("the attribute `{word}` is not supported")));
                }
                word.len()
            }
            c => c.len_utf8(),
        };
        if c != '%' {
            ready.push_str(&rest[..length]);
        }
        rest = &rest[length..];
    }
    Ok(ready)
}

fn invalid(message: &str) -> GrammarError {
    GrammarError::Invalid(format!("Lark: {message}"))
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-')).unwrap_or(text.len());
    &text[..end]
}

fn comment(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

/// Bytes of a literal or regular expression with its delimiters; of all the rest when it has no end.
fn quoted(text: &str, delimiter: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == delimiter => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// The JSON value that `text` begins with, and its bytes.
fn json_prefix<T: serde::de::DeserializeOwned>(text: &str) -> Result<(T, usize), GrammarError> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<T>();
    match values.next() {
        Some(Ok(value)) => Ok((value, values.byte_offset())),
        Some(Err(error)) => Err(invalid(&format!("expected JSON behind `%`: {error}"))),
        None => Err(invalid("expected JSON behind `%`")),
    }
}
