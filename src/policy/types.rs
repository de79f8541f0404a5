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
        }
    };
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
        /// A value that this version does not know.
        Unknown => "unknown",
        /// Nothing: the package has no policy for the phase.
        None => "none",
    }
}

closed! {
    /// Where a stage's first layer gets its top-k list.
    Role {
        /// From its own indexer.
        Full => "full",
        /// From the layer before it (IndexShare).
        Shared => "shared",
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
        /// The path does not serve this phase.
        PhaseUnsupported => "phase_unsupported",
        /// Fewer KV rows than `compact_flash_min_kv`.
        BelowCompactFlashMinKv => "below_compact_flash_min_kv",
        /// The mask would exceed `dense_mask_max_bytes`.
        DenseMaskOverBudget => "dense_mask_over_budget",
        /// The selection covers every visible row: dense is exact and nothing has to be scored.
        TopKCoversKv => "top_k_covers_kv",
        /// An evidence-gated path without evidence.
        EvidenceMissing => "evidence_missing",
        /// Evidence shows no gain.
        EvidenceNoWin => "evidence_no_win",
        /// Evidence shows different output.
        ParityFailed => "parity_failed",
        /// A shared layer without the list of its full layer.
        IndexshareStateMissing => "indexshare_state_missing",
    }
}

/// What a decision depends on besides the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// Phase.
    pub phase: Phase,
    /// Rows of this pass.
    pub n_tokens: u32,
    /// KV rows that the last of them sees, itself included.
    pub n_kv: u32,
    /// What the request forces.
    pub path: Option<Path>,
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
    /// Why.
    pub reason: Reason,
    /// What a dense mask for these rows would take, bytes: tokens x KV rows x 4.
    pub dense_mask_bytes: u64,
}
