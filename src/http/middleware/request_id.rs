//! `x-request-id`: the client's own if it is harmless, else a fresh one; on every answer.

use std::sync::Arc;

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue},
    middleware::Next,
    response::Response,
};

/// Id of a request, in its extensions.
#[derive(Clone, Debug)]
pub(in crate::http) struct RequestId(pub(in crate::http) Arc<str>);

const HEADER: HeaderName = HeaderName::from_static("x-request-id");
const MAX_LEN: usize = 128;

pub(in crate::http) async fn assign(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(HEADER).and_then(|value| value.to_str().ok()).filter(|id| is_harmless(id));
    let id: Arc<str> = match given {
        Some(id) => id.into(),
        None => uuid::Uuid::new_v4().simple().to_string().into(),
    };
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

/// Ids go into logs: no spaces, quotes or control characters, and not too long.
fn is_harmless(id: &str) -> bool {
    (1..=MAX_LEN).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
}
