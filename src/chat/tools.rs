//! Tools for templates that know nothing of them, and the forms in which models write calls.

use serde_json::{Map, Value, json};

use super::{
    message::{Message, Role, ToolCall},
    python_json::dumps,
};

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON schema of its arguments, an object.
    pub parameters: Map<String, Value>,
    /// Whether arguments must be what the schema says even where the model need not call it.
    pub strict: bool,
}

impl Tool {
    /// As templates expect it.
    pub(super) fn to_json(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".into(), self.name.clone().into());
        if let Some(description) = &self.description {
            function.insert("description".into(), description.clone().into());
        }
        function.insert("parameters".into(), self.parameters.clone().into());
        json!({"type": "function", "function": function})
    }
}

/// Whether a value of this schema is text and nothing else.
pub(super) fn is_text(schema: &Value) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("string")
}

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, of Hermes and Qwen.
    Hermes,
    /// `<tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>`, of GLM.
    Glm,
    /// `{"name": …, "parameters": {…}}` and nothing else, of Llama 3.
    Llama,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, of Mistral.
    MistralList,
    /// `[TOOL_CALLS]name[ARGS]{…}`, of later models of Mistral's.
    MistralArgs,
}

impl ToolFormat {
    /// What opens a call, or a list of calls. In Llama's form that is optional, and counts at the beginning only.
    pub fn open(self) -> &'static str {
        match self {
            Self::Hermes | Self::Glm => "<tool_call>",
            Self::Llama => "<|python_tag|>",
            Self::MistralList | Self::MistralArgs => "[TOOL_CALLS]",
        }
    }

    /// What closes a call.
    pub fn close(self) -> &'static str {
        match self {
            Self::Hermes | Self::Glm => "</tool_call>",
            Self::Llama | Self::MistralList | Self::MistralArgs => "",
        }
    }

    /// All marks of calls.
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &["<tool_call>", "</tool_call>"],
            Self::Glm => &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
            Self::Llama => &["<|python_tag|>"],
            Self::MistralList => &["[TOOL_CALLS]"],
            Self::MistralArgs => &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
        }
    }

    /// The form that a template asks for; `None` when it is none of these.
    pub(super) fn of(source: &str) -> Option<Self> {
        let has = |word: &str| source.contains(word);
        if has("<arg_key>") {
            Some(Self::Glm)
        } else if has("[TOOL_CALLS]") {
            Some(if has("[ARGS]") { Self::MistralArgs } else { Self::MistralList })
        } else if has("<tool_call>") && !has("<function=") {
            Some(Self::Hermes)
        } else if has("<|python_tag|>") || has("\"parameters\": dictionary") {
            Some(Self::Llama)
        } else {
            None
        }
    }
}

/// The conversation for a template that knows nothing of tools: a system message describes them and the form of calls,
/// calls are part of what the assistant says, and results come from the user.
pub(super) fn written_out(messages: &[Message], tools: &[Tool], system: bool) -> Vec<Message> {
    let mut written: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    for message in messages {
        match (message.role, written.last_mut()) {
            (Role::Tool, Some(last)) if last.role == Role::User && last.content.ends_with(RESPONSE_END) => {
                last.content.push('\n');
                last.content.push_str(&response(&message.content));
            }
            (Role::Tool, _) => written.push(Message::new(Role::User, response(&message.content))),
            _ => written.push(with_calls(message)),
        }
    }
    if tools.is_empty() {
        return written;
    }
    let description = describe(tools);
    let place = match written.first() {
        Some(first) if matches!(first.role, Role::System | Role::Developer) => Some(0),
        _ if system => None,
        _ => written.iter().position(|message| message.role == Role::User),
    };
    match place.and_then(|place| written.get_mut(place)) {
        Some(message) if message.role == Role::User => {
            message.content = format!("{description}\n\n{}", message.content)
        }
        Some(message) if message.content.is_empty() => message.content = description,
        Some(message) => message.content = format!("{}\n\n{description}", message.content),
        None => written.insert(0, Message::new(if system { Role::System } else { Role::User }, description)),
    }
    written
}

const RESPONSE_END: &str = "\n</tool_response>";

fn response(content: &str) -> String {
    format!("<tool_response>\n{content}{RESPONSE_END}")
}

fn with_calls(message: &Message) -> Message {
    let mut message = message.clone();
    for call in std::mem::take(&mut message.tool_calls) {
        if !message.content.is_empty() {
            message.content.push('\n');
        }
        message.content.push_str(&hermes(&call));
    }
    message
}

fn hermes(call: &ToolCall) -> String {
    let (name, arguments) = (dumps(&call.name.as_str().into()), dumps(&call.arguments_value()));
    format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
}

fn describe(tools: &[Tool]) -> String {
    let list: String = tools.iter().map(|tool| dumps(&tool.to_json()) + "\n").collect();
    format!(
        "These functions can be called; each line describes one:\n<tools>\n{list}</tools>\n\
         A call is written like this, with the name of the function and its arguments as JSON:\n\
         <tool_call>\n{{\"name\": \"…\", \"arguments\": {{…}}}}\n</tool_call>\n\
         Several calls follow each other. The results come in <tool_response>."
    )
}
