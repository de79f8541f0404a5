//! `inspect`, `preflight` and `plan`.

use std::{fs, path::Path};

use serde_json::{Value as Json, json};

use super::{Written, source::Model, tool};

fn run(command: &str, path: &Path, flags: &[&str]) -> super::Run {
    let mut args = vec![command, path.to_str().unwrap()];
    args.extend(flags);
    tool(args)
}

#[test]
fn inspect_describes_packages_models_and_fragments() {
    let written = Written::from(&Model::default());
    let package = run("inspect", &written.package(), &["--json"]).json();
    assert_eq!(package["kind"], "layer-package");
    assert_eq!(package["layer_count"], 4);
    assert_eq!(package["model"]["arch"], "llama");
    let model = run("inspect", &written.source(), &["--json"]).json();
    assert_eq!(model["kind"], "gguf");
    assert_eq!((&model["layer_count"], &model["tensors"]), (&json!(4), &json!(19)));
    assert_eq!(model["artifact_bytes"]["embeddings"], 64 * 11 * 2);
    let fragment = run("inspect", &written.file("layers/layer-00000.gguf"), &["--json"]).json();
    assert_eq!(fragment["tensors"], 4);
    let text = run("inspect", &written.package(), &[]);
    assert!(text.stdout.contains("layer_count: 4\n"), "{}", text.stdout);
    // Only the manifest and shared metadata are looked at.
    fs::remove_dir_all(written.file("layers")).unwrap();
    run("inspect", &written.package(), &["--json"]).json();
    assert!(run("inspect", written.dir.path().join("none").as_path(), &[]).error(1).contains("none"));
}

#[test]
fn plan_balances_bytes_and_counts_a_tied_head_twice() {
    let written = Written::from(&Model { layers: 6, tied: true, ..Model::default() });
    let plan = run("plan", &written.package(), &["--stages", "3", "--json"]).json();
    let stages = plan["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 3);
    assert_eq!((&stages[0]["layer_start"], &stages[2]["layer_end"]), (&json!(0), &json!(6)));
    let manifest = written.manifest();
    let layer = manifest["layers"][0]["tensor_bytes"].as_u64().unwrap();
    let embeddings = manifest["shared"]["embeddings"]["tensor_bytes"].as_u64().unwrap();
    let output = manifest["shared"]["output"]["tensor_bytes"].as_u64().unwrap();
    let layers = |stage: &Json| stage["layer_end"].as_u64().unwrap() - stage["layer_start"].as_u64().unwrap();
    assert_eq!(stages[0]["tensor_bytes"].as_u64(), Some(embeddings + layers(&stages[0]) * layer));
    assert_eq!(stages[1]["tensor_bytes"].as_u64(), Some(layers(&stages[1]) * layer));
    assert_eq!(stages[2]["tensor_bytes"].as_u64(), Some(embeddings + output + layers(&stages[2]) * layer));
    let text = run("plan", &written.package(), &["--stages", "2"]);
    assert!(text.stdout.contains("    1    3..6  ") && text.stdout.contains("--split 3"), "{}", text.stdout);
}

#[test]
fn plan_honours_the_rules_of_the_family() {
    let written = Written::from(&Model { arch: "gemma3", layers: 18, ..Model::default() });
    let plan = run("plan", &written.package(), &["--stages", "3", "--json"]).json();
    assert_eq!(plan["cuts"], json!([6, 12]));
    let refused = run("plan", &written.package(), &["--stages", "4"]);
    let line = refused.error(1);
    assert!(line.contains("6,12") && line.contains("at most 3 stages") && line.contains("gemma3"), "{line}");

    let unknown = Written::from(&Model { arch: "starcoder9", ..Model::default() });
    assert!(run("plan", &unknown.package(), &["--stages", "2"]).error(1).contains("starcoder9"));
    let plan = run("plan", &unknown.package(), &["--stages", "2", "--allow-uncertified-cuts", "--json"]).json();
    assert_eq!(plan["stages"].as_array().unwrap().len(), 2);
    run("plan", &unknown.package(), &["--stages", "1", "--json"]).json();
    assert_eq!(run("plan", &unknown.package(), &["--stages", "0"]).code, Some(2));
    let llama = Written::from(&Model::default());
    assert!(run("plan", &llama.package(), &["--stages", "5"]).error(1).contains("at most 4 stages"));
}

#[test]
fn preflight_reports_stages_and_faults() {
    let written = Written::from(&Model::default());
    let report = run("preflight", &written.package(), &["--stages", "2", "--verify-sha256"]).json();
    assert_eq!((&report["ok"], &report["sha256_verified"]), (&json!(true), &json!(true)));
    let stages = report["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 2);
    assert_eq!(stages[0]["parts"][1], "shared/embeddings.gguf");
    assert_eq!(stages[0]["layer_end"], stages[1]["layer_start"]);

    let impossible = run("preflight", &written.package(), &["--stages", "9"]);
    assert_eq!(impossible.code, Some(1));
    let report: Json = serde_json::from_str(&impossible.stdout).unwrap();
    assert_eq!((&report["ok"], &report["issues"][0]["code"]), (&json!(false), &json!("impossible_plan")));

    let path = written.file("layers/layer-00000.gguf");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(run("preflight", &written.package(), &[]).code, Some(0), "sizes alone do not show a flipped bit");
    let damaged = run("preflight", &written.package(), &["--verify-sha256"]);
    assert_eq!(damaged.code, Some(1));
    let report: Json = serde_json::from_str(&damaged.stdout).unwrap();
    assert_eq!(report["issues"][0]["code"], "artifact_sha256_mismatch");
    assert_eq!(report["issues"][0]["path"], "layers/layer-00000.gguf");

    let nothing = run("preflight", written.dir.path(), &["--stages", "2"]);
    assert_eq!(nothing.code, Some(1));
    let report: Json = serde_json::from_str(&nothing.stdout).unwrap();
    assert_eq!(report["issues"][0]["code"], "missing_manifest");
}
