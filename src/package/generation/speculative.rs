//! `generation.speculative_decoding`: proposers and the rules that tie strategies to them (spec, Speculative Decoding).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{DefaultStrategy, Strategy, StrategyKind, Typed, UnknownKind, Unsupported, report_fields};
use crate::package::{
    issue::Code,
    manifest::{
        Extra,
        fields::{Faults, Fields, describe, quoted, shown},
    },
};

const BAD: Code = Code::InvalidSpeculation;

/// How to speculate.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SpeculativeDecoding {
    /// The strategy that the package recommends; a key of `strategies`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// Sources of proposals by id.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub proposers: BTreeMap<String, Proposer>,
    /// Strategies by id.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub strategies: BTreeMap<String, Strategy>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A source of proposed tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Proposer {
    /// The model's own MTP block.
    NativeMtp(NativeMtp),
    /// Repetition within the request's own history.
    Ngram(NgramProposer),
    /// A type this version does not know.
    Unknown(UnknownKind),
}

/// The model's MTP (NextN) block as a proposer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NativeMtp {
    /// Tokens proposed at once: 1.
    pub prediction_depth: u32,
    /// Layers with `nextn` tensors: not empty, below `layer_count`, each once.
    pub layer_indices: Vec<u32>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Which n-gram index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NgramKind {
    /// Incremental lookup, matches of up to 4 tokens.
    Cache,
    /// Longest earlier suffix, 3 to 64 tokens.
    Suffix,
}

/// An n-gram proposer. Its history is that of one request, always.
#[derive(Clone, Debug, PartialEq)]
pub struct NgramProposer {
    /// Which index.
    pub kind: NgramKind,
    /// Shortest match, in tokens.
    pub ngram_min: u32,
    /// Longest match, in tokens.
    pub ngram_max: u32,
    /// Most tokens of one proposal, above zero.
    pub max_proposal_tokens: Option<u32>,
    /// Fields this version does not know.
    pub extra: Extra,
}

impl NgramKind {
    /// `type` in the manifest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cache => "ngram-cache",
            Self::Suffix => "ngram-suffix",
        }
    }

    /// Shortest and longest match that the spec allows.
    pub fn bounds(self) -> (u32, u32) {
        match self {
            Self::Cache => (1, 4),
            Self::Suffix => (3, 64),
        }
    }
}

impl Proposer {
    /// `type` in the manifest.
    pub fn kind(&self) -> &str {
        match self {
            Self::NativeMtp(_) => "native-mtp",
            Self::Ngram(ngram) => ngram.kind.name(),
            Self::Unknown(unknown) => &unknown.kind,
        }
    }

    fn read(mut fields: Fields, layer_count: Option<u32>, faults: &mut Faults) -> Option<Self> {
        let kind: String = fields.required_as("type", BAD, BAD, faults)?;
        match kind.as_str() {
            "native-mtp" => NativeMtp::read(fields, layer_count, faults).map(Self::NativeMtp),
            "ngram-cache" => NgramProposer::read(NgramKind::Cache, fields, faults).map(Self::Ngram),
            "ngram-suffix" => NgramProposer::read(NgramKind::Suffix, fields, faults).map(Self::Ngram),
            _ => Some(Self::Unknown(UnknownKind { kind, fields: fields.rest() })),
        }
    }
}

impl Serialize for Proposer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Ngram<'a> {
            ngram_min: u32,
            ngram_max: u32,
            #[serde(skip_serializing_if = "Option::is_none")]
            max_proposal_tokens: Option<u32>,
            history_scope: &'a str,
            #[serde(flatten)]
            extra: &'a Extra,
        }
        let r#type = self.kind();
        match self {
            Self::NativeMtp(fields) => Typed { r#type, fields }.serialize(serializer),
            Self::Unknown(unknown) => Typed { r#type, fields: &unknown.fields }.serialize(serializer),
            Self::Ngram(NgramProposer { ngram_min, ngram_max, max_proposal_tokens, extra, .. }) => {
                let (ngram_min, ngram_max, max_proposal_tokens) = (*ngram_min, *ngram_max, *max_proposal_tokens);
                let fields = Ngram { ngram_min, ngram_max, max_proposal_tokens, history_scope: SCOPE, extra };
                Typed { r#type, fields }.serialize(serializer)
            }
        }
    }
}

const SCOPE: &str = "request";

impl NativeMtp {
    fn read(mut fields: Fields, layer_count: Option<u32>, faults: &mut Faults) -> Option<Self> {
        let prediction_depth = read_depth(&mut fields, true, faults);
        let layer_indices = read_layer_indices(&mut fields, true, layer_count, faults);
        Some(Self { prediction_depth: prediction_depth?, layer_indices: layer_indices?, extra: fields.rest() })
    }
}

/// Reads `prediction_depth`: 1, or absent where it is not `required`.
pub(super) fn read_depth(fields: &mut Fields, required: bool, faults: &mut Faults) -> Option<u32> {
    if !required && !fields.has("prediction_depth") {
        return None;
    }
    let depth: u32 = fields.required_as("prediction_depth", BAD, BAD, faults)?;
    if depth != 1 {
        faults.push(BAD, fields.name("prediction_depth"), depth.to_string(), "1, the one depth of native mtp");
        return None;
    }
    Some(depth)
}

/// Reads `layer_indices`: layers of the model, each once, at least one.
pub(super) fn read_layer_indices(
    fields: &mut Fields,
    required: bool,
    layer_count: Option<u32>,
    faults: &mut Faults,
) -> Option<Vec<u32>> {
    let name = fields.name("layer_indices");
    let expected = "a list of the layers with `nextn` tensors, at least one";
    let items = match fields.take("layer_indices") {
        Some(Value::Array(items)) if !items.is_empty() => items,
        None if !required => return None,
        None => {
            faults.push(BAD, name, "nothing", expected);
            return None;
        }
        Some(other) => {
            faults.push(BAD, name, describe(&other), expected);
            return None;
        }
    };
    let mut seen = BTreeSet::new();
    let mut indices = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        let index = item.as_u64().and_then(|index| u32::try_from(index).ok());
        match index.filter(|index| layer_count.is_none_or(|count| *index < count)) {
            Some(index) if seen.insert(index) => indices.push(index),
            Some(index) => {
                faults.push(BAD, format!("{name}[{i}]"), format!("{index} a second time"), "each layer once")
            }
            None => {
                let limit = layer_count.map(|count| format!(", below `layer_count` ({count})")).unwrap_or_default();
                faults.push(BAD, format!("{name}[{i}]"), describe(item), format!("a layer number{limit}"));
            }
        }
    }
    (indices.len() == items.len()).then_some(indices)
}

impl NgramProposer {
    fn read(kind: NgramKind, mut fields: Fields, faults: &mut Faults) -> Option<Self> {
        let (low, high) = kind.bounds();
        let ngram_min = fields.required_as::<u32>("ngram_min", BAD, BAD, faults);
        let ngram_max = fields.required_as::<u32>("ngram_max", BAD, BAD, faults);
        for (key, value) in [("ngram_min", ngram_min), ("ngram_max", ngram_max)] {
            if let Some(value) = value.filter(|value| !(low..=high).contains(value)) {
                let expected = format!("{low} to {high} tokens, the match lengths of {}", kind.name());
                faults.push(BAD, fields.name(key), value.to_string(), expected);
            }
        }
        if let (Some(min), Some(max)) = (ngram_min, ngram_max)
            && min > max
        {
            faults.push(BAD, fields.name("ngram_min"), min.to_string(), format!("at most `ngram_max` ({max})"));
        }
        let max_proposal_tokens = positive(&mut fields, "max_proposal_tokens", faults);
        let scope = fields.take("history_scope");
        if scope.as_ref().and_then(Value::as_str) != Some(SCOPE) {
            let got = scope.as_ref().map_or_else(|| "nothing".into(), describe);
            let expected = "\"request\": a proposer never sees the tokens of another request";
            faults.push(BAD, fields.name("history_scope"), got, expected);
        }
        Some(Self { kind, ngram_min: ngram_min?, ngram_max: ngram_max?, max_proposal_tokens, extra: fields.rest() })
    }
}

/// An integer above zero that may be absent.
pub(super) fn positive(fields: &mut Fields, key: &str, faults: &mut Faults) -> Option<u32> {
    let value = fields.optional_as(key, BAD, faults);
    if value == Some(0) {
        faults.push(BAD, fields.name(key), "0", "an integer above 0");
    }
    value
}

impl SpeculativeDecoding {
    /// The strategy that the package recommends, when it recommends one.
    pub fn default_strategy(&self) -> Option<DefaultStrategy<'_>> {
        let (id, strategy) = self.strategies.get_key_value(self.default.as_ref()?)?;
        Some(match &strategy.kind {
            StrategyKind::Unknown(unknown) => DefaultStrategy::Unsupported(Unsupported {
                field: format!("generation.speculative_decoding.strategies.{}.type", shown(id)),
                value: quoted(&unknown.kind),
            }),
            _ => DefaultStrategy::Supported(id, strategy),
        })
    }

    /// Depth and layers of an MTP proposer.
    pub fn native_mtp(&self, proposer: &str) -> Option<&NativeMtp> {
        match self.proposers.get(proposer)? {
            Proposer::NativeMtp(mtp) => Some(mtp),
            _ => None,
        }
    }

    /// Bounds of an n-gram proposer.
    pub fn ngram(&self, proposer: &str) -> Option<&NgramProposer> {
        match self.proposers.get(proposer)? {
            Proposer::Ngram(ngram) => Some(ngram),
            _ => None,
        }
    }

    pub(super) fn read(mut fields: Fields, layer_count: Option<u32>, faults: &mut Faults) -> Self {
        let proposers =
            read_map(&mut fields, "proposers", faults, |entry, faults| Proposer::read(entry, layer_count, faults));
        let strategies = read_map(&mut fields, "strategies", faults, |entry, faults| {
            Strategy::read(entry, layer_count, &proposers, faults)
        });
        if strategies.contains_key("disabled") {
            let expected = "another id: `disabled` is what an operator sets, not a strategy of a package";
            faults.push(BAD, fields.name("strategies.disabled"), "a strategy", expected);
        }
        let default = read_default(&mut fields, &strategies, faults);
        let keep = |(id, entry): (String, Option<_>)| entry.map(|entry| (id, entry));
        Self {
            default,
            proposers: proposers.into_iter().filter_map(|(id, entry)| entry.map(|entry| (id, entry))).collect(),
            strategies: strategies.into_iter().filter_map(keep).collect(),
            extra: fields.rest(),
        }
    }

    pub(super) fn report(&self, path: &str, found: &mut Vec<Unsupported>) {
        for (id, proposer) in &self.proposers {
            if let Proposer::Unknown(unknown) = proposer {
                let field = format!("{path}.proposers.{}.type", shown(id));
                found.push(Unsupported { field, value: quoted(&unknown.kind) });
            }
        }
        for (id, strategy) in &self.strategies {
            strategy.report(&format!("{path}.strategies.{}", shown(id)), found);
        }
        report_fields(path, &self.extra, found);
    }
}

fn read_default<T>(fields: &mut Fields, strategies: &BTreeMap<String, T>, faults: &mut Faults) -> Option<String> {
    let value = fields.take("default")?;
    let name = fields.name("default");
    let declared = || match strategies.len() {
        0 => "the id of a declared strategy; none is declared".to_string(),
        _ => format!("one of the declared strategies: {}", list(strategies.keys())),
    };
    match value.as_str() {
        Some(id) if id.trim().is_empty() => faults.push(Code::EmptySpeculativeDefault, name, "\"\"", declared()),
        Some(id) if !strategies.contains_key(id) => {
            faults.push(Code::MissingSpeculativeDefaultStrategy, name, describe(&value), declared());
        }
        Some(id) => return Some(id.into()),
        None => faults.push(BAD, name, describe(&value), declared()),
    }
    None
}

pub(super) fn list<'a>(ids: impl Iterator<Item = &'a String>) -> String {
    ids.take(8).map(|id| format!("`{}`", shown(id))).collect::<Vec<_>>().join(", ")
}

/// Reads a map of ids. An entry with a fault stays as `None`, so that references to it are not reported as well.
fn read_map<T>(
    fields: &mut Fields,
    key: &str,
    faults: &mut Faults,
    read: impl Fn(Fields, &mut Faults) -> Option<T>,
) -> BTreeMap<String, Option<T>> {
    let Some(map) = fields.optional_object(key, BAD, faults) else { return BTreeMap::new() };
    let path = fields.name(key);
    let mut entries = BTreeMap::new();
    for (id, value) in map.into_entries() {
        let entry = Fields::open(value, format!("{path}.{}", shown(&id)), BAD, faults);
        let entry = entry.and_then(|entry| read(entry, faults));
        entries.insert(id, entry);
    }
    entries
}
