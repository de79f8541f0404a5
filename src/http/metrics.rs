//! `GET /metrics`.

use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::IntoResponse,
};

use super::{AppState, probes};
use crate::telemetry::metrics::set_health;

/// Classic text format, the one every scraper reads.
pub(super) const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

pub(super) async fn scrape(State(state): State<AppState>) -> impl IntoResponse {
    set_health(probes::is_ready(&state), state.serve().status().beat_age);
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], state.inner.metrics.render())
}
