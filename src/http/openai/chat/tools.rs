//! `tools`, `tool_choice` and `parallel_tool_calls`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::types::WireTool;
use crate::{chat::Tool, http::error::ApiError};

/// Most tools of one request.
const MAX_TOOLS: usize = 128;
/// Longest name of a tool, bytes.
const MAX_NAME: usize = 128;

/// What a request lets the model call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolUse {
    /// What there is.
    pub tools: Arc<[Tool]>,
    /// Whether to call.
    pub choice: ToolChoice,
    /// Whether there may be several calls.
    pub parallel: bool,
}

/// `tool_choice`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// Calls nothing.
    None,
    /// As the model likes.
    Auto,
    /// Calls something.
    Required,
    /// Calls this, once.
    Named(String),
}

impl ToolUse {
    /// Whether an answer may hold calls.
    pub fn may_call(&self) -> bool {
        !self.tools.is_empty() && self.choice != ToolChoice::None
    }

    /// Whether it must.
    pub fn must_call(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }

    /// What may be called.
    pub fn callable(&self) -> Arc<[Tool]> {
        match &self.choice {
            ToolChoice::Named(name) => self.tools.iter().filter(|tool| tool.name == *name).cloned().collect(),
            _ => self.tools.clone(),
        }
    }
}

/// What the three fields say.
///
/// # Errors
/// The first one at fault.
pub fn tool_use(
    tools: Option<Vec<WireTool>>,
    choice: Option<Value>,
    parallel: Option<bool>,
) -> Result<ToolUse, ApiError> {
    let wire = tools.unwrap_or_default();
    if wire.len() > MAX_TOOLS {
        let message = format!("`tools` holds {} functions, at most {MAX_TOOLS} are possible", wire.len());
        return Err(ApiError::invalid("tools", message));
    }
    let mut tools: Vec<Tool> = Vec::with_capacity(wire.len());
    for (i, wire) in wire.into_iter().enumerate() {
        let tool = tool(i, wire)?;
        if tools.iter().any(|other| other.name == tool.name) {
            let place = format!("tools[{i}].function.name");
            return Err(ApiError::invalid(&place, format!("`{place}` is the name of another tool too")));
        }
        tools.push(tool);
    }
    let choice = tool_choice(choice, &tools)?;
    let parallel = parallel.unwrap_or(true) && !matches!(choice, ToolChoice::Named(_));
    Ok(ToolUse { tools: tools.into(), choice, parallel })
}

fn tool(i: usize, wire: WireTool) -> Result<Tool, ApiError> {
    let refuse = |field: &str, why: &str| {
        let place = format!("tools[{i}].{field}");
        Err(ApiError::invalid(&place, format!("`{place}` {why}")))
    };
    if wire.kind.as_deref() != Some("function") {
        return refuse("type", "must be `function`");
    }
    let Some(function) = wire.function else { return refuse("function", "is required") };
    let Some(name) = function.name else { return refuse("function.name", "is required") };
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_fit) {
        return refuse("function.name", "must be 1 to 128 letters, digits, `_`, `-`, `.` and `:`");
    }
    let parameters = function.parameters.filter(|schema| !schema.is_empty()).unwrap_or_else(|| {
        Map::from_iter([("type".to_owned(), "object".into()), ("properties".to_owned(), json!({}))])
    });
    Ok(Tool { name, description: function.description, parameters, strict: function.strict.unwrap_or(false) })
}

fn tool_choice(choice: Option<Value>, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    let refuse = |why: &str| Err(ApiError::invalid("tool_choice", format!("`tool_choice` {why}")));
    let choice = match &choice {
        None => ToolChoice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::None,
            "required" => ToolChoice::Required,
            _ => return refuse("must be `auto`, `none`, `required` or an object that names a function"),
        },
        Some(Value::Object(object)) if object.get("type").and_then(Value::as_str) == Some("function") => {
            match object.get("function").and_then(|function| function.get("name")).and_then(Value::as_str) {
                None => return refuse("must name a function: `function.name` is required"),
                Some(name) if tools.iter().any(|tool| tool.name == name) => ToolChoice::Named(name.to_owned()),
                Some(_) => return refuse("names a function that is not among `tools`"),
            }
        }
        Some(Value::Object(_)) => return refuse("must be of the type `function`"),
        Some(_) => return refuse("must be a string or an object"),
    };
    match choice {
        ToolChoice::Required if tools.is_empty() => refuse("is `required`, but there are no `tools`"),
        choice => Ok(choice),
    }
}
