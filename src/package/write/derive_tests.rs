//! What is advertised for which fragments.

use super::*;

const TRUNK: u32 = 4;

/// A whole GLM-DSA model: one dense layer, roles full, shared, full, shared, and one MTP block.
fn glm() -> (Metadata, Inventory) {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", "glm-dsa");
    for key in GLM_DSA_KEYS {
        metadata.set(format!("glm-dsa.{key}"), Value::U32(2));
    }
    metadata.set("glm-dsa.leading_dense_block_count", Value::U32(1));
    metadata.set("glm-dsa.nextn_predict_layers", Value::U32(1));
    metadata.set("glm-dsa.attention.indexer.types", Value::Array(Array::Bool(vec![true, false, true, false])));
    let layer = |index: u32| {
        let mut names: Vec<&str> = GLM_DSA_ATTENTION.to_vec();
        names.extend(if index == 0 { DENSE_FFN } else { MOE_FFN });
        if index.is_multiple_of(2) {
            names.extend(GLM_DSA_INDEXER);
        }
        if index == TRUNK {
            names.extend(["nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight"]);
        }
        names.iter().map(|name| format!("blk.{index}.{name}")).collect()
    };
    (metadata, Inventory { layers: (0..=TRUNK).map(layer).collect() })
}

fn remove(inventory: &mut Inventory, layer: usize, name: &str) {
    assert!(inventory.layers[layer].remove(&format!("blk.{layer}.{name}")), "{name} was not there");
}

fn policy(derived: &Derived) -> Option<&Policy> {
    derived.generation.as_ref()?.policy.as_ref()
}

fn mtp(derived: &Derived) -> Option<&SpeculativeDecoding> {
    derived.generation.as_ref()?.speculative_decoding.as_ref()
}

#[test]
fn a_whole_glm_dsa_model_gets_the_block_of_the_spec() {
    let (metadata, inventory) = glm();
    let derived = derive(&metadata, &inventory);
    assert_eq!(derived.notes, Vec::<String>::new());
    let expected = serde_json::json!({
        "policy": {
            "profile": "glm-dsa-v1",
            "decode": "compact-flash",
            "short_prefill": "dense",
            "long_prefill": "sparse-chunked",
            "verify": "auto",
            "indexshare": "required",
            "experimental": {
                "moe_merged_shared_gate_up": "evidence-gated",
                "moe_weighted_down": "evidence-gated",
                "selected_row_flash": "evidence-gated"
            }
        },
        "thresholds": {
            "short_prefill_max_tokens": 2048,
            "compact_flash_min_kv": 1,
            "dense_mask_max_bytes": 268435456
        },
        "speculative_decoding": {
            "default": "mtp",
            "proposers": { "mtp": { "type": "native-mtp", "prediction_depth": 1, "layer_indices": [4] } },
            "strategies": {
                "mtp": {
                    "type": "native-mtp",
                    "proposer": "mtp",
                    "prediction_depth": 1,
                    "layer_indices": [4],
                    "window_policy": {
                        "default": "fixed", "initial_window": 1, "min_window": 1, "max_window": 1, "pipeline_depth": 1
                    }
                }
            }
        }
    });
    assert_eq!(serde_json::to_value(&derived.generation).unwrap(), expected);
}

#[test]
fn any_missing_glm_dsa_tensor_withdraws_the_policy() {
    let cases = [
        (0, "attn_k_b.weight"),
        (1, "attn_kv_a_mqa.weight"),
        (3, "ffn_down_exps.weight"),
        (3, "ffn_gate_shexp.weight"),
        (0, "ffn_gate.weight"),
        (2, "indexer.k_norm.bias"),
        (4, "attn_v_b.weight"),
    ];
    for (layer, name) in cases {
        let (metadata, mut inventory) = glm();
        remove(&mut inventory, layer, name);
        let derived = derive(&metadata, &inventory);
        assert_eq!(policy(&derived), None, "{name}");
        assert!(derived.notes.iter().any(|note| note.contains(name)), "{name}: {:?}", derived.notes);
        assert!(mtp(&derived).is_some(), "the MTP block is still whole without {name}");
    }
}

#[test]
fn any_missing_glm_dsa_key_withdraws_the_policy() {
    for key in GLM_DSA_KEYS {
        let (mut metadata, inventory) = glm();
        metadata.remove(&format!("glm-dsa.{key}"));
        let derived = derive(&metadata, &inventory);
        assert_eq!(policy(&derived), None, "{key}");
        assert!(derived.notes[0].contains(key), "{:?}", derived.notes);
    }
}

#[test]
fn roles_come_from_the_key_or_from_the_tensors() {
    let (mut metadata, inventory) = glm();
    metadata.remove("glm-dsa.attention.indexer.types");
    assert!(policy(&derive(&metadata, &inventory)).is_some(), "whole indexers are evidence");

    for (types, problem) in [
        (vec![true, true, true, false], "layer 1 computes its own top-k"),
        (vec![false, false, true, false], "layer 0 shares"),
        (vec![true, false, true], "3 entries, expected 4"),
    ] {
        let (mut metadata, inventory) = glm();
        metadata.set("glm-dsa.attention.indexer.types", Value::Array(Array::Bool(types)));
        let derived = derive(&metadata, &inventory);
        assert_eq!(policy(&derived), None, "{problem}");
        assert!(derived.notes.iter().any(|note| note.contains(problem)), "{problem}: {:?}", derived.notes);
    }
}

#[test]
fn mtp_needs_its_tensors_and_its_key() {
    for name in ["nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight"] {
        let (metadata, mut inventory) = glm();
        remove(&mut inventory, 4, name);
        let derived = derive(&metadata, &inventory);
        assert_eq!(derived.generation, None, "{name}");
        assert!(derived.notes[0].contains(name), "{:?}", derived.notes);
    }
    for count in [0, 2, 5, 9] {
        let (mut metadata, inventory) = glm();
        metadata.set("glm-dsa.nextn_predict_layers", Value::U32(count));
        let derived = derive(&metadata, &inventory);
        assert_eq!(mtp(&derived), None, "{count}");
        assert!(derived.notes[0].starts_with("native MTP is not advertised"), "{:?}", derived.notes);
    }
}

#[test]
fn mtp_of_any_architecture_is_advertised() {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", "glm4moe");
    metadata.set("glm4moe.nextn_predict_layers", Value::U32(1));
    let names = ["attn_q.weight", "ffn_up.weight", "nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight"];
    let layers = vec![
        HashSet::from(["blk.0.attn_q.weight".to_owned()]),
        names.iter().map(|name| format!("blk.1.{name}")).collect(),
    ];
    let derived = derive(&metadata, &Inventory { layers });
    assert_eq!(mtp(&derived).unwrap().default.as_deref(), Some("mtp"));
    assert_eq!(policy(&derived), None);
    assert!(derived.notes.is_empty());
}

#[test]
fn an_ordinary_model_advertises_nothing() {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", "llama");
    let layers = vec![HashSet::from(["blk.0.attn_q.weight".to_owned()])];
    assert_eq!(derive(&metadata, &Inventory { layers }), Derived::default());
}
