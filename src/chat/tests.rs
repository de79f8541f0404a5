//! Templates in the manner of well-known models, and what becomes of conversations and answers.

mod answers;
mod grammars;
mod prompts;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{testing::*, *};

/// A tool with two arguments, of which one is required, and one without any.
fn tools() -> Arc<[Tool]> {
    let parameters = json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": false,
    });
    let tool = |name: &str, parameters: Value| Tool {
        name: name.to_owned(),
        description: Some("Tells it.".to_owned()),
        parameters: parameters.as_object().unwrap().clone(),
        strict: false,
    };
    Arc::new([
        tool("weather", parameters),
        tool("now", json!({"type": "object", "properties": {}, "additionalProperties": false})),
    ])
}

fn template(source: &str) -> Template {
    Template::new(source, "<s>", "</s>").unwrap()
}
