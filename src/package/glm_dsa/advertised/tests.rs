//! Generation blocks, good and bad.

use serde_json::json;

use super::*;
use crate::{
    gguf::Value,
    package::{
        Severity,
        glm_dsa::testing::{LAYERS, config, metadata},
        manifest::{Manifest, sample_manifest},
    },
};

/// The spec's block for a model of 3 layers, as the sample manifest is.
fn recommended() -> Json {
    json!({
        "policy": recommended_policy(),
        "thresholds": recommended_thresholds(),
        "speculative_decoding": {
            "default": "mtp",
            "proposers": {"mtp": {"type": "native-mtp", "prediction_depth": 1, "layer_indices": [2]}},
            "strategies": {"mtp": {"type": "native-mtp", "proposer": "mtp"}},
        },
    })
}

/// The tiny model with its last layers cut off, so that the MTP block is layer 2.
fn three_layers() -> Config {
    Config { layer_count: 3, trunk_layers: 2, ..config() }
}

fn generation(block: &Json) -> Generation {
    let mut manifest = sample_manifest();
    manifest["generation"] = block.clone();
    Manifest::parse(manifest.to_string().as_bytes()).unwrap().generation.unwrap()
}

fn issues(block: &Json, required: bool) -> Vec<Issue> {
    check(&three_layers(), Some(&generation(block)), required)
}

#[test]
fn the_recommended_block_has_no_issue() {
    assert_eq!(issues(&recommended(), true), []);
    let fields = policy_fields(Some(&generation(&recommended())));
    assert_eq!(fields.len(), 6 + 3 + 3);
    assert!(fields.iter().all(|field| field.declared.as_ref() == Some(&field.recommended)), "{fields:?}");
    assert!(fields.iter().any(|field| field.field == "generation.policy.experimental.selected_row_flash"));
}

#[test]
fn nothing_declared_is_fine_unless_it_is_required() {
    assert_eq!(check(&three_layers(), None, false), []);
    let required = check(&three_layers(), None, true);
    let fields: Vec<_> = required.iter().filter(|issue| issue.severity == Severity::Error).map(|i| &i.path).collect();
    let expected = ["decode", "indexshare", "long_prefill", "profile", "short_prefill", "verify"];
    let mut sorted: Vec<_> = fields.into_iter().cloned().collect();
    sorted.sort();
    assert_eq!(sorted, expected.map(|field| format!("generation.policy.{field}")));
    assert!(required.iter().any(|issue| issue.message.contains("has an mtp block")));
}

#[test]
fn values_that_this_version_does_not_know() {
    for (pointer, value) in [
        ("/policy/profile", json!("glm-dsa-v2")),
        ("/policy/decode", json!("warp-drive")),
        ("/policy/short_prefill", json!(3)),
        ("/policy/long_prefill", json!(["dense"])),
        ("/policy/verify", json!("")),
        ("/policy/indexshare", json!("recompute")),
        ("/policy/experimental/selected_row_flash", json!("on")),
    ] {
        let mut block = recommended();
        *block.pointer_mut(pointer).unwrap() = value;
        let field = format!("generation{}", pointer.replace('/', "."));
        for (required, code) in [(false, Code::UnsupportedGenerationValue), (true, Code::MissingGenerationPolicy)] {
            let found = issues(&block, required);
            assert_eq!(found.len(), 1, "{field}: {found:?}");
            assert_eq!((found[0].code, &found[0].path), (code, &field));
            assert_eq!(found[0].severity == Severity::Error, required, "{field}");
        }
    }
    let mut unknown_switch = recommended();
    unknown_switch["policy"]["experimental"]["overdrive"] = json!("evidence-gated");
    let found = issues(&unknown_switch, true);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].code, Code::UnsupportedGenerationValue);
}

#[test]
fn other_supported_values_are_shown_not_refused() {
    let mut block = recommended();
    block["policy"]["long_prefill"] = json!("dense");
    block["thresholds"]["short_prefill_max_tokens"] = json!(128);
    let found = issues(&block, true);
    assert_eq!(found.len(), 1, "thresholds are tuned: {found:?}");
    assert_eq!(found[0].code, Code::GenerationPolicyDiffers);
    assert!(found[0].message.contains("got \"dense\", expected \"sparse-chunked\""), "{}", found[0].message);
    block["policy"].as_object_mut().unwrap().remove("profile");
    let found = issues(&block, false);
    assert!(found.iter().any(|issue| issue.path == "generation.policy.profile"), "{found:?}");
}

#[test]
fn native_mtp_names_exactly_the_mtp_block() {
    for indices in [json!([1]), json!([1, 2])] {
        let mut block = recommended();
        block["speculative_decoding"]["proposers"]["mtp"]["layer_indices"] = indices.clone();
        let found = issues(&block, false);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].code, Code::InvalidSpeculation);
        assert_eq!(found[0].path, "generation.speculative_decoding.proposers.mtp.layer_indices");
        assert!(found[0].message.contains("expected 2, the layers with `nextn` tensors"), "{}", found[0].message);
    }
    let mut inline = recommended();
    inline["speculative_decoding"] = json!({
        "strategies": {"own": {"type": "native-mtp", "prediction_depth": 1, "layer_indices": [0]}},
    });
    let found = issues(&inline, false);
    assert_eq!(found[0].path, "generation.speculative_decoding.strategies.own.layer_indices");

    let mut metadata = metadata();
    metadata.set("glm-dsa.nextn_predict_layers", Value::U32(0));
    metadata.remove("glm-dsa.attention.indexer.types");
    let without = Config::read(&metadata, LAYERS).unwrap();
    let found = check(&without, Some(&generation(&recommended())), false);
    assert!(found[0].message.contains("expected no native mtp"), "{}", found[0].message);
}
