//! Which attention paths a request has taken.

use crate::policy::{Decision, Path, Phase, Reason};

/// Paths and reasons, each once, in the order of their first use.
#[derive(Debug, Default)]
pub(super) struct Paths {
    pub(super) prefill: Vec<Path>,
    pub(super) decode: Vec<Path>,
    /// Why another path than the one asked for was taken.
    pub(super) fallback: Vec<Reason>,
}

impl Paths {
    pub(super) fn note(&mut self, decision: &Decision) {
        let paths = match decision.phase {
            Phase::ShortPrefill | Phase::LongPrefill => &mut self.prefill,
            Phase::Decode | Phase::Verify => &mut self.decode,
        };
        note(paths, decision.selected);
        if decision.departs() {
            note(&mut self.fallback, decision.reason);
        }
    }
}

fn note<T: PartialEq>(seen: &mut Vec<T>, value: T) {
    if !seen.contains(&value) {
        seen.push(value);
    }
}
