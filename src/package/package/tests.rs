use std::fs;

use serde_json::json;

use super::*;
use crate::{
    gguf::{Metadata, Value},
    package::{
        Code,
        testing::{Mtp, Recipe},
    },
};

#[test]
fn inspection_reads_the_manifest_and_shared_metadata_only() {
    let package = Recipe { mtp: Some(Mtp::OwnEmbeddings), projectors: 1, ..Recipe::default() }.write();
    package.edit_manifest(|manifest| {
        manifest["generation"] = json!({
            "policy": {"profile": "glm-dsa-v9", "decode": "dense"},
            "speculative_decoding": {
                "default": "mtp",
                "strategies": {"mtp": {"type": "native-mtp", "prediction_depth": 1, "layer_indices": [2]}},
            },
        });
    });
    for path in ["shared/embeddings.gguf", "shared/output.gguf", "layers/layer-00001.gguf", "projectors/mmproj-0.gguf"]
    {
        fs::remove_file(package.file(path)).unwrap();
    }
    let opened = package.open();
    let inspection = opened.inspect().unwrap();
    let bytes = fs::read(package.file(Manifest::FILE_NAME)).unwrap();
    assert_eq!(inspection.manifest_sha256, Sha256Digest::of(&bytes));
    let model = &inspection.model;
    assert_eq!((model.arch.as_str(), model.n_embd, model.block_count, model.mtp_layers), ("llama", 8, 3, 1));
    assert_eq!(
        (model.context_length, model.tokenizer.as_deref(), model.chat_template),
        (Some(128), Some("gpt2"), true)
    );
    assert!(model.is_mtp(2) && !model.is_mtp(1) && !model.is_mtp(3));
    assert_eq!(inspection.projectors, ["projectors/mmproj-0.gguf"]);
    let generation = inspection.generation.clone().unwrap();
    assert_eq!(generation.default_strategy.as_deref(), Some("mtp"));
    assert_eq!(generation.profile, Some(json!("glm-dsa-v9")));
    assert_eq!(generation.unsupported[0].field, "generation.policy.profile");
    let manifest = opened.manifest();
    let tensors: u64 = manifest.artifacts().take(6).map(|(_, artifact)| artifact.tensor_bytes).sum();
    assert_eq!(inspection.tensor_bytes, tensors);
    let json = serde_json::to_value(&inspection).unwrap();
    assert_eq!(json["model"]["n_embd"], 8);
    assert_eq!(json["generation"]["unsupported"][0]["value"], "\"glm-dsa-v9\"");
}

#[test]
fn the_width_comes_from_the_model() {
    let package = Recipe::default().write();
    assert_eq!(package.open().width_mismatch(&package.open().inspect().unwrap().model), None);
    package.edit_manifest(|manifest| manifest["activation_width"] = json!(64));
    let opened = package.open();
    let inspection = opened.inspect().unwrap();
    assert_eq!(inspection.model.n_embd, 8);
    assert_eq!(opened.width_mismatch(&inspection.model), Some((64, 8)));
}

#[test]
fn shared_metadata_must_describe_the_model() {
    let sound: Vec<(&str, Value)> = vec![
        ("general.architecture", Value::from("llama")),
        ("llama.block_count", Value::U32(3)),
        ("llama.embedding_length", Value::U32(8)),
    ];
    let table: [(&str, Option<Value>, &str); 8] = [
        ("general.architecture", None, "`general.architecture`: got nothing, expected the name of an architecture"),
        ("llama.embedding_length", None, "`llama.embedding_length`: got nothing, expected the width of a hidden row"),
        ("llama.embedding_length", Some(Value::U32(0)), "`llama.embedding_length`: got 0, expected the width"),
        ("llama.embedding_length", Some(Value::U64(1 << 40)), "got 1099511627776, expected the width"),
        ("llama.block_count", None, "`llama.block_count`: got nothing, expected 3, the `layer_count` of the manifest"),
        ("llama.block_count", Some(Value::U32(4)), "`llama.block_count`: got 4, expected 3, the `layer_count`"),
        ("llama.nextn_predict_layers", Some(Value::U32(3)), "got 3, expected fewer than the 3 layers"),
        ("llama.nextn_predict_layers", Some(Value::U64(u64::MAX)), "expected fewer than the 3 layers"),
    ];
    for (key, value, message) in table {
        let mut metadata: Metadata = sound.iter().cloned().collect();
        match value {
            Some(value) => metadata.set(key, value),
            None => drop(metadata.remove(key)),
        }
        let package = Recipe::default().write();
        package.replace_fragment("/shared/metadata", &metadata, &[]);
        let error = package.open().inspect().unwrap_err();
        assert!(error.to_string().contains(message), "{key}: {error}");
        assert!(error.to_string().starts_with("`shared/metadata.gguf` (`shared.metadata`): "), "{error}");
        assert_eq!(error.issues()[0].code, Code::InvalidMetadata);
    }
}

#[test]
fn a_directory_that_is_no_package() {
    let dir = tempfile::tempdir().unwrap();
    let table = [
        (dir.path().to_owned(), "no `model-package.json` in this directory", Code::MissingManifest),
        (dir.path().join("nowhere"), "No such file or directory", Code::UnreadableManifest),
        (dir.path().join("file"), "not a directory", Code::UnreadableManifest),
        (dir.path().join("odd"), "not a regular file", Code::UnreadableManifest),
    ];
    fs::write(dir.path().join("file"), "x").unwrap();
    fs::create_dir_all(dir.path().join("odd").join(Manifest::FILE_NAME)).unwrap();
    for (path, message, code) in table {
        let error = Package::open(&path).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
        assert_eq!(error.issues()[0].code, code);
    }
}

#[test]
fn a_broken_manifest_names_file_and_field() {
    let package = Recipe::default().write();
    package.edit_manifest(|manifest| manifest["layers"][1]["sha256"] = json!("beef"));
    let error = package.try_open().unwrap_err();
    let message = error.to_string();
    for word in ["model-package.json`: ", "`layers[1].sha256`: got \"beef\", expected 64 hexadecimal digits"] {
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn an_endless_manifest_is_not_read_to_its_end() {
    let package = Recipe::default().write();
    let file = fs::File::create(package.file(Manifest::FILE_NAME)).unwrap();
    file.set_len(1 << 40).unwrap();
    let error = package.try_open().unwrap_err();
    assert_eq!(error.issues()[0].code, Code::ManifestTooLarge);
}
