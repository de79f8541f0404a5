//! How an answer is held to calls and to a format, as far as the model's marks allow it.
//!
//! A grammar reaches tokens that have text. Where a mark is a control token, which has none, a call that must be made is
//! opened by the prompt itself; one that may be made is read leniently.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    tools::{ToolChoice, ToolUse},
    validate::Validated,
};
use crate::{
    chat::{CallGrammar, Calls, Rendered, Thought, ToolFormat, Traits},
    grammar::{Grammar, GrammarEngine, GrammarSpec},
    http::{
        error::ApiError,
        openai::constraint::{Constraint, refusal},
    },
    text::TextModel,
};

/// What goes with a prompt.
#[derive(Debug, Default)]
pub(super) struct Guide {
    /// What the prompt says beyond the template.
    pub(super) opening: String,
    /// What the answer is held to.
    pub(super) grammar: Option<Grammar>,
    /// How calls are read.
    pub(super) calls: Option<Calls>,
    /// Control tokens that are part of what is read.
    pub(super) shown: Vec<i32>,
    /// Whether the grammar is the client's own: it holds for the whole answer, in which nothing is told apart.
    pub(super) verbatim: bool,
}

/// The guide for an answer to `rendered`.
///
/// # Errors
/// When something cannot be enforced that must be.
pub(super) fn guide(
    valid: &Validated,
    rendered: &Rendered,
    text: &dyn TextModel,
    grammars: impl Fn(&str) -> Result<Arc<GrammarEngine>, ApiError>,
) -> Result<Guide, ApiError> {
    let (traits, tool_use) = (valid.template.traits(), &valid.tool_use);
    let constraint = valid.common.constraint.as_ref();
    let compile =
        |param: &str, spec: &GrammarSpec| grammars(param)?.compile(spec).map_err(|error| refusal(param, &error));
    let mut guide = Guide::default();
    for mark in traits.reasoning.iter().flat_map(|markers| [markers.open, markers.close]) {
        guide.shown.extend(control_token(text, mark));
    }
    if !tool_use.may_call() {
        if let Some(Constraint { param, spec }) = constraint {
            guide.verbatim = *param == "grammar";
            let spec = behind_thought(spec, traits, rendered);
            guide.grammar = Some(compile(param, &spec)?);
        }
        return Ok(guide);
    }
    let format = traits.tools.unwrap_or(ToolFormat::Hermes);
    let marks: Vec<i32> = format.marks().iter().filter_map(|mark| control_token(text, mark)).collect();
    let opens = control_token(text, format.open()).is_some();
    guide.shown.extend(&marks);
    let answer = constraint.map(|constraint| schema(&constraint.spec));
    let plan = Plan { valid, rendered, format, traits, opens, marked: !marks.is_empty(), answer };
    guide.opening = plan.opening()?;
    let spec = GrammarSpec::Lark(plan.lark(&guide.opening));
    let strict = tool_use.must_call() || tool_use.tools.iter().any(|tool| tool.strict) || plan.answer.is_some();
    guide.grammar = match plan.reaches_calls() {
        true if strict => Some(compile("tools", &spec)?),
        // Calls that need not be made may be read without help too.
        true => compile("tools", &spec).ok(),
        false if strict => return Err(plan.beyond_reach()),
        false => None,
    };
    let (guided, parallel) = (guide.grammar.is_some(), tool_use.parallel);
    guide.calls = Some(Calls { format, tools: tool_use.tools.clone(), guided, parallel });
    Ok(guide)
}

struct Plan<'a> {
    valid: &'a Validated,
    rendered: &'a Rendered,
    format: ToolFormat,
    traits: &'a Traits,
    /// Whether what opens a call is a control token.
    opens: bool,
    /// Whether any mark is one.
    marked: bool,
    /// Schema of an answer that is no call.
    answer: Option<Value>,
}

impl Plan<'_> {
    fn tool_use(&self) -> &ToolUse {
        &self.valid.tool_use
    }

    /// Whether a grammar can hold the answer to its calls. Llama's mark is optional.
    fn reaches_calls(&self) -> bool {
        !self.opens || self.tool_use().must_call() || self.format == ToolFormat::Llama
    }

    fn beyond_reach(&self) -> ApiError {
        let message = "`tools`: this model opens calls with a control token, so that `strict` tools and a `response_format` \
                       cannot be enforced beside `tool_choice`: \"auto\"";
        ApiError::unsupported("tools", message)
    }

    /// What has to stand in the prompt, since no grammar reaches it.
    fn opening(&self) -> Result<String, ApiError> {
        if !(self.tool_use().must_call() && self.opens) || self.format == ToolFormat::Llama {
            return Ok(String::new());
        }
        let thought = self.traits.reasoning.filter(|_| self.rendered.thinking);
        let closed = thought.map(|markers| format!("{}\n", markers.close)).unwrap_or_default();
        let open = self.format.open();
        if self.format != ToolFormat::MistralArgs {
            return Ok(format!("{closed}{open}"));
        }
        match (self.tool_use().callable().as_ref(), &self.tool_use().choice) {
            ([tool], _) => Ok(format!("{closed}{open}{}[ARGS]", tool.name)),
            (_, ToolChoice::None | ToolChoice::Auto | ToolChoice::Named(_)) => Ok(String::new()),
            (_, ToolChoice::Required) => {
                let message = "`tool_choice`: \"required\" cannot be enforced with several `tools`: this model separates name and \
                               arguments by a control token; name a function";
                Err(ApiError::unsupported("tool_choice", message))
            }
        }
    }

    fn lark(&self, opening: &str) -> String {
        let opened = !opening.is_empty();
        // A call that the prompt opens comes without thoughts, and any other mark would be a control token again.
        let thought = self.traits.reasoning.filter(|_| !opened);
        let alone = matches!(self.format, ToolFormat::Llama | ToolFormat::MistralArgs)
            || (self.marked && self.format != ToolFormat::MistralList);
        CallGrammar {
            format: self.format,
            tools: &self.tool_use().callable(),
            required: self.tool_use().must_call(),
            parallel: self.tool_use().parallel && !alone,
            opened,
            unclosed: self.marked,
            thought: thought.map(|markers| Thought { markers, opened: self.rendered.thinking }),
            answer: self.answer.as_ref(),
        }
        .lark()
    }
}

/// Schema of a format.
fn schema(spec: &GrammarSpec) -> Value {
    match spec {
        GrammarSpec::JsonSchema(schema) => schema.clone(),
        _ => json!({"type": "object"}),
    }
}

/// A thought that the prompt has opened comes before the JSON that is asked for.
fn behind_thought(spec: &GrammarSpec, traits: &Traits, rendered: &Rendered) -> GrammarSpec {
    match (spec, traits.reasoning.filter(|_| rendered.thinking)) {
        (GrammarSpec::JsonObject | GrammarSpec::JsonSchema(_), Some(markers)) => {
            GrammarSpec::Lark(CallGrammar::json_behind(markers, &schema(spec)))
        }
        _ => spec.clone(),
    }
}

/// The control token that is written like this: its text would not be part of an answer.
fn control_token(text: &dyn TextModel, mark: &str) -> Option<i32> {
    match text.tokenize(mark, false, true).ok()?.as_slice() {
        [token] if text.piece(*token, false).is_empty() && !text.is_eog(*token) => Some(*token),
        _ => None,
    }
}
