//! The part of JSON Schema that this server's documents use, checked; any other keyword is a failure of the test.

use super::*;
use crate::http::{
    fields::{Effect, Field},
    openai::{chat, completions::fields::FIELDS},
    policy::EXPLAIN_FIELDS,
    tokenize::{DETOKENIZE_FIELDS, TOKENIZE_FIELDS},
};

/// Why `value` is not what `schema` says, or `None` if it is. `$ref` is looked up in `document`.
pub(super) fn fault(document: &Value, schema: &Value, value: &Value) -> Option<String> {
    let shown = |value: &Value| value.to_string().chars().take(200).collect::<String>();
    let items = value.as_array().map_or(&[][..], Vec::as_slice);
    let fields = || value.as_object().into_iter().flatten();
    let limit = |limit: &Value| limit.as_u64().unwrap() as usize;
    let number = |bound: &Value| value.as_f64().map(|value| (value, bound.as_f64().unwrap()));
    for (keyword, rule) in schema.as_object().unwrap() {
        let holds = match keyword.as_str() {
            "type" => match rule.as_str().unwrap() {
                "null" => value.is_null(),
                "boolean" => value.is_boolean(),
                "string" => value.is_string(),
                "number" => value.is_number(),
                "integer" => value.is_i64() || value.is_u64(),
                "array" => value.is_array(),
                "object" => value.is_object(),
                other => panic!("type {other}"),
            },
            "enum" => rule.as_array().unwrap().contains(value),
            "const" => rule == value,
            "anyOf" => {
                let tried = rule.as_array().unwrap().iter().map(|schema| fault(document, schema, value));
                match tried.collect::<Option<Vec<_>>>() {
                    // What stands first is what is meant most of the time.
                    Some(whys) => return whys.into_iter().next(),
                    None => true,
                }
            }
            "minimum" => number(rule).is_none_or(|(value, bound)| value >= bound),
            "maximum" => number(rule).is_none_or(|(value, bound)| value <= bound),
            "exclusiveMinimum" => number(rule).is_none_or(|(value, bound)| value > bound),
            "minLength" => value.as_str().is_none_or(|text| text.chars().count() >= limit(rule)),
            "maxLength" => value.as_str().is_none_or(|text| text.chars().count() <= limit(rule)),
            "minItems" => !value.is_array() || items.len() >= limit(rule),
            "maxItems" => items.len() <= limit(rule),
            "maxProperties" => fields().count() <= limit(rule),
            "items" => match items.iter().find_map(|item| fault(document, rule, item)) {
                Some(why) => return Some(why),
                None => true,
            },
            "required" => rule.as_array().unwrap().iter().all(|name| {
                let object = value.as_object();
                object.is_none_or(|object| object.contains_key(name.as_str().unwrap()))
            }),
            "properties" => {
                let why = fields().find_map(|(name, value)| fault(document, rule.get(name)?, value));
                if why.is_some() {
                    return why;
                }
                true
            }
            "additionalProperties" => {
                let known = |name: &String| schema.get("properties").is_some_and(|known| known.get(name).is_some());
                let mut others = fields().filter(|(name, _)| !known(name));
                match rule {
                    Value::Bool(allowed) => *allowed || others.next().is_none(),
                    rule => match others.find_map(|(_, value)| fault(document, rule, value)) {
                        Some(why) => return Some(why),
                        None => true,
                    },
                }
            }
            "$ref" => {
                let target = document.pointer(rule.as_str().unwrap().trim_start_matches('#')).unwrap();
                return fault(document, target, value);
            }
            "description" | "default" | "examples" | "title" => true,
            other => panic!("no test knows the keyword `{other}` of {schema}"),
        };
        if !holds {
            return Some(format!("`{keyword}` does not hold: {} is not {}", shown(value), shown(schema)));
        }
    }
    None
}

/// What the tables call good is good by its schema; and no schema lets everything pass that they call bad.
#[test]
fn schemas_of_fields_agree_with_their_samples() {
    for Field { name, schema, good, bad, effect, .. } in
        [FIELDS, chat::fields::FIELDS, TOKENIZE_FIELDS, DETOKENIZE_FIELDS, EXPLAIN_FIELDS].into_iter().flatten()
    {
        let schema: Value = serde_json::from_str(schema).unwrap_or_else(|error| panic!("{name}: {error}"));
        let fault = |sample: &&str| fault(&Value::Null, &schema, &serde_json::from_str(sample).unwrap());
        assert_eq!(fault(good), None, "{name}");
        assert!(bad.iter().any(|bad| fault(bad).is_some()) || matches!(effect, Effect::Refused(_)), "{name}");
    }
}
