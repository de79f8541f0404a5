//! The closed list of things that can be wrong with a package, each with a stable code and a remedy.

use serde::Serialize;

/// How bad an [`Issue`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The package can be served, but something is not as the spec recommends.
    Warning,
    /// The package is refused.
    Error,
}

/// One finding about a package, as `preflight` and `validate-package` print it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Issue {
    /// How bad it is.
    pub severity: Severity,
    /// Stable, machine-readable name.
    pub code: Code,
    /// What was got and what was expected, in one line.
    pub message: String,
    /// Where: a manifest field (`layers[3].sha256`) or a file of the package.
    pub path: String,
    /// What to do about it.
    pub remedy: &'static str,
}

impl Issue {
    /// A finding with the severity and remedy that belong to `code`.
    pub fn new(code: Code, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { severity: code.severity(), code, message: message.into(), path: path.into(), remedy: code.remedy() }
    }
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $severity:ident, $remedy:literal;)+) => {
        /// Stable names of the findings, snake_case in JSON.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Code {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Code] = &[$(Code::$name,)+];

            /// Whether a package with this finding is refused.
            pub fn severity(self) -> Severity {
                match self { $(Code::$name => Severity::$severity,)+ }
            }

            /// What to do about it.
            pub fn remedy(self) -> &'static str {
                match self { $(Code::$name => $remedy,)+ }
            }
        }
    };
}

codes! {
    /// No `model-package.json` in the directory.
    MissingManifest = Error, "point at the directory that holds `model-package.json`, or write a package with `skippy-model-package write-package`";
    /// The directory or the manifest cannot be read.
    UnreadableManifest = Error, "check that the path is a directory and that its permissions let this user read it";
    /// Above 16 MiB.
    ManifestTooLarge = Error, "write the package again: a manifest of this size was not made by a package writer";
    /// Not UTF-8.
    InvalidManifestUtf8 = Error, "save the manifest as UTF-8, or fetch it again";
    /// Not JSON.
    InvalidManifestJson = Error, "repair the JSON at the place named, or fetch the manifest again";
    /// The same key twice in one object.
    DuplicateManifestKey = Error, "keep one of the two values";
    /// `schema_version` is not 1.
    UnsupportedSchemaVersion = Error, "use a runtime that knows this schema version, or write the package again with this one";
    /// `format` is not `layer-package`.
    InvalidFormat = Error, "use a package whose `format` is `layer-package`";
    /// A required field is absent.
    MissingField = Error, "add the field, or write the package again with `skippy-model-package write-package`";
    /// A field has the wrong type or an impossible value.
    InvalidField = Error, "correct the field, or write the package again with `skippy-model-package write-package`";
    /// `model_id` is empty.
    EmptyModelId = Error, "state the model coordinate, for example `org/repo:distribution` (`--model-id`)";
    /// `model_id` looks like a file name.
    InvalidModelId = Error, "state the model coordinate, for example `org/repo:distribution`, not the name of a file (`--model-id`)";
    /// `source_model.path` is empty.
    EmptySourceModelPath = Error, "state the path of the source model";
    /// `source_model.sha256` is not a digest.
    InvalidSourceModelSha256 = Error, "state the SHA-256 of the source model as 64 hexadecimal digits";
    /// `activation_width` is absent.
    MissingActivationWidth = Warning, "add `activation_width`, the model's embedding length, so that planners can estimate traffic";
    /// `activation_width` is not a positive number.
    InvalidActivationWidth = Error, "set `activation_width` to the model's embedding length, or leave it out";
    /// `activation_width` is not the width of the model.
    ActivationWidthMismatch = Error, "set `activation_width` to the model's embedding length: the runtime takes the width from the model";
    /// `skippy_abi_version` is absent.
    MissingSkippyAbiVersion = Error, "write the package again: without an ABI version its fragments cannot be trusted to load";
    /// `skippy_abi_version` is not a semantic version.
    InvalidSkippyAbiVersion = Error, "state the ABI as a semantic version such as `1.0.0`";
    /// `skippy_abi_version` is not compatible with the runtime.
    UnsupportedSkippyAbiVersion = Error, "use a runtime of that ABI, or write the package again with this one";
    /// `created_at_unix_secs` is absent.
    MissingCreatedAt = Warning, "add `created_at_unix_secs`, the time of writing, for provenance";
    /// A path that could leave the package.
    UnsafePath = Error, "use a plain path below the package root, such as `layers/layer-00000.gguf`";
    /// Two artifacts name the same file.
    DuplicatePath = Error, "give every artifact its own file";
    /// Not a SHA-256 digest.
    InvalidSha256 = Error, "state the SHA-256 of the file as 64 hexadecimal digits";
    /// `artifact_bytes` is zero.
    EmptyArtifact = Error, "state the size of the file; a fragment is never empty";
    /// `tensor_bytes` is zero and `tensor_count` is not, or the other way round.
    InvalidTensorBytes = Error, "write the package again: tensors have bytes, and bytes belong to tensors";
    /// A layer without an entry.
    MissingLayer = Error, "add the layer, or write the package again: every layer of `0..layer_count` needs one entry";
    /// A layer with two entries.
    DuplicateLayer = Error, "remove one of the two entries";
    /// A layer beyond `layer_count`.
    LayerOutOfRange = Error, "correct `layer_count` or remove the entry";
    /// A projector without a kind.
    EmptyProjectorKind = Error, "set `kind` to `mmproj`";
    /// A projector of a kind this runtime does not know.
    UnsupportedProjectorKind = Error, "remove the projector, or use a runtime that knows its kind";
    /// A threshold is not a non-negative integer.
    InvalidThreshold = Error, "set the threshold to a non-negative integer, or leave it out";
    /// A speculation rule of the spec is broken.
    InvalidSpeculation = Error, "correct the field by the rules of the spec's section Speculative Decoding";
    /// `speculative_decoding.default` is empty.
    EmptySpeculativeDefault = Error, "name one of `strategies`, or leave `default` out";
    /// `speculative_decoding.default` names no declared strategy.
    MissingSpeculativeDefaultStrategy = Error, "declare the strategy under `strategies`, or leave `default` out";
    /// A generation value that this runtime does not know.
    UnsupportedGenerationValue = Warning, "nothing, when a fallback is acceptable; otherwise use a runtime that knows the value";
    /// An artifact is not on disk.
    MissingArtifact = Error, "fetch or write the file again";
    /// An artifact is a directory, a device or a socket.
    ArtifactNotAFile = Error, "replace it by the regular file that the manifest describes";
    /// An artifact cannot be read.
    UnreadableArtifact = Error, "check the permissions of the file and the state of the disk";
    /// A link leads out of the package.
    ArtifactOutsidePackage = Error, "replace the link by the file itself";
    /// The size on disk is not `artifact_bytes`.
    ArtifactSizeMismatch = Error, "fetch the file again: it was cut short, or belongs to another build of the package";
    /// The digest on disk is not `sha256`.
    ArtifactSha256Mismatch = Error, "fetch the file again: its content was damaged or replaced";
    /// An artifact is not a GGUF file.
    InvalidArtifact = Error, "fetch the file again: a fragment must be a GGUF file";
    /// The tensors of a fragment are not the ones declared.
    ArtifactTensorMismatch = Error, "write the package again: fragment and manifest come from different builds";
    /// A fragment holds tensors of another artifact.
    ForeignTensor = Error, "put each fragment back under its own name, or write the package again";
    /// One tensor in two fragments.
    DuplicateTensor = Error, "write the package again: every tensor belongs to exactly one artifact";
    /// A fragment belongs to another model.
    ForeignArtifact = Error, "replace the fragment by the one of this model";
    /// Shared metadata lacks what every model must state.
    InvalidMetadata = Error, "write the package again from a complete source model";
    /// More stages were asked for than the model's cuts allow.
    ImpossiblePlan = Error, "ask for fewer stages";
    /// The source given is not the one that the manifest states.
    SourceMismatch = Error, "compare with the source that the package was written from, or write the package again";
    /// `layer_count` is not the source's.
    LayerCountMismatch = Error, "write the package again from this source";
    /// Shared metadata differs from the source's.
    MetadataMismatch = Error, "write the package again from this source";
    /// A tensor of the source is in no artifact.
    MissingTensor = Error, "write the package again: every tensor of the source belongs to one artifact";
    /// A tensor that the source does not have.
    UnknownTensor = Error, "write the package again: the fragment comes from another model";
    /// A tensor whose type, shape or bytes are not the source's.
    TensorMismatch = Error, "write the package again from this source";
    /// Metadata that breaks the GLM-DSA contract.
    GlmDsaMetadata = Error, "write the package again from a source that states the key as the model's configuration has it";
    /// A missing, unknown or unusable tensor of a GLM-DSA model.
    GlmDsaTensor = Error, "write the package again from a source with exactly the tensors of the architecture";
    /// An IndexShare role that contradicts the tensors.
    GlmDsaRole = Error, "write the package again from a source whose `attention.indexer.types` and indexer tensors agree";
    /// The generation policy that was asked for is not declared, or not with values this runtime knows.
    MissingGenerationPolicy = Error, "declare the value that the spec's section Policy Resolution recommends, or write the package again with `skippy-model-package write-package`";
    /// The generation policy is not the recommended one.
    GenerationPolicyDiffers = Warning, "nothing, when the value was measured on this package; otherwise declare the recommended one";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_snake_case_and_remedies_are_lines() {
        for code in Code::ALL {
            let name = serde_json::to_value(code).unwrap();
            let name = name.as_str().unwrap();
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit()), "{name}");
            let remedy = code.remedy();
            assert!(!remedy.is_empty() && !remedy.ends_with('.') && !remedy.contains('\n'), "{remedy}");
        }
    }

    #[test]
    fn names_other_tools_rely_on_stay() {
        for (code, name) in [
            (Code::MissingManifest, "missing_manifest"),
            (Code::InvalidManifestJson, "invalid_manifest_json"),
            (Code::UnsupportedSchemaVersion, "unsupported_schema_version"),
            (Code::InvalidFormat, "invalid_format"),
            (Code::EmptyModelId, "empty_model_id"),
            (Code::MissingActivationWidth, "missing_activation_width"),
            (Code::ActivationWidthMismatch, "activation_width_mismatch"),
            (Code::UnsupportedSkippyAbiVersion, "unsupported_skippy_abi_version"),
            (Code::MissingArtifact, "missing_artifact"),
            (Code::ArtifactSizeMismatch, "artifact_size_mismatch"),
            (Code::ArtifactSha256Mismatch, "artifact_sha256_mismatch"),
            (Code::UnsafePath, "unsafe_path"),
            (Code::DuplicateLayer, "duplicate_layer"),
            (Code::MissingLayer, "missing_layer"),
        ] {
            assert_eq!(serde_json::to_value(code).unwrap(), name);
        }
    }
}
