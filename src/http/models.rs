//! `GET /v1/models` and `GET /v1/models/{id}`.

use axum::{
    Json,
    extract::{Path, State},
};
use serde::Serialize;

use super::{AppState, error::ApiError};
use crate::{serve::ModelCard, spec::Speculation};

/// OpenAI's model object, with what a caller may want to know in `meta`.
#[derive(Debug, Serialize)]
pub(super) struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    meta: Meta,
}

#[derive(Debug, Serialize)]
struct Meta {
    architecture: String,
    n_ctx: u32,
    n_embd: u32,
    n_vocab: u32,
    layer_count: u32,
    layer_start: u32,
    layer_end: u32,
    package_digest: String,
    abi: String,
    speculation: Speculation,
}

#[derive(Debug, Serialize)]
pub(super) struct List {
    object: &'static str,
    data: Vec<Model>,
}

impl From<&ModelCard> for Model {
    fn from(card: &ModelCard) -> Self {
        Self {
            id: card.id.clone(),
            object: "model",
            created: card.created,
            owned_by: "skippy-stage",
            meta: Meta {
                architecture: card.arch.clone(),
                n_ctx: card.n_ctx,
                n_embd: card.n_embd,
                n_vocab: card.n_vocab,
                layer_count: card.layer_count,
                layer_start: card.layers.start(),
                layer_end: card.layers.end(),
                package_digest: card.package_digest.clone(),
                abi: card.abi.clone(),
                speculation: card.speculation.clone(),
            },
        }
    }
}

pub(super) async fn list(State(state): State<AppState>) -> Result<Json<List>, ApiError> {
    let card = &state.loaded()?.card;
    Ok(Json(List { object: "list", data: vec![card.into()] }))
}

/// The id is the rest of the path: ids have slashes.
pub(super) async fn show(State(state): State<AppState>, Path(id): Path<String>) -> Result<Json<Model>, ApiError> {
    let card = &state.loaded()?.card;
    if card.id == id { Ok(Json(card.into())) } else { Err(ApiError::unknown_model(&card.id)) }
}
