//! `model-package.json`: typed, checked once, unknown fields kept (spec, Manifest Schema).

mod artifact;
pub(crate) mod fields;
mod json;
mod source;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use tests::sample as sample_manifest;

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use semver::Version;
use serde::Serialize;
use serde_json::{Map, Value};

use self::fields::{Faults, Fields, describe};
pub use self::{
    artifact::{Artifact, LayerArtifact, Projector, ProjectorKind, Shared},
    source::{SourceFile, SourceModel},
};
use super::{
    abi,
    generation::Generation,
    issue::{Code, Issue},
};

/// Fields that this version does not know, kept so that they survive a rewrite.
pub type Extra = Map<String, Value>;

/// A manifest that obeys every rule of the spec that can be checked without the files.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Manifest {
    /// Always 1.
    pub schema_version: SchemaVersion,
    /// Model coordinate.
    pub model_id: String,
    /// Where the package comes from.
    pub source_model: SourceModel,
    /// Always `layer-package`.
    pub format: Format,
    /// Transformer layers, an MTP block counted; above zero.
    pub layer_count: u32,
    /// Estimate of the hidden width. The runtime takes the width from the model, never from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation_width: Option<u32>,
    /// Artifacts that belong to no layer.
    pub shared: Shared,
    /// Defaults for generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// One entry for each layer, in order: `layers[i].layer_index == i`.
    pub layers: Vec<LayerArtifact>,
    /// Multimodal projectors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub projectors: Vec<Projector>,
    /// ABI that the fragments were written for.
    #[serde(serialize_with = "as_text")]
    pub skippy_abi_version: Version,
    /// When the package was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at_unix_secs: Option<u64>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The one schema version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchemaVersion;

impl SchemaVersion {
    /// As written in the manifest.
    pub const NUMBER: u32 = 1;
}

impl Serialize for SchemaVersion {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(Self::NUMBER)
    }
}

/// The one package format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Format;

impl Format {
    /// As written in the manifest.
    pub const NAME: &'static str = "layer-package";
}

impl Serialize for Format {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(Self::NAME)
    }
}

fn as_text<S: serde::Serializer>(version: &Version, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(version)
}

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Stable name.
    pub code: Code,
    /// The field, for example `layers[3].sha256`.
    pub field: String,
    /// What it holds.
    pub got: String,
    /// What it must hold.
    pub expected: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: got {}, expected {}", self.field, self.got, self.expected)
    }
}

impl From<&Fault> for Issue {
    fn from(fault: &Fault) -> Self {
        Issue::new(fault.code, &fault.field, fault.to_string())
    }
}

/// Why a manifest is refused: every broken rule, the gravest first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{first}; {}{}", first.code.remedy(), more(rest.len()))]
pub struct ManifestError {
    /// The gravest.
    pub first: Fault,
    /// The others.
    pub rest: Vec<Fault>,
}

fn more(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " (and 1 more fault: `skippy-model-package preflight` lists both)".into(),
        _ => format!(" (and {count} more faults: `skippy-model-package preflight` lists them)"),
    }
}

impl ManifestError {
    /// Every broken rule.
    pub fn faults(&self) -> impl Iterator<Item = &Fault> {
        std::iter::once(&self.first).chain(&self.rest)
    }
}

impl Manifest {
    /// Name of the manifest in the package root.
    pub const FILE_NAME: &'static str = "model-package.json";

    /// Largest manifest in bytes.
    pub const MAX_BYTES: u64 = 16 << 20;

    /// Reads and checks a manifest.
    ///
    /// # Errors
    /// With every broken rule. An unknown `schema_version` or `format` is reported alone, because the meaning of the
    /// other fields is then unknown.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let (manifest, faults) = Self::check(bytes);
        let mut faults = faults.into_iter();
        match (faults.next(), manifest) {
            (None, Some(manifest)) => Ok(manifest),
            (Some(first), _) => Err(ManifestError { first, rest: faults.collect() }),
            // `check` returns nothing only after it noted why; this arm keeps that from being a panic.
            (None, None) => Err(ManifestError {
                first: Fault {
                    code: Code::InvalidField,
                    field: Self::FILE_NAME.into(),
                    got: "an unreadable manifest".into(),
                    expected: "a manifest of schema version 1".into(),
                },
                rest: Vec::new(),
            }),
        }
    }

    /// Every broken rule, and what could be read nevertheless, so that a tool can go on to the artifacts. Such a manifest
    /// keeps none of the promises of [`Manifest`] but those of its field types.
    pub(super) fn check(bytes: &[u8]) -> (Option<Self>, Vec<Fault>) {
        let mut faults = Faults::default();
        match json::parse(bytes) {
            Ok(value) => (Self::read(value, &mut faults), faults.0),
            Err(error) => (None, error.faults().cloned().collect()),
        }
    }

    /// The manifest as JSON text, indented, with a newline at the end.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The artifact of a layer.
    pub fn layer(&self, index: u32) -> Option<&LayerArtifact> {
        self.layers.get(usize::try_from(index).ok()?)
    }

    /// Every artifact with the field that declares it: shared ones, layers, projectors.
    pub fn artifacts(&self) -> impl Iterator<Item = (String, &Artifact)> {
        let shared = [
            ("shared.metadata", &self.shared.metadata),
            ("shared.embeddings", &self.shared.embeddings),
            ("shared.output", &self.shared.output),
        ];
        let layers = self.layers.iter().enumerate().map(|(i, layer)| (format!("layers[{i}]"), &layer.artifact));
        let projectors = self.projectors.iter().enumerate();
        let projectors = projectors.map(|(i, projector)| (format!("projectors[{i}]"), &projector.artifact));
        shared.into_iter().map(|(name, artifact)| (name.to_string(), artifact)).chain(layers).chain(projectors)
    }

    fn read(value: Value, faults: &mut Faults) -> Option<Self> {
        let mut fields = Fields::open(value, "", Code::InvalidManifestJson, faults)?;
        read_identity(&mut fields, faults)?;
        let skippy_abi_version = read_abi(&mut fields, faults);
        let model_id = read_model_id(&mut fields, faults);
        let source_model = fields.object("source_model", faults).and_then(|source| SourceModel::read(source, faults));
        let layer_count = read_layer_count(&mut fields, faults);
        let activation_width = read_activation_width(&mut fields, faults);
        let shared = fields.object("shared", faults).and_then(|shared| Shared::read(shared, faults));
        let layers = read_layers(&mut fields, layer_count, faults);
        let projectors = read_list(&mut fields, "projectors", Projector::read, faults);
        let generation = fields
            .optional_object("generation", Code::InvalidField, faults)
            .and_then(|generation| Generation::read(generation, layer_count, faults));
        let created_at_unix_secs = fields.optional("created_at_unix_secs", faults);
        let manifest = Self {
            schema_version: SchemaVersion,
            model_id: model_id?,
            source_model: source_model?,
            format: Format,
            layer_count: layer_count?,
            activation_width,
            shared: shared?,
            generation,
            layers,
            projectors,
            skippy_abi_version: skippy_abi_version?,
            created_at_unix_secs,
            extra: fields.rest(),
        };
        manifest.check_paths(faults);
        Some(manifest)
    }

    fn check_paths(&self, faults: &mut Faults) {
        let mut seen = HashMap::new();
        for (name, artifact) in self.artifacts() {
            if let Some(first) = seen.insert(&artifact.path, name.clone()) {
                let got = format!("\"{}\", the path of `{first}`", artifact.path);
                faults.push(Code::DuplicatePath, format!("{name}.path"), got, "a file of its own");
            }
        }
    }
}

/// `schema_version` and `format`: nothing else means anything when one of them is unknown.
fn read_identity(fields: &mut Fields, faults: &mut Faults) -> Option<()> {
    let code = Code::UnsupportedSchemaVersion;
    let version = fields.take("schema_version");
    if version.as_ref().and_then(Value::as_u64) != Some(u64::from(SchemaVersion::NUMBER)) {
        faults.push(code, "schema_version", got(version.as_ref()), "1, the schema version this runtime knows");
        return None;
    }
    let format = fields.take("format");
    if format.as_ref().and_then(Value::as_str) != Some(Format::NAME) {
        faults.push(Code::InvalidFormat, "format", got(format.as_ref()), "\"layer-package\"");
        return None;
    }
    Some(())
}

fn got(value: Option<&Value>) -> String {
    value.map_or_else(|| "nothing".into(), describe)
}

fn read_abi(fields: &mut Fields, faults: &mut Faults) -> Option<Version> {
    let (missing, invalid) = (Code::MissingSkippyAbiVersion, Code::InvalidSkippyAbiVersion);
    let version: Version = fields.required_as("skippy_abi_version", missing, invalid, faults)?;
    if !abi::is_compatible(&version) {
        let got = fields::quoted(&version.to_string());
        faults.push(Code::UnsupportedSkippyAbiVersion, "skippy_abi_version", got, abi::ACCEPTED);
    }
    Some(version)
}

fn read_model_id(fields: &mut Fields, faults: &mut Faults) -> Option<String> {
    let value = fields.take("model_id");
    let Some(id) = value.as_ref().and_then(Value::as_str) else {
        let code = if value.is_none() { Code::EmptyModelId } else { Code::InvalidModelId };
        faults.push(code, "model_id", got(value.as_ref()), "a model coordinate such as `org/repo:distribution`");
        return None;
    };
    if let Some((code, got, expected)) = source::model_id_fault(id) {
        faults.push(code, "model_id", got, expected);
    }
    Some(id.into())
}

fn read_layer_count(fields: &mut Fields, faults: &mut Faults) -> Option<u32> {
    let count: u32 = fields.required("layer_count", faults)?;
    if count == 0 {
        faults.push(Code::InvalidField, "layer_count", "0", "at least one layer");
    }
    Some(count)
}

fn read_activation_width(fields: &mut Fields, faults: &mut Faults) -> Option<u32> {
    let width = fields.optional_as("activation_width", Code::InvalidActivationWidth, faults);
    if width == Some(0) {
        faults.push(Code::InvalidActivationWidth, "activation_width", "0", "the model's embedding length");
    }
    width
}

/// Reads `layers` and checks that they are `0..layer_count`, each once.
fn read_layers(fields: &mut Fields, layer_count: Option<u32>, faults: &mut Faults) -> Vec<LayerArtifact> {
    const NAMED: usize = 8;
    if !fields.has("layers") {
        faults.push(Code::MissingField, "layers", "nothing", "a list with one entry for each layer");
        return Vec::new();
    }
    let before = faults.0.len();
    let mut layers = read_list(fields, "layers", LayerArtifact::read, faults);
    // An entry that could not be read has its own fault and would only seem to be missing.
    let readable = faults.0.len() == before;
    let mut seen = HashSet::new();
    for (i, layer) in layers.iter().enumerate() {
        let index = layer.layer_index;
        let name = format!("layers[{i}].layer_index");
        if layer_count.is_some_and(|count| index >= count) {
            let expected = format!("a layer below `layer_count` ({})", layer_count.unwrap_or_default());
            faults.push(Code::LayerOutOfRange, name, index.to_string(), expected);
        } else if !seen.insert(index) {
            faults.push(Code::DuplicateLayer, name, format!("{index} a second time"), "each layer once");
        }
    }
    if let Some(count) = layer_count.filter(|count| readable && seen.len() < *count as usize) {
        let missing = count as usize - seen.len();
        let named: Vec<_> = (0..count).filter(|i| !seen.contains(i)).take(NAMED).map(|i| i.to_string()).collect();
        let dots = if missing > named.len() { ", ..." } else { "" };
        let got = format!("{} of {count} layers, without {}{dots}", seen.len(), named.join(", "));
        faults.push(Code::MissingLayer, "layers", got, "one entry for each layer of `0..layer_count`");
    }
    layers.sort_by_key(|layer| layer.layer_index);
    layers
}

fn read_list<T>(
    fields: &mut Fields,
    key: &str,
    read: impl Fn(Fields, &mut Faults) -> Option<T>,
    faults: &mut Faults,
) -> Vec<T> {
    let items = fields.list(key, faults).unwrap_or_default();
    let mut list = Vec::with_capacity(items.len());
    for (i, item) in items.into_iter().enumerate() {
        let entry = Fields::open(item, format!("{key}[{i}]"), Code::InvalidField, faults);
        list.extend(entry.and_then(|entry| read(entry, faults)));
    }
    list
}
