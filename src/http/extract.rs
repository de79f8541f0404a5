//! JSON bodies: typed, with errors in the envelope.
//!
//! axum's own extractor answers wrong types with a plain-text 422; here they are a 400 that names the field.

use std::time::Duration;

use axum::{
    body::Bytes,
    extract::{FromRequest, Request},
    http::{HeaderMap, StatusCode, header},
};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::error::{ApiError, ErrorCode};

/// Bodies up to this long are parsed on the request's own task; longer ones would hold up the others of its thread.
const INLINE_BYTES: usize = 256 << 10;

/// Time for a whole body: what comes more slowly than 32 MiB over a poor line will not come.
const BODY_TIMEOUT: Duration = Duration::from_secs(300);

/// A request body of type `T`, sent as JSON.
#[derive(Debug)]
pub(super) struct ApiJson<T>(pub(super) T);

impl<T: DeserializeOwned + Send + 'static, S: Send + Sync> FromRequest<S> for ApiJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        check_headers(request.headers())?;
        let body = read(request, state, BODY_TIMEOUT).await?;
        if body.len() <= INLINE_BYTES {
            return parse(&body).map(Self);
        }
        let parsed = tokio::task::spawn_blocking(move || parse(&body)).await;
        parsed.map_err(|_| ApiError::panicked())?.map(Self)
    }
}

/// The whole body, if it comes in time.
async fn read<S: Send + Sync>(request: Request, state: &S, limit: Duration) -> Result<Bytes, ApiError> {
    let late = format!("the request body did not arrive within {} s", limit.as_secs());
    let body = timeout(limit, Bytes::from_request(request, state)).await;
    body.map_err(|_| ApiError::new(ErrorCode::JsonParse, late))?.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            ApiError::new(ErrorCode::TooLarge, "the request body is larger than this server accepts")
        }
        _ => ApiError::new(ErrorCode::JsonParse, "the request body ended early"),
    })
}

fn check_headers(headers: &HeaderMap) -> Result<(), ApiError> {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    if !is_json {
        let message = "the request body must have `Content-Type: application/json`";
        return Err(ApiError::new(ErrorCode::MediaType, message));
    }
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => {
            Err(ApiError::new(ErrorCode::MediaType, "compressed request bodies are not accepted"))
        }
        _ => Ok(()),
    }
}

/// Parses a whole body. Messages name the field and say what was expected; they never hold text of the body.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        refusal(&path, error.inner())
    })?;
    json.end().map_err(|error| refusal(".", &error))?;
    Ok(value)
}

fn refusal(path: &str, error: &serde_json::Error) -> ApiError {
    let whole = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let said = whole.strip_suffix(&place).unwrap_or(&whole);
    if !error.is_data() {
        return ApiError::new(ErrorCode::JsonParse, format!("the request body is not valid JSON: {said}{place}"));
    }
    let said = plain_words(said);
    match path {
        "." => ApiError::new(ErrorCode::InvalidValue, format!("the request body {said}")),
        path => ApiError::invalid(path, format!("`{}` {said}", super::error::capped(path, 64))),
    }
}

/// serde's "invalid type: string \"...\", expected f64" without the client's text and without Rust's type names.
fn plain_words(said: &str) -> String {
    let Some((got, expected)) = said
        .strip_prefix("invalid type: ")
        .or_else(|| said.strip_prefix("invalid value: "))
        .or_else(|| said.strip_prefix("invalid "))
        .and_then(|rest| rest.rsplit_once(", expected "))
    else {
        return said.to_owned();
    };
    let expected = match expected {
        "f32" | "f64" => "a number",
        "u32" => "an integer from 0 to 4294967295",
        "i64" => "a 64-bit integer",
        other => other,
    };
    let got = match got {
        _ if got.starts_with("string") => "a string",
        _ if got.starts_with("map") => "an object",
        _ if got.starts_with("sequence") => "an array",
        _ if got.starts_with("floating point") => "a number with a fraction",
        _ if got.starts_with("boolean") => "a boolean",
        other => other,
    };
    format!("must be {expected}, got {got}")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn message<T: DeserializeOwned + std::fmt::Debug>(body: &[u8]) -> String {
        let error = parse::<T>(body).unwrap_err();
        serde_json::to_value(error.into_envelope()).unwrap()["error"]["message"].as_str().unwrap().to_owned()
    }

    /// A client that begins a body and stands still holds its connection for a while only.
    #[tokio::test]
    async fn a_body_that_does_not_come_is_given_up() {
        let begun = tokio_stream::once(Ok::<_, std::convert::Infallible>(Bytes::from_static(b"{")));
        let body = tokio_stream::StreamExt::chain(begun, tokio_stream::pending());
        let request = Request::new(axum::body::Body::from_stream(body));
        let error = read(request, &(), Duration::ZERO).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::JsonParse);
    }

    #[derive(Debug, serde::Deserialize)]
    #[allow(dead_code)]
    struct Body {
        temperature: Option<f64>,
        max_tokens: Option<u32>,
    }

    #[test]
    fn sglang_3805_messages_name_field_and_type() {
        assert_eq!(message::<Body>(br#"{"temperature":"0.1"}"#), "`temperature` must be a number, got a string");
        assert_eq!(
            message::<Body>(br#"{"max_tokens":-1}"#),
            "`max_tokens` must be an integer from 0 to 4294967295, got integer `-1`"
        );
        assert_eq!(message::<Body>(b"7"), "the request body must be struct Body, got integer `7`");
        assert_eq!(
            message::<Value>(b"{} x"),
            "the request body is not valid JSON: trailing characters at line 1 column 4"
        );
        assert!(message::<Value>(b"").contains("EOF"));
    }

    /// OpenFlowLM-Next#69, vllm#49239: bad bytes and long values do not come back.
    #[test]
    fn openflowlm_69_vllm_49239_the_body_is_not_echoed() {
        let body = format!(r#"{{"temperature":"{}, expected SECRET"}}"#, "SECRET".repeat(100_000));
        let said = message::<Body>(body.as_bytes());
        assert!(!said.contains("SECRET") && said.len() < 600, "{said}");
        let said = message::<Value>(b"{\"prompt\":\"\xff\xfe\"}");
        assert!(said.starts_with("the request body is not valid JSON"), "{said}");
    }
}
