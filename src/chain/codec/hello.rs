//! The frames of the handshake.

use super::{FrameError, check, pb};
use crate::{
    chain::{Hello, MAX_STAGES, StageInfo, WireDtype},
    package::LayerRange,
    stage::Pieces,
};

pub(super) fn to_message(hello: Hello) -> pb::Hello {
    let wire = match hello.wire {
        WireDtype::F32 => pb::WireDtype::F32,
        WireDtype::F16 => pb::WireDtype::F16,
    };
    pb::Hello {
        protocol: hello.protocol,
        package_sha256: hello.package_sha256,
        model_id: hello.model_id,
        layer_count: hello.layer_count,
        start: hello.start,
        n_embd: hello.n_embd,
        n_ctx_seq: hello.n_ctx_seq,
        n_seq_max: hello.n_seq_max,
        n_batch: hello.n_batch,
        cache_type_k: hello.cache_type_k,
        cache_type_v: hello.cache_type_v,
        window: hello.window,
        abi: hello.abi,
        version: hello.version,
        wire: wire.into(),
        route: hello.route,
    }
}

/// Checks form only; whether the stages fit together is the handshake's business.
pub(super) fn from_message(hello: pb::Hello) -> Result<Hello, FrameError> {
    let wire = match pb::WireDtype::try_from(hello.wire) {
        Ok(pb::WireDtype::F32) => WireDtype::F32,
        Ok(pb::WireDtype::F16) => WireDtype::F16,
        _ => return Err(check::unknown("hello.wire", hello.wire)),
    };
    check::at_most("hello.route", "stages", hello.route.len(), MAX_STAGES)?;
    Ok(Hello {
        protocol: hello.protocol,
        package_sha256: check::digest("hello.package_sha256", hello.package_sha256)?,
        model_id: check::name("hello.model_id", hello.model_id)?,
        layer_count: hello.layer_count,
        start: hello.start,
        n_embd: hello.n_embd,
        n_ctx_seq: hello.n_ctx_seq,
        n_seq_max: hello.n_seq_max,
        n_batch: hello.n_batch,
        cache_type_k: check::name("hello.cache_type_k", hello.cache_type_k)?,
        cache_type_v: check::name("hello.cache_type_v", hello.cache_type_v)?,
        window: hello.window,
        abi: check::name("hello.abi", hello.abi)?,
        version: check::name("hello.version", hello.version)?,
        wire,
        route: hello.route.into_iter().map(|id| check::name("hello.route", id)).collect::<Result<_, _>>()?,
    })
}

pub(super) fn info_to_message(info: StageInfo) -> pb::StageInfo {
    pb::StageInfo {
        index: info.index,
        instance: info.instance,
        address: info.address,
        layer_start: info.layers.start(),
        layer_end: info.layers.end(),
        layer_count: info.layer_count,
        engine: info.engine,
        backend: info.backend,
        cache_type_k: info.kv_types.0,
        cache_type_v: info.kv_types.1,
        n_ctx_seq: info.n_ctx_seq,
        n_seq_max: info.n_seq_max,
        n_batch: info.n_batch,
        n_embd: info.n_embd,
        n_vocab: info.n_vocab,
        drafts: info.drafts,
        piece_unit: info.pieces.unit,
        piece_most: info.pieces.most,
        prefix_step: info.prefix_step,
        memory_bytes: info.memory_bytes,
        version: info.version,
        abi: info.abi,
        package_sha256: info.package_sha256,
        takes_top_k: info.takes_top_k,
    }
}

pub(super) fn infos_from_message(welcome: pb::Welcome) -> Result<Vec<StageInfo>, FrameError> {
    check::at_most("welcome.stages", "stages", welcome.stages.len(), MAX_STAGES)?;
    if welcome.stages.is_empty() {
        return Err(FrameError::new("welcome.stages", "empty", "the stage itself and all behind it"));
    }
    let numbered = welcome.stages.into_iter().enumerate();
    numbered.map(|(place, info)| info_from_message(&format!("welcome.stages[{place}]"), info)).collect()
}

fn info_from_message(of: &str, info: pb::StageInfo) -> Result<StageInfo, FrameError> {
    let layers = LayerRange::new(info.layer_start, info.layer_end)
        .and_then(|layers| layers.within(info.layer_count))
        .map_err(|_| {
        let got = format!("layers {}..{} of {}", info.layer_start, info.layer_end, info.layer_count);
        FrameError::new(of, got, "a range of layers of the model")
    })?;
    let name = |field: &str, text| check::name(&format!("{of}.{field}"), text);
    Ok(StageInfo {
        index: info.index,
        instance: name("instance", info.instance)?,
        address: name("address", info.address)?,
        layers,
        layer_count: info.layer_count,
        engine: name("engine", info.engine)?,
        backend: name("backend", info.backend)?,
        kv_types: (name("cache_type_k", info.cache_type_k)?, name("cache_type_v", info.cache_type_v)?),
        n_ctx_seq: info.n_ctx_seq,
        n_seq_max: info.n_seq_max,
        n_batch: info.n_batch,
        n_embd: info.n_embd,
        n_vocab: info.n_vocab,
        drafts: info.drafts,
        pieces: Pieces { unit: info.piece_unit, most: info.piece_most },
        prefix_step: info.prefix_step,
        memory_bytes: info.memory_bytes,
        version: name("version", info.version)?,
        abi: name("abi", info.abi)?,
        package_sha256: check::digest(&format!("{of}.package_sha256"), info.package_sha256)?,
        takes_top_k: info.takes_top_k,
    })
}
