//! OpenAI's API: what is served, and a clear answer for what is not.

pub mod answer;
pub mod chat;
pub mod completions;
pub mod constraint;
pub mod fields;
pub mod params;
pub mod respond;
mod sampling;
mod stream;
mod tokens;
pub mod values;

use axum::extract::MatchedPath;

use super::{
    error::{ApiError, ErrorCode},
    routes,
};

/// Endpoints of OpenAI-like APIs that clients are likely to try.
pub(super) const UNSUPPORTED: &[&str] =
    &["/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/audio/{*rest}", "/v1/images/{*rest}"];

/// Says that an endpoint is not served, rather than that it does not exist.
pub(super) async fn unsupported(path: MatchedPath) -> ApiError {
    let path = path.as_str().trim_end_matches("{*rest}");
    ApiError::new(ErrorCode::NotFound, format!("`{path}` is not supported; {}", routes::served()))
}
