//! Why a request is not served, and what kind of fault that is.

use crate::{
    grammar::GrammarError,
    pipeline::TailError,
    text::{ParamError, TextError},
};

/// Why a request was refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The request itself is wrong; the message says how.
    #[error("{message}")]
    InvalidRequest {
        /// The request field at fault, if it is one.
        param: Option<&'static str>,
        /// What it must be and what it is.
        message: String,
    },
    /// The prompt leaves no room for a single token.
    #[error(
        "the prompt has {n_prompt_tokens} tokens, the context holds {n_ctx} including at least one generated token: \
         shorten the prompt or raise `--ctx-size`"
    )]
    ContextLength {
        /// Tokens of the prompt.
        n_prompt_tokens: u32,
        /// Tokens that one request may use, prompt and answer together.
        n_ctx: u32,
    },
    /// Too many requests wait already.
    #[error("the queue is full: {max_queue} requests wait for a lane, retry later")]
    QueueFull {
        /// Requests that may wait.
        max_queue: u32,
    },
    /// The model is not loaded yet.
    #[error("the model is still loading, retry later")]
    Loading,
    /// The model could not be loaded, so no request can be served.
    #[error("the model could not be loaded: {0}")]
    LoadFailed(String),
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Draining,
    /// The engine failed.
    #[error("the engine failed: {0}")]
    Engine(String),
    /// The request took longer than it may.
    #[error("the request exceeded its deadline")]
    Deadline,
    /// A stage that this one depends on does not answer.
    #[error("a stage of the chain is unavailable: {0}")]
    StageUnavailable(String),
}

/// The kind of a [`ServeError`]: decides status, type and code of an answer, and the metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The client's fault.
    InvalidRequest,
    /// The client's fault: too long a prompt.
    ContextLength {
        /// Tokens of the prompt.
        n_prompt_tokens: u32,
        /// Tokens that one request may use.
        n_ctx: u32,
    },
    /// Overload.
    QueueFull,
    /// Not ready yet.
    Loading,
    /// Not ready any more.
    Draining,
    /// Our fault.
    Engine,
    /// Too slow.
    Deadline,
    /// A peer's fault.
    StageUnavailable,
}

impl ServeError {
    /// The kind of fault.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::InvalidRequest { .. } => ErrorClass::InvalidRequest,
            &Self::ContextLength { n_prompt_tokens, n_ctx } => ErrorClass::ContextLength { n_prompt_tokens, n_ctx },
            Self::QueueFull { .. } => ErrorClass::QueueFull,
            Self::Loading => ErrorClass::Loading,
            Self::Draining => ErrorClass::Draining,
            Self::LoadFailed(_) | Self::Engine(_) => ErrorClass::Engine,
            Self::Deadline => ErrorClass::Deadline,
            Self::StageUnavailable(_) => ErrorClass::StageUnavailable,
        }
    }

    /// The request field at fault, if it is one.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::InvalidRequest { param, .. } => *param,
            Self::ContextLength { .. } => Some("prompt"),
            _ => None,
        }
    }
}

impl ErrorClass {
    /// The label value in metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::ContextLength { .. } => "context_length",
            Self::QueueFull => "queue_full",
            Self::Loading => "loading",
            Self::Draining => "draining",
            Self::Engine => "engine",
            Self::Deadline => "deadline",
            Self::StageUnavailable => "stage_unavailable",
        }
    }
}

impl From<ParamError> for ServeError {
    fn from(error: ParamError) -> Self {
        Self::InvalidRequest { param: Some(error.param), message: error.to_string() }
    }
}

impl From<TextError> for ServeError {
    fn from(error: TextError) -> Self {
        let param = matches!(error, TextError::Tokenize(_)).then_some("prompt");
        Self::InvalidRequest { param, message: error.to_string() }
    }
}

impl From<GrammarError> for ServeError {
    fn from(error: GrammarError) -> Self {
        match error {
            GrammarError::Vocabulary(_) | GrammarError::Fault(_) | GrammarError::Busy => {
                Self::Engine(error.to_string())
            }
            _ => Self::InvalidRequest { param: None, message: error.to_string() },
        }
    }
}

impl From<TailError> for ServeError {
    fn from(error: TailError) -> Self {
        match error {
            TailError::Sampler(error) => error.into(),
            TailError::Grammar(error) => error.into(),
            error => Self::Engine(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_the_numbers() {
        let error = ServeError::ContextLength { n_prompt_tokens: 512, n_ctx: 256 };
        assert!(error.to_string().contains("512") && error.to_string().contains("256"), "{error}");
        assert_eq!(error.class(), ErrorClass::ContextLength { n_prompt_tokens: 512, n_ctx: 256 });
        assert!(ServeError::QueueFull { max_queue: 17 }.to_string().contains("17"));
    }

    #[test]
    fn text_and_parameter_errors_are_the_clients_fault() {
        let error = ServeError::from(ParamError { param: "top_p", message: "must be between 0 and 1, got 7".into() });
        assert_eq!((error.class(), error.param()), (ErrorClass::InvalidRequest, Some("top_p")));
        assert_eq!(error.to_string(), "`top_p` must be between 0 and 1, got 7");
        let error = ServeError::from(TextError::Tokenize("nul".into()));
        assert_eq!((error.class(), error.param()), (ErrorClass::InvalidRequest, Some("prompt")));
    }
}
