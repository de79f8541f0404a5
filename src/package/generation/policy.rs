//! `generation.policy` and `generation.thresholds` (spec, Execution Policy).

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{Unsupported, report_fields, report_value};
use crate::package::{
    issue::Code,
    manifest::{
        Extra,
        fields::{Faults, Fields},
    },
};

/// A value of a vocabulary that a newer writer may have extended.
#[derive(Clone, Debug, PartialEq)]
pub enum Open<T> {
    /// A value this version knows.
    Known(T),
    /// Anything else, kept as it is. Never to be treated as a supported value.
    Unknown(Value),
}

/// A closed list of names.
pub trait Vocabulary: Copy + 'static {
    /// The values with their names in the manifest.
    const NAMES: &'static [(&'static str, Self)];

    /// The name in the manifest.
    fn name(self) -> &'static str;
}

impl<T: Vocabulary> Open<T> {
    /// The known value.
    pub fn known(&self) -> Option<T> {
        match self {
            Self::Known(value) => Some(*value),
            Self::Unknown(_) => None,
        }
    }

    /// Reads a value; nothing is an error.
    pub fn from_value(value: Value) -> Self {
        let known = value.as_str().and_then(|text| T::NAMES.iter().find(|(name, _)| *name == text));
        known.map_or(Self::Unknown(value.clone()), |(_, known)| Self::Known(*known))
    }

    pub(super) fn report(&self, path: &str, key: &str, found: &mut Vec<Unsupported>) {
        if let Self::Unknown(value) = self {
            report_value(path, key, value, found);
        }
    }
}

impl<T: Vocabulary> Serialize for Open<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Known(value) => serializer.serialize_str(value.name()),
            Self::Unknown(value) => value.serialize(serializer),
        }
    }
}

macro_rules! vocabulary {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $value_doc:literal])+ $value:ident = $text:literal,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[doc = $value_doc])+ $value,)+ }

        impl $crate::package::generation::Vocabulary for $name {
            const NAMES: &'static [(&'static str, Self)] = &[$(($text, Self::$value),)+];

            fn name(self) -> &'static str {
                match self { $(Self::$value => $text,)+ }
            }
        }
    };
}
pub(super) use vocabulary;

vocabulary! {
    /// Policy family and version.
    Profile {
        /// GLM-DSA sparse attention, first version.
        GlmDsaV1 = "glm-dsa-v1",
    }
}

vocabulary! {
    /// How attention runs in one phase.
    PolicyPath {
        /// The runtime chooses by thresholds and backend.
        Auto = "auto",
        /// Dense attention.
        Dense = "dense",
        /// Sparse attention by selected rows.
        DirectSparse = "direct-sparse",
        /// Selected rows compacted, then flash attention.
        CompactFlash = "compact-flash",
        /// Sparse prefill in chunks.
        SparseChunked = "sparse-chunked",
        /// The named correctness fallback.
        Fallback = "fallback",
    }
}

vocabulary! {
    /// Whether shared layers need the top-k lists of their full layer.
    IndexShare {
        /// Never recompute silently.
        Required = "required",
    }
}

vocabulary! {
    /// When an experimental switch opens.
    Gate {
        /// Only with evidence of parity and a gain.
        EvidenceGated = "evidence-gated",
    }
}

vocabulary! {
    /// The experimental switches.
    Switch {
        /// Flash attention over selected rows in one kernel.
        SelectedRowFlash = "selected_row_flash",
        /// Expert weights applied before the down projection.
        MoeWeightedDown = "moe_weighted_down",
        /// Gate and up projection of the shared expert in one product.
        MoeMergedSharedGateUp = "moe_merged_shared_gate_up",
    }
}

/// Which execution path is meant for which phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Policy {
    /// Policy family and version: what the other fields mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Open<Profile>>,
    /// One token at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode: Option<Open<PolicyPath>>,
    /// Prompts up to [`Thresholds::short_prefill_max_tokens`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short_prefill: Option<Open<PolicyPath>>,
    /// Longer prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long_prefill: Option<Open<PolicyPath>>,
    /// Verification of speculated tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<Open<PolicyPath>>,
    /// Whether shared layers need their lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub indexshare: Option<Open<IndexShare>>,
    /// Experimental switches by name; [`Policy::switch`] looks up the known ones.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub experimental: BTreeMap<String, Open<Gate>>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Policy {
    /// The gate of an experimental switch.
    pub fn switch(&self, switch: Switch) -> Option<&Open<Gate>> {
        self.experimental.get(switch.name())
    }

    pub(super) fn read(mut fields: Fields, faults: &mut Faults) -> Option<Self> {
        let experimental = fields.optional_object("experimental", Code::InvalidField, faults);
        let experimental = experimental.map(Fields::into_entries).unwrap_or_default();
        Some(Self {
            profile: fields.take("profile").map(Open::from_value),
            decode: fields.take("decode").map(Open::from_value),
            short_prefill: fields.take("short_prefill").map(Open::from_value),
            long_prefill: fields.take("long_prefill").map(Open::from_value),
            verify: fields.take("verify").map(Open::from_value),
            indexshare: fields.take("indexshare").map(Open::from_value),
            experimental: experimental.into_iter().map(|(name, value)| (name, Open::from_value(value))).collect(),
            extra: fields.rest(),
        })
    }

    pub(super) fn report(&self, path: &str, found: &mut Vec<Unsupported>) {
        fn value<T: Vocabulary>(path: &str, key: &str, value: &Option<Open<T>>, found: &mut Vec<Unsupported>) {
            if let Some(value) = value {
                value.report(path, key, found);
            }
        }
        value(path, "profile", &self.profile, found);
        value(path, "decode", &self.decode, found);
        value(path, "short_prefill", &self.short_prefill, found);
        value(path, "long_prefill", &self.long_prefill, found);
        value(path, "verify", &self.verify, found);
        value(path, "indexshare", &self.indexshare, found);
        let path_of_switches = format!("{path}.experimental");
        for (name, gate) in &self.experimental {
            match gate {
                Open::Known(known) if Switch::NAMES.iter().all(|(switch, _)| switch != name) => {
                    report_value(&path_of_switches, name, &Value::String(known.name().into()), found);
                }
                gate => gate.report(&path_of_switches, name, found),
            }
        }
        report_fields(path, &self.extra, found);
    }
}

/// When a path applies. Hints: absent ones fall to the resolver's defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Thresholds {
    /// Longest prompt or window, in tokens, that is a short prefill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short_prefill_max_tokens: Option<u64>,
    /// Fewest KV rows for which compact-flash pays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compact_flash_min_kv: Option<u64>,
    /// Largest dense sparse mask, in bytes, that may be built.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_mask_max_bytes: Option<u64>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Thresholds {
    pub(super) fn read(mut fields: Fields, faults: &mut Faults) -> Self {
        let mut threshold = |key| fields.optional_as(key, Code::InvalidThreshold, faults);
        let short_prefill_max_tokens = threshold("short_prefill_max_tokens");
        let compact_flash_min_kv = threshold("compact_flash_min_kv");
        let dense_mask_max_bytes = threshold("dense_mask_max_bytes");
        Self { short_prefill_max_tokens, compact_flash_min_kv, dense_mask_max_bytes, extra: fields.rest() }
    }
}
