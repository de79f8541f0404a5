//! `POST /v1/completions`.
//!
//! [`fields`] lists what a request may hold, [`types`] parses it, [`validate`](mod@validate) checks it, and [`convert`]
//! makes generations of it, and an answer of their events.

pub mod convert;
pub mod fields;
pub mod types;
pub mod validate;

use axum::{Extension, extract::State, response::Response};

use self::types::CompletionRequest;
use super::respond::respond;
use crate::http::{
    AppState,
    error::ApiError,
    extract::ApiJson,
    middleware::{access_log::LogFields, request_id::RequestId},
};

/// The handler.
pub(in crate::http) async fn create(
    State(state): State<AppState>,
    Extension(RequestId(request_id)): Extension<RequestId>,
    Extension(log): Extension<LogFields>,
    ApiJson(request): ApiJson<CompletionRequest>,
) -> Result<Response, ApiError> {
    let loaded = state.loaded()?;
    state.unknown_fields().warn("completions", &request.unknown);
    request.params.warn(state.unknown_fields());
    let valid = validate::validate(request, &loaded.card.id, loaded.text.n_vocab())?;
    valid.common.suits(&loaded.card)?;
    valid.common.note(&log);
    let planned = convert::plan(&valid, &state, &request_id).await?;
    respond(&state, &valid.common, planned, log).await
}
