//! The generation policy of `glm-dsa-v1` as the spec recommends it (Policy Resolution).

use crate::package::{
    Extra,
    generation::{Gate, IndexShare, Open, Policy, PolicyPath, Profile, Switch, Thresholds, Vocabulary},
};

/// The phase intent of the profile.
pub fn recommended_policy() -> Policy {
    let path = |path| Some(Open::Known(path));
    let gated = |switch: Switch| (switch.name().to_owned(), Open::Known(Gate::EvidenceGated));
    Policy {
        profile: Some(Open::Known(Profile::GlmDsaV1)),
        decode: path(PolicyPath::CompactFlash),
        short_prefill: path(PolicyPath::Dense),
        long_prefill: path(PolicyPath::SparseChunked),
        verify: path(PolicyPath::Auto),
        indexshare: Some(Open::Known(IndexShare::Required)),
        experimental: [Switch::SelectedRowFlash, Switch::MoeWeightedDown, Switch::MoeMergedSharedGateUp]
            .map(gated)
            .into(),
        extra: Extra::new(),
    }
}

/// The threshold intent of the profile.
pub fn recommended_thresholds() -> Thresholds {
    Thresholds {
        short_prefill_max_tokens: Some(2048),
        compact_flash_min_kv: Some(1),
        dense_mask_max_bytes: Some(256 << 20),
        extra: Extra::new(),
    }
}
