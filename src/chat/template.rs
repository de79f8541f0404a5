//! A model's templates, and how a conversation becomes a prompt.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    error::TemplateError,
    jinja::Program,
    message::{Message, Role},
    tools::{Tool, written_out},
    traits::{RESERVED, Traits, context},
};

/// The templates of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Templates {
    default: Arc<Template>,
    tool_use: Option<Arc<Template>>,
}

impl Templates {
    /// Compiles the templates out of a model's metadata: the one for everything, and the one for requests with tools
    /// where there is such a one. `bos` and `eos` are the texts of these tokens.
    ///
    /// # Errors
    /// [`TemplateError::Absent`] and [`TemplateError::Syntax`].
    pub fn new(default: Option<&str>, tool_use: Option<&str>, bos: &str, eos: &str) -> Result<Self, TemplateError> {
        let compile = |source: &str| Template::new(source, bos, eos).map(Arc::new);
        let default = compile(default.ok_or(TemplateError::Absent)?)?;
        Ok(Self { default, tool_use: tool_use.map(compile).transpose()? })
    }

    /// The template for a request with or without tools.
    pub fn choose(&self, with_tools: bool) -> &Arc<Template> {
        self.tool_use.as_ref().filter(|_| with_tools).unwrap_or(&self.default)
    }
}

/// One compiled template.
#[derive(Debug)]
pub struct Template {
    source: String,
    program: Program,
    bos: String,
    eos: String,
    traits: Traits,
}

/// What a prompt is made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// At least one message.
    pub messages: Vec<Message>,
    /// Tools to show to the model.
    pub tools: Arc<[Tool]>,
    /// Further variables for the template.
    pub variables: Map<String, Value>,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// Its text; control tokens are written out.
    pub text: String,
    /// Whether it ends within an opened thought.
    pub thinking: bool,
}

impl Template {
    /// Compiles `source` and finds out what it can do.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TemplateError> {
        let program = Program::new(source)?;
        let traits = Traits::of(&program, source);
        Ok(Self { source: source.to_owned(), program, bos: bos.to_owned(), eos: eos.to_owned(), traits })
    }

    /// What it can do by itself.
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// Whether a variable of this name belongs to the template's own business.
    pub fn is_reserved(name: &str) -> bool {
        RESERVED.contains(&name)
    }

    /// The prompt of a conversation: the messages, and what opens the model's answer.
    ///
    /// * `developer` becomes `system` where the template does not know it.
    /// * Tools, calls and results are written out in messages where the template does not know them all.
    /// * When the last message is the assistant's, nothing opens a new answer: the prompt ends with the text of that
    ///   message, without what would close it, and the model goes on from there.
    ///
    /// # Errors
    /// All but [`TemplateError::Absent`] and [`TemplateError::Syntax`].
    pub fn render(&self, conversation: &Conversation) -> Result<Rendered, TemplateError> {
        let native = self.traits.tools.is_some();
        let mut messages = match native {
            true => conversation.messages.clone(),
            false => written_out(&conversation.messages, &conversation.tools, self.traits.system),
        };
        for message in messages.iter_mut().filter(|message| message.role == Role::Developer && !self.traits.developer) {
            message.role = Role::System;
        }
        let last = conversation.messages.last();
        let continues = last.is_some_and(|last| last.role == Role::Assistant && last.tool_calls.is_empty());
        if let Some(last) = messages.last_mut().filter(|_| continues) {
            last.content.push_str(END);
        }
        let messages = messages.iter().map(|message| message.to_json(self.traits.form)).collect();
        let tools: Vec<Value> = conversation.tools.iter().filter(|_| native).map(Tool::to_json).collect();
        let context = context(messages, &tools, !continues, &conversation.variables, &self.bos, &self.eos);
        let mut text = self.program.render(context)?;
        if continues {
            let end = text.rfind(END).ok_or(TemplateError::NotContinued)?;
            text.truncate(end);
        }
        let thinking = self.traits.reasoning.is_some_and(|markers| markers.opened_by(&text));
        Ok(Rendered { text, thinking })
    }
}

/// Stands at the end of a message to be continued, so that the template does not trim it and its place is found.
const END: &str = "\u{fdd0}end\u{fdd1}";

impl PartialEq for Template {
    fn eq(&self, other: &Self) -> bool {
        (&self.source, &self.bos, &self.eos) == (&other.source, &other.bos, &other.eos)
    }
}
