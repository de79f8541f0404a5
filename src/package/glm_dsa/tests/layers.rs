//! Tensors of layers and boundaries.

use super::*;
use crate::gguf::{GgmlType, Gguf, TensorInfo};

/// The tensors of a real file of these sizes, written down by hand: name, shape.
const ATTENTION: &[(&str, &[u64])] = &[
    ("attn_norm.weight", &[96]),
    ("attn_q_a.weight", &[96, 128]),
    ("attn_q_a_norm.weight", &[128]),
    ("attn_q_b.weight", &[128, 320]),
    ("attn_kv_a_mqa.weight", &[96, 48]),
    ("attn_kv_a_norm.weight", &[32]),
    ("attn_k_b.weight", &[64, 32, 4]),
    ("attn_v_b.weight", &[32, 40, 4]),
    ("attn_output.weight", &[160, 96]),
    ("ffn_norm.weight", &[96]),
];
const INDEXER: &[(&str, &[u64])] = &[
    ("indexer.attn_q_b.weight", &[128, 1024]),
    ("indexer.attn_k.weight", &[96, 64]),
    ("indexer.k_norm.weight", &[64]),
    ("indexer.k_norm.bias", &[64]),
    ("indexer.proj.weight", &[96, 16]),
];
const DENSE: &[(&str, &[u64])] =
    &[("ffn_gate.weight", &[96, 224]), ("ffn_up.weight", &[96, 224]), ("ffn_down.weight", &[224, 96])];
const MOE: &[(&str, &[u64])] = &[
    ("ffn_gate_inp.weight", &[96, 8]),
    ("exp_probs_b.bias", &[8]),
    ("ffn_gate_exps.weight", &[96, 56, 8]),
    ("ffn_up_exps.weight", &[96, 56, 8]),
    ("ffn_down_exps.weight", &[56, 96, 8]),
    ("ffn_gate_shexp.weight", &[96, 56]),
    ("ffn_up_shexp.weight", &[96, 56]),
    ("ffn_down_shexp.weight", &[56, 96]),
];
const NEXTN: &[(&str, &[u64])] =
    &[("nextn.eh_proj.weight", &[192, 96]), ("nextn.enorm.weight", &[96]), ("nextn.hnorm.weight", &[96])];
const NEXTN_OPTIONAL: &[(&str, &[u64])] = &[
    ("nextn.embed_tokens.weight", &[96, 512]),
    ("nextn.shared_head_norm.weight", &[96]),
    ("nextn.shared_head_head.weight", &[96, 512]),
];

fn by_hand(layer: u32, parts: &[&[(&str, &[u64])]]) -> Gguf {
    let tensors = parts.iter().copied().flatten();
    fragment(tensors.map(|(name, shape)| tensor(&format!("blk.{layer}.{name}"), shape)).collect())
}

fn remove(fragment: &mut Gguf, end: &str) -> TensorInfo {
    let at = fragment.tensors.iter().position(|tensor| tensor.name.ends_with(end)).expect(end);
    fragment.tensors.remove(at)
}

fn edit(fragment: &mut Gguf, end: &str, edit: impl FnOnce(&mut TensorInfo)) {
    edit(fragment.tensors.iter_mut().find(|tensor| tensor.name.ends_with(end)).expect(end));
}

#[test]
fn the_tensors_of_a_real_file_are_complete() {
    let config = config();
    let full = by_hand(0, &[ATTENTION, INDEXER, DENSE]);
    let layout = config.check_layer(0, &full).unwrap();
    assert!(layout.indexer && layout.dense && layout.mtp.is_none());
    let shared = by_hand(3, &[ATTENTION, MOE]);
    let layout = config.check_layer(3, &shared).unwrap();
    assert!(!layout.indexer && !layout.dense && layout.role == crate::policy::Role::Shared);
    let full = by_hand(4, &[MOE, INDEXER, ATTENTION]);
    assert!(config.check_layer(4, &full).unwrap().indexer, "order does not matter");

    let mtp = |parts: &[&[(&str, &[u64])]]| config.check_layer(6, &by_hand(6, parts)).unwrap();
    let least = mtp(&[ATTENTION, MOE, NEXTN]);
    assert!(!least.indexer);
    assert_eq!(least.mtp, Some(MtpLayout { embeddings: false, head_norm: false, head: false }));
    let most = mtp(&[ATTENTION, INDEXER, MOE, NEXTN, NEXTN_OPTIONAL]);
    assert!(most.indexer);
    assert_eq!(most.mtp, Some(MtpLayout { embeddings: true, head_norm: true, head: true }));

    let boundary = |tensors: &[(&str, &[u64])]| fragment(tensors.iter().map(|(n, s)| tensor(n, s)).collect());
    assert_eq!(config.check_boundary(true, false, &boundary(&[("token_embd.weight", &[96, 512])])), Ok(false));
    let norm: (&str, &[u64]) = ("output_norm.weight", &[96]);
    assert_eq!(config.check_boundary(false, true, &boundary(&[norm])), Ok(false), "tied");
    assert_eq!(config.check_boundary(false, true, &boundary(&[norm, ("output.weight", &[96, 512])])), Ok(true));
}

#[test]
fn each_missing_tensor_is_named() {
    let config = config();
    for index in 0..LAYERS {
        for rule in config.layer_tensors(index).iter().filter(|rule| rule.kind == Kind::Required) {
            let mut fragment = layer(&config, index);
            remove(&mut fragment, &rule.name);
            let error = config.check_layer(index, &fragment).unwrap_err();
            let expected = ContractError::MissingTensor { tensor: rule.name.clone(), expected: rule.shape.clone() };
            assert_eq!(error, expected);
        }
    }
    for (input, output, name) in [(true, false, "token_embd.weight"), (false, true, "output_norm.weight")] {
        let error = config.check_boundary(input, output, &fragment(Vec::new())).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("missing"), "{error}");
    }
}

#[test]
fn each_tensor_of_another_shape_or_type_is_named() {
    let config = config();
    for index in [0, 2, 4, 6] {
        for rule in config.layer_tensors(index) {
            let mut swapped = layer(&config, index);
            edit(&mut swapped, &rule.name, |tensor| tensor.shape[0] += 1);
            let error = config.check_layer(index, &swapped).unwrap_err();
            assert!(
                matches!(&error, ContractError::Shape { tensor, expected, .. }
                if *tensor == rule.name && *expected == rule.shape),
                "{error}"
            );

            let mut retyped = layer(&config, index);
            edit(&mut retyped, &rule.name, |tensor| tensor.ty = GgmlType::I32);
            let error = config.check_layer(index, &retyped).unwrap_err();
            assert!(
                matches!(&error, ContractError::Type { tensor, got: GgmlType::I32, .. } if *tensor == rule.name),
                "{error}"
            );
        }
    }
}

#[test]
fn types_that_can_be_used() {
    use GgmlType::*;
    for ty in GgmlType::all() {
        let activation_or_number = matches!(ty, I8 | I16 | I32 | I64 | F64 | Q8_1 | Q8_K);
        assert_eq!(Usage::Matrix.allows(ty), !activation_or_number, "{ty}");
        assert_eq!(Usage::Router.allows(ty), matches!(ty, F32 | F16 | BF16), "{ty}");
        assert_eq!((Usage::Norm.allows(ty), Usage::Bias.allows(ty)), (ty == F32, ty == F32), "{ty}");
    }
}

#[test]
fn trailing_ones_make_no_other_shape() {
    let config = config();
    let mut padded = layer(&config, 2);
    edit(&mut padded, "attn_norm.weight", |tensor| tensor.shape = vec![96, 1, 1]);
    assert!(config.check_layer(2, &padded).is_ok());
    edit(&mut padded, "attn_norm.weight", |tensor| tensor.shape = vec![96, 2]);
    assert!(config.check_layer(2, &padded).is_err());
    edit(&mut padded, "attn_norm.weight", |tensor| tensor.shape = vec![]);
    assert!(config.check_layer(2, &padded).is_err());
}

#[test]
fn a_tensor_that_nothing_computes_with_is_refused() {
    let config = config();
    for (index, name) in [
        (0, "blk.0.attn_q_b.scale"),
        (2, "blk.2.ffn_down_exps.scale"),
        (2, "blk.2.ffn_gate.weight"),
        (2, "blk.2.nextn.enorm.weight"),
        (3, "blk.4.attn_norm.weight"),
        (6, "blk.6.nextn.hc_head_norm.weight"),
    ] {
        let mut fragment = layer(&config, index);
        fragment.tensors.push(tensor(name, &[1]));
        let error = config.check_layer(index, &fragment).unwrap_err();
        assert_eq!(error, ContractError::UnknownTensor { tensor: name.into(), part: format!("layer {index}") });
    }
    let output = fragment(vec![tensor("output_norm.weight", &[96]), tensor("output.scale", &[1])]);
    let error = config.check_boundary(false, true, &output).unwrap_err().to_string();
    assert!(error.contains("`output.scale`, which is no part of the output boundary"), "{error}");
}

#[test]
fn the_unsplit_projection_of_old_files_is_named_as_the_cause() {
    let config = config();
    let mut old = layer(&config, 1);
    remove(&mut old, "attn_k_b.weight");
    remove(&mut old, "attn_v_b.weight");
    old.tensors.push(tensor("blk.1.attn_kv_b.weight", &[32, 416]));
    let message = config.check_layer(1, &old).unwrap_err().to_string();
    assert!(message.contains("`blk.1.attn_kv_b.weight`") && message.contains("repack"), "{message}");
}

#[test]
fn roles_that_contradict_the_tensors_are_refused() {
    let config = config();
    let extra = config.check_layer(2, &by_hand(2, &[ATTENTION, INDEXER, MOE])).unwrap_err().to_string();
    assert!(extra.starts_with("layer 2 is shared by `glm-dsa.attention.indexer.types`"), "{extra}");
    assert!(extra.contains("it has an indexer (tensor `blk.2.indexer."), "{extra}");
    let none = config.check_layer(4, &by_hand(4, &[ATTENTION, MOE])).unwrap_err().to_string();
    assert!(none.contains("layer 4 is full by") && none.contains("it has no indexer"), "{none}");
    // All faults together: the contradiction once, not once for each tensor.
    let (_, faults) = config.layer_faults(2, &by_hand(2, &[ATTENTION, INDEXER, MOE]).tensors);
    assert_eq!(faults.len(), 1);
    let (_, faults) = config.layer_faults(4, &by_hand(4, &[ATTENTION, MOE]).tensors);
    assert_eq!(faults.len(), 1);
    for (index, parts) in [(4, &[ATTENTION, INDEXER, MOE][..]), (6, &[ATTENTION, INDEXER, MOE, NEXTN][..])] {
        for (end, _) in INDEXER {
            let mut partial = by_hand(index, parts);
            remove(&mut partial, end);
            let error = config.check_layer(index, &partial).unwrap_err();
            assert!(matches!(&error, ContractError::MissingTensor { tensor, .. } if tensor.ends_with(end)), "{error}");
        }
    }
}

#[test]
fn a_layer_beyond_the_model_has_no_tensors() {
    let config = config();
    assert_eq!(config.layer_tensors(7), []);
    let error = config.check_layer(7, &fragment(Vec::new())).unwrap_err();
    assert_eq!(error, ContractError::NoSuchLayer { layer: 7, layer_count: 7 });
}

#[test]
fn the_documentation_names_every_tensor_and_key() {
    let page = include_str!("../../../../docs/glm-dsa-contract.md");
    let config = config();
    let layers = (0..LAYERS).flat_map(|layer| config.layer_tensors(layer));
    for rule in layers.chain(config.boundary_tensors(true, true)) {
        let end =
            rule.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(&*rule.name, |(_, end)| end);
        assert!(page.contains(&format!("`{end}`")), "{end}");
    }
    let model = metadata();
    for key in model
        .iter()
        .filter_map(|(key, _)| key.strip_prefix("glm-dsa."))
        .filter(|key| !key.ends_with("group_used_count"))
    {
        assert!(page.contains(&format!("`{key}`")), "{key}");
    }
}
