//! `POST /v1/chat/completions`.
//!
//! [`fields`] lists what a request may hold, [`types`] parses it, [`validate`](mod@validate) checks it, [`convert`] makes
//! generations of it, with `guide` holding answers to calls and schemas, and [`choice`] answers of their events. Templates and the reading of answers are in
//! [`crate::chat`].

pub mod choice;
pub mod convert;
pub mod fields;
mod guide;
pub mod tools;
pub mod types;
pub mod validate;

use axum::{Extension, extract::State, response::Response};

use self::types::ChatRequest;
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
    ApiJson(request): ApiJson<ChatRequest>,
) -> Result<Response, ApiError> {
    let loaded = state.loaded()?;
    let card = &loaded.card;
    request.warn(state.unknown_fields());
    let templates = card.chat.as_ref().map_err(|error| ApiError::invalid("messages", error.to_string()))?;
    let valid = validate::validate(request, &card.id, loaded.text.n_vocab(), templates)?;
    valid.common.suits(card)?;
    valid.common.note(&log);
    let planned = convert::plan(&valid, &state, &request_id).await?;
    respond(&state, &valid.common, planned, log).await
}
