//! Messages of a conversation, and the form in which templates expect them.

use serde_json::{Map, Value, json};

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Instructions from above.
    System,
    /// The newer name of the same.
    Developer,
    /// The other side.
    User,
    /// The model.
    Assistant,
    /// The result of a call.
    Tool,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 5] = [Self::System, Self::Developer, Self::User, Self::Assistant, Self::Tool];

    /// Its name on the wire and in templates.
    pub fn label(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said; empty beside tool calls.
    pub content: String,
    /// Name of the participant or, in a tool's answer, of the function.
    pub name: Option<String>,
    /// What the model thought before it said this.
    pub reasoning: Option<String>,
    /// Calls that the model makes.
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool's message answers.
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message with nothing but text.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into(), name: None, reasoning: None, tool_calls: Vec::new(), tool_call_id: None }
    }
}

/// A call of a function by the model.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// What the answer to it refers to.
    pub id: Option<String>,
    /// The function.
    pub name: String,
    /// Its arguments: the text of a JSON object, unless a client has sent something else.
    pub arguments: String,
}

/// How a template wants messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Form {
    /// Content as an array of parts rather than a string.
    pub(super) parts: bool,
    /// Arguments as JSON text rather than as an object.
    pub(super) arguments_as_text: bool,
    /// Ids of nine letters and digits.
    pub(super) short_ids: bool,
}

impl Message {
    /// As templates see it.
    pub(super) fn to_json(&self, form: Form) -> Value {
        let mut json = Map::new();
        json.insert("role".into(), self.role.label().into());
        let content = match form.parts {
            true => json!([{"type": "text", "text": self.content}]),
            false => self.content.clone().into(),
        };
        json.insert("content".into(), content);
        if let Some(name) = &self.name {
            json.insert("name".into(), name.clone().into());
        }
        if let Some(reasoning) = &self.reasoning {
            json.insert("reasoning_content".into(), reasoning.clone().into());
        }
        // Templates ask whether the key is there.
        if !self.tool_calls.is_empty() {
            json.insert("tool_calls".into(), self.tool_calls.iter().map(|call| call.to_json(form)).collect());
        }
        if let Some(id) = &self.tool_call_id {
            json.insert("tool_call_id".into(), form.id(id).into());
        }
        json.into()
    }
}

impl ToolCall {
    fn to_json(&self, form: Form) -> Value {
        let arguments = if form.arguments_as_text { self.arguments.clone().into() } else { self.arguments_value() };
        let mut json = Map::new();
        if let Some(id) = &self.id {
            json.insert("id".into(), form.id(id).into());
        }
        json.insert("type".into(), "function".into());
        json.insert("function".into(), json!({"name": self.name, "arguments": arguments}));
        json.into()
    }

    /// The arguments as an object; as text when they are none.
    pub(super) fn arguments_value(&self) -> Value {
        let object = serde_json::from_str::<Value>(&self.arguments).ok().filter(Value::is_object);
        object.unwrap_or_else(|| self.arguments.clone().into())
    }
}

impl Form {
    /// Some templates refuse ids that are not nine letters and digits: others become such, the same one each time.
    fn id(self, id: &str) -> String {
        const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        if !self.short_ids || (id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())) {
            return id.to_owned();
        }
        // FNV-1a.
        let hash = id
            .bytes()
            .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
        let digit = |i: u32| LETTERS.get((hash / 62_u64.pow(i) % 62) as usize).copied().unwrap_or(b'0');
        (0..9).map(|i| char::from(digit(i))).collect()
    }
}
