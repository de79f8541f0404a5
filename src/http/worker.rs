//! What a stage that is not the first says over HTTP: probes and metrics, nothing else.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::json;
use tokio::{net::TcpListener, sync::watch};

use super::metrics::CONTENT_TYPE;
use crate::{
    serve::Phase,
    telemetry::{PrometheusHandle, metrics::set_health},
};

/// Where the process stands; clones share it.
#[derive(Clone, Debug)]
pub struct WorkerState(Arc<watch::Sender<Phase>>);

impl Default for WorkerState {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Phase::Loading)))
    }
}

impl WorkerState {
    /// Moves on: [`Phase::Ready`] once the layers are loaded and others may call, [`Phase::Draining`] when the process ends as
    /// soon as the session at hand does.
    pub fn set(&self, phase: Phase) {
        self.0.send_replace(phase);
    }

    fn phase(&self) -> Phase {
        *self.0.borrow()
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
            set_health(state.phase() == Phase::Ready, None);
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
        Phase::Ready => ("ok", StatusCode::OK),
        _ => ("failing", StatusCode::SERVICE_UNAVAILABLE),
    };
    (code, Json(json!({"status": status, "phase": phase.label()}))).into_response()
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
        state.set(Phase::Ready);
        assert_eq!((get("/readyz").await, get("/metrics").await), (200, 200));
        state.set(Phase::Draining);
        assert_eq!((get("/readyz").await, get("/livez").await, get("/v1/models").await), (503, 200, 404));
    }
}
