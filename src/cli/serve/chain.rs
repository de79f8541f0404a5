//! `serve --next`: the first stage of a chain.

use super::{config::ServeConfig, load::LoadedModel};
use crate::{
    chain::{Chain, ChainStatus, Hello, LinkError, Onward, PROTOCOL, StageInfo, Target},
    cli::link::LinkFlagError,
    serve::ModelCard,
    stage::StageShape,
};
use std::sync::Arc;

/// Why the chain does not stand.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ChainFault {
    /// Settings that cannot be used.
    #[error(transparent)]
    Flags(#[from] LinkFlagError),
    /// The server is shutting down before all stages have answered.
    #[error("the server shuts down before the chain stands: {0}")]
    ShutDown(LinkError),
}

/// Joins the layers of `model` with those behind `target`. Waits for as long as `go_on` wants, which is told why the chain
/// does not stand yet.
///
/// # Errors
/// [`ChainFault`].
pub(crate) fn connect(
    config: &ServeConfig,
    model: LoadedModel,
    target: Target,
    runtime: tokio::runtime::Handle,
    status: Arc<ChainStatus>,
    go_on: impl FnMut(&LinkError) -> bool,
) -> Result<(Chain, ModelCard), ChainFault> {
    let own = describe(config, &model);
    let route = vec![own.instance.clone()];
    status.describe(own);
    let LoadedModel { engine, card, model_id, .. } = model;
    let onward = Onward {
        target,
        security: config.link.security()?,
        options: config.link.options()?,
        step_timeout: config.link.step_timeout()?,
        hello: Hello { route, ..hello(config, engine.shape(), &card, &model_id) },
    };
    let chain = Chain::connect(engine, onward, runtime, status, go_on).map_err(ChainFault::ShutDown)?;
    Ok((chain, card))
}

/// What a chain with these settings has to be, as the stage with `shape` sees it.
pub(crate) fn hello(config: &ServeConfig, shape: &StageShape, card: &ModelCard, model_id: &str) -> Hello {
    Hello {
        protocol: PROTOCOL,
        package_sha256: card.package_digest.clone(),
        model_id: model_id.to_owned(),
        layer_count: shape.layer_count,
        start: shape.layers.end(),
        n_embd: u32::try_from(shape.n_embd).unwrap_or(u32::MAX),
        n_ctx_seq: shape.n_ctx_seq,
        n_seq_max: shape.n_seq_max,
        n_batch: shape.n_batch,
        cache_type_k: config.cache_type_k.label().to_owned(),
        cache_type_v: config.cache_type_v.label().to_owned(),
        window: card.speculation.kind.window(),
        abi: card.abi.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        wire: config.link.wire(),
        route: Vec::new(),
    }
}

/// What a process says of the layers that it has loaded.
pub(crate) fn describe(config: &ServeConfig, model: &LoadedModel) -> StageInfo {
    let (shape, card) = (model.engine.shape(), &model.card);
    StageInfo {
        index: 0,
        instance: uuid::Uuid::new_v4().to_string(),
        address: String::new(),
        layers: shape.layers,
        layer_count: shape.layer_count,
        engine: model.kind.label().to_owned(),
        backend: if config.gpu_layers.is_some_and(|n| n > 0) { "gpu" } else { "cpu" }.to_owned(),
        kv_types: (config.cache_type_k.label().to_owned(), config.cache_type_v.label().to_owned()),
        n_ctx_seq: shape.n_ctx_seq,
        n_seq_max: shape.n_seq_max,
        n_batch: shape.n_batch,
        n_embd: card.n_embd,
        n_vocab: u32::try_from(shape.n_vocab).unwrap_or(u32::MAX),
        drafts: shape.drafts,
        pieces: shape.pieces,
        prefix_step: shape.prefix_step,
        memory_bytes: model.tensor_bytes,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        abi: card.abi.clone(),
        package_sha256: card.package_digest.clone(),
        takes_top_k: model.takes_top_k,
    }
}
