//! The HTTP side: OpenAI's completions API, probes and metrics on axum.
//!
//! Handlers parse and validate, hand a [`GenerateRequest`](crate::serve::GenerateRequest) to the [`ServeHandle`] and turn
//! its events into an answer. They never touch an engine. `docs/api.md` describes what clients see and is checked
//! against the tables in this module.

mod auth;
mod chain;
pub mod error;
mod extract;
pub mod fields;
mod metrics;
mod middleware;
mod models;
pub mod openai;
mod openapi;
pub mod policy;
mod probes;
mod routes;
mod server;
mod sse;
pub mod tokenize;
mod wire;
mod worker;

#[cfg(test)]
mod tests;

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    response::{IntoResponse, Response},
};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{
    serve::{Loaded, ServeHandle},
    telemetry::PrometheusHandle,
};

pub use self::{
    auth::{ApiKeys, KeyError},
    middleware::cors::{CorsOrigin, OriginError},
    server::{Ended, run, signals},
    worker::{WorkerState, serve_worker},
};

use self::{
    error::{ApiError, ErrorCode},
    wire::UnknownFieldLog,
};

/// What the operator may set.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpOptions {
    /// Who may use the API; probes and metrics are open to all.
    pub api_keys: ApiKeys,
    /// Pages that may call the API from a browser; none without any.
    pub cors_origins: Vec<CorsOrigin>,
    /// Largest request body, bytes.
    pub max_body_bytes: usize,
    /// Silence in a stream after which a comment is sent; `None` sends none.
    pub keep_alive: Option<Duration>,
    /// Time that a connection may be open without the whole head of a request; `None` sets no limit.
    pub idle_timeout: Option<Duration>,
    /// Time for which a client may take nothing of what is sent to it; `None` sets no limit. Until then the rest of its answer
    /// waits in memory, which the length of the answer bounds.
    pub stall_timeout: Option<Duration>,
    /// Age of the engine's last sign of life at which the server counts as stuck. Longer than the longest step.
    pub stuck_after: Duration,
    /// How long new requests are still taken after a shutdown signal, while `/readyz` says 503 already: balancers need
    /// time to notice.
    pub drain_delay: Duration,
    /// How long running requests may go on after that.
    pub shutdown_timeout: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            api_keys: ApiKeys::default(),
            cors_origins: Vec::new(),
            max_body_bytes: 32 << 20,
            keep_alive: Some(Duration::from_secs(15)),
            idle_timeout: Some(Duration::from_secs(90)),
            stall_timeout: Some(Duration::from_secs(120)),
            stuck_after: Duration::from_secs(300),
            drain_delay: Duration::ZERO,
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

/// What every handler can reach.
#[derive(Clone)]
struct AppState {
    inner: Arc<Inner>,
}

struct Inner {
    serve: ServeHandle,
    metrics: PrometheusHandle,
    options: HttpOptions,
    unknown_fields: UnknownFieldLog,
    shutting_down: AtomicBool,
}

impl AppState {
    fn new(serve: ServeHandle, metrics: PrometheusHandle, options: HttpOptions) -> Self {
        let (unknown_fields, shutting_down) = Default::default();
        Self { inner: Arc::new(Inner { serve, metrics, options, unknown_fields, shutting_down }) }
    }

    fn serve(&self) -> &ServeHandle {
        &self.inner.serve
    }

    /// The model, or the answer to give without one.
    fn loaded(&self) -> Result<&Loaded, ApiError> {
        Ok(self.inner.serve.loaded()?)
    }

    fn options(&self) -> &HttpOptions {
        &self.inner.options
    }

    fn unknown_fields(&self) -> &UnknownFieldLog {
        &self.inner.unknown_fields
    }

    fn is_shutting_down(&self) -> bool {
        self.inner.shutting_down.load(Relaxed)
    }

    fn begin_shutdown(&self) {
        self.inner.shutting_down.store(true, Relaxed);
    }
}

/// All routes. The tests call it without a listener; [`run`] serves it.
pub fn router(serve: ServeHandle, metrics: PrometheusHandle, options: HttpOptions) -> Router {
    assemble(AppState::new(serve, metrics, options))
}

/// Layers, outermost first:
/// 1. request id: known to everything inside, set on every answer;
/// 2. access log: one line per request, when its body ends;
/// 3. metrics: until the body ends too, so a stream counts with its whole length;
/// 4. CORS, if any: browsers ask before they send a key, and must see errors too;
/// 5. panics become a 500 inside log and metrics, so both see them;
/// 6. keys, before anything of the body is read.
///
/// Probes and `/metrics` have only 1 and 5: they are asked every few seconds.
fn assemble(state: AppState) -> Router {
    let api = routes::mount(Router::new(), routes::API);
    let api =
        openai::UNSUPPORTED.iter().fold(api, |api, path| api.route(path, axum::routing::any(openai::unsupported)));
    let api = api
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(state.options().max_body_bytes))
        .layer(axum::middleware::from_fn_with_state(state.clone(), middleware::auth::check))
        .layer(CatchPanicLayer::custom(panicked));
    let api = match middleware::cors::layer(&state.options().cors_origins) {
        Some(cors) => api.layer(cors),
        None => api,
    };
    let api = api
        .layer(axum::middleware::from_fn(middleware::metrics::track))
        .layer(axum::middleware::from_fn_with_state(state.clone(), middleware::access_log::log));
    let probes = routes::mount(Router::new(), routes::PROBES)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(panicked));
    api.merge(probes).layer(axum::middleware::from_fn(middleware::request_id::assign)).with_state(state)
}

async fn not_found() -> ApiError {
    ApiError::new(ErrorCode::NotFound, format!("there is no such route; {}", routes::served()))
}

async fn method_not_allowed() -> ApiError {
    ApiError::new(ErrorCode::MethodNotAllowed, "this route does not accept this method")
}

fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(panic = text, "a request handler panicked");
    ApiError::panicked().into_response()
}
