//! Why a conversation cannot be written as a prompt.

/// A template that is missing, broken, or does not want the conversation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The model has none.
    #[error("the model has no chat template: its metadata lacks `tokenizer.chat_template`; use /v1/completions")]
    Absent,
    /// It does not compile.
    #[error("the model's chat template does not compile: {0}")]
    Syntax(String),
    /// It refuses the conversation with words of its own.
    #[error("the model's chat template refuses this conversation: {0}")]
    Raised(String),
    /// It goes wrong.
    #[error("the model's chat template fails: {0}")]
    Failed(String),
    /// It does more work, or makes more text, than it may.
    #[error("the model's chat template takes too much work for this conversation")]
    TooExpensive,
    /// The last message cannot be continued.
    #[error("the model's chat template leaves out the last message: a conversation that it ends cannot be continued")]
    NotContinued,
}
