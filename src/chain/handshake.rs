//! Whether stages fit together.

use super::{Hello, MAX_STAGES, PROTOCOL, StageInfo};

/// What a stage knows of itself before anybody calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalStage {
    /// Its own description; `index` and `address` do not count.
    pub info: StageInfo,
    /// Model id of its package.
    pub model_id: String,
    /// Tokens of the model's vocabulary, whether or not the stage has logits; 0 where it is not known.
    pub vocabulary: u32,
}

/// Why two stages do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Disagreement {
    /// The two ends are set up differently.
    #[error("{what}: the stage before has {before}, stage {stage} has {behind}")]
    Differs {
        /// What they must agree on.
        what: &'static str,
        /// Place of the stage behind.
        stage: usize,
        /// Value of the calling stage.
        before: String,
        /// Value of the stage behind.
        behind: String,
    },
    /// The layers do not tile.
    #[error("expected layers to start at {expected}, stage {stage} serves {layers}")]
    Start {
        /// Where the stage before ends.
        expected: u32,
        /// Place of the stage behind.
        stage: usize,
        /// What it serves.
        layers: String,
    },
    /// Layers are missing at the end.
    #[error("the chain ends at layer {end}, the model has {layer_count}: the last stage needs a further one behind it")]
    End {
        /// One past the last layer of the last stage.
        end: u32,
        /// Layers of the model.
        layer_count: u32,
    },
    /// Drafts are wanted and nobody makes them.
    #[error(
        "drafts are wanted (window {window}), stage {stage} has no draft head: start it with drafts on, or turn them off"
    )]
    NoDrafts {
        /// Tokens verified in a pass at most.
        window: u32,
        /// The last stage.
        stage: usize,
    },
    /// A stage comes twice.
    #[error("the chain is a cycle: {0} is in it already")]
    Cycle(String),
    /// More stages than a chain may have.
    #[error("the chain has more than {MAX_STAGES} stages")]
    TooLong,
    /// Stages count differently.
    #[error("stage {expected} calls itself stage {got}")]
    Index {
        /// Its place.
        expected: usize,
        /// What it says.
        got: u32,
    },
}

/// Whether `local` can be the stage behind the one that says `hello`.
pub(super) fn check_hello(hello: &Hello, local: &LocalStage) -> Result<(), Disagreement> {
    let stage = hello.route.len();
    let differs = |what, before: &dyn ToString, behind: &dyn ToString| {
        differs(what, stage, before.to_string(), behind.to_string())
    };
    differs("protocol version", &hello.protocol, &PROTOCOL)?;
    if hello.route.contains(&local.info.instance) {
        return Err(Disagreement::Cycle(format!("this stage (layers {})", local.info.layers)));
    }
    if stage >= MAX_STAGES {
        return Err(Disagreement::TooLong);
    }
    differs("model", &hello.model_id, &local.model_id)?;
    check_stage(hello, &local.info, stage, hello.start)
}

/// Whether `stages` complete the chain of the one that says `hello`.
pub(super) fn check_welcome(hello: &Hello, stages: &[StageInfo]) -> Result<(), Disagreement> {
    let mut start = hello.start;
    let mut seen = hello.route.clone();
    for (place, info) in (hello.route.len()..).zip(stages) {
        if info.index as usize != place {
            return Err(Disagreement::Index { expected: place, got: info.index });
        }
        if seen.contains(&info.instance) {
            return Err(Disagreement::Cycle(format!("stage {place} (layers {})", info.layers)));
        }
        check_stage(hello, info, place, start)?;
        seen.push(info.instance.clone());
        start = info.layers.end();
    }
    if start != hello.layer_count {
        return Err(Disagreement::End { end: start, layer_count: hello.layer_count });
    }
    if seen.len() > MAX_STAGES { Err(Disagreement::TooLong) } else { Ok(()) }
}

/// What holds for every stage behind the one that says `hello`.
fn check_stage(hello: &Hello, info: &StageInfo, stage: usize, start: u32) -> Result<(), Disagreement> {
    let differs = |what, before: &dyn ToString, behind: &dyn ToString| {
        differs(what, stage, before.to_string(), behind.to_string())
    };
    differs("package", &hello.package_sha256, &info.package_sha256)?;
    differs("layers of the model", &hello.layer_count, &info.layer_count)?;
    if info.layers.start() != start {
        return Err(Disagreement::Start { expected: start, stage, layers: info.layers.to_string() });
    }
    differs("width of hidden rows", &hello.n_embd, &info.n_embd)?;
    differs("engine ABI", &hello.abi, &info.abi)?;
    differs("type of cached keys (`--cache-type-k`)", &hello.cache_type_k, &info.kv_types.0)?;
    differs("type of cached values (`--cache-type-v`)", &hello.cache_type_v, &info.kv_types.1)?;
    differs("context of a sequence (`--ctx-size`)", &hello.n_ctx_seq, &info.n_ctx_seq)?;
    differs("sequences (`--lanes`)", &hello.n_seq_max, &info.n_seq_max)?;
    differs("rows of a pass (`--batch-size`)", &hello.n_batch, &info.n_batch)?;
    if hello.window > 1 && info.layers.end() == info.layer_count && !info.drafts {
        return Err(Disagreement::NoDrafts { window: hello.window, stage });
    }
    Ok(())
}

fn differs(what: &'static str, stage: usize, before: String, behind: String) -> Result<(), Disagreement> {
    if before == behind { Ok(()) } else { Err(Disagreement::Differs { what, stage, before, behind }) }
}
