//! Conversations: from messages to the text of a prompt, and from the text of an answer back to a message.
//!
//! [`Templates`] are the model's own: Jinja source out of its metadata, compiled once and asked, with a few short
//! conversations, what it can do. What it cannot do by itself (describe tools, know a role) is made up for by
//! [`Template::render`], which says how.
//!
//! Everything here is pure. A template is a foreign program: it runs with a budget for its work and its memory, and with
//! no access to anything but the conversation.

mod call_grammar;
mod calls;
pub(crate) mod clock;
mod error;
mod jinja;
mod message;
mod python_json;
mod reader;
mod reasoning;
mod template;
mod tools;
mod traits;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use self::{
    call_grammar::{CallGrammar, Thought},
    error::TemplateError,
    message::{Message, Role, ToolCall},
    reader::{Calls, Delta, Reader},
    reasoning::Markers,
    template::{Conversation, Rendered, Template, Templates},
    tools::{Tool, ToolFormat},
    traits::Traits,
};
