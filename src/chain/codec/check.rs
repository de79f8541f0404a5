//! What many fields are held against.

use super::{FrameError, FrameLimits};
use crate::chain::limits::MAX_NAME_BYTES;

/// A count that must not exceed a limit; `what` is counted.
pub(super) fn at_most(field: &str, what: &str, got: usize, most: usize) -> Result<(), FrameError> {
    if got <= most {
        return Ok(());
    }
    Err(FrameError::new(field, format!("{got} {what}"), format!("at most {most}")))
}

/// A length that follows from something else.
pub(super) fn exactly(field: &str, what: &str, got: usize, expected: usize) -> Result<(), FrameError> {
    if got == expected {
        return Ok(());
    }
    Err(FrameError::new(field, format!("{got} {what}"), expected))
}

pub(super) fn sequence(field: &str, seq: u32, limits: &FrameLimits) -> Result<(), FrameError> {
    if seq < limits.n_seq_max {
        return Ok(());
    }
    Err(FrameError::new(field, seq, format!("a sequence of 0..{}", limits.n_seq_max)))
}

/// `id` as a token of the vocabulary.
pub(super) fn token(field: &str, id: u32, limits: &FrameLimits) -> Result<i32, FrameError> {
    let end = limits.token_end();
    match i32::try_from(id) {
        Ok(token) if id < end => Ok(token),
        _ => Err(FrameError::new(field, id, format!("a token of 0..{end}"))),
    }
}

pub(super) fn tokens(field: &str, ids: Vec<u32>, limits: &FrameLimits) -> Result<Vec<i32>, FrameError> {
    ids.into_iter().map(|id| token(field, id, limits)).collect()
}

/// `value` as an `i32` that is not negative.
pub(super) fn natural(field: &str, value: u32) -> Result<i32, FrameError> {
    i32::try_from(value).map_err(|_| FrameError::new(field, value, format!("at most {}", i32::MAX)))
}

/// A name: short, and without anything that could forge a line of a log.
pub(super) fn name(field: &str, text: String) -> Result<String, FrameError> {
    at_most(field, "bytes", text.len(), MAX_NAME_BYTES)?;
    match text.chars().find(|c| c.is_control()) {
        Some(c) => Err(FrameError::new(field, format!("a text with {c:?}"), "no control characters")),
        None => Ok(text),
    }
}

/// A SHA-256.
pub(super) fn digest(field: &str, text: String) -> Result<String, FrameError> {
    let text = name(field, text)?;
    if text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return Ok(text);
    }
    Err(FrameError::new(field, format!("`{text}`"), "64 hexadecimal digits in lower case"))
}

/// What a message must have.
pub(super) fn present<T>(field: &str, value: Option<T>) -> Result<T, FrameError> {
    value.ok_or_else(|| FrameError::new(field, "absent", "a value"))
}

/// An enum of the protocol.
pub(super) fn unknown(field: &str, value: i32) -> FrameError {
    FrameError::new(field, value, "a value that this version knows")
}
