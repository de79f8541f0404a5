//! What is advertised for which fragments.

use super::*;
use crate::{
    gguf::{Array, Value},
    package::{
        generation::Policy,
        glm_dsa::testing::{config, layer, metadata, tensor},
    },
};

/// The MTP block of the tiny model.
const MTP_LAYER: u32 = 6;

/// A whole GLM-DSA model: two dense layers, roles full, full, shared, shared, full, shared, and one MTP block.
fn glm() -> (Metadata, Inventory) {
    let config = config();
    let boundary = |input, output| {
        let rules = config.boundary_tensors(input, output);
        rules.iter().map(|rule| tensor(&rule.name, &rule.shape)).collect()
    };
    let layers = (0..=MTP_LAYER).map(|index| layer(&config, index).tensors).collect();
    (metadata(), Inventory { embeddings: boundary(true, false), layers, output: boundary(false, true) })
}

fn remove(inventory: &mut Inventory, layer: usize, name: &str) {
    let name = format!("blk.{layer}.{name}");
    let before = inventory.layers[layer].len();
    inventory.layers[layer].retain(|tensor| tensor.name != name);
    assert_eq!(inventory.layers[layer].len() + 1, before, "{name} was not there");
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
            "proposers": { "mtp": { "type": "native-mtp", "prediction_depth": 1, "layer_indices": [6] } },
            "strategies": {
                "mtp": {
                    "type": "native-mtp",
                    "proposer": "mtp",
                    "prediction_depth": 1,
                    "layer_indices": [6],
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
        (4, "indexer.k_norm.bias"),
        (6, "attn_v_b.weight"),
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
fn a_wrong_shape_or_a_tensor_too_many_withdraws_the_policy() {
    let (metadata, mut inventory) = glm();
    inventory.layers[3][1].shape[1] += 1;
    inventory.layers[3].push(tensor("blk.3.attn_q_b.scale", &[1]));
    inventory.output.push(tensor("output.scale", &[1]));
    let derived = derive(&metadata, &inventory);
    assert_eq!(policy(&derived), None);
    for word in ["attn_q_a.weight` has shape", "blk.3.attn_q_b.scale", "output.scale"] {
        assert!(derived.notes.iter().any(|note| note.contains(word)), "{word}: {:?}", derived.notes);
    }
    let (metadata, mut inventory) = glm();
    inventory.layers.iter_mut().for_each(Vec::clear);
    let notes = derive(&metadata, &inventory).notes;
    assert_eq!(
        notes.iter().filter(|note| note.contains("glm-dsa-v1")).count(),
        9,
        "eight and how many more: {notes:?}"
    );
}

#[test]
fn metadata_that_breaks_the_contract_withdraws_the_policy() {
    for key in ["attention.head_count_kv", "expert_weights_scale", "attention.indexer.top_k", "rope.freq_base"] {
        let (mut metadata, inventory) = glm();
        metadata.remove(&format!("glm-dsa.{key}"));
        let derived = derive(&metadata, &inventory);
        assert_eq!(policy(&derived), None, "{key}");
        assert!(derived.notes[0].contains(key), "{:?}", derived.notes);
    }
}

#[test]
fn roles_are_those_that_a_runtime_would_read() {
    let (mut metadata, mut inventory) = glm();
    metadata.remove("glm-dsa.attention.indexer.types");
    let derived = derive(&metadata, &inventory);
    assert_eq!(policy(&derived), None, "without the key every layer is full, and some have no indexer");
    assert!(derived.notes[0].contains("layer 2 is full"), "{:?}", derived.notes);
    let indexer = inventory.layers[0].iter().filter(|tensor| tensor.name.contains(".indexer.")).cloned();
    let indexer: Vec<_> = indexer.collect();
    for layer in [2, 3, 5] {
        let renamed = |mut tensor: TensorInfo| {
            tensor.name = tensor.name.replacen("blk.0.", &format!("blk.{layer}."), 1);
            tensor
        };
        inventory.layers[layer].extend(indexer.iter().cloned().map(renamed));
    }
    assert!(policy(&derive(&metadata, &inventory)).is_some(), "all full by default, and all have one");

    for (types, problem) in [
        (vec![true, true, true, false, true, false], "layer 2 is full"),
        (vec![true, false, false, false, true, false], "layer 1 is shared"),
        (vec![false, true, false, false, true, false], "true for layer 0"),
        (vec![true, false, true], "an array of 3 bool"),
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
        remove(&mut inventory, MTP_LAYER as usize, name);
        let derived = derive(&metadata, &inventory);
        assert_eq!(derived.generation, None, "{name}");
        assert!(derived.notes[0].contains(name), "{:?}", derived.notes);
    }
    for count in [0, 2, 7, 9] {
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
        vec![tensor("blk.0.attn_q.weight", &[4])],
        names.iter().map(|name| tensor(&format!("blk.1.{name}"), &[4])).collect(),
    ];
    let derived = derive(&metadata, &Inventory { layers, ..Inventory::default() });
    assert_eq!(mtp(&derived).unwrap().default.as_deref(), Some("mtp"));
    assert_eq!(policy(&derived), None);
    assert!(derived.notes.is_empty());
}

#[test]
fn an_ordinary_model_advertises_nothing() {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", "llama");
    let layers = vec![vec![tensor("blk.0.attn_q.weight", &[4])]];
    assert_eq!(derive(&metadata, &Inventory { layers, ..Inventory::default() }), Derived::default());
}
