//! Which attention path a phase of a request takes, and why (spec, Policy Resolution).
//!
//! Pure: no engine, no clock, no allocation in [`Resolver::resolve`]. The order is override, package policy, built-in
//! default of the architecture, correctness fallback.

mod types;

pub use types::{Decision, Inputs, Path, Phase, Reason, Recommended, Role};

/// Everything about a stage that does not change from decision to decision.
#[derive(Clone, Debug, Default)]
pub struct Resolver {}

impl Resolver {
    /// Decides.
    pub fn resolve(&self, inputs: &Inputs) -> Decision {
        let selected = inputs.path.unwrap_or(match inputs.phase {
            Phase::Decode | Phase::Verify => Path::CompactFlash,
            Phase::ShortPrefill => Path::Dense,
            Phase::LongPrefill => Path::SparseChunked,
        });
        Decision {
            phase: inputs.phase,
            recommended: Recommended::Auto,
            selected,
            reason: Reason::BuiltInDefault,
            dense_mask_bytes: 0,
        }
    }
}
