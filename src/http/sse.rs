//! Server-sent events: frames and response heads.
//!
//! Only `data:` frames of one-line JSON, `data: [DONE]` and comment pings. Never an `id:`: older versions of the official
//! Python client turn a later comment into an empty event once they have seen one (openai-python#2722).

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
};
use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use tokio_stream::Stream;

use std::convert::Infallible;

/// Ends every stream that went well.
pub(super) const DONE: &[u8] = b"data: [DONE]\n\n";
/// Sent while no token comes, so that proxies do not time out.
pub(super) const PING: &[u8] = b": ping\n\n";

/// Appends `value` as one event.
pub(super) fn push_data(frames: &mut BytesMut, value: &impl Serialize) {
    let start = frames.len();
    frames.extend_from_slice(b"data: ");
    // JSON without pretty-printing holds no line break: they are escaped in strings.
    if let Err(error) = serde_json::to_writer(frames.writer(), value) {
        tracing::error!(%error, "an event cannot be written as JSON");
        return frames.truncate(start);
    }
    frames.extend_from_slice(b"\n\n");
}

/// A response whose body is a stream of frames.
pub(super) fn response(frames: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, Body::from_stream(frames)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_one_line() {
        let mut frames = BytesMut::new();
        push_data(&mut frames, &serde_json::json!({"text": "a\nb\r\n\u{2028}"}));
        assert_eq!(frames, "data: {\"text\":\"a\\nb\\r\\n\u{2028}\"}\n\n".as_bytes());
    }
}
