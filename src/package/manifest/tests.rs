//! One row per rule of the spec's section Manifest Schema.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const SHA: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

/// A small manifest with everything in it.
pub(crate) fn sample() -> Value {
    let artifact = |path: &str, tensors: u64| {
        let bytes = tensors * 100;
        json!({"path": path, "tensor_count": tensors, "tensor_bytes": bytes, "artifact_bytes": 123 + bytes, "sha256": SHA})
    };
    let layer = |index: u64| {
        let mut layer = artifact(&format!("layers/layer-{index:05}.gguf"), 9);
        layer["layer_index"] = json!(index);
        layer
    };
    let mut projector = artifact("projectors/mmproj-model-f16.gguf", 128);
    projector["kind"] = json!("mmproj");
    json!({
        "schema_version": 1,
        "model_id": "Qwen/Qwen3-235B-A22B-GGUF:UD-Q4_K_XL",
        "source_model": {
            "path": "/cache/model.gguf",
            "sha256": SHA,
            "repo": "Qwen/Qwen3-235B-A22B-GGUF",
            "revision": "0123abc",
            "primary_file": "model.gguf",
            "canonical_ref": "Qwen/Qwen3-235B-A22B-GGUF:UD-Q4_K_XL",
            "distribution_id": "UD-Q4_K_XL",
            "files": [{"path": "model.gguf", "size_bytes": 123, "sha256": SHA}],
        },
        "format": "layer-package",
        "layer_count": 3,
        "activation_width": 64,
        "shared": {
            "metadata": artifact("shared/metadata.gguf", 0),
            "embeddings": artifact("shared/embeddings.gguf", 1),
            "output": artifact("shared/output.gguf", 2),
        },
        "generation": {
            "thresholds": {"short_prefill_max_tokens": 2048},
        },
        "layers": [layer(0), layer(1), layer(2)],
        "projectors": [projector],
        "skippy_abi_version": "1.2.3",
        "created_at_unix_secs": 1_790_000_000u64,
    })
}

fn parse(value: &Value) -> Result<Manifest, ManifestError> {
    Manifest::parse(value.to_string().as_bytes())
}

/// `sample()` with the value at a JSON pointer replaced, or removed when `new` is null.
pub(crate) fn with(pointer: &str, new: Value) -> Value {
    let mut value = sample();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = value.pointer_mut(parent).unwrap();
    match parent {
        Value::Object(map) if new.is_null() => drop(map.shift_remove(key)),
        Value::Object(map) => drop(map.insert(key.into(), new)),
        Value::Array(list) if new.is_null() => drop(list.remove(key.parse().unwrap())),
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = new,
        other => panic!("{other}"),
    }
    value
}

#[test]
fn reads_and_writes_the_shape_of_the_spec() {
    let manifest = parse(&sample()).unwrap();
    assert_eq!(manifest.layer_count, 3);
    assert_eq!(manifest.activation_width, Some(64));
    assert_eq!(manifest.layer(2).unwrap().artifact.path.as_str(), "layers/layer-00002.gguf");
    assert!(manifest.layer(3).is_none());
    assert_eq!(manifest.artifacts().count(), 7);
    assert_eq!(serde_json::from_str::<Value>(&manifest.to_json()).unwrap(), sample());
    assert_eq!(Manifest::parse(manifest.to_json().as_bytes()).unwrap(), manifest);
}

#[test]
fn optional_fields_may_be_absent_or_null() {
    for pointer in [
        "/activation_width",
        "/generation",
        "/projectors",
        "/created_at_unix_secs",
        "/source_model/repo",
        "/source_model/revision",
        "/source_model/primary_file",
        "/source_model/canonical_ref",
        "/source_model/distribution_id",
        "/source_model/files",
        "/source_model/files/0/sha256",
        "/source_model/files/0/size_bytes",
    ] {
        parse(&with(pointer, Value::Null)).unwrap();
        let mut value = sample();
        *value.pointer_mut(pointer).unwrap() = Value::Null;
        parse(&value).unwrap();
    }
}

#[test]
fn unknown_fields_survive_a_rewrite() {
    let mut value = sample();
    for pointer in [
        "",
        "/source_model",
        "/source_model/files/0",
        "/shared",
        "/shared/metadata",
        "/layers/1",
        "/projectors/0",
        "/generation",
        "/generation/thresholds",
    ] {
        value.pointer_mut(pointer).unwrap()["later"] = json!({"a": [1, 2.5, null, "x"]});
    }
    let manifest = parse(&value).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&manifest.to_json()).unwrap(), value);
}

#[test]
fn layers_come_in_order_and_digests_in_either_case() {
    let mut value = with("/shared/output/sha256", json!(SHA.to_uppercase()));
    value["layers"].as_array_mut().unwrap().reverse();
    let manifest = parse(&value).unwrap();
    assert_eq!(manifest.layers.iter().map(|layer| layer.layer_index).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(manifest.shared.output.sha256.to_string(), SHA);
}

/// One broken rule: place, new value, code, and what the message must say.
#[rustfmt::skip]
fn broken() -> Vec<(&'static str, Value, Code, [&'static str; 3])> {
    use Code::*;
    let removed = Value::Null;
    vec![
        ("/schema_version", json!(2), UnsupportedSchemaVersion, ["`schema_version`", "got 2", "expected 1"]),
        ("/schema_version", json!("1"), UnsupportedSchemaVersion, ["`schema_version`", "got \"1\"", "expected 1"]),
        ("/schema_version", removed.clone(), UnsupportedSchemaVersion, ["`schema_version`", "got nothing", "expected 1"]),
        ("/format", json!("gguf"), InvalidFormat, ["`format`", "got \"gguf\"", "expected \"layer-package\""]),
        ("/format", removed.clone(), InvalidFormat, ["`format`", "got nothing", "expected \"layer-package\""]),
        ("/skippy_abi_version", json!("2.0.0"), UnsupportedSkippyAbiVersion, ["`skippy_abi_version`", "got \"2.0.0\"", "compatible with 0.1 or 1"]),
        ("/skippy_abi_version", json!("0.2.9"), UnsupportedSkippyAbiVersion, ["`skippy_abi_version`", "got \"0.2.9\"", "compatible with 0.1 or 1"]),
        ("/skippy_abi_version", json!("one"), InvalidSkippyAbiVersion, ["`skippy_abi_version`", "got \"one\"", "a semantic version"]),
        ("/skippy_abi_version", json!(1), InvalidSkippyAbiVersion, ["`skippy_abi_version`", "got 1", "a semantic version"]),
        ("/skippy_abi_version", removed.clone(), MissingSkippyAbiVersion, ["`skippy_abi_version`", "got nothing", "a semantic version"]),
        ("/model_id", json!(""), EmptyModelId, ["`model_id`", "got \"\"", "a model coordinate"]),
        ("/model_id", json!("  "), EmptyModelId, ["`model_id`", "got \"  \"", "a model coordinate"]),
        ("/model_id", removed.clone(), EmptyModelId, ["`model_id`", "got nothing", "a model coordinate"]),
        ("/model_id", json!(7), InvalidModelId, ["`model_id`", "got 7", "a model coordinate"]),
        ("/model_id", json!("/models/x"), InvalidModelId, ["`model_id`", "got \"/models/x\"", "not a file name"]),
        ("/model_id", json!("./x"), InvalidModelId, ["`model_id`", "got \"./x\"", "not a file name"]),
        ("/model_id", json!("../x"), InvalidModelId, ["`model_id`", "got \"../x\"", "not a file name"]),
        ("/model_id", json!("~/x"), InvalidModelId, ["`model_id`", "got \"~/x\"", "not a file name"]),
        ("/model_id", json!("org/model.GGUF"), InvalidModelId, ["`model_id`", "model.GGUF", "not a file name"]),
        ("/model_id", json!("C:\\x"), InvalidModelId, ["`model_id`", "C:", "not a file name"]),
        ("/model_id", json!("c:/x"), InvalidModelId, ["`model_id`", "c:/x", "not a file name"]),
        ("/source_model", removed.clone(), MissingField, ["`source_model`", "got nothing", "an object"]),
        ("/source_model", json!([]), InvalidField, ["`source_model`", "got a list of 0", "an object"]),
        ("/source_model/path", json!(""), EmptySourceModelPath, ["`source_model.path`", "got \"\"", "a non-empty string"]),
        ("/source_model/path", removed.clone(), EmptySourceModelPath, ["`source_model.path`", "got nothing", "a non-empty string"]),
        ("/source_model/sha256", json!("beef"), InvalidSourceModelSha256, ["`source_model.sha256`", "got \"beef\"", "64 hexadecimal digits"]),
        ("/source_model/sha256", removed.clone(), InvalidSourceModelSha256, ["`source_model.sha256`", "got nothing", "64 hexadecimal digits"]),
        ("/source_model/repo", json!(""), InvalidField, ["`source_model.repo`", "got \"\"", "a non-empty string"]),
        ("/source_model/revision", json!(3), InvalidField, ["`source_model.revision`", "got 3", "a non-empty string"]),
        ("/source_model/primary_file", json!(""), InvalidField, ["`source_model.primary_file`", "got \"\"", "a non-empty string"]),
        ("/source_model/canonical_ref", json!(""), InvalidField, ["`source_model.canonical_ref`", "got \"\"", "a non-empty string"]),
        ("/source_model/distribution_id", json!(""), InvalidField, ["`source_model.distribution_id`", "got \"\"", "a non-empty string"]),
        ("/source_model/files", json!("x"), InvalidField, ["`source_model.files`", "got \"x\"", "a list"]),
        ("/source_model/files/0", json!("x"), InvalidField, ["`source_model.files[0]`", "got \"x\"", "an object"]),
        ("/source_model/files/0/path", json!(""), InvalidField, ["`source_model.files[0].path`", "got \"\"", "a non-empty string"]),
        ("/source_model/files/0/size_bytes", json!(-1), InvalidField, ["`source_model.files[0].size_bytes`", "got -1", "a non-negative integer"]),
        ("/source_model/files/0/sha256", json!("x"), InvalidSha256, ["`source_model.files[0].sha256`", "got \"x\"", "64 hexadecimal digits"]),
        ("/layer_count", json!(0), InvalidField, ["`layer_count`", "got 0", "at least one layer"]),
        ("/layer_count", json!(1.5), InvalidField, ["`layer_count`", "got 1.5", "an integer"]),
        ("/layer_count", json!(4_294_967_296u64), InvalidField, ["`layer_count`", "got 4294967296", "0 to 4294967295"]),
        ("/layer_count", removed.clone(), MissingField, ["`layer_count`", "got nothing", "an integer"]),
        ("/layer_count", json!(4), MissingLayer, ["`layers`", "3 of 4 layers, without 3", "one entry for each layer"]),
        ("/layer_count", json!(4_000_000_000u32), MissingLayer, ["`layers`", "without 3, 4, 5, 6, 7, 8, 9, 10, ...", "one entry for each layer"]),
        ("/layer_count", json!(2), LayerOutOfRange, ["`layers[2].layer_index`", "got 2", "below `layer_count` (2)"]),
        ("/activation_width", json!(0), InvalidActivationWidth, ["`activation_width`", "got 0", "the model's embedding length"]),
        ("/activation_width", json!("64"), InvalidActivationWidth, ["`activation_width`", "got \"64\"", "an integer"]),
        ("/shared", removed.clone(), MissingField, ["`shared`", "got nothing", "an object"]),
        ("/shared/metadata", removed.clone(), MissingField, ["`shared.metadata`", "got nothing", "an object"]),
        ("/shared/embeddings", removed.clone(), MissingField, ["`shared.embeddings`", "got nothing", "an object"]),
        ("/shared/output", json!(3), InvalidField, ["`shared.output`", "got 3", "an object"]),
        ("/shared/output/path", removed.clone(), MissingField, ["`shared.output.path`", "got nothing", "relative to the package root"]),
        ("/shared/output/path", json!(""), UnsafePath, ["`shared.output.path`", "got \"\"", "a non-empty path"]),
        ("/shared/output/path", json!("/etc/passwd"), UnsafePath, ["`shared.output.path`", "\"/etc/passwd\"", "not an absolute one"]),
        ("/layers/1/path", json!("../x.gguf"), UnsafePath, ["`layers[1].path`", "\"../x.gguf\"", "without `..`"]),
        ("/layers/1/path", json!("layers\\x.gguf"), UnsafePath, ["`layers[1].path`", "x.gguf", "no backslash"]),
        ("/layers/1/path", json!("c:x.gguf"), UnsafePath, ["`layers[1].path`", "c:x.gguf", "not an absolute one"]),
        ("/layers/1/path", json!("a\u{0}b"), UnsafePath, ["`layers[1].path`", "a\\0b", "without control characters"]),
        ("/layers/1/path", json!("./a"), UnsafePath, ["`layers[1].path`", "\"./a\"", "without `.`"]),
        ("/projectors/0/path", json!("a/../../b"), UnsafePath, ["`projectors[0].path`", "\"a/../../b\"", "without `..`"]),
        ("/layers/1/path", json!("layers/layer-00000.gguf"), DuplicatePath, ["`layers[1].path`", "the path of `layers[0]`", "a file of its own"]),
        ("/projectors/0/path", json!("shared/output.gguf"), DuplicatePath, ["`projectors[0].path`", "the path of `shared.output`", "a file of its own"]),
        ("/layers/0/sha256", json!(&SHA[1..]), InvalidSha256, ["`layers[0].sha256`", "got \"f86d", "64 hexadecimal digits"]),
        ("/layers/0/sha256", removed.clone(), MissingField, ["`layers[0].sha256`", "got nothing", "64 hexadecimal digits"]),
        ("/layers/0/artifact_bytes", json!(0), EmptyArtifact, ["`layers[0].artifact_bytes`", "got 0", "a size above 0"]),
        ("/layers/0/artifact_bytes", json!("1"), InvalidField, ["`layers[0].artifact_bytes`", "got \"1\"", "a non-negative integer"]),
        ("/layers/0/tensor_bytes", json!(0), InvalidTensorBytes, ["`layers[0].tensor_bytes`", "got 0", "because `tensor_count` is 9"]),
        ("/shared/metadata/tensor_bytes", json!(8), InvalidTensorBytes, ["`shared.metadata.tensor_bytes`", "got 8", "because `tensor_count` is 0"]),
        ("/shared/metadata/tensor_count", json!(-1), InvalidField, ["`shared.metadata.tensor_count`", "got -1", "a non-negative integer"]),
        ("/layers", removed.clone(), MissingField, ["`layers`", "got nothing", "a list"]),
        ("/layers", json!({}), InvalidField, ["`layers`", "got an object", "a list"]),
        ("/layers/1", json!(null), MissingLayer, ["`layers`", "2 of 3 layers, without 1", "one entry for each layer"]),
        ("/layers/1/layer_index", json!(0), DuplicateLayer, ["`layers[1].layer_index`", "got 0 a second time", "each layer once"]),
        ("/layers/1/layer_index", json!(7), LayerOutOfRange, ["`layers[1].layer_index`", "got 7", "below `layer_count` (3)"]),
        ("/layers/1/layer_index", removed.clone(), MissingField, ["`layers[1].layer_index`", "got nothing", "an integer"]),
        ("/projectors", json!({}), InvalidField, ["`projectors`", "got an object", "a list"]),
        ("/projectors/0/kind", json!("audio"), UnsupportedProjectorKind, ["`projectors[0].kind`", "got \"audio\"", "`mmproj`"]),
        ("/projectors/0/kind", json!(""), EmptyProjectorKind, ["`projectors[0].kind`", "got \"\"", "`mmproj`"]),
        ("/projectors/0/kind", removed.clone(), EmptyProjectorKind, ["`projectors[0].kind`", "got nothing", "`mmproj`"]),
        ("/projectors/0/sha256", json!("x"), InvalidSha256, ["`projectors[0].sha256`", "got \"x\"", "64 hexadecimal digits"]),
        ("/projectors/0/artifact_bytes", json!(0), EmptyArtifact, ["`projectors[0].artifact_bytes`", "got 0", "a size above 0"]),
        ("/generation", json!(1), InvalidField, ["`generation`", "got 1", "an object"]),
        ("/created_at_unix_secs", json!("now"), InvalidField, ["`created_at_unix_secs`", "got \"now\"", "a non-negative integer"]),
    ]
}

#[test]
fn every_broken_rule_names_field_got_and_expected() {
    for (pointer, new, code, words) in broken() {
        let error = parse(&with(pointer, new.clone())).expect_err(&format!("{pointer} = {new}"));
        let fault = error.faults().find(|fault| fault.code == code);
        let fault = fault.unwrap_or_else(|| panic!("{pointer} = {new}: {error:?}"));
        for word in words {
            assert!(fault.to_string().contains(word), "{pointer} = {new}: {fault} lacks {word}");
        }
        assert!(!error.to_string().contains('\n'), "{error}");
        assert!(error.to_string().contains(code.remedy()) || error.first.code != code, "{error}");
    }
}

#[test]
fn unknown_versions_hide_all_else() {
    let mut value = with("/model_id", json!(""));
    value["schema_version"] = json!(2);
    value["format"] = json!("other");
    let codes = |value: &Value| parse(value).unwrap_err().faults().map(|fault| fault.code).collect::<Vec<_>>();
    assert_eq!(codes(&value), [Code::UnsupportedSchemaVersion]);
    value["schema_version"] = json!(1);
    assert_eq!(codes(&value), [Code::InvalidFormat]);
    value["format"] = json!("layer-package");
    assert_eq!(codes(&value), [Code::EmptyModelId]);
}

#[test]
fn all_faults_are_listed_and_counted() {
    let mut value = with("/model_id", json!(""));
    value["layers"][2]["sha256"] = json!("x");
    value["shared"]["output"]["artifact_bytes"] = json!(0);
    let error = parse(&value).unwrap_err();
    let codes: Vec<_> = error.faults().map(|fault| fault.code).collect();
    assert_eq!(codes, [Code::EmptyModelId, Code::EmptyArtifact, Code::InvalidSha256]);
    assert!(error.to_string().contains("and 2 more faults"), "{error}");
}

#[test]
fn text_that_is_no_manifest() {
    let spaces = vec![b' '; Manifest::MAX_BYTES as usize + 1];
    let deep = "[".repeat(100_000);
    let table: [(&[u8], Code, &[&str]); 11] = [
        (b"", Code::InvalidManifestJson, &["`model-package.json`", "EOF"]),
        (b"<!DOCTYPE html>", Code::InvalidManifestJson, &["line 1 column 1"]),
        (b"{\"a\": 1,}", Code::InvalidManifestJson, &["line 1 column 9"]),
        (b"{} {}", Code::InvalidManifestJson, &["trailing characters", "one json document"]),
        (b"[]", Code::InvalidManifestJson, &["got a list of 0", "an object"]),
        (b"null", Code::InvalidManifestJson, &["got null", "an object"]),
        (b"{\"a\xff\": 1}", Code::InvalidManifestUtf8, &["invalid byte at offset 3", "utf-8"]),
        (&spaces, Code::ManifestTooLarge, &["16777217 bytes", "at most 16777216 bytes"]),
        (deep.as_bytes(), Code::InvalidManifestJson, &["recursion limit"]),
        (b"{\"a\": 1, \"a\": 2}", Code::DuplicateManifestKey, &["`a`", "line 1 column 12", "each key once"]),
        (b"{\"a\": [{\"b\": {\"c\": 1, \"c\": 1}}]}", Code::DuplicateManifestKey, &["`a[0].b.c`", "each key once"]),
    ];
    for (bytes, code, words) in table {
        let error = Manifest::parse(bytes).unwrap_err();
        assert_eq!(error.first.code, code, "{error}");
        for word in words {
            assert!(error.to_string().contains(word), "{error} lacks {word}");
        }
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(|number| json!(number)),
        any::<u64>().prop_map(|number| json!(number)),
        any::<f64>().prop_map(|number| json!(number)),
        ".{0,12}".prop_map(Value::String),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::vec(("[a-z_]{1,8}", inner), 0..4).prop_map(|entries| entries.into_iter().collect()),
        ]
    })
}

/// Messages quote foreign text: they stay short and printable, whatever it was.
fn check_messages(error: &ManifestError) {
    for message in error.faults().map(Fault::to_string).chain([error.to_string()]) {
        assert!(message.len() < 2000 && !message.contains(char::is_control), "{message:?}");
    }
}

#[test]
fn hostile_text_makes_no_hostile_message() {
    let nasty = "\u{1b}[31m\n".repeat(100_000);
    let strategies = json!({nasty.clone(): {"type": "ngram-cache", "proposer": nasty}});
    let mut value = with("/generation/speculative_decoding", json!({"default": nasty, "strategies": strategies}));
    value["model_id"] = json!(format!("/{nasty}"));
    value["skippy_abi_version"] = json!(format!("9.0.0+{}", "a".repeat(100_000)));
    let error = parse(&value).unwrap_err();
    assert_eq!(error.faults().count(), 3, "{error:?}");
    check_messages(&error);
    let twice = json!({"x": 1}).to_string().replace('x', "\\n\\u001b");
    let twice = format!("{{{}, {}}}", &twice[1..twice.len() - 1], &twice[1..twice.len() - 1]);
    let error = Manifest::parse(twice.as_bytes()).unwrap_err();
    assert_eq!(error.first.code, Code::DuplicateManifestKey);
    check_messages(&error);
    let mut generation = with("/generation/policy", json!({nasty.clone(): nasty, "profile": nasty}));
    generation["generation"]["speculative_decoding"] = json!({"proposers": {nasty.clone(): {"type": nasty}}});
    let manifest = parse(&generation).unwrap();
    let unsupported = manifest.generation.unwrap().unsupported();
    assert_eq!(unsupported.len(), 3);
    assert!(
        unsupported.iter().all(|entry| entry.to_string().len() < 500 && !entry.to_string().contains(char::is_control))
    );
}

#[test]
fn a_million_faults_are_not_all_kept() {
    let mut value = sample();
    value["layers"] = json!(vec![json!({}); 100_000]);
    assert_eq!(parse(&value).unwrap_err().faults().count(), 1000);
}

/// Every place in a JSON value.
fn pointers(value: &Value, at: String, all: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| pointers(value, format!("{at}/{key}"), all)),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, value)| pointers(value, format!("{at}/{i}"), all)),
        _ => {}
    }
    all.push(at);
}

proptest! {
    #[test]
    fn a_changed_value_is_an_error_or_survives(place in any::<prop::sample::Index>(), new in any_json()) {
        let mut value = crate::package::generation::full_sample();
        let mut all = Vec::new();
        pointers(&value, String::new(), &mut all);
        *value.pointer_mut(&all[place.index(all.len())]).unwrap() = new;
        match parse(&value) {
            Ok(manifest) => prop_assert_eq!(Manifest::parse(manifest.to_json().as_bytes()), Ok(manifest.clone())),
            Err(error) => check_messages(&error),
        }
    }

    #[test]
    fn changed_bytes_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample().to_string().into_bytes();
        for (place, byte) in edits {
            let i = place.index(bytes.len());
            bytes[i] = byte;
        }
        for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
            if let Err(error) = Manifest::parse(bytes) {
                check_messages(&error);
            }
        }
    }
}
