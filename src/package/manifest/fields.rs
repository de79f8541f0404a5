//! Reads the fields of a JSON object one by one and notes every fault, so that a tool can list them all.

use semver::Version;
use serde_json::{Map, Value};

use super::{Extra, Fault};
use crate::package::{digest::Sha256Digest, issue::Code, path::RelPath};

/// The faults found so far.
#[derive(Default)]
pub(crate) struct Faults(pub(crate) Vec<Fault>);

impl Faults {
    /// More faults than anybody reads; a hostile manifest could have millions.
    const MAX: usize = 1000;

    /// Notes a fault.
    pub(crate) fn push(
        &mut self,
        code: Code,
        field: impl Into<String>,
        got: impl Into<String>,
        expected: impl Into<String>,
    ) {
        if self.0.len() >= Self::MAX {
            return;
        }
        self.0.push(Fault { code, field: field.into(), got: got.into(), expected: expected.into() });
    }
}

/// The fields of one object. Taking a field removes it; what is left at the end is unknown and kept.
pub(crate) struct Fields {
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// The object at `path` (`""` for the document itself).
    pub(crate) fn open(value: Value, path: impl Into<String>, code: Code, faults: &mut Faults) -> Option<Self> {
        let path = path.into();
        match value {
            Value::Object(map) => Some(Self { path, map }),
            other => {
                let path = if path.is_empty() { "model-package.json".into() } else { path };
                faults.push(code, path, describe(&other), "an object");
                None
            }
        }
    }

    /// Full name of a field.
    pub(crate) fn name(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_string() } else { format!("{}.{key}", self.path) }
    }

    /// Whether the field is there and not `null`.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|value| !value.is_null())
    }

    /// The raw value. `null` counts as absent.
    pub(crate) fn take(&mut self, key: &str) -> Option<Value> {
        self.map.shift_remove(key).filter(|value| !value.is_null())
    }

    /// A field that must be there. `missing` and `invalid` are the codes of the two faults.
    pub(crate) fn required_as<T: FromJson>(
        &mut self,
        key: &str,
        missing: Code,
        invalid: Code,
        faults: &mut Faults,
    ) -> Option<T> {
        let Some(value) = self.take(key) else {
            faults.push(missing, self.name(key), "nothing", T::expected());
            return None;
        };
        self.convert(key, value, invalid, faults)
    }

    /// A field that must be there.
    pub(crate) fn required<T: FromJson>(&mut self, key: &str, faults: &mut Faults) -> Option<T> {
        self.required_as(key, Code::MissingField, T::CODE, faults)
    }

    /// A field that may be absent. `invalid` is the code when it is there and wrong.
    pub(crate) fn optional_as<T: FromJson>(&mut self, key: &str, invalid: Code, faults: &mut Faults) -> Option<T> {
        let value = self.take(key)?;
        self.convert(key, value, invalid, faults)
    }

    /// A field that may be absent.
    pub(crate) fn optional<T: FromJson>(&mut self, key: &str, faults: &mut Faults) -> Option<T> {
        self.optional_as(key, T::CODE, faults)
    }

    /// An object that must be there.
    pub(crate) fn object(&mut self, key: &str, faults: &mut Faults) -> Option<Fields> {
        let name = self.name(key);
        match self.take(key) {
            Some(value) => Fields::open(value, name, Code::InvalidField, faults),
            None => {
                faults.push(Code::MissingField, name, "nothing", "an object");
                None
            }
        }
    }

    /// An object that may be absent.
    pub(crate) fn optional_object(&mut self, key: &str, code: Code, faults: &mut Faults) -> Option<Fields> {
        let value = self.take(key)?;
        Fields::open(value, self.name(key), code, faults)
    }

    /// A list; `None` when the field is absent or no list.
    pub(crate) fn list(&mut self, key: &str, faults: &mut Faults) -> Option<Vec<Value>> {
        match self.take(key)? {
            Value::Array(items) => Some(items),
            other => {
                faults.push(Code::InvalidField, self.name(key), describe(&other), "a list");
                None
            }
        }
    }

    /// The remaining keys and values, each to be read by the caller.
    pub(crate) fn into_entries(self) -> Map<String, Value> {
        self.map
    }

    /// The fields nobody asked for.
    pub(crate) fn rest(self) -> Extra {
        self.map
    }

    fn convert<T: FromJson>(&self, key: &str, value: Value, invalid: Code, faults: &mut Faults) -> Option<T> {
        match T::from_json(&value) {
            Ok(value) => Some(value),
            Err(expected) => {
                faults.push(invalid, self.name(key), describe(&value), expected);
                None
            }
        }
    }
}

/// A value that a field can hold.
pub(crate) trait FromJson: Sized {
    /// The code of a value that does not fit, unless the caller knows better.
    const CODE: Code = Code::InvalidField;

    /// What the field must hold, in words.
    fn expected() -> String;

    /// The value, or what was expected in its place.
    fn from_json(value: &Value) -> Result<Self, String>;
}

/// A string with something in it.
impl FromJson for String {
    fn expected() -> String {
        "a non-empty string".into()
    }

    fn from_json(value: &Value) -> Result<Self, String> {
        value.as_str().filter(|text| !text.trim().is_empty()).map(String::from).ok_or_else(Self::expected)
    }
}

impl FromJson for u64 {
    fn expected() -> String {
        "a non-negative integer".into()
    }

    fn from_json(value: &Value) -> Result<Self, String> {
        value.as_u64().ok_or_else(Self::expected)
    }
}

impl FromJson for u32 {
    fn expected() -> String {
        format!("an integer of 0 to {}", u32::MAX)
    }

    fn from_json(value: &Value) -> Result<Self, String> {
        value.as_u64().and_then(|number| number.try_into().ok()).ok_or_else(Self::expected)
    }
}

impl FromJson for RelPath {
    const CODE: Code = Code::UnsafePath;

    fn expected() -> String {
        "a path relative to the package root".into()
    }

    fn from_json(value: &Value) -> Result<Self, String> {
        let text = value.as_str().ok_or_else(Self::expected)?;
        RelPath::new(text).map_err(|error| error.to_string())
    }
}

impl FromJson for Sha256Digest {
    const CODE: Code = Code::InvalidSha256;

    fn expected() -> String {
        "64 hexadecimal digits".into()
    }

    fn from_json(value: &Value) -> Result<Self, String> {
        value.as_str().and_then(|text| text.parse().ok()).ok_or_else(Self::expected)
    }
}

impl FromJson for Version {
    const CODE: Code = Code::InvalidSkippyAbiVersion;

    fn expected() -> String {
        "a semantic version such as `1.0.0`".into()
    }

    fn from_json(value: &Value) -> Result<Self, String> {
        value.as_str().and_then(|text| Version::parse(text).ok()).ok_or_else(Self::expected)
    }
}

/// A value in words, short enough for one line.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".into(),
        Value::String(text) => quoted(text),
        scalar => scalar.to_string(),
    }
}

/// Foreign text in quotes, printable and cut.
pub(crate) fn quoted(text: &str) -> String {
    let short: String = text.chars().take(MAX_SHOWN).collect();
    let dots = if short.len() < text.len() { "..." } else { "" };
    format!("{short:?}{dots}")
}

/// Foreign text as part of a name, printable and cut.
pub(crate) fn shown(text: &str) -> String {
    let short: String = text.chars().take(MAX_SHOWN).collect();
    let dots = if short.len() < text.len() { "..." } else { "" };
    format!("{}{dots}", short.escape_debug())
}

/// Characters of foreign text in a message.
const MAX_SHOWN: usize = 80;
