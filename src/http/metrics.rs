//! `GET /metrics`.

use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::IntoResponse,
};

use super::AppState;

/// Classic text format, the one every scraper reads.
const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

pub(super) async fn scrape(State(state): State<AppState>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], state.inner.metrics.render())
}
