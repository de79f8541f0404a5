//! Reads typed metadata keys of one architecture, with an error that names key, got and expected.

use std::ops::RangeInclusive;

use super::ContractError;
use crate::{
    gguf::{Metadata, Value},
    package::manifest::fields::{quoted, shown},
};

/// What to say about a key whose absence llama.cpp and others silently replace by a wrong value.
pub(super) const SILENTLY_WRONG: &str = "without it the output is silently wrong";

/// The keys `<arch>.*` of a model.
pub(super) struct Keys<'m> {
    metadata: &'m Metadata,
}

impl<'m> Keys<'m> {
    pub(super) fn new(metadata: &'m Metadata) -> Self {
        Self { metadata }
    }

    /// The full name of a key, fit for a message.
    pub(super) fn name(&self, suffix: &str) -> String {
        shown(&self.metadata.arch_key(suffix))
    }

    pub(super) fn get(&self, suffix: &str) -> Option<&'m Value> {
        self.metadata.get(&self.metadata.arch_key(suffix))
    }

    pub(super) fn missing(&self, suffix: &str, expected: impl Into<String>) -> ContractError {
        ContractError::MissingKey { key: self.name(suffix), expected: expected.into() }
    }

    pub(super) fn wrong(&self, suffix: &str, value: &Value, expected: impl Into<String>) -> ContractError {
        ContractError::Key { key: self.name(suffix), got: describe(value), expected: expected.into() }
    }

    /// A number within `range`.
    pub(super) fn number(&self, suffix: &str, range: RangeInclusive<u32>) -> Result<u32, ContractError> {
        self.optional_number(suffix, range.clone())?.ok_or_else(|| self.missing(suffix, integer(&range)))
    }

    /// A number within `range`, or nothing when the key is absent.
    pub(super) fn optional_number(
        &self,
        suffix: &str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<u32>, ContractError> {
        let Some(value) = self.get(suffix) else { return Ok(None) };
        match value.as_uint().and_then(|n| u32::try_from(n).ok()).filter(|n| range.contains(n)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(suffix, value, integer(&range))),
        }
    }

    /// A number that holds for all layers: stated once, or for each of `layers` layers the same.
    pub(super) fn uniform(&self, suffix: &str, range: RangeInclusive<u32>, layers: u32) -> Result<u32, ContractError> {
        let Some(value @ Value::Array(array)) = self.get(suffix) else { return self.number(suffix, range) };
        let expected = || format!("{}, one for all layers or the same for each of {layers}", integer(&range));
        if array.len() as u64 != u64::from(layers) {
            return Err(self.wrong(suffix, value, expected()));
        }
        let number = |at| array.value(at).and_then(|item| item.as_uint()).and_then(|n| u32::try_from(n).ok());
        let first = number(0).filter(|n| range.contains(n)).ok_or_else(|| self.wrong(suffix, value, expected()))?;
        match (1..array.len()).all(|at| number(at) == Some(first)) {
            true => Ok(first),
            false => Err(self.wrong(suffix, value, expected())),
        }
    }

    /// A number that another one decides.
    pub(super) fn exactly(&self, suffix: &str, number: u32, why: &str) -> Result<(), ContractError> {
        let expected = || format!("{number}, {why}");
        match self.get(suffix) {
            None => Err(self.missing(suffix, expected())),
            Some(value) if value.as_uint() == Some(number.into()) => Ok(()),
            Some(value) => Err(self.wrong(suffix, value, expected())),
        }
    }

    /// A finite positive number.
    pub(super) fn positive(&self, suffix: &str, hint: &str) -> Result<f32, ContractError> {
        self.optional_positive(suffix)?.ok_or_else(|| self.missing(suffix, with_hint(POSITIVE, hint)))
    }

    /// A finite positive number, or nothing when the key is absent.
    pub(super) fn optional_positive(&self, suffix: &str) -> Result<Option<f32>, ContractError> {
        self.optional_float(suffix, |x| x > 0.0, POSITIVE)
    }

    /// A finite number that `fits`, or nothing when the key is absent.
    pub(super) fn optional_float(
        &self,
        suffix: &str,
        fits: impl Fn(f32) -> bool,
        expected: &str,
    ) -> Result<Option<f32>, ContractError> {
        let Some(value) = self.get(suffix) else { return Ok(None) };
        // Narrowing rounds, and may leave the range of an f32.
        match value.as_float().map(|x| x as f32).filter(|x| x.is_finite() && fits(*x)) {
            Some(x) => Ok(Some(x)),
            None => Err(self.wrong(suffix, value, expected)),
        }
    }

    /// A truth value.
    pub(super) fn flag(&self, suffix: &str, hint: &str) -> Result<bool, ContractError> {
        let value = self.get(suffix).ok_or_else(|| self.missing(suffix, with_hint("a bool", hint)))?;
        value.as_bool().ok_or_else(|| self.wrong(suffix, value, "a bool"))
    }
}

const POSITIVE: &str = "a finite number above 0";

fn with_hint(expected: &str, hint: &str) -> String {
    if hint.is_empty() { expected.into() } else { format!("{expected}; {hint}") }
}

fn integer(range: &RangeInclusive<u32>) -> String {
    if range.start() == range.end() {
        range.start().to_string()
    } else {
        format!("an integer of {} to {}", range.start(), range.end())
    }
}

/// Type and value on one line.
pub(super) fn describe(value: &Value) -> String {
    let ty = value.value_type().name();
    match value {
        Value::U8(n) => format!("{ty} {n}"),
        Value::I8(n) => format!("{ty} {n}"),
        Value::U16(n) => format!("{ty} {n}"),
        Value::I16(n) => format!("{ty} {n}"),
        Value::U32(n) => format!("{ty} {n}"),
        Value::I32(n) => format!("{ty} {n}"),
        Value::U64(n) => format!("{ty} {n}"),
        Value::I64(n) => format!("{ty} {n}"),
        Value::F32(x) => format!("{ty} {x}"),
        Value::F64(x) => format!("{ty} {x}"),
        Value::Bool(b) => format!("{ty} {b}"),
        Value::Str(_) => value.as_str().map_or_else(|| format!("a {ty} that is not UTF-8"), quoted),
        Value::Array(array) => format!("an array of {} {}", array.len(), array.element_type().name()),
    }
}
