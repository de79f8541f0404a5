//! Loading stages in tests.

use skippy_stage::{
    cli::engine::EngineError,
    llama::{KvType, Threadpool},
    package::Package,
    stage::{
        Row, SeqId, StageBatch, StageEngine, StageInput, StageOutput, llama::LlamaStageOptions, local_chain::LocalChain,
    },
};
use std::sync::Arc;

/// One thread: tests run side by side, and ggml threads that share a core spin in each other's way.
pub(crate) fn pool() -> Arc<Threadpool> {
    Arc::new(Threadpool::new(1).unwrap())
}

/// Small limits; F16 cache.
pub(crate) fn options() -> LlamaStageOptions {
    LlamaStageOptions {
        n_ctx_seq: 256,
        n_batch: 64,
        n_seq_max: 4,
        cache_type_k: KvType::F16,
        cache_type_v: KvType::F16,
        gpu_layers: None,
        allow_uncertified_cuts: false,
    }
}

/// Rows for `n` tokens of `seq` from `pos` on, all with output.
pub(crate) fn rows(seq: u32, pos: u32, n: usize) -> Vec<Row> {
    (pos..).take(n).map(|pos| Row { seq: SeqId(seq), pos, output: true }).collect()
}

/// Logits of `tokens` appended to `seq`, which holds `pos` rows.
pub(crate) fn logits(engine: &mut dyn StageEngine, seq: u32, pos: u32, tokens: &[i32]) -> Vec<f32> {
    let rows = rows(seq, pos, tokens.len());
    match engine.forward(&StageBatch::new(StageInput::Tokens(tokens), &rows)).unwrap() {
        StageOutput::Logits(logits) => logits.to_vec(),
        StageOutput::Hidden(_) => panic!("hidden rows from a stage that owns the output"),
    }
}

/// The whole model in the `llama` engine, as stages that meet at `cuts`.
pub(crate) fn chain(package: &Package, cuts: &[u32], options: &LlamaStageOptions) -> Result<LocalChain, EngineError> {
    skippy_stage::cli::engine::chain(package, cuts, &(*options).into(), &pool()).map(|loaded| loaded.chain)
}
