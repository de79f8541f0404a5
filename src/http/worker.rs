//! What a stage that is not the first says over HTTP: probes and metrics, nothing else.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::json;
use tokio::net::TcpListener;

use super::metrics::CONTENT_TYPE;
use crate::telemetry::{PrometheusHandle, metrics::set_health};

/// Where the process stands; clones share it.
#[derive(Clone, Debug, Default)]
pub struct WorkerState(Arc<AtomicU8>);

const LOADING: u8 = 0;
const READY: u8 = 1;
const DRAINING: u8 = 2;

impl WorkerState {
    /// The layers are loaded: others may call.
    pub fn set_ready(&self) {
        self.0.store(READY, Ordering::Relaxed);
    }

    /// The process ends as soon as the session at hand does.
    pub fn set_draining(&self) {
        self.0.store(DRAINING, Ordering::Relaxed);
    }

    /// Whether it is about to end.
    pub fn is_draining(&self) -> bool {
        self.0.load(Ordering::Relaxed) == DRAINING
    }

    fn phase(&self) -> &'static str {
        match self.0.load(Ordering::Relaxed) {
            LOADING => "loading",
            READY => "ready",
            _ => "draining",
        }
    }
}

/// Answers `/livez`, `/readyz` and `/metrics` for as long as the process lives.
pub async fn serve_worker(listener: TcpListener, state: WorkerState, metrics: PrometheusHandle) {
    if let Err(error) = axum::serve(listener, router(state, metrics)).await {
        tracing::error!(%error, "probes and metrics are not served any more");
    }
}

fn router(state: WorkerState, metrics: PrometheusHandle) -> Router {
    let scrape = {
        let state = state.clone();
        move || async move {
            set_health(state.phase() == "ready", None);
            metrics.run_upkeep();
            ([(axum::http::header::CONTENT_TYPE, CONTENT_TYPE)], metrics.render())
        }
    };
    Router::new()
        .route("/livez", get(|| async { Json(json!({"status": "ok"})) }))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .with_state(state)
}

async fn ready(State(state): State<WorkerState>) -> Response {
    let phase = state.phase();
    let (status, code) = match phase {
        "ready" => ("ok", StatusCode::OK),
        _ => ("failing", StatusCode::SERVICE_UNAVAILABLE),
    };
    (code, Json(json!({"status": status, "phase": phase}))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{body::Body, http::Request};
    use tower::ServiceExt as _;

    #[tokio::test]
    async fn a_worker_is_ready_once_loaded_and_until_it_drains() {
        let recorder = crate::telemetry::local().unwrap();
        let state = WorkerState::default();
        let app = router(state.clone(), recorder.handle());
        let get = |path: &'static str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let app = app.clone();
            async move { app.oneshot(request).await.unwrap().status().as_u16() }
        };
        assert_eq!((get("/readyz").await, get("/livez").await), (503, 200));
        state.set_ready();
        assert_eq!((get("/readyz").await, get("/metrics").await), (200, 200));
        state.set_draining();
        assert_eq!((get("/readyz").await, get("/livez").await, get("/v1/models").await), (503, 200, 404));
    }
}
