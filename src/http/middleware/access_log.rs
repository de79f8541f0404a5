//! One wide log line for each request, when its body ends or is dropped.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use axum::{
    extract::{MatchedPath, Request, State},
    http::Method,
    middleware::Next,
    response::Response,
};
use tracing::Instrument as _;

use super::{
    body::{self, BodyWatch},
    request_id::RequestId,
};
use crate::{
    http::{
        AppState,
        error::{ErrorCode, capped},
        middleware::metrics::method_label,
        routes,
    },
    telemetry::spans::{RequestEnd, RequestSpan},
};

/// What a handler adds to the line; in the request's extensions.
#[derive(Clone, Debug, Default)]
pub(in crate::http) struct LogFields(Arc<Mutex<Fields>>);

/// Fields that only a generating handler knows.
#[derive(Clone, Debug, Default)]
pub(in crate::http) struct Fields {
    /// Whether the answer is streamed.
    pub(in crate::http) stream: bool,
    /// Tokens of the prompts.
    pub(in crate::http) prompt_tokens: u32,
    /// Tokens generated, all choices together.
    pub(in crate::http) completion_tokens: u32,
    /// Why the last choice ended.
    pub(in crate::http) finish_reason: Option<&'static str>,
    /// The request's `user`, cut to 64 characters.
    pub(in crate::http) user: Option<String>,
    /// The request's `metadata` as JSON, cut to 256 characters.
    pub(in crate::http) metadata: Option<String>,
    /// An error sent inside a stream.
    pub(in crate::http) error: Option<&'static str>,
}

impl LogFields {
    /// Changes the fields.
    pub(in crate::http) fn update(&self, change: impl FnOnce(&mut Fields)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

pub(in crate::http) async fn log(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let id = request.extensions().get::<RequestId>().cloned();
    let route = routes::label(request.extensions().get::<MatchedPath>().map(MatchedPath::as_str));
    let header = |name: &str| request.headers().get(name)?.to_str().ok();
    let span = RequestSpan::start(method_label(&method).label(), route, id.as_ref().map(|id| &*id.0), header);
    let mut line = Line {
        method: method.clone(),
        path: capped(request.uri().path(), 128),
        id,
        fields: LogFields::default(),
        span,
        state,
        started: Instant::now(),
        status: None,
        error: None,
        bytes: 0,
        complete: false,
    };
    request.extensions_mut().insert(line.fields.clone());
    let response = next.run(request).instrument(line.span.span().clone()).await;
    line.status = Some(response.status().as_u16());
    line.error = response.extensions().get::<ErrorCode>().map(|code| code.row().code);
    body::watch(&method, response, line)
}

/// Writes itself when dropped.
struct Line {
    method: Method,
    path: String,
    id: Option<RequestId>,
    fields: LogFields,
    span: RequestSpan,
    state: AppState,
    started: Instant,
    status: Option<u16>,
    error: Option<&'static str>,
    bytes: usize,
    complete: bool,
}

impl BodyWatch for Line {
    fn sent(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    fn ended(&mut self) {
        self.complete = true;
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let fields = self.fields.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let error = self.error.or(fields.error);
        self.span.end(&RequestEnd {
            status: self.status,
            error: error.or((!self.complete).then_some("cancelled")),
            model: self.state.serve().model().map(|card| card.id.as_str()),
            prompt_tokens: fields.prompt_tokens,
            completion_tokens: fields.completion_tokens,
            finish_reason: fields.finish_reason,
        });
        // The line has what the span has, and more.
        tracing::info!(
            parent: None,
            request.id = self.id.as_ref().map(|id| &*id.0),
            http.method = self.method.as_str(),
            http.path = self.path,
            http.status = self.status,
            http.complete = self.complete,
            http.bytes = self.bytes,
            duration_ms = self.started.elapsed().as_secs_f64() * 1e3,
            stream = fields.stream,
            tokens.prompt = fields.prompt_tokens,
            tokens.completion = fields.completion_tokens,
            finish_reason = fields.finish_reason,
            user = fields.user,
            metadata = fields.metadata,
            error,
            "request"
        );
    }
}
