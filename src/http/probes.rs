//! Health, told apart: is the process alive, is it ready for requests, and llama-server's `/health` in between.
//!
//! Probes read published state only. They never wait for the engine.

use axum::{
    Json,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::json;

use super::AppState;
use crate::serve::{Phase, Status};

/// 200 unless a restart is the only cure: the engine thread is gone or stuck, or the model did not load.
pub(super) async fn live(State(state): State<AppState>) -> Response {
    answer(&state, liveness(&state))
}

/// 200 while new requests are welcome.
pub(super) async fn ready(State(state): State<AppState>) -> Response {
    answer(&state, readiness(&state))
}

/// 200 once the model has been loaded, whatever happens later: for starts that take longer than a liveness probe waits.
pub(super) async fn started(State(state): State<AppState>) -> Response {
    let status = state.serve().status();
    let checked = match state.serve().model() {
        Some(_) => Ok(()),
        None => Err(Failed {
            check: "model",
            reason: status.failure.unwrap_or_else(|| match status.phase {
                Phase::Loading => "the model is loading".to_owned(),
                _ => "the server shuts down before the model was loaded".to_owned(),
            }),
        }),
    };
    answer(&state, checked)
}

/// [`ready`] with the bodies that llama-server gives, which balancers look for.
pub(super) async fn health(State(state): State<AppState>) -> Response {
    let Err(failed) = readiness(&state) else {
        return Json(json!({"status": "ok"})).into_response();
    };
    let message = match failed.check {
        "model" if state.serve().status().phase == Phase::Loading => "Loading model".to_owned(),
        _ => failed.reason,
    };
    let body = json!({"error": {"code": 503, "message": message, "type": "unavailable_error"}});
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, RETRY_AFTER)], Json(body)).into_response()
}

/// What [`ready`] says.
pub(super) fn is_ready(state: &AppState) -> bool {
    readiness(state).is_ok()
}

const RETRY_AFTER: HeaderValue = HeaderValue::from_static("5");

/// The first check that failed.
struct Failed {
    check: &'static str,
    reason: String,
}

#[derive(Serialize)]
struct Report<'a> {
    status: &'static str,
    phase: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    lanes_busy: u32,
    lanes: u32,
    queued: u32,
}

fn answer(state: &AppState, checked: Result<(), Failed>) -> Response {
    let Status { phase, lanes_busy, lanes, queued, .. } = state.serve().status();
    let failed = checked.as_ref().err();
    let report = Report {
        status: if failed.is_some() { "failing" } else { "ok" },
        phase: phase.label(),
        check: failed.map(|failed| failed.check),
        reason: failed.map(|failed| failed.reason.as_str()),
        lanes_busy,
        lanes,
        queued,
    };
    let mut response = Json(report).into_response();
    if failed.is_some() {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
    }
    response
}

fn liveness(state: &AppState) -> Result<(), Failed> {
    let status = state.serve().status();
    if let Some(failure) = status.failure {
        let check = if state.serve().model().is_some() { "engine" } else { "model" };
        return Err(Failed { check, reason: failure });
    }
    if !matches!(status.phase, Phase::Ready | Phase::Draining) {
        return Ok(());
    }
    let limit = state.options().stuck_after;
    match status.beat_age {
        Some(age) if age <= limit => Ok(()),
        Some(age) => Err(Failed {
            check: "engine",
            reason: format!("the engine thread has shown no life for {} s, limit {} s", age.as_secs(), limit.as_secs()),
        }),
        // The thread is about to begin, or has ended and the phase is about to say so.
        None => Ok(()),
    }
}

fn readiness(state: &AppState) -> Result<(), Failed> {
    liveness(state)?;
    if state.is_shutting_down() {
        return Err(Failed { check: "shutdown", reason: "the server is shutting down".to_owned() });
    }
    let status = state.serve().status();
    let reason = match status.phase {
        Phase::Ready => return status.unavailable.map_or(Ok(()), |reason| Err(Failed { check: "chain", reason })),
        Phase::Loading => {
            let lost = state.serve().chain_status().view().lost;
            let chain =
                lost.map(|why| Failed { check: "chain", reason: format!("the chain does not stand yet: {why}") });
            return Err(chain.unwrap_or(Failed { check: "model", reason: "the model is loading".to_owned() }));
        }
        Phase::Draining | Phase::Stopped => "the server is shutting down",
        Phase::Failed => "the model could not be loaded",
    };
    Err(Failed { check: "shutdown", reason: reason.to_owned() })
}
