//! A response body that tells when it is over: accounting ends there, not when the head leaves.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::{Method, Response},
};
use http_body::{Frame, SizeHint};

/// Told how a body goes. Dropped when the body is done with, ended or not.
pub(super) trait BodyWatch: Send + Unpin + 'static {
    /// Bytes were handed out.
    fn sent(&mut self, _bytes: usize) {}

    /// The last of them were.
    fn ended(&mut self);
}

/// Puts `watch` on the body of `response`.
pub(super) fn watch(method: &Method, response: Response<Body>, mut watch: impl BodyWatch) -> Response<Body> {
    // A body that nobody reads on is over at once.
    if *method == Method::HEAD || response.body().is_end_stream() {
        watch.ended();
    }
    response.map(|inner| Body::new(Watched { inner, watch }))
}

struct Watched<W> {
    inner: Body,
    watch: W,
}

impl<W: BodyWatch> HttpBody for Watched<W> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        match &polled {
            Poll::Ready(None) => self.watch.ended(),
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                self.watch.sent(bytes);
                // The reader may ask no further then.
                if self.inner.is_end_stream() {
                    self.watch.ended();
                }
            }
            _ => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
