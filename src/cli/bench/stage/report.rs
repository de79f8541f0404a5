//! What came of it, for people and machines.

use super::{super::stats::Sample, memory::Memory};
use serde::Serialize;
use std::fmt::Write as _;

/// A stage at several depths.
#[derive(Serialize)]
pub(super) struct Report {
    /// Model coordinate of the package.
    pub(super) model: String,
    /// The layers.
    pub(super) layers: String,
    /// Compute threads.
    pub(super) threads: u32,
    /// Rows of a prefill pass.
    pub(super) chunk: u32,
    /// Whether the `llama` engine used flash attention.
    pub(super) llama_flash: bool,
    /// One entry for each depth.
    pub(super) depths: Vec<Depth>,
    /// Memory of a prompt.
    pub(super) memory: Option<Memory>,
}

/// A stage behind so many rows.
#[derive(Serialize)]
pub(super) struct Depth {
    /// Rows that are cached.
    pub(super) at: u32,
    /// Tokens per second.
    pub(super) dsa_prefill: Sample,
    /// For each token.
    pub(super) dsa_decode_ms: Sample,
    /// The other engine, unless one is measured alone.
    #[serde(flatten)]
    pub(super) against: Option<Against>,
}

/// The `llama` engine on the same rows.
#[derive(Serialize)]
pub(super) struct Against {
    /// Tokens per second.
    pub(super) llama_prefill: Sample,
    /// For each token.
    pub(super) llama_decode_ms: Sample,
    /// Speed of `dsa` over that of `llama`, round by round: above 1 means faster.
    pub(super) prefill_speed: Sample,
    /// Likewise.
    pub(super) decode_speed: Sample,
    /// Median over rows of the difference of outputs, relative to their size.
    pub(super) difference: f32,
    /// How far other rows in the cache move the output of `dsa`, in the same measure.
    pub(super) influence: f32,
}

impl Report {
    pub(super) fn table(&self) -> String {
        let mut out = format!(
            "{}, layers {}, {} threads, prefill passes of {} rows{}\n\
             rows      prefill tokens/s (llama)   speed               decode ms/token (llama)   speed               difference (influence)\n",
            self.model,
            self.layers,
            self.threads,
            self.chunk,
            if self.llama_flash { ", llama with flash attention" } else { "" }
        );
        for Depth { at, dsa_prefill, dsa_decode_ms, against } in &self.depths {
            let (prefill, decode) = (dsa_prefill.median, dsa_decode_ms.median);
            let _ = match against {
                None => writeln!(out, "{at:<9} {prefill:>8.1} {:>40} {decode:>8.2}", ""),
                Some(with) => writeln!(
                    out,
                    "{at:<9} {prefill:>8.1} ({:>8.1})        {:<19} {decode:>8.2} ({:>8.2})       {:<19} {:.4} ({:.4})",
                    with.llama_prefill.median,
                    ratio(&with.prefill_speed),
                    with.llama_decode_ms.median,
                    ratio(&with.decode_speed),
                    with.difference,
                    with.influence,
                ),
            };
        }
        out.extend(self.memory.as_ref().map(Memory::line));
        out
    }
}

fn ratio(speed: &Sample) -> String {
    format!("{:.2} ({:.2}..{:.2})", speed.median, speed.min, speed.max)
}
