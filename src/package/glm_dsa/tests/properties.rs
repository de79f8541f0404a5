//! A valid model with one thing changed is either still valid or refused with an error, and never ends the process.

use proptest::prelude::*;

use super::*;
use crate::gguf::{Array, GgmlType, GgufString, Metadata, Value};

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u32>().prop_map(Value::U32),
        (0u32..1030).prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        ".{0,12}".prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(|bytes| Value::Str(GgufString::from(bytes))),
        prop::collection::vec(any::<bool>(), 0..9).prop_map(|items| Value::Array(Array::Bool(items))),
        prop::collection::vec(0u32..3, 0..9).prop_map(|items| Value::Array(Array::U32(items))),
        prop::collection::vec(any::<i32>(), 0..9).prop_map(|items| Value::Array(Array::I32(items))),
        prop::collection::vec(any::<f32>(), 0..9).prop_map(|items| Value::Array(Array::F32(items))),
    ]
}

/// A key of the model, or one that is read when present.
fn key() -> impl Strategy<Value = String> {
    let mut keys: Vec<String> = metadata().iter().map(|(key, _)| key.to_owned()).collect();
    let scaling = ["type", "factor", "original_context_length", "attn_factor", "yarn_ext_factor", "yarn_beta_fast"];
    keys.extend(scaling.map(|key| format!("glm-dsa.rope.scaling.{key}")));
    keys.extend(["glm-dsa.vocab_size".into(), "glm-dsa.rope.scale_linear".into()]);
    prop::sample::select(keys)
}

/// What a model that was read must promise, whatever it was read from.
fn holds(config: &Config) {
    assert_eq!(config.roles.len(), config.layer_count as usize);
    assert_eq!(config.trunk_layers + config.nextn_layers, config.layer_count);
    assert_eq!(config.roles.first(), Some(&crate::policy::Role::Full));
    assert!(config.indexer_dim.is_multiple_of(64) && config.indexer_dim >= config.rope_dim && config.top_k > 0);
    assert!(
        config.score_scale().is_finite() && config.rope.attn_factor().is_finite() && config.rope.freq_scale() > 0.0
    );
    for layer in 0..config.layer_count {
        let rules = config.layer_tensors(layer);
        assert!(!rules.is_empty());
        assert!(rules.iter().all(|rule| rule.shape.iter().all(|dim| *dim > 0)), "layer {layer}");
    }
}

proptest! {
    #[test]
    fn one_changed_key(key in key(), value in value(), layers in prop_oneof![Just(LAYERS), 0u32..9, any::<u32>()]) {
        let mut metadata = metadata();
        metadata.set(key, value);
        match Config::read(&metadata, layers) {
            Ok(config) => holds(&config),
            Err(error) => prop_assert!(!error.to_string().contains('\n'), "{error}"),
        }
    }

    #[test]
    fn any_two_keys_absent(first in key(), second in key()) {
        let mut metadata: Metadata = metadata();
        metadata.remove(&first);
        metadata.remove(&second);
        if let Ok(config) = Config::read(&metadata, LAYERS) {
            holds(&config);
        }
    }

    #[test]
    fn one_changed_tensor(
        index in 0u32..8,
        at in any::<prop::sample::Index>(),
        name in prop_oneof![Just(None), "(blk\\.[0-9]\\.)?[a-z_.\n]{0,20}".prop_map(Some)],
        shape in prop::option::of(prop::collection::vec(any::<u64>(), 0..5)),
        ty in prop::option::of(prop::sample::select(GgmlType::all().collect::<Vec<_>>())),
        twice in any::<bool>(),
    ) {
        let config = config();
        let mut fragment = layer(&config, index);
        let before = fragment.clone();
        if !fragment.tensors.is_empty() {
            let at = at.index(fragment.tensors.len());
            let tensor = &mut fragment.tensors[at];
            if let Some(name) = name { tensor.name = name; }
            if let Some(shape) = shape { tensor.shape = shape; }
            if let Some(ty) = ty { tensor.ty = ty; }
            if twice { fragment.tensors.push(fragment.tensors[at].clone()); }
        }
        match config.check_layer(index, &fragment) {
            Ok(layout) => prop_assert_eq!(layout.layer, index),
            Err(error) => {
                prop_assert!(!error.to_string().contains('\n'), "{error}");
                prop_assert!(fragment != before || index >= LAYERS, "unchanged, but {error}");
            }
        }
        let _ = config.check_boundary(index % 2 == 0, index % 3 == 0, &fragment);
    }
}
