//! What frames say.

use super::WireDtype;
use crate::{
    grammar::GrammarSpec,
    package::LayerRange,
    pipeline::{Opening, Step, StepResult},
    stage::{Pieces, SeqId},
};

/// Towards the output. The first frame of a session is [`Hello`](Self::Hello). Frames are worked on in order.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "frames are moved a few times, each with megabytes behind it")]
pub enum Down {
    /// Who calls, and what it expects.
    Hello(Hello),
    /// Rows are to come for a sequence.
    Open(RemoteOpening),
    /// A pass of rows.
    Step(StepFrame),
    /// Keep the first rows of a sequence only.
    Truncate {
        /// The sequence.
        seq: SeqId,
        /// Rows to keep.
        n_keep: u32,
    },
    /// Make the first rows of a sequence also the content of another.
    Copy {
        /// The sequence that has them.
        from: SeqId,
        /// The sequence that gets them; it is emptied first.
        to: SeqId,
        /// How many.
        n_rows: u32,
    },
    /// Answered by the link itself, see [`Up::Pong`].
    Ping {
        /// Comes back with the answer.
        id: u64,
    },
}

/// Towards the input. The first frame of a session is [`Welcome`](Self::Welcome) or [`Fault`](Self::Fault).
#[derive(Clone, Debug, PartialEq)]
pub enum Up {
    /// The stage itself and all behind it, in order.
    Welcome(Vec<StageInfo>),
    /// A step is through.
    Done(StepReport),
    /// Something failed; nothing comes behind it.
    Fault(Fault),
    /// A stage is about to end. It goes on with what it has been sent; the first stage finishes the requests that run, takes
    /// no others, and then ends the session.
    Draining {
        /// Its place in the chain.
        stage: u32,
    },
    /// Answers [`Down::Ping`].
    Pong {
        /// Of the ping.
        id: u64,
    },
}

/// What the calling stage is set up for. Both ends must agree on all of it but `version`, `wire` and `route`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// [`PROTOCOL`](super::PROTOCOL) of the caller.
    pub protocol: u32,
    /// SHA-256 of the package manifest, 64 hexadecimal digits in lower case.
    pub package_sha256: String,
    /// Model id of the package.
    pub model_id: String,
    /// Layers of the whole model.
    pub layer_count: u32,
    /// The layer that the caller hands over to: where the called stage must begin.
    pub start: u32,
    /// Width of a hidden row.
    pub n_embd: u32,
    /// KV rows of a sequence.
    pub n_ctx_seq: u32,
    /// Sequences.
    pub n_seq_max: u32,
    /// Rows of a pass at most.
    pub n_batch: u32,
    /// Type of cached keys.
    pub cache_type_k: String,
    /// Type of cached values.
    pub cache_type_v: String,
    /// Tokens verified in a pass at most; 1 means no drafts.
    pub window: u32,
    /// Engine ABI of the caller.
    pub abi: String,
    /// Version of the caller's program. Logged, not compared: `protocol` says what fits.
    pub version: String,
    /// How hidden rows travel on this link.
    pub wire: WireDtype,
    /// Instances of all stages before the called one, the first one first. A stage that finds itself here is part of a
    /// cycle.
    pub route: Vec<String>,
}

/// What a stage says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageInfo {
    /// Place in the chain, from 0.
    pub index: u32,
    /// Random id of the process.
    pub instance: String,
    /// Where its upstream calls it; empty in what a stage says of itself.
    pub address: String,
    /// Layers it owns.
    pub layers: LayerRange,
    /// Layers of the whole model.
    pub layer_count: u32,
    /// Which engine computes.
    pub engine: String,
    /// On which backend.
    pub backend: String,
    /// Types of cached keys and values.
    pub kv_types: (String, String),
    /// KV rows of a sequence.
    pub n_ctx_seq: u32,
    /// Sequences.
    pub n_seq_max: u32,
    /// Rows of a pass at most.
    pub n_batch: u32,
    /// Width of a hidden row.
    pub n_embd: u32,
    /// Columns of a row of logits; 0 where the stage has none.
    pub n_vocab: u32,
    /// Whether it has a draft head.
    pub drafts: bool,
    /// How a prompt may be cut.
    pub pieces: Pieces,
    /// As [`StageShape::prefix_step`](crate::stage::StageShape::prefix_step).
    pub prefix_step: u32,
    /// Memory in use for weights and caches.
    pub memory_bytes: u64,
    /// Version of the program.
    pub version: String,
    /// Engine ABI.
    pub abi: String,
    /// SHA-256 of the package manifest.
    pub package_sha256: String,
    /// Whether steps must bring top-k lists, see [`Boundary::top_k`](crate::stage::Boundary::top_k).
    pub takes_top_k: bool,
}

/// [`Opening`] as it travels.
#[derive(Clone, Debug)]
pub struct RemoteOpening {
    /// The opening; its `grammar` is `None` and does not travel.
    pub opening: Opening,
    /// What the tail compiles the grammar from.
    pub grammar: Option<GrammarSpec>,
}

/// [`Step`] with what the stage before has made of it.
#[derive(Clone, Debug, Default)]
pub struct StepFrame {
    /// Rows, tokens and purpose.
    pub step: Step,
    /// Hidden rows `[n_rows, n_embd]`, row-major.
    pub hidden: Vec<f32>,
    /// Width of a list, and the lists `[n_rows, width]`: see [`TopK`](crate::stage::TopK). For a stage that takes them.
    pub top_k: Option<(usize, Vec<i32>)>,
}

/// [`StepResult`] with the time it took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepReport {
    /// Tokens.
    pub result: StepResult,
    /// Microseconds each stage has spent on the step, by its place in the chain; 0 where it does not say.
    pub compute_us: Vec<u64>,
}

/// Why a stage cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stage {stage}: {text}")]
pub struct Fault {
    /// Its place in the chain.
    pub stage: u32,
    /// The kind.
    pub code: FaultCode,
    /// For a person.
    pub text: String,
}

pub use crate::telemetry::labels::FaultCode;
