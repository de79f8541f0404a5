//! What stands before the first request: the package's policy and thresholds, overrides and built-in defaults, parsed
//! once.

use serde::Serialize;

use super::types::{Path, Phase, Profile, Reason, Recommended, Source};
use crate::package::generation::{self as package, Open};

/// Attention paths forced by the command line, the environment or the configuration file, phase by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Overrides {
    /// For [`Phase::Decode`].
    pub decode: Option<Path>,
    /// For [`Phase::ShortPrefill`].
    pub short_prefill: Option<Path>,
    /// For [`Phase::LongPrefill`].
    pub long_prefill: Option<Path>,
    /// For [`Phase::Verify`].
    pub verify: Option<Path>,
}

impl Overrides {
    /// The path forced for `phase`.
    pub fn of(&self, phase: Phase) -> Option<Path> {
        match phase {
            Phase::Decode => self.decode,
            Phase::ShortPrefill => self.short_prefill,
            Phase::LongPrefill => self.long_prefill,
            Phase::Verify => self.verify,
        }
    }
}

/// A threshold with its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// The value, in the unit of its name.
    pub value: u64,
    /// [`Source::Package`] or [`Source::BuiltIn`].
    pub from: Source,
}

/// The thresholds that hold (spec, Execution Policy).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Tokens: the longest prompt that counts as short.
    pub short_prefill_max_tokens: Limit,
    /// KV rows: fewest for which compact-flash pays.
    pub compact_flash_min_kv: Limit,
    /// Bytes: the largest dense mask that may be allocated.
    pub dense_mask_max_bytes: Limit,
}

impl Limits {
    /// The package's values, and those of `glm-dsa-v1` where it has none.
    pub(super) fn of(thresholds: Option<&package::Thresholds>) -> Self {
        let limit = |declared: Option<u64>, built_in| match declared {
            Some(value) => Limit { value, from: Source::Package },
            None => Limit { value: built_in, from: Source::BuiltIn },
        };
        Self {
            short_prefill_max_tokens: limit(thresholds.and_then(|t| t.short_prefill_max_tokens), 2048),
            compact_flash_min_kv: limit(thresholds.and_then(|t| t.compact_flash_min_kv), 1),
            dense_mask_max_bytes: limit(thresholds.and_then(|t| t.dense_mask_max_bytes), 268_435_456),
        }
    }
}

/// Whether this version's sparse paths are made for `architecture`: its layers select the KV rows they attend to.
pub fn is_sparse_architecture(architecture: &str) -> bool {
    matches!(architecture, "glm-dsa" | "deepseek32")
}

/// The default for a package that says nothing about a phase.
pub(super) fn built_in(architecture: &str, phase: Phase) -> Recommended {
    match phase {
        _ if !is_sparse_architecture(architecture) => Recommended::Dense,
        Phase::Decode => Recommended::CompactFlash,
        Phase::ShortPrefill => Recommended::Dense,
        Phase::LongPrefill => Recommended::SparseChunked,
        Phase::Verify => Recommended::Auto,
    }
}

/// The profile of `policy`, as far as it may be a label.
pub(super) fn profile(policy: Option<&package::Policy>) -> Profile {
    match policy.and_then(|policy| policy.profile.as_ref()) {
        None => Profile::None,
        Some(Open::Known(package::Profile::GlmDsaV1)) => Profile::GlmDsaV1,
        Some(Open::Unknown(_)) => Profile::Unknown,
    }
}

/// What is asked for in one phase, before anybody looks at a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PhasePlan {
    /// Label of what the package asks for.
    pub(super) recommended: Recommended,
    /// The path asked for by name, and who asks.
    pub(super) asked: Option<(Path, Source)>,
    /// Where the choice comes from when nobody asks for a path by name, or it cannot be taken.
    pub(super) rest: Source,
    /// Set when the package asks for something unknown: only the named fallback may serve it.
    pub(super) unknown: Option<Reason>,
}

impl PhasePlan {
    pub(super) fn of(policy: Option<&package::Policy>, architecture: &str, phase: Phase) -> Self {
        let unknown = |reason| Self {
            recommended: Recommended::Unknown,
            asked: None,
            rest: Source::Correctness,
            unknown: Some(reason),
        };
        if profile(policy) == Profile::Unknown {
            return unknown(Reason::UnknownProfile);
        }
        let declared = policy.and_then(|policy| match phase {
            Phase::Decode => policy.decode.as_ref(),
            Phase::ShortPrefill => policy.short_prefill.as_ref(),
            Phase::LongPrefill => policy.long_prefill.as_ref(),
            Phase::Verify => policy.verify.as_ref(),
        });
        let (recommended, wanted, source) = match declared {
            Some(Open::Unknown(_)) => return unknown(Reason::UnknownValue),
            Some(Open::Known(path)) => ((*path).into(), (*path).into(), Source::Package),
            None => (Recommended::None, built_in(architecture, phase), Source::BuiltIn),
        };
        let asked = wanted.path().map(|path| (path, source));
        let rest = match (asked, source) {
            (Some(_), _) => Source::Correctness,
            (None, Source::Package) => Source::Auto,
            (None, other) => other,
        };
        Self { recommended, asked, rest, unknown: None }
    }
}

impl From<package::PolicyPath> for Recommended {
    fn from(path: package::PolicyPath) -> Self {
        use package::PolicyPath as P;
        match path {
            P::Auto => Self::Auto,
            P::Dense => Self::Dense,
            P::DirectSparse => Self::DirectSparse,
            P::CompactFlash => Self::CompactFlash,
            P::SparseChunked => Self::SparseChunked,
            P::Fallback => Self::Fallback,
        }
    }
}
