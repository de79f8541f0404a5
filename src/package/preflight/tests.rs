use std::fs;

use serde_json::{Value as Json, json};

use super::*;
use crate::package::testing::{Recipe, TestPackage};

fn run(package: &TestPackage, verify_sha256: bool) -> PreflightReport {
    let report = preflight(package.root(), &PreflightOptions { stages: Vec::new(), verify_sha256 });
    assert_eq!(report.ok, report.issues.iter().all(|issue| issue.severity == Severity::Warning));
    report
}

fn codes(report: &PreflightReport) -> Vec<Code> {
    report.issues.iter().map(|issue| issue.code).collect()
}

#[test]
fn a_sound_package_has_no_issues() {
    let package = Recipe { projectors: 1, tied: true, ..Recipe::default() }.write();
    for verify in [false, true] {
        let report = run(&package, verify);
        assert_eq!((report.ok, report.issues.as_slice(), report.sha256_verified), (true, &[][..], verify));
        assert_eq!(report.model_id.as_deref(), Some("test/tiny:F32"));
        assert_eq!(report.model.unwrap().n_embd, 8);
        assert_eq!(report.stages.len(), 1);
        assert_eq!(report.stages[0].parts.len(), 7);
    }
}

#[test]
fn all_issues_are_listed_errors_first() {
    let package = Recipe::default().write();
    package.edit_manifest(|manifest| {
        let map = manifest.as_object_mut().unwrap();
        map.shift_remove("created_at_unix_secs");
        map.insert("activation_width".into(), json!(64));
        map.insert("generation".into(), json!({"policy": {"profile": "glm-dsa-v2"}}));
    });
    fs::remove_file(package.file("shared/embeddings.gguf")).unwrap();
    fs::write(package.file("layers/layer-00000.gguf"), "short").unwrap();
    let layer = package.file("layers/layer-00002.gguf");
    let mut bytes = fs::read(&layer).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&layer, bytes).unwrap();
    let report = run(&package, true);
    assert!(!report.ok);
    assert_eq!(
        codes(&report),
        [
            Code::ActivationWidthMismatch,
            Code::MissingArtifact,
            Code::ArtifactSizeMismatch,
            Code::ArtifactSha256Mismatch,
            Code::MissingCreatedAt,
            Code::UnsupportedGenerationValue,
        ]
    );
    let paths: Vec<_> = report.issues.iter().map(|issue| issue.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "activation_width",
            "shared/embeddings.gguf",
            "layers/layer-00000.gguf",
            "layers/layer-00002.gguf",
            "created_at_unix_secs",
            "generation.policy.profile",
        ]
    );
    assert_eq!(report.stages[0].missing_parts, ["shared/embeddings.gguf"]);
    let json = serde_json::to_value(&report).unwrap();
    let first = &json["issues"][0];
    assert_eq!((&first["severity"], &first["code"]), (&json!("error"), &json!("activation_width_mismatch")));
    assert_eq!(first["message"], "`activation_width`: got 64, expected 8, the model's embedding length");
    assert!(first["remedy"].as_str().unwrap().contains("embedding length"));
}

#[test]
fn a_broken_manifest_does_not_hide_broken_artifacts() {
    let package = Recipe::default().write();
    package.edit_manifest(|manifest| {
        manifest["model_id"] = json!("");
        manifest["skippy_abi_version"] = json!("9.0.0");
        manifest["layers"][1]["layer_index"] = json!(0);
    });
    fs::remove_file(package.file("shared/output.gguf")).unwrap();
    let report = run(&package, false);
    let found = codes(&report);
    for code in [
        Code::UnsupportedSkippyAbiVersion,
        Code::EmptyModelId,
        Code::DuplicateLayer,
        Code::MissingLayer,
        Code::MissingArtifact,
        Code::ForeignTensor,
    ] {
        assert!(found.contains(&code), "{code:?}: {found:?}");
    }
    assert!(report.stages.is_empty());
}

#[test]
fn broken_shared_metadata_is_reported_once() {
    let package = Recipe::default().write();
    fs::write(package.file("shared/metadata.gguf"), "x").unwrap();
    let report = run(&package, true);
    assert_eq!(codes(&report), [Code::ArtifactSizeMismatch]);
    assert_eq!(report.model, None);
}

#[test]
fn a_package_without_manifest() {
    let dir = tempfile::tempdir().unwrap();
    let report = preflight(dir.path(), &PreflightOptions::default());
    assert_eq!(codes(&report), [Code::MissingManifest]);
    let report = preflight(&dir.path().join("nowhere"), &PreflightOptions::default());
    assert_eq!(codes(&report), [Code::UnreadableManifest]);
    fs::write(dir.path().join(Manifest::FILE_NAME), "{").unwrap();
    let report = preflight(dir.path(), &PreflightOptions::default());
    assert_eq!((codes(&report), report.ok), (vec![Code::InvalidManifestJson], false));
    assert!(report.manifest_sha256.is_some());
}

#[test]
fn stages_list_parts_and_bytes() {
    let package = Recipe { tied: true, ..Recipe::default() }.write();
    let stages = ["0..2", "2..3", "2..9"].map(|text| text.parse().unwrap()).to_vec();
    let report = preflight(package.root(), &PreflightOptions { stages, verify_sha256: false });
    let size = |paths: &[&str]| paths.iter().map(|path| fs::metadata(package.file(path)).unwrap().len()).sum::<u64>();
    let first =
        ["shared/metadata.gguf", "shared/embeddings.gguf", "layers/layer-00000.gguf", "layers/layer-00001.gguf"];
    let last = ["shared/metadata.gguf", "shared/embeddings.gguf", "layers/layer-00002.gguf", "shared/output.gguf"];
    let got: Vec<_> = report.stages.iter().map(|stage| (stage.layer_start, stage.layer_end, stage.bytes)).collect();
    assert_eq!(got, [(0, 2, size(&first)), (2, 3, size(&last))]);
    assert_eq!(report.stages[0].parts, first);
    assert_eq!(report.stages[1].parts, last);
    assert_eq!(codes(&report), [Code::InvalidField]);
    assert!(report.issues[0].message.contains("2..9 is outside the model"));
}

#[test]
fn the_shape_of_the_report_stays() {
    let package = Recipe::default().write();
    let json = serde_json::to_value(run(&package, false)).unwrap();
    let keys = |value: &Json| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&json), ["ok", "model_id", "manifest_sha256", "model", "sha256_verified", "issues", "stages"]);
    assert_eq!(keys(&json["stages"][0]), ["layer_start", "layer_end", "parts", "missing_parts", "bytes"]);
}
