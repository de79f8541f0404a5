//! `validate-package`.

use std::{fs, path::Path};

use serde_json::{Value as Json, json};

use super::{Run, Written, source::Model, tool};

/// The package is not valid; the report, and that it names `code`.
#[track_caller]
fn invalid(run: &Run, code: &str) -> Json {
    assert!(run.error(1).contains("is not a valid package"));
    let report: Json = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["valid"], false);
    let codes: Vec<&str> = report["issues"].as_array().unwrap().iter().map(|i| i["code"].as_str().unwrap()).collect();
    assert!(codes.contains(&code), "{code} is not in {codes:?}");
    for issue in report["issues"].as_array().unwrap() {
        for field in ["message", "path", "remedy"] {
            assert!(issue[field].as_str().is_some_and(|text| !text.is_empty()), "{issue}");
        }
    }
    report
}

#[test]
fn a_sound_package_is_valid() {
    let written = Written::from(&Model::default());
    let report = written.validate().json();
    assert_eq!(report["valid"], true);
    assert_eq!(report["issues"], json!([]));
    assert_eq!(report["source_tensors"], report["equal_tensors"]);
    for field in ["layer_count", "activation_width", "source_sha256"] {
        assert_eq!(report[field]["match"], true, "{field}");
    }
    for artifact in report["artifacts"].as_array().unwrap() {
        for field in ["size_matches", "sha256_matches", "tensor_count_matches", "tensor_bytes_matches"] {
            assert_eq!(artifact[field], true, "{artifact}");
        }
    }
    let text = tool([Path::new("validate-package"), &written.source(), &written.package()]);
    assert_eq!((text.code, text.stderr.as_str()), (Some(0), ""));
    assert!(text.stdout.starts_with("valid: 19 of 19 tensors"), "{}", text.stdout);
}

#[test]
fn a_flipped_bit_is_found_and_named() {
    let written = Written::from(&Model::default());
    let path = written.file("layers/layer-00002.gguf");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 40;
    bytes[last] ^= 0x10;
    fs::write(&path, bytes).unwrap();
    let report = invalid(&written.validate(), "artifact_sha256_mismatch");
    assert_eq!(report["different_tensors"][0]["artifacts"], json!(["layers/layer-00002.gguf"]));
    let damaged = report["artifacts"].as_array().unwrap().iter().find(|a| a["sha256_matches"] == false).unwrap();
    assert_eq!(damaged["path"], "layers/layer-00002.gguf");
}

#[test]
fn files_that_are_not_the_fragment_are_found() {
    type Damage = (&'static str, &'static str, fn(&Written));
    let damage: [Damage; 6] = [
        ("truncated", "artifact_size_mismatch", |written| {
            let bytes = fs::read(written.file("layers/layer-00001.gguf")).unwrap();
            fs::write(written.file("layers/layer-00001.gguf"), &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("oversized", "artifact_size_mismatch", |written| {
            let mut bytes = fs::read(written.file("layers/layer-00001.gguf")).unwrap();
            bytes.push(0);
            fs::write(written.file("layers/layer-00001.gguf"), bytes).unwrap();
        }),
        ("absent", "missing_artifact", |written| fs::remove_file(written.file("layers/layer-00001.gguf")).unwrap()),
        ("swapped", "foreign_tensor", |written| {
            let (a, b, c) = ("layers/layer-00001.gguf", "layers/layer-00002.gguf", "layers/spare");
            for (from, to) in [(a, c), (b, a), (c, b)] {
                fs::rename(written.file(from), written.file(to)).unwrap();
            }
        }),
        ("html", "artifact_size_mismatch", |written| {
            fs::write(written.file("layers/layer-00001.gguf"), "<!DOCTYPE html><title>404</title>").unwrap();
        }),
        ("a directory", "artifact_not_a_file", |written| {
            fs::remove_file(written.file("layers/layer-00001.gguf")).unwrap();
            fs::create_dir(written.file("layers/layer-00001.gguf")).unwrap();
        }),
    ];
    for (name, code, damage) in damage {
        let written = Written::from(&Model::default());
        damage(&written);
        let report = invalid(&written.validate(), code);
        let found = report["issues"].as_array().unwrap().iter().any(|i| i["path"].as_str().unwrap().contains("layer"));
        assert!(found, "{name}: {report}");
    }
}

#[test]
fn wrong_statements_are_found() {
    type Edit = (&'static str, fn(&mut Json));
    let edits: [Edit; 8] = [
        ("activation_width_mismatch", |m| m["activation_width"] = json!(65)),
        ("source_mismatch", |m| m["source_model"]["sha256"] = json!("0".repeat(64))),
        ("source_mismatch", |m| m["source_model"]["files"][0]["size_bytes"] = json!(1)),
        ("artifact_sha256_mismatch", |m| m["shared"]["output"]["sha256"] = json!("0".repeat(64))),
        ("artifact_tensor_mismatch", |m| m["layers"][0]["tensor_count"] = json!(3)),
        ("artifact_size_mismatch", |m| m["layers"][0]["artifact_bytes"] = json!(3)),
        ("unsupported_schema_version", |m| m["schema_version"] = json!(2)),
        ("unsupported_skippy_abi_version", |m| m["skippy_abi_version"] = json!("7.0.0")),
    ];
    for (code, edit) in edits {
        let written = Written::from(&Model::default());
        written.edit_manifest(edit);
        invalid(&written.validate(), code);
    }
}

#[test]
fn a_layer_too_few_is_found() {
    let written = Written::from(&Model::default());
    written.edit_manifest(|manifest| {
        manifest["layer_count"] = json!(3);
        manifest["layers"].as_array_mut().unwrap().pop();
    });
    let report = invalid(&written.validate(), "layer_count_mismatch");
    assert_eq!(report["layer_count"], json!({"package": 3, "source": 4, "match": false}));
    let missing: Vec<&str> =
        report["missing_tensors"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(missing.len(), 4);
    assert!(missing.iter().all(|name| name.starts_with("blk.3.")), "{missing:?}");
}

#[test]
fn another_source_is_told_apart() {
    let written = Written::from(&Model::default());
    Model { seed: 2, ..Model::default() }.write(&written.source());
    let report = invalid(&written.validate(), "source_mismatch");
    assert_eq!(report["equal_tensors"], 0);
    invalid(&written.validate(), "tensor_mismatch");
    Model { edit: |m| m.set("tokenizer.ggml.model", "spm"), ..Model::default() }.write(&written.source());
    let report = invalid(&written.validate(), "metadata_mismatch");
    assert_eq!(report["different_keys"], json!(["tokenizer.ggml.model"]));
    assert_eq!(report["equal_tensors"], report["source_tensors"]);
    let edit_tensors =
        |tensors: &mut Vec<_>| tensors.retain(|t: &skippy_stage::gguf::TensorSpec| t.name != "output.weight");
    Model { edit_tensors, ..Model::default() }.write(&written.source());
    let report = invalid(&written.validate(), "unknown_tensor");
    assert_eq!(report["unknown_tensors"], json!([{"tensor": "output.weight", "artifacts": ["shared/output.gguf"]}]));
}

#[test]
fn a_fragment_of_another_model_is_found() {
    let written = Written::from(&Model::default());
    let other = Written::from(&Model { arch: "qwen2", ..Model::default() });
    fs::copy(other.file("layers/layer-00000.gguf"), written.file("layers/layer-00000.gguf")).unwrap();
    let report: Json = serde_json::from_str(&written.validate().stdout).unwrap();
    assert_eq!(report["valid"], false);
}
