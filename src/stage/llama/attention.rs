//! Which of llama.cpp's attention kernels compute, and how prompts may be cut for them.
//!
//! On the CPU, flash attention is three kernels that round differently: one for 64 rows of a sequence and more, one for
//! fewer, and one that cuts a cache of 512 rows and more between threads where a sequence decodes alone. With it, the bits
//! of a row depend on how the prompt was cut, and on whether anybody else is decoding. The plain matrix products do not
//! have that: a row comes out alike in a piece of 8 rows and in one of 500, at the same speed (CPU time of SmolLM2-135M on a
//! prompt of 2048 tokens: 22 s in pieces of 512 either way, and in pieces of 8 still 23 s where flash attention takes 40;
//! then 27 ms for a token instead of 38). They need a buffer for the scores, which flash attention does without.
//!
//! `tests/it/pieces.rs` holds this against real models. Why multiples of 8: ggml multiplies repacked weights with four
//! rows at a time and those left over one by one, so that pieces must not end between; and one row by itself goes through
//! other kernels than several.

use super::LlamaStageOptions;
use crate::{llama::KvType, stage::Pieces};

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attention {
    /// Matrix products and a softmax.
    Plain,
    /// Flash attention over a quantised cache, which has but one kernel on the CPU.
    Quantised,
    /// Flash attention on the CPU, to measure against.
    Flash,
    /// Whatever a GPU does.
    Gpu,
}

impl Attention {
    pub(super) fn of(options: &LlamaStageOptions) -> Self {
        let gpu = cfg!(any(feature = "cuda", feature = "metal", feature = "vulkan"));
        match (gpu && options.gpu_layers != Some(0), options.cache_type_v) {
            (true, _) => Self::Gpu,
            (false, KvType::Q8_0) => Self::Quantised,
            (false, KvType::F16 | KvType::F32) => Self::Plain,
        }
    }

    /// How prompts may be cut. Of a GPU's kernels nothing is known here, and those of the CPU are not alike, so that every
    /// piece has the same size.
    pub(super) fn pieces(self, n_batch: u32) -> Pieces {
        match self {
            Self::Plain | Self::Quantised => Pieces { unit: 8, most: n_batch.max(8) },
            Self::Flash | Self::Gpu => Pieces { unit: 256, most: 256 },
        }
    }
}
