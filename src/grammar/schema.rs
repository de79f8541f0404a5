//! JSON schemas: what can be enforced, as data, and the refusal of all else.
//!
//! A keyword that is merely ignored would let answers through that the schema forbids, so a schema is looked through
//! before llguidance compiles it: each keyword must be one of those below.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::grammar::{GrammarError, shown};

/// Keywords that are enforced.
pub const KEYWORDS: [&str; 27] = [
    "type",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "minProperties",
    "maxProperties",
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];

/// Keywords that say nothing about which values are valid, besides those that begin with `x-`.
pub const ANNOTATIONS: [&str; 16] = [
    "$schema",
    "$id",
    "id",
    "$anchor",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "example",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
];

/// Values of `format`.
pub const FORMATS: [&str; 10] =
    ["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Schemas inside a schema at most, those of properties included.
pub const MAX_SUBSCHEMAS: usize = 4096;

/// Schemas inside one another at most.
pub const MAX_DEPTH: usize = 64;

/// Levels that the compiler may descend: through the schema and from each definition referred to into its own.
const MAX_DESCENT: usize = 2000;

/// `multipleOf` at most, its decimal point left out: the states needed grow with its square.
pub const MAX_MULTIPLE: u64 = 1000;

/// `patternProperties` in all at most: each is compared with each.
pub const MAX_PATTERNS: usize = 32;

/// White space in JSON: none, a space, or a line break with an indent. JSON allows any amount, and a model that has
/// begun with it may never end.
const WHITE_SPACE: &str = r"[ ]|\n[ \t]{0,24}";

/// Keywords whose value is a schema or, for `items`, an array of schemas.
const SCHEMAS: [&str; 3] = ["items", "additionalItems", "additionalProperties"];
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
const MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// `schema` as llguidance is to read it.
///
/// # Errors
/// [`GrammarError::Invalid`] names the keyword and its place; [`GrammarError::TooLarge`].
pub(super) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    let mut walk = Walk::default();
    walk.schema(schema, "#", 0)?;
    walk.check_references()?;
    let mut ready = match schema {
        Value::Object(keywords) => keywords.clone(),
        Value::Bool(true) => serde_json::Map::new(),
        _ => return Err(GrammarError::Invalid("the schema admits no value".into())),
    };
    // One reading of all drafts: they differ in keywords that are refused anyway.
    ready.remove("$schema");
    ready.insert("x-guidance".into(), json!({"whitespace_pattern": WHITE_SPACE}));
    Ok(Value::Object(ready))
}

#[derive(Default)]
struct Walk {
    count: usize,
    patterns: usize,
    /// Sum of the `multipleOf`, their decimal points left out.
    multiples: u64,
    /// Places of schemas, with the levels below them.
    heights: HashMap<String, usize>,
    /// Where a reference stands, and where it points to.
    references: Vec<(String, String)>,
}

impl Walk {
    /// Looks through the schema at `place`; returns how many levels it has, at least 1.
    fn schema(&mut self, schema: &Value, place: &str, depth: usize) -> Result<usize, GrammarError> {
        self.count += 1;
        if self.count > MAX_SUBSCHEMAS {
            return Err(GrammarError::TooLarge(format!("the schema has more than {MAX_SUBSCHEMAS} schemas inside")));
        }
        if depth > MAX_DEPTH {
            return Err(GrammarError::TooLarge(format!(
                "{MAX_DEPTH} schemas inside one another at `{}`",
                shown(place)
            )));
        }
        let height = match schema {
            Value::Bool(_) => 1,
            Value::Object(keywords) => {
                let mut height = 1;
                for (keyword, value) in keywords {
                    height = height.max(1 + self.keyword(keyword, value, place, depth)?);
                }
                height
            }
            _ => return Err(fault(place, "must be an object or a boolean")),
        };
        self.heights.insert(place.to_owned(), height);
        Ok(height)
    }

    /// Looks at one keyword; returns the levels of the schemas in it.
    fn keyword(&mut self, keyword: &str, value: &Value, place: &str, depth: usize) -> Result<usize, GrammarError> {
        let annotation = ANNOTATIONS.contains(&keyword) || (keyword.starts_with("x-") && keyword != "x-guidance");
        if !annotation && !KEYWORDS.contains(&keyword) {
            return Err(fault(place, &format!("uses `{}`, which cannot be enforced", shown(keyword))));
        }
        match (keyword, value) {
            ("$schema", _) => dialect(value, place)?,
            ("$id" | "id", _) if place != "#" => {
                return Err(fault(place, &format!("uses `{keyword}`, which is possible at the root only")));
            }
            ("$ref", _) => self.reference(value, place)?,
            ("format", _) => check_format(value, place)?,
            ("multipleOf", _) => {
                self.multiples += check_multiple(value, place)?;
                if self.multiples > 4 * MAX_MULTIPLE {
                    let message = format!("the `multipleOf` of the schema add up to more than {}", 4 * MAX_MULTIPLE);
                    return Err(GrammarError::TooLarge(message));
                }
            }
            ("patternProperties", Value::Object(patterns)) => {
                self.patterns += patterns.len();
                if self.patterns > MAX_PATTERNS {
                    let message = format!("the schema has more than {MAX_PATTERNS} `patternProperties`");
                    return Err(GrammarError::TooLarge(message));
                }
                return self.map(keyword, value, place, depth);
            }
            ("items", Value::Array(_)) => return self.list(keyword, value, place, depth),
            _ if SCHEMAS.contains(&keyword) => {
                return self.schema(value, &format!("{place}/{keyword}"), depth + 1);
            }
            _ if LISTS.contains(&keyword) => return self.list(keyword, value, place, depth),
            _ if MAPS.contains(&keyword) => return self.map(keyword, value, place, depth),
            _ => {}
        }
        Ok(0)
    }

    fn list(&mut self, keyword: &str, value: &Value, place: &str, depth: usize) -> Result<usize, GrammarError> {
        let schemas = value.as_array().ok_or_else(|| fault(place, &format!("`{keyword}` must be an array")))?;
        let mut height = 0;
        for (i, schema) in schemas.iter().enumerate() {
            height = height.max(self.schema(schema, &format!("{place}/{keyword}/{i}"), depth + 1)?);
        }
        Ok(height)
    }

    fn map(&mut self, keyword: &str, value: &Value, place: &str, depth: usize) -> Result<usize, GrammarError> {
        let schemas = value.as_object().ok_or_else(|| fault(place, &format!("`{keyword}` must be an object")))?;
        let mut height = 0;
        for (name, schema) in schemas {
            height = height.max(self.schema(schema, &format!("{place}/{keyword}/{name}"), depth + 1)?);
        }
        Ok(height)
    }

    fn reference(&mut self, value: &Value, place: &str) -> Result<(), GrammarError> {
        let target = value.as_str().ok_or_else(|| fault(place, "`$ref` must be a string"))?;
        let inside = target == "#" || target.starts_with("#/");
        if !inside || target.contains(['~', '%']) {
            let message = format!("refers to `{}`: only `#` and `#/...` without escapes are possible", shown(target));
            return Err(fault(place, &message));
        }
        self.references.push((place.to_owned(), target.to_owned()));
        Ok(())
    }

    /// References must point to schemas that have been looked through, and few enough levels down in all.
    fn check_references(&self) -> Result<(), GrammarError> {
        let mut targets = HashSet::new();
        let mut descent = self.heights.get("#").copied().unwrap_or(1);
        for (place, target) in &self.references {
            let Some(height) = self.heights.get(target) else {
                return Err(fault(place, &format!("refers to `{}`, where there is no schema", shown(target))));
            };
            if targets.insert(target) {
                descent += height;
            }
        }
        if descent > MAX_DESCENT {
            let message =
                format!("the definitions referred to have {descent} levels in all, at most {MAX_DESCENT} are possible");
            return Err(GrammarError::TooLarge(message));
        }
        Ok(())
    }
}

fn fault(place: &str, message: &str) -> GrammarError {
    GrammarError::Invalid(format!("the schema at `{}` {message}", shown(place)))
}

fn dialect(value: &Value, place: &str) -> Result<(), GrammarError> {
    let known = value.as_str().is_some_and(|uri| {
        let uri = uri.trim_start_matches("https://").trim_start_matches("http://");
        uri.starts_with("json-schema.org/")
    });
    match (known, place) {
        (true, "#") => Ok(()),
        (true, _) => Err(fault(place, "uses `$schema`, which is possible at the root only")),
        (false, _) => Err(fault(place, "has a `$schema` other than those of json-schema.org")),
    }
}

fn check_format(value: &Value, place: &str) -> Result<(), GrammarError> {
    let format = value.as_str().ok_or_else(|| fault(place, "`format` must be a string"))?;
    if FORMATS.contains(&format) {
        return Ok(());
    }
    let message = format!("uses the format `{}`, which cannot be enforced: {} can", shown(format), FORMATS.join(", "));
    Err(fault(place, &message))
}

/// The number without its decimal point.
fn check_multiple(value: &Value, place: &str) -> Result<u64, GrammarError> {
    let number = value.as_f64().filter(|number| *number > 0.0 && *number <= MAX_MULTIPLE as f64);
    let digits = number.map(|number| format!("{number}").chars().filter(char::is_ascii_digit).collect::<String>());
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(digits) if digits <= MAX_MULTIPLE => Ok(digits),
        _ => {
            let message =
                format!("`multipleOf` must be above 0 and, its decimal point left out, at most {MAX_MULTIPLE}");
            Err(fault(place, &message))
        }
    }
}
