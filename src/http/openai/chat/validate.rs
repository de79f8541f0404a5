//! What a chat request may ask for. Turns wire fields into values that cannot be wrong, or into a 400 that names the
//! field.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    fields::MAX_TOP_LOGPROBS,
    tools::{ToolUse, tool_use},
    types::{ChatRequest, Content, Part, WireCall, WireMessage},
};
use crate::{
    chat::{Conversation, Message, Role, Template, Templates, ToolCall},
    http::{
        error::{ApiError, capped},
        openai::params::{Common, within},
    },
};

/// A request that can be carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Validated {
    /// What the prompt is made of.
    pub conversation: Arc<Conversation>,
    /// What makes it.
    pub template: Arc<Template>,
    /// What may be called.
    pub tool_use: ToolUse,
    /// Alternatives per token.
    pub logprobs: Option<u8>,
    /// What it shares with other requests.
    pub common: Common,
}

/// Checks `request` against the model `served`, which has token ids `0..n_vocab` and these templates.
///
/// # Errors
/// The first field at fault.
pub fn validate(
    request: ChatRequest,
    served: &str,
    n_vocab: u32,
    templates: &Templates,
) -> Result<Validated, ApiError> {
    refuse(&request)?;
    let mut common = Common::validate(request.params, served, n_vocab)?;
    common.user = request.safety_identifier.map(|id| capped(&id, 64)).or(common.user);
    let messages = request.messages.ok_or_else(|| ApiError::invalid("messages", "`messages` is required"))?;
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty: it must hold at least one message"));
    }
    let messages = messages.into_iter().enumerate().map(|(i, wire)| message(i, wire)).collect::<Result<_, _>>()?;
    let tool_use = tool_use(request.tools, request.tool_choice, request.parallel_tool_calls)?;
    if tool_use.may_call() && common.constraint.as_ref().is_some_and(|constraint| constraint.param == "grammar") {
        return Err(ApiError::invalid("grammar", "`grammar` is not possible beside `tools` that may be called"));
    }
    let template = templates.choose(tool_use.may_call()).clone();
    let mut variables = variables(request.chat_template_kwargs)?;
    if let Some(effort) = request.reasoning_effort {
        if !template.traits().reasoning_effort {
            let message = "`reasoning_effort`: the model's chat template knows no such thing";
            return Err(ApiError::unsupported("reasoning_effort", message));
        }
        variables.insert("reasoning_effort".into(), effort.into());
    }
    let logprobs = logprobs(request.logprobs, request.top_logprobs)?;
    // A model that must not call anything is not told what there is.
    let tools = if tool_use.may_call() { tool_use.tools.clone() } else { Arc::default() };
    let conversation = Arc::new(Conversation { messages, tools, variables });
    Ok(Validated { conversation, template, tool_use, logprobs, common })
}

/// What is not implemented, and values of which only one is.
fn refuse(request: &ChatRequest) -> Result<(), ApiError> {
    let refused = [
        ("audio", request.audio.is_some(), "this server answers in text: leave it out"),
        ("prediction", request.prediction.is_some(), "predicted outputs are not supported: leave it out"),
        ("verbosity", request.verbosity.is_some(), "say in a message how long the answer should be"),
        ("web_search_options", request.web_search_options.is_some(), "this server searches nothing: leave it out"),
        ("functions", request.functions.is_some(), "use `tools`, its newer form"),
        ("function_call", request.function_call.is_some(), "use `tool_choice`, its newer form"),
        ("store", request.store == Some(true), "this server keeps no answers: leave it out"),
        (
            "service_tier",
            request.service_tier.as_deref().is_some_and(|tier| !matches!(tier, "auto" | "default")),
            "there is one class of service: `auto` and `default` mean it",
        ),
        (
            "modalities",
            request.modalities.as_ref().is_some_and(|kinds| kinds.iter().any(|kind| kind != "text")),
            "this server answers in text alone",
        ),
    ];
    match refused.into_iter().find(|(_, is_set, _)| *is_set) {
        Some((name, _, why)) => Err(ApiError::unsupported(name, format!("`{name}` is not supported: {why}"))),
        None => Ok(()),
    }
}

fn message(i: usize, wire: WireMessage) -> Result<Message, ApiError> {
    let place = |field: &str| format!("messages[{i}].{field}");
    let refuse = |field: &str, why: String| {
        let place = place(field);
        Err(ApiError::invalid(&place, format!("`{place}` {why}")))
    };
    let Some(role) = wire.role else { return refuse("role", "is required".to_owned()) };
    let Some(role) = Role::ALL.into_iter().find(|known| known.label() == role) else {
        let known: Vec<_> = Role::ALL.iter().map(|role| role.label()).collect();
        return refuse("role", format!("must be one of {}", known.join(", ")));
    };
    let content = match (wire.content, wire.refusal) {
        (Some(Content::Text(text)), _) => text,
        (Some(Content::Parts(parts)), _) => joined(i, parts)?,
        (None, Some(refusal)) => refusal,
        (None, None) if role == Role::Assistant => String::new(),
        (None, None) => return refuse("content", "is required".to_owned()),
    };
    let by_assistant = role == Role::Assistant;
    let reasoning = wire.reasoning_content.filter(|_| by_assistant);
    let calls = wire.tool_calls.unwrap_or_default().into_iter().enumerate();
    let tool_calls = calls.map(|(j, call)| tool_call(&format!("messages[{i}].tool_calls[{j}]"), call));
    let tool_calls = tool_calls.collect::<Result<Vec<_>, _>>()?;
    if !by_assistant && !tool_calls.is_empty() {
        return refuse("tool_calls", "belongs to messages of the assistant's".to_owned());
    }
    let (name, tool_call_id) = (wire.name, wire.tool_call_id);
    Ok(Message { name, reasoning, tool_calls, tool_call_id, ..Message::new(role, content) })
}

fn tool_call(place: &str, call: WireCall) -> Result<ToolCall, ApiError> {
    let refuse =
        |field: &str, why: &str| Err(ApiError::invalid(format!("{place}.{field}"), format!("`{place}.{field}` {why}")));
    if call.kind.is_some_and(|kind| kind != "function") {
        return refuse("type", "must be `function`");
    }
    let function = call.function.unwrap_or_default();
    let Some(name) = function.name else { return refuse("function.name", "is required") };
    let arguments = match function.arguments {
        None => "{}".to_owned(),
        Some(Value::String(text)) => text,
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(_) => return refuse("function.arguments", "must be JSON of an object, as text"),
    };
    Ok(ToolCall { id: call.id, name, arguments })
}

/// Text of all parts, one behind the other.
fn joined(i: usize, parts: Vec<Part>) -> Result<String, ApiError> {
    let mut all = String::new();
    for (j, part) in parts.into_iter().enumerate() {
        let place = format!("messages[{i}].content[{j}]");
        let text = match part.kind.as_deref() {
            Some("text") => part.text,
            Some("refusal") => part.refusal,
            Some(_) => {
                let message = format!("`{place}.type` must be text: this server takes no images, sounds or files");
                return Err(ApiError::unsupported(format!("{place}.type"), message));
            }
            None => return Err(ApiError::invalid(format!("{place}.type"), format!("`{place}.type` is required"))),
        };
        let Some(text) = text else {
            return Err(ApiError::invalid(format!("{place}.text"), format!("`{place}.text` is required")));
        };
        all.push_str(&text);
    }
    Ok(all)
}

fn variables(given: Option<Map<String, Value>>) -> Result<Map<String, Value>, ApiError> {
    let mut given = given.unwrap_or_default();
    if let Some(name) = given.keys().find(|name| Template::is_reserved(name)) {
        let message = format!("`chat_template_kwargs` cannot set `{name}`: the server does");
        return Err(ApiError::invalid("chat_template_kwargs", message));
    }
    given.retain(|_, value| !value.is_null());
    Ok(given)
}

fn logprobs(wanted: Option<bool>, top: Option<u32>) -> Result<Option<u8>, ApiError> {
    let top = within("top_logprobs", top, 0, MAX_TOP_LOGPROBS)?;
    match (wanted.unwrap_or(false), top) {
        (true, top) => Ok(u8::try_from(top.unwrap_or(0)).ok()),
        (false, None) => Ok(None),
        (false, Some(_)) => {
            let message = "`top_logprobs` is only possible with `logprobs`: true";
            Err(ApiError::invalid("top_logprobs", message))
        }
    }
}
