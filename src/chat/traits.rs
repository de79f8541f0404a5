//! What a template can do, found out by asking it.

use minijinja::Value as Jinja;
use serde_json::{Map, Value, json};

use super::{
    jinja::Program,
    message::{Form, Message, Role, ToolCall},
    reasoning::Markers,
    tools::ToolFormat,
};

/// What a template can do by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// It shows system messages.
    pub system: bool,
    /// It knows the role `developer`.
    pub developer: bool,
    /// It takes a `reasoning_effort`.
    pub reasoning_effort: bool,
    /// It marks thoughts.
    pub reasoning: Option<Markers>,
    /// It describes tools, shows calls and their results, in this form.
    pub tools: Option<ToolFormat>,
    pub(super) form: Form,
}

/// A word that no template has of its own.
const MARK: &str = "skippymark";

impl Traits {
    /// Asks `program`, which was compiled from `source`. A template that wants none of the questions is taken for one
    /// that can do nothing: it may yet want a conversation.
    pub(super) fn of(program: &Program, source: &str) -> Self {
        let mut form = Form::default();
        let user = Message::new(Role::User, MARK);
        let shows = |messages: &[Message], tools: &[Value], form: Form, words: &[&str]| {
            let messages = messages.iter().map(|message| message.to_json(form)).collect();
            let text = program.render(context(messages, tools, true, &Map::new(), "<s>", "</s>"));
            text.is_ok_and(|text| words.iter().all(|word| text.contains(word)))
        };
        let parts = Form { parts: true, ..form };
        form.parts = !shows(std::slice::from_ref(&user), &[], form, &[MARK])
            && shows(std::slice::from_ref(&user), &[], parts, &[MARK]);
        let system = shows(&[Message::new(Role::System, MARK), Message::new(Role::User, "x")], &[], form, &[MARK]);

        let known = ToolFormat::of(source);
        form.short_ids = known == Some(ToolFormat::MistralList) || known == Some(ToolFormat::MistralArgs);
        let tool = json!({"type": "function", "function": {
            "name": "toolmark",
            "description": "x",
            "parameters": {"type": "object", "properties": {"argumentmark": {"type": "string", "description": "x"}}},
        }});
        let calls = |form| {
            let mut call = Message::new(Role::Assistant, "");
            let (name, arguments) = ("callmark".into(), "{\"argumentmark\": \"valuemark\"}".into());
            call.tool_calls.push(ToolCall { id: Some("call00001".into()), name, arguments });
            let mut result = Message::new(Role::Tool, "resultmark");
            result.tool_call_id = Some("call00001".into());
            result.name = Some("callmark".into());
            shows(
                &[user.clone(), call, result],
                std::slice::from_ref(&tool),
                form,
                &["callmark", "valuemark", "resultmark"],
            )
        };
        let described = shows(std::slice::from_ref(&user), std::slice::from_ref(&tool), form, &["toolmark"]);
        let as_object = described && calls(form);
        form.arguments_as_text = described && !as_object && calls(Form { arguments_as_text: true, ..form });
        Self {
            system,
            developer: source.contains("developer"),
            reasoning_effort: source.contains("reasoning_effort"),
            reasoning: Markers::of(source),
            tools: known.filter(|_| as_object || form.arguments_as_text),
            form,
        }
    }
}

/// What a template sees. `more` cannot replace anything else.
pub(super) fn context(
    messages: Vec<Value>,
    tools: &[Value],
    add_generation_prompt: bool,
    more: &Map<String, Value>,
    bos: &str,
    eos: &str,
) -> Jinja {
    let mut root = more.clone();
    root.insert("messages".into(), messages.into());
    // Hugging Face passes these as none rather than leaving them out, and templates compare with that.
    root.insert("tools".into(), if tools.is_empty() { Value::Null } else { tools.to_vec().into() });
    root.entry("documents").or_insert(Value::Null);
    root.insert("add_generation_prompt".into(), add_generation_prompt.into());
    root.insert("bos_token".into(), bos.into());
    root.insert("eos_token".into(), eos.into());
    serde::Deserialize::deserialize(Value::Object(root)).unwrap_or_default()
}

/// Names that `chat_template_kwargs` cannot give a value.
pub(super) const RESERVED: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];
