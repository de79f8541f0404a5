//! Defaults for generation that a package declares (spec, Generation Defaults).
//!
//! The vocabulary is open: a value that this version does not know is kept as it is and reported by
//! [`Generation::unsupported`]; it never turns into something else.

mod policy;
mod speculative;
mod strategy;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use tests::full_sample;

use std::fmt;

use serde::Serialize;
use serde_json::Value;

pub use self::{
    policy::{Gate, IndexShare, Open, Policy, PolicyPath, Profile, Switch, Thresholds, Vocabulary},
    speculative::{NativeMtp, NgramKind, NgramProposer, Proposer, SpeculativeDecoding},
    strategy::{
        Composite, DefaultStrategy, DraftModel, ExtensionPolicy, NativeMtpStrategy, NgramStrategy, Strategy,
        StrategyKind, UnknownKind, WindowMode, WindowPolicy,
    },
};
use super::{
    issue::{Code, Issue},
    manifest::{
        Extra,
        fields::{Faults, Fields, describe, shown},
    },
};

/// The `generation` object of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Generation {
    /// Which execution path is meant for which phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// When a path applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thresholds: Option<Thresholds>,
    /// How to speculate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative_decoding: Option<SpeculativeDecoding>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Writes an object that names its type beside its other fields.
#[derive(Serialize)]
struct Typed<'a, T> {
    r#type: &'a str,
    #[serde(flatten)]
    fields: T,
}

/// A declared value that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unsupported {
    /// The field, for example `generation.policy.decode`.
    pub field: String,
    /// Its value, shortened to one line.
    pub value: String,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {} is not supported by this version", self.field, self.value)
    }
}

impl From<&Unsupported> for Issue {
    fn from(unsupported: &Unsupported) -> Self {
        Issue::new(Code::UnsupportedGenerationValue, &unsupported.field, unsupported.to_string())
    }
}

impl Generation {
    /// Every declared value that this version does not know. Unknown thresholds are hints and not listed.
    pub fn unsupported(&self) -> Vec<Unsupported> {
        let mut found = Vec::new();
        report_fields("generation", &self.extra, &mut found);
        if let Some(policy) = &self.policy {
            policy.report("generation.policy", &mut found);
        }
        if let Some(speculation) = &self.speculative_decoding {
            speculation.report("generation.speculative_decoding", &mut found);
        }
        found
    }

    pub(super) fn read(mut fields: Fields, layer_count: Option<u32>, faults: &mut Faults) -> Option<Self> {
        let policy = fields.optional_object("policy", Code::InvalidField, faults);
        let policy = policy.and_then(|policy| Policy::read(policy, faults));
        let thresholds = fields.optional_object("thresholds", Code::InvalidThreshold, faults);
        let thresholds = thresholds.map(|thresholds| Thresholds::read(thresholds, faults));
        let speculation = fields.optional_object("speculative_decoding", Code::InvalidSpeculation, faults);
        let speculative_decoding =
            speculation.map(|speculation| SpeculativeDecoding::read(speculation, layer_count, faults));
        Some(Self { policy, thresholds, speculative_decoding, extra: fields.rest() })
    }
}

fn report_fields(path: &str, extra: &Extra, found: &mut Vec<Unsupported>) {
    extra.iter().for_each(|(key, value)| report_value(path, key, value, found));
}

fn report_value(path: &str, key: &str, value: &Value, found: &mut Vec<Unsupported>) {
    found.push(Unsupported { field: format!("{path}.{}", shown(key)), value: describe(value) });
}
