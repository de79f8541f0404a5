//! Error answers: one table from the kind of error to status, type, code, retry hints and metric label.
//!
//! Every error answer has OpenAI's envelope `{"error":{"message","type","param","code"}}`, whatever its status. The
//! official clients repeat 408, 409, 429 and 5xx answers, so what would fail again is a 4xx or says
//! `x-should-retry: false`.

use axum::{
    Json,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use crate::{
    serve::{ErrorClass, ServeError},
    telemetry::{labels::ErrorKind, metrics},
};

/// Longest message sent, in characters: an answer never echoes a request.
const MAX_MESSAGE: usize = 500;
/// Longest `param` sent, in characters.
const MAX_PARAM: usize = 64;

/// Kinds of error answer; `docs/api.md` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// The body is not JSON.
    JsonParse,
    /// A field has a wrong type or a value out of range.
    InvalidValue,
    /// A field of the OpenAI API that this server does not implement.
    UnsupportedParameter,
    /// The prompt leaves no room for a token.
    ContextLength,
    /// No API key, or one that is not valid.
    InvalidApiKey,
    /// Another model than the one served.
    ModelNotFound,
    /// No such route.
    NotFound,
    /// The route exists for other methods.
    MethodNotAllowed,
    /// The body is larger than the limit.
    TooLarge,
    /// The body is not declared as JSON.
    MediaType,
    /// Too many requests wait.
    QueueFull,
    /// The model is not loaded yet.
    Loading,
    /// The server is shutting down.
    Draining,
    /// The engine, or the server, failed.
    Internal,
    /// The request took too long.
    Deadline,
    /// A further stage does not answer.
    StageUnavailable,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct ErrorRow {
    /// HTTP status.
    pub status: u16,
    /// `error.type`.
    pub kind: &'static str,
    /// `error.code`.
    pub code: &'static str,
    /// `Retry-After`, seconds.
    pub retry_after: Option<u32>,
    /// Label of `skippy_request_errors_total`.
    pub metric: ErrorKind,
}

impl ErrorCode {
    /// Every kind.
    pub const ALL: [Self; 16] = [
        Self::JsonParse,
        Self::InvalidValue,
        Self::UnsupportedParameter,
        Self::ContextLength,
        Self::InvalidApiKey,
        Self::ModelNotFound,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::TooLarge,
        Self::MediaType,
        Self::QueueFull,
        Self::Loading,
        Self::Draining,
        Self::Internal,
        Self::Deadline,
        Self::StageUnavailable,
    ];

    /// The table.
    pub fn row(self) -> ErrorRow {
        use ErrorKind as K;
        let invalid = "invalid_request_error";
        let (status, kind, code, retry_after, metric) = match self {
            Self::JsonParse => (400, invalid, "json_parse_error", None, K::InvalidRequest),
            Self::InvalidValue => (400, invalid, "invalid_value", None, K::InvalidRequest),
            Self::UnsupportedParameter => (400, invalid, "unsupported_parameter", None, K::InvalidRequest),
            Self::ContextLength => (400, invalid, "context_length_exceeded", None, K::ContextLength),
            Self::InvalidApiKey => (401, "authentication_error", "invalid_api_key", None, K::Auth),
            Self::ModelNotFound => (404, invalid, "model_not_found", None, K::NotFound),
            Self::NotFound => (404, invalid, "not_found", None, K::NotFound),
            Self::MethodNotAllowed => (405, invalid, "method_not_allowed", None, K::NotFound),
            Self::TooLarge => (413, invalid, "request_too_large", None, K::InvalidRequest),
            Self::MediaType => (415, invalid, "unsupported_media_type", None, K::InvalidRequest),
            Self::QueueFull => (429, "rate_limit_error", "queue_full", Some(1), K::QueueFull),
            Self::Loading => (503, "unavailable_error", "model_loading", Some(5), K::Loading),
            Self::Draining => (503, "unavailable_error", "shutting_down", Some(5), K::Draining),
            Self::Internal => (500, "server_error", "internal_error", None, K::Engine),
            Self::Deadline => (504, "timeout_error", "deadline_exceeded", None, K::Deadline),
            Self::StageUnavailable => (502, "server_error", "stage_unavailable", None, K::StageUnavailable),
        };
        ErrorRow { status, kind, code, retry_after, metric }
    }
}

/// The table from what the scheduler says.
impl From<ErrorClass> for ErrorCode {
    fn from(class: ErrorClass) -> Self {
        match class {
            ErrorClass::InvalidRequest => Self::InvalidValue,
            ErrorClass::ContextLength { .. } => Self::ContextLength,
            ErrorClass::QueueFull => Self::QueueFull,
            ErrorClass::Loading => Self::Loading,
            ErrorClass::Draining => Self::Draining,
            ErrorClass::Engine => Self::Internal,
            ErrorClass::Deadline => Self::Deadline,
            ErrorClass::StageUnavailable => Self::StageUnavailable,
        }
    }
}

/// An error on its way to a client.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    code: ErrorCode,
    message: String,
    param: Option<String>,
    /// Tokens of the prompt and of the context, for [`ErrorCode::ContextLength`].
    sizes: Option<(u32, u32)>,
    /// Whether trying again is known to be useless though the status suggests otherwise.
    final_: bool,
}

impl ApiError {
    /// An error of this kind. The message is cut to 500 characters.
    pub fn new(code: ErrorCode, message: impl AsRef<str>) -> Self {
        Self { code, message: capped(message.as_ref(), MAX_MESSAGE), param: None, sizes: None, final_: false }
    }

    /// A field with a wrong value.
    pub fn invalid(param: impl AsRef<str>, message: impl AsRef<str>) -> Self {
        Self::new(ErrorCode::InvalidValue, message).with_param(param)
    }

    /// A field of the OpenAI API that is not implemented here.
    pub fn unsupported(param: impl AsRef<str>, message: impl AsRef<str>) -> Self {
        Self::new(ErrorCode::UnsupportedParameter, message).with_param(param)
    }

    /// Another model than the one served.
    pub fn unknown_model(served: &str) -> Self {
        Self::new(ErrorCode::ModelNotFound, format!("this server has only the model `{served}`")).with_param("model")
    }

    /// A handler panicked.
    pub fn panicked() -> Self {
        Self { final_: true, ..Self::new(ErrorCode::Internal, "the server failed to answer this request") }
    }

    /// Names the field at fault.
    pub fn with_param(mut self, param: impl AsRef<str>) -> Self {
        self.param = Some(capped(param.as_ref(), MAX_PARAM));
        self
    }

    /// The kind.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// The envelope, counted as told to a client.
    pub fn into_envelope(self) -> Envelope {
        let row = self.code.row();
        metrics::request_error(row.metric);
        let (n_prompt_tokens, n_ctx) = self.sizes.unzip();
        let (message, param) = (self.message, self.param);
        Envelope { error: ErrorBody { message, kind: row.kind, param, code: row.code, n_prompt_tokens, n_ctx } }
    }
}

impl From<ServeError> for ApiError {
    fn from(error: ServeError) -> Self {
        let class = error.class();
        let mut api = Self::new(class.into(), error.to_string());
        api.param = error.param().map(str::to_owned);
        api.final_ = matches!(error, ServeError::LoadFailed(_));
        if let ErrorClass::ContextLength { n_prompt_tokens, n_ctx } = class {
            api.sizes = Some((n_prompt_tokens, n_ctx));
        }
        api
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let row = self.code.row();
        let status = StatusCode::from_u16(row.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let (code, final_) = (self.code, self.final_);
        let mut response = (status, Json(self.into_envelope())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = row.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if row.status == 401 {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if final_ {
            headers.insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
        }
        // For the access log.
        response.extensions_mut().insert(code);
        response
    }
}

/// OpenAI's error envelope.
#[derive(Debug, Serialize)]
pub struct Envelope {
    error: ErrorBody,
}

#[derive(Debug, Serialize)]
struct ErrorBody {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<String>,
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    n_prompt_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    n_ctx: Option<u32>,
}

/// At most `max` characters of `text`, without control characters.
pub fn capped(text: &str, max: usize) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut chars = text.chars().map(clean);
    let head: String = chars.by_ref().take(max).collect();
    if chars.next().is_some() { head + "…" } else { head }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// openai-python repeats 5xx and 429: deterministic failures are 4xx, and 422 is never used.
    #[test]
    fn the_table_keeps_the_promises() {
        for code in ErrorCode::ALL {
            let row = code.row();
            assert_ne!(row.status, 422);
            let clients_fault =
                matches!(row.metric, ErrorKind::InvalidRequest | ErrorKind::NotFound | ErrorKind::ContextLength);
            assert_eq!(clients_fault, row.kind == "invalid_request_error", "{code:?}");
            let status = (400..429).contains(&row.status) && row.status != 401;
            assert_eq!(clients_fault, status, "{code:?}");
            assert_eq!(row.retry_after.is_some(), matches!(row.status, 429 | 503), "{code:?}");
        }
    }

    #[test]
    fn vllm_49239_messages_are_capped_and_clean() {
        let error = ApiError::invalid("x".repeat(9000), "é\n\u{7f}".repeat(100_000));
        assert_eq!(error.message.chars().count(), MAX_MESSAGE + 1);
        assert_eq!(error.param.as_deref().map(|p| p.chars().count()), Some(MAX_PARAM + 1));
        assert!(!error.message.chars().any(char::is_control));
    }

    /// llama.cpp PR#15780: a distinct code with both numbers.
    #[test]
    fn llama_cpp_15780_context_length_carries_both_numbers() {
        let error = ApiError::from(ServeError::ContextLength { n_prompt_tokens: 300, n_ctx: 256 });
        let json = serde_json::to_string(&error.into_envelope()).unwrap();
        assert!(
            json.contains(r#""param":"prompt","code":"context_length_exceeded","n_prompt_tokens":300,"n_ctx":256"#),
            "{json}"
        );
    }
}
