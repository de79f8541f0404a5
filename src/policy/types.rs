//! The closed vocabularies of a decision. Each value is one metric label value.

macro_rules! closed {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident => $value:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];
            /// Every label, in the order of [`Self::ALL`].
            pub const VALUES: &'static [&'static str] = &[$($value,)+];

            /// The name in labels, logs and JSON.
            pub fn label(self) -> &'static str {
                match self { $(Self::$variant => $value,)+ }
            }

            /// The value with this name.
            pub fn from_label(label: &str) -> Option<Self> {
                match label {
                    $($value => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.label())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.label())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <String as serde::Deserialize>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::policy::UnknownName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::from_label(text)
                    .ok_or_else(|| $crate::policy::UnknownName { got: text.to_owned(), expected: Self::VALUES })
            }
        }
    };
}
pub(super) use closed;

/// A name that is not in its vocabulary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be one of {}, got `{got}`", expected.join(", "))]
pub struct UnknownName {
    /// The name.
    pub got: String,
    /// The vocabulary.
    pub expected: &'static [&'static str],
}

closed! {
    /// What the rows of a sequence are for.
    Phase {
        /// One token.
        Decode => "decode",
        /// A prompt of at most `short_prefill_max_tokens`.
        ShortPrefill => "short_prefill",
        /// A longer prompt.
        LongPrefill => "long_prefill",
        /// Drafts under verification.
        Verify => "verify",
    }
}

closed! {
    /// How attention runs.
    Path {
        /// Full attention; masked by the selection above top-k.
        Dense => "dense",
        /// Attention on the selected rows where they lie.
        DirectSparse => "direct-sparse",
        /// The selected rows gathered, then flash attention on them.
        CompactFlash => "compact-flash",
        /// Chunks of a prompt with bounded buffers; never a mask of tokens by KV rows.
        SparseChunked => "sparse-chunked",
        /// Plain masked attention row by row: slow, always right, always available.
        Fallback => "fallback",
    }
}

closed! {
    /// What the package (or the built-in default) asks for.
    Recommended {
        /// The runtime's choice.
        Auto => "auto",
        /// [`Path::Dense`].
        Dense => "dense",
        /// [`Path::DirectSparse`].
        DirectSparse => "direct-sparse",
        /// [`Path::CompactFlash`].
        CompactFlash => "compact-flash",
        /// [`Path::SparseChunked`].
        SparseChunked => "sparse-chunked",
        /// [`Path::Fallback`].
        Fallback => "fallback",
        /// A value, or a profile, that this version does not know.
        Unknown => "unknown",
        /// Nothing: the package has no policy for the phase.
        None => "none",
    }
}

closed! {
    /// The policy profile of a package, as far as it may be a label.
    Profile {
        /// GLM-DSA sparse attention, first version.
        GlmDsaV1 => "glm-dsa-v1",
        /// The package names none.
        None => "none",
        /// One that this version does not know.
        Unknown => "unknown",
    }
}

closed! {
    /// Where a layer gets its top-k list.
    Role {
        /// From its own indexer.
        Full => "full",
        /// From the layer before it (IndexShare).
        Shared => "shared",
    }
}

closed! {
    /// Who named a path.
    Source {
        /// The request.
        Request => "request",
        /// The command line, the environment or the configuration file.
        Configuration => "configuration",
        /// The package's policy.
        Package => "package",
        /// The default of the architecture.
        BuiltIn => "built_in",
        /// The package leaves the choice to the runtime (`auto`).
        Auto => "auto",
        /// Nobody: it is what remains when the paths asked for cannot be taken.
        Correctness => "correctness",
    }
}

closed! {
    /// A number that a decision may hang on.
    Threshold {
        /// Tokens: the longest prompt that counts as short.
        ShortPrefillMaxTokens => "short_prefill_max_tokens",
        /// KV rows: fewest for which compact-flash pays.
        CompactFlashMinKv => "compact_flash_min_kv",
        /// Bytes: largest dense mask.
        DenseMaskMaxBytes => "dense_mask_max_bytes",
    }
}

closed! {
    /// Why a path was selected, or rejected.
    Reason {
        /// The package recommends it.
        Recommended => "recommended",
        /// The package says `auto` and the thresholds and the backend lead here.
        Auto => "auto",
        /// A request, the command line or the configuration forces it.
        Override => "override",
        /// The package says nothing; the default of the architecture.
        BuiltInDefault => "built_in_default",
        /// The package's profile is not known to this version.
        UnknownProfile => "unknown_profile",
        /// The package's value for the phase is not known to this version.
        UnknownValue => "unknown_value",
        /// The backend does not have the path.
        BackendUnsupported => "backend_unsupported",
        /// The model has no indexer: there is no selection that a sparse path could follow.
        NoIndexer => "no_indexer",
        /// Fewer KV rows than `compact_flash_min_kv`.
        BelowCompactFlashMinKv => "below_compact_flash_min_kv",
        /// The mask would exceed `dense_mask_max_bytes`.
        DenseMaskOverBudget => "dense_mask_over_budget",
        /// The selection covers every visible row: dense is exact and nothing has to be scored.
        TopKCoversKv => "top_k_covers_kv",
        /// Nobody has measured an evidence-gated switch, as far as the server was told.
        EvidenceMissing => "evidence_missing",
        /// Evidence whose seal does not fit: somebody has changed it since it was measured.
        EvidenceEdited => "evidence_edited",
        /// Evidence of another build.
        EvidenceForeignBuild => "evidence_foreign_build",
        /// Evidence of another CPU or device, or of kernels for other instructions.
        EvidenceForeignCpu => "evidence_foreign_cpu",
        /// Evidence shows no gain.
        EvidenceNoWin => "evidence_no_win",
        /// Evidence shows different output.
        ParityFailed => "parity_failed",
        /// A shared layer without the list of its full layer.
        IndexshareStateMissing => "indexshare_state_missing",
    }
}

impl Path {
    /// Whether it reads selected rows only, and so needs an indexer.
    pub fn is_sparse(self) -> bool {
        matches!(self, Self::DirectSparse | Self::CompactFlash | Self::SparseChunked)
    }
}

impl Recommended {
    /// The path asked for by name.
    pub fn path(self) -> Option<Path> {
        match self {
            Self::Dense => Some(Path::Dense),
            Self::DirectSparse => Some(Path::DirectSparse),
            Self::CompactFlash => Some(Path::CompactFlash),
            Self::SparseChunked => Some(Path::SparseChunked),
            Self::Fallback => Some(Path::Fallback),
            Self::Auto | Self::Unknown | Self::None => None,
        }
    }
}

impl From<Path> for Recommended {
    fn from(path: Path) -> Self {
        match path {
            Path::Dense => Self::Dense,
            Path::DirectSparse => Self::DirectSparse,
            Path::CompactFlash => Self::CompactFlash,
            Path::SparseChunked => Self::SparseChunked,
            Path::Fallback => Self::Fallback,
        }
    }
}

/// What a decision depends on besides the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// Phase; [`Resolver::prefill`](super::Resolver::prefill) tells short and long prompts apart.
    pub phase: Phase,
    /// Rows of this pass.
    pub n_tokens: u32,
    /// KV rows that the last of them sees, itself included.
    pub n_kv: u32,
    /// What the request forces.
    pub path: Option<Path>,
    /// Whether the top-k lists of the layer before the stage are there. Only a stage that starts on a shared layer
    /// looks at it.
    pub has_list: bool,
}

impl Inputs {
    /// Nothing forced, lists there.
    pub fn new(phase: Phase, n_tokens: u32, n_kv: u32) -> Self {
        Self { phase, n_tokens, n_kv, path: None, has_list: true }
    }

    /// What a dense mask for these rows takes, bytes: tokens x KV rows x 4 (spec, Execution Policy).
    pub fn dense_mask_bytes(&self) -> u64 {
        u64::from(self.n_tokens).saturating_mul(u64::from(self.n_kv)).saturating_mul(4)
    }
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Phase.
    pub phase: Phase,
    /// What the package asks for.
    pub recommended: Recommended,
    /// The path to take.
    pub selected: Path,
    /// The first path that was asked for and not taken; [`reason`](Self::reason) says why.
    pub rejected: Option<Path>,
    /// Why [`rejected`](Self::rejected) was not taken; without a rejection, why [`selected`](Self::selected) was.
    pub reason: Reason,
    /// The stage must not run these rows at all: it would have to invent a selection. Only with
    /// [`Reason::IndexshareStateMissing`].
    pub refused: bool,
    /// What a dense mask for these rows would take, bytes: tokens x KV rows x 4.
    pub dense_mask_bytes: u64,
    /// The part of it that the selected path does not allocate, bytes. 0 when dense needs no mask either.
    pub dense_mask_avoided_bytes: u64,
}

impl Decision {
    /// Whether somebody asked for something else than what is done: the package, an override, or the default of the
    /// architecture. Its reason belongs into logs and answers.
    pub fn departs(&self) -> bool {
        match self.reason {
            Reason::Recommended | Reason::Auto | Reason::BuiltInDefault => false,
            Reason::Override => self.recommended.path() != Some(self.selected),
            // What the runtime chooses when it is its choice anyway departs from nothing.
            Reason::TopKCoversKv => self.recommended.path().is_some_and(|path| path != self.selected),
            _ => true,
        }
    }

    /// The threshold that this decision hangs on, if one does.
    pub fn threshold(&self) -> Option<Threshold> {
        match (self.reason, self.phase) {
            (Reason::BelowCompactFlashMinKv, _) => Some(Threshold::CompactFlashMinKv),
            (Reason::DenseMaskOverBudget, _) => Some(Threshold::DenseMaskMaxBytes),
            (Reason::Recommended | Reason::Auto | Reason::BuiltInDefault, Phase::ShortPrefill | Phase::LongPrefill) => {
                Some(Threshold::ShortPrefillMaxTokens)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_read_back() {
        fn check<T: PartialEq + std::fmt::Debug + Copy>(
            all: &[T],
            values: &[&str],
            label: fn(T) -> &'static str,
            from: fn(&str) -> Option<T>,
        ) {
            for (value, name) in all.iter().zip(values) {
                assert_eq!((label(*value), from(name)), (*name, Some(*value)));
            }
            assert_eq!(from("Dense"), None);
        }
        check(Phase::ALL, Phase::VALUES, Phase::label, Phase::from_label);
        check(Path::ALL, Path::VALUES, Path::label, Path::from_label);
        check(Reason::ALL, Reason::VALUES, Reason::label, Reason::from_label);
        check(Recommended::ALL, Recommended::VALUES, Recommended::label, Recommended::from_label);
        for path in Path::ALL {
            assert_eq!(Recommended::from(*path).path(), Some(*path));
            assert_eq!(Recommended::from(*path).label(), path.label());
        }
    }

    #[test]
    fn the_largest_inputs_do_not_overflow() {
        assert_eq!(Inputs::new(Phase::LongPrefill, 128, 131_072).dense_mask_bytes(), 64 << 20);
        assert_eq!(Inputs::new(Phase::LongPrefill, u32::MAX, u32::MAX).dense_mask_bytes(), u64::MAX);
    }
}
