//! `GET /v1/chain`: the stages that serve the model, from the input to the output.

use axum::{Json, extract::State};
use serde::Serialize;

use super::AppState;
use crate::{chain::StageInfo, serve::Phase};

/// The answer.
#[derive(Debug, Serialize)]
pub(super) struct View {
    /// `ok`, `loading` or `lost`.
    status: &'static str,
    /// Why not ok.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Round trip of the link to the second stage, as measured last; `null` without one.
    rtt_ms: Option<f64>,
    /// As they were last seen.
    stages: Vec<Stage>,
}

#[derive(Debug, Serialize)]
struct Stage {
    index: u32,
    /// Where the stage before calls it; empty for the first.
    address: String,
    layers: String,
    engine: String,
    backend: String,
    cache_type_k: String,
    cache_type_v: String,
    /// Tokens of one request.
    ctx_size: u32,
    lanes: u32,
    /// Rows of a pass at most.
    batch_rows: u32,
    drafts: bool,
    /// Bytes of the tensors loaded.
    tensor_bytes: u64,
    version: String,
    abi: String,
}

impl From<&StageInfo> for Stage {
    fn from(info: &StageInfo) -> Self {
        Self {
            index: info.index,
            address: info.address.clone(),
            layers: info.layers.to_string(),
            engine: info.engine.clone(),
            backend: info.backend.clone(),
            cache_type_k: info.kv_types.0.clone(),
            cache_type_v: info.kv_types.1.clone(),
            ctx_size: info.n_ctx_seq,
            lanes: info.n_seq_max,
            batch_rows: info.n_batch,
            drafts: info.drafts,
            tensor_bytes: info.memory_bytes,
            version: info.version.clone(),
            abi: info.abi.clone(),
        }
    }
}

pub(super) async fn show(State(state): State<AppState>) -> Json<View> {
    let status = state.serve().status();
    let view = state.serve().chain_status().view();
    let reason = view.lost.or(status.unavailable);
    let word = match (&reason, status.phase) {
        (_, Phase::Loading) => "loading",
        (Some(_), _) => "lost",
        (None, _) => "ok",
    };
    let stages = view.own.iter().chain(view.stages.iter()).map(Stage::from).collect();
    let rtt_ms = view.rtt.map(|rtt| rtt.as_secs_f64() * 1e3);
    Json(View { status: word, reason, rtt_ms, stages })
}
