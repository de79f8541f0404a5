//! Strategies: which proposers are combined, and how wide the verify window is (spec, Speculative Decoding).

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{
    NgramKind, Open, Proposer, Typed, Unsupported,
    policy::vocabulary,
    speculative::{list, positive, read_depth, read_layer_indices},
};
use crate::package::{
    issue::Code,
    manifest::{
        Extra,
        fields::{Faults, Fields, quoted, shown},
    },
};

const BAD: Code = Code::InvalidSpeculation;

/// One way to speculate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Strategy {
    /// What proposes.
    #[serde(flatten)]
    pub kind: StrategyKind,
    /// How wide the verify window is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_policy: Option<WindowPolicy>,
}

/// What proposes. References to proposers have been resolved once: they exist and have the right type.
#[derive(Clone, Debug, PartialEq)]
pub enum StrategyKind {
    /// The MTP block alone.
    NativeMtp(NativeMtpStrategy),
    /// An n-gram proposer alone.
    Ngram(NgramStrategy),
    /// The MTP block, its proposals extended by n-grams.
    Composite(Composite),
    /// A smaller model.
    DraftModel(DraftModel),
    /// A type this version does not know.
    Unknown(UnknownKind),
}

/// MTP by reference, by its own metadata, or both in agreement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NativeMtpStrategy {
    /// Id of a `native-mtp` proposer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposer: Option<String>,
    /// As in [`super::NativeMtp`]; there when `proposer` is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction_depth: Option<u32>,
    /// As in [`super::NativeMtp`]; there when `proposer` is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_indices: Option<Vec<u32>>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// An n-gram proposer alone.
#[derive(Clone, Debug, PartialEq)]
pub struct NgramStrategy {
    /// Which index; the proposer's kind.
    pub kind: NgramKind,
    /// Id of a proposer of that kind.
    pub proposer: String,
    /// Fields this version does not know.
    pub extra: Extra,
}

/// MTP extended by n-grams.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Composite {
    /// Id of a `native-mtp` proposer.
    pub primary: String,
    /// Id of an n-gram proposer.
    pub extender: String,
    /// Bounds of the tail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extension_policy: Option<ExtensionPolicy>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Bounds of the n-gram tail behind an MTP prefix.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ExtensionPolicy {
    /// Tail at the start, in tokens; at most `max_tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_tokens: Option<u32>,
    /// Longest tail, in tokens, above zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Proposals to back off after a tail that did not help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail_backoff_proposals: Option<u32>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A smaller model that drafts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DraftModel {
    /// Which model, as declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_model: Option<Value>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A proposer or strategy of a type this version does not know, kept as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct UnknownKind {
    /// Its `type`.
    pub kind: String,
    /// Its other fields.
    pub fields: Extra,
}

/// The recommended strategy, looked up.
#[derive(Clone, Debug, PartialEq)]
pub enum DefaultStrategy<'a> {
    /// Id and strategy.
    Supported(&'a str, &'a Strategy),
    /// It is of a type this version does not know: serving with the package default must say so.
    Unsupported(Unsupported),
}

vocabulary! {
    /// How the verify window moves.
    WindowMode {
        /// It does not.
        Fixed = "fixed",
        /// With acceptance.
        Adaptive = "adaptive",
    }
}

/// How wide the verify window is, in tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WindowPolicy {
    /// Fixed or adaptive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Open<WindowMode>>,
    /// At the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_window: Option<u32>,
    /// At least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_window: Option<u32>,
    /// At most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_window: Option<u32>,
    /// Windows of one request in flight, above zero; [`WindowPolicy::depth`] knows the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline_depth: Option<u32>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

impl WindowPolicy {
    /// Windows of one request in flight: 1 unless declared.
    pub fn depth(&self) -> u32 {
        self.pipeline_depth.unwrap_or(1)
    }

    fn read(mut fields: Fields, faults: &mut Faults) -> Self {
        let default = fields.take("default").map(Open::from_value);
        let initial_window = positive(&mut fields, "initial_window", faults);
        let min_window = fields.optional_as("min_window", BAD, faults);
        let max_window = positive(&mut fields, "max_window", faults);
        let pipeline_depth = positive(&mut fields, "pipeline_depth", faults);
        let order = [("min_window", min_window), ("initial_window", initial_window), ("max_window", max_window)];
        let mut declared = order.iter().filter_map(|(key, value)| value.map(|value| (key, value)));
        if let Some(mut low) = declared.next() {
            for high in declared {
                if low.1 > high.1 {
                    let expected = format!("at most `{}` ({})", high.0, high.1);
                    faults.push(BAD, fields.name(low.0), low.1.to_string(), expected);
                }
                low = high;
            }
        }
        Self { default, initial_window, min_window, max_window, pipeline_depth, extra: fields.rest() }
    }
}

type Proposers = BTreeMap<String, Option<Proposer>>;

impl Strategy {
    pub(super) fn read(
        mut fields: Fields,
        layer_count: Option<u32>,
        proposers: &Proposers,
        faults: &mut Faults,
    ) -> Option<Self> {
        let kind: String = fields.required_as("type", BAD, BAD, faults)?;
        let known = ["native-mtp", "ngram-cache", "ngram-suffix", "composite", "draft-model"].contains(&kind.as_str());
        if !known {
            let kind = StrategyKind::Unknown(UnknownKind { kind, fields: fields.rest() });
            return Some(Self { kind, window_policy: None });
        }
        let window_policy = fields.optional_object("window_policy", BAD, faults);
        let window_policy = window_policy.map(|window| WindowPolicy::read(window, faults));
        let kind = match kind.as_str() {
            "native-mtp" => {
                NativeMtpStrategy::read(fields, layer_count, proposers, faults).map(StrategyKind::NativeMtp)?
            }
            "ngram-cache" => read_ngram(NgramKind::Cache, fields, proposers, faults)?,
            "ngram-suffix" => read_ngram(NgramKind::Suffix, fields, proposers, faults)?,
            "composite" => Composite::read(fields, proposers, faults).map(StrategyKind::Composite)?,
            _ => {
                let draft_model = fields.take("draft_model");
                StrategyKind::DraftModel(DraftModel { draft_model, extra: fields.rest() })
            }
        };
        Some(Self { kind, window_policy })
    }

    pub(super) fn report(&self, path: &str, found: &mut Vec<Unsupported>) {
        if let StrategyKind::Unknown(unknown) = &self.kind {
            found.push(Unsupported { field: format!("{path}.type"), value: quoted(&unknown.kind) });
        }
        if let Some(mode) = self.window_policy.as_ref().and_then(|window| window.default.as_ref()) {
            mode.report(&format!("{path}.window_policy"), "default", found);
        }
    }
}

impl StrategyKind {
    /// `type` in the manifest.
    pub fn name(&self) -> &str {
        match self {
            Self::NativeMtp(_) => "native-mtp",
            Self::Ngram(ngram) => ngram.kind.name(),
            Self::Composite(_) => "composite",
            Self::DraftModel(_) => "draft-model",
            Self::Unknown(unknown) => &unknown.kind,
        }
    }
}

impl Serialize for StrategyKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Ngram<'a> {
            proposer: &'a str,
            #[serde(flatten)]
            extra: &'a Extra,
        }
        let r#type = self.name();
        match self {
            Self::NativeMtp(fields) => Typed { r#type, fields }.serialize(serializer),
            Self::Composite(fields) => Typed { r#type, fields }.serialize(serializer),
            Self::DraftModel(fields) => Typed { r#type, fields }.serialize(serializer),
            Self::Unknown(unknown) => Typed { r#type, fields: &unknown.fields }.serialize(serializer),
            Self::Ngram(NgramStrategy { proposer, extra, .. }) => {
                Typed { r#type, fields: Ngram { proposer, extra } }.serialize(serializer)
            }
        }
    }
}

impl NativeMtpStrategy {
    fn read(mut fields: Fields, layer_count: Option<u32>, proposers: &Proposers, faults: &mut Faults) -> Option<Self> {
        let referred = fields.has("proposer");
        let before = faults.0.len();
        let proposer = match referred {
            true => read_reference(&mut fields, "proposer", &["native-mtp"], proposers, faults),
            false => None,
        };
        let prediction_depth = read_depth(&mut fields, !referred, faults);
        let layer_indices = read_layer_indices(&mut fields, !referred, layer_count, faults);
        let source = proposer.as_ref().and_then(|id| proposers.get(id)?.as_ref());
        if let (Some(Proposer::NativeMtp(mtp)), Some(own)) = (source, &layer_indices)
            && mtp.layer_indices != *own
        {
            let expected = format!("{}, the layers of the proposer, or none", some(&mtp.layer_indices));
            faults.push(BAD, fields.name("layer_indices"), some(own), expected);
        }
        let strategy = Self { proposer, prediction_depth, layer_indices, extra: fields.rest() };
        (faults.0.len() == before).then_some(strategy)
    }
}

/// The first few layers of a list.
fn some(layers: &[u32]) -> String {
    let named: Vec<_> = layers.iter().take(8).map(u32::to_string).collect();
    format!("[{}{}]", named.join(", "), if layers.len() > named.len() { ", ..." } else { "" })
}

fn read_ngram(kind: NgramKind, mut fields: Fields, proposers: &Proposers, faults: &mut Faults) -> Option<StrategyKind> {
    let proposer = read_reference(&mut fields, "proposer", &[kind.name()], proposers, faults)?;
    Some(StrategyKind::Ngram(NgramStrategy { kind, proposer, extra: fields.rest() }))
}

impl Composite {
    fn read(mut fields: Fields, proposers: &Proposers, faults: &mut Faults) -> Option<Self> {
        let primary = read_reference(&mut fields, "primary", &["native-mtp"], proposers, faults);
        let extender = read_reference(&mut fields, "extender", &["ngram-cache", "ngram-suffix"], proposers, faults);
        let extension_policy = fields.optional_object("extension_policy", BAD, faults);
        let extension_policy = extension_policy.map(|policy| ExtensionPolicy::read(policy, faults));
        Some(Self { primary: primary?, extender: extender?, extension_policy, extra: fields.rest() })
    }
}

impl ExtensionPolicy {
    fn read(mut fields: Fields, faults: &mut Faults) -> Self {
        let initial_tokens = fields.optional_as::<u32>("initial_tokens", BAD, faults);
        let max_tokens = positive(&mut fields, "max_tokens", faults);
        if let (Some(initial), Some(max)) = (initial_tokens, max_tokens)
            && initial > max
        {
            let expected = format!("at most `max_tokens` ({max})");
            faults.push(BAD, fields.name("initial_tokens"), initial.to_string(), expected);
        }
        let tail_backoff_proposals = fields.optional_as("tail_backoff_proposals", BAD, faults);
        Self { initial_tokens, max_tokens, tail_backoff_proposals, extra: fields.rest() }
    }
}

/// The id of a declared proposer of one of `kinds`.
fn read_reference(
    fields: &mut Fields,
    key: &str,
    kinds: &[&str],
    proposers: &Proposers,
    faults: &mut Faults,
) -> Option<String> {
    let id: String = fields.required_as(key, BAD, BAD, faults)?;
    let kinds_named = kinds.iter().map(|kind| format!("`{kind}`")).collect::<Vec<_>>().join(" or ");
    match proposers.get(&id) {
        None => {
            let declared = match proposers.len() {
                0 => "none is declared".into(),
                _ => format!("declared are {}", list(proposers.keys())),
            };
            let expected = format!("the id of a proposer of type {kinds_named}; {declared}");
            faults.push(BAD, fields.name(key), quoted(&id), expected);
            None
        }
        Some(Some(proposer)) if !kinds.contains(&proposer.kind()) => {
            let got = format!("{}, a proposer of type `{}`", quoted(&id), shown(proposer.kind()));
            faults.push(BAD, fields.name(key), got, format!("a proposer of type {kinds_named}"));
            None
        }
        // A proposer that could not be read has its own fault.
        Some(_) => Some(id),
    }
}
