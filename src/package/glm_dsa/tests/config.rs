//! Metadata: what is read, and every way it can be refused.

use super::*;
use crate::{
    gguf::{Array, Metadata, Value},
    policy::Role::{Full, Shared},
    stage::families::is_full_indexer_layer,
};

fn with(suffix: &str, value: impl Into<Value>) -> Metadata {
    let mut metadata = metadata();
    metadata.set(format!("glm-dsa.{suffix}"), value);
    metadata
}

fn without(suffix: &str) -> Metadata {
    let mut metadata = metadata();
    assert!(metadata.remove(&format!("glm-dsa.{suffix}")).is_some(), "{suffix}");
    metadata
}

fn refused(metadata: &Metadata) -> String {
    Config::read(metadata, LAYERS).expect_err("refused").to_string()
}

#[test]
fn a_whole_model_is_read() {
    let config = config();
    assert_eq!(config.arch, Arch::GlmDsa);
    assert_eq!((config.layer_count, config.trunk_layers, config.nextn_layers), (7, 6, 1));
    assert_eq!((config.n_embd, config.n_vocab, config.context_length), (96, 512, 4096));
    assert_eq!((config.n_head, config.q_lora, config.kv_lora), (4, 128, 32));
    assert_eq!((config.rope_dim, config.nope_dim, config.v_dim), (16, 64, 40));
    assert_eq!((config.indexer_heads, config.indexer_dim, config.top_k), (16, 64, 24));
    assert_eq!((config.dense_lead, config.n_ff), (2, 224));
    assert_eq!((config.n_expert, config.n_expert_used, config.n_expert_shared, config.n_ff_exp), (8, 2, 1, 56));
    assert_eq!((config.expert_scale, config.expert_norm, config.expert_gating), (2.5, true, Gating::Sigmoid));
    assert_eq!(config.rms_eps, 1e-6);
    let rope = Rope { theta: 10000.0, scaling: Scaling::None, indexer: IndexerRope::Interleaved };
    assert_eq!(config.rope, rope);
    assert_eq!(config.roles, [Full, Full, Shared, Shared, Full, Shared, Full]);
    assert_eq!((config.head_dim(), config.kv_row(), config.sideband_bytes_per_token()), (80, 48, 96));
    assert_eq!(config.score_scale(), 1.0 / 80f32.sqrt());
    assert!(config.is_mtp(6) && !config.is_mtp(5) && !config.is_mtp(7));
    assert!(config.is_dense(1) && !config.is_dense(2));
}

#[test]
fn the_other_architecture_has_an_indexer_on_every_layer() {
    let config = Config::read(&deepseek32(), LAYERS).unwrap();
    assert_eq!((config.arch, config.rope.indexer), (Arch::DeepSeek32, IndexerRope::HalfSplit));
    assert_eq!(config.roles, [Full; 7]);
    let mut metadata = deepseek32();
    let types = Array::Bool(vec![true, true, true, false, true, true]);
    metadata.set("deepseek32.attention.indexer.types", Value::Array(types));
    assert!(refused(&metadata).contains("expected true for layer 3"), "{}", refused(&metadata));
    let mut metadata = deepseek32();
    metadata.remove("deepseek32.expert_gating_func");
    assert!(refused(&metadata).contains("expert_gating_func` is missing"), "no default there");
}

/// Every key without which the model cannot be computed.
const REQUIRED: &[&str] = &[
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "attention.q_lora_rank",
    "attention.kv_lora_rank",
    "attention.layer_norm_rms_epsilon",
    "attention.indexer.head_count",
    "attention.indexer.key_length",
    "attention.indexer.top_k",
    "rope.dimension_count",
    "rope.freq_base",
    "expert_count",
    "expert_used_count",
    "expert_shared_count",
    "expert_feed_forward_length",
    "expert_weights_scale",
    "expert_weights_norm",
];

#[test]
fn each_absent_required_key_is_named() {
    for key in REQUIRED {
        let error = Config::read(&without(key), LAYERS).unwrap_err();
        assert!(
            matches!(&error, ContractError::MissingKey { key: got, .. } if *got == format!("glm-dsa.{key}")),
            "{error}"
        );
    }
    for key in ["expert_weights_scale", "expert_weights_norm"] {
        assert!(refused(&without(key)).contains("silently wrong"), "{key}");
    }
    let mut metadata = metadata();
    metadata.remove("tokenizer.ggml.tokens");
    assert!(refused(&metadata).contains("`glm-dsa.vocab_size` is missing"));
    metadata.set("glm-dsa.vocab_size", Value::U32(77));
    assert_eq!(Config::read(&metadata, LAYERS).unwrap().n_vocab, 77);
    metadata.remove("general.architecture");
    assert!(refused(&metadata).contains("`general.architecture` is missing"));
}

#[test]
fn each_required_key_of_another_type_is_refused() {
    for key in REQUIRED {
        for value in
            [Value::Str("12".into()), Value::I32(-1), Value::Array(Array::Str(Vec::new())), Value::F32(f32::NAN)]
        {
            let error = Config::read(&with(key, value.clone()), LAYERS).unwrap_err();
            assert!(
                matches!(&error, ContractError::Key { key: got, .. } if *got == format!("glm-dsa.{key}")),
                "{error}"
            );
        }
    }
}

#[test]
fn keys_that_may_be_absent() {
    for key in ["expert_gating_func", "expert_group_count", "expert_group_used_count", "attention.value_length"] {
        assert_eq!(Config::read(&without(key), LAYERS).unwrap(), config(), "{key}");
    }
    let no_dense = Config::read(&without("leading_dense_block_count"), LAYERS).unwrap();
    assert_eq!((no_dense.dense_lead, no_dense.n_ff), (0, 0));
    let mut all_dense = with("leading_dense_block_count", Value::U32(6));
    for key in ["nextn_predict_layers", "expert_count", "expert_weights_scale", "attention.indexer.types"] {
        all_dense.remove(&format!("glm-dsa.{key}"));
    }
    all_dense.set("glm-dsa.block_count", Value::U32(6));
    let all_dense = Config::read(&all_dense, 6).unwrap();
    assert_eq!((all_dense.nextn_layers, all_dense.n_expert, all_dense.n_ff), (0, 0, 224), "no experts, no expert keys");
}

#[test]
fn a_number_for_each_layer_counts_when_all_are_the_same() {
    let per_layer = |values: Vec<u32>| Config::read(&with("attention.head_count", Array::U32(values)), LAYERS);
    assert_eq!(per_layer(vec![4; 7]).unwrap(), config());
    for values in [vec![4; 6], vec![4, 4, 4, 8, 4, 4, 4], vec![0; 7], vec![]] {
        let error = per_layer(values.clone()).unwrap_err().to_string();
        assert!(error.contains("one for all layers or the same for each of 7"), "{values:?}: {error}");
    }
}

#[test]
fn values_out_of_range_are_refused_with_got_and_expected() {
    let cases: &[(&str, Value, &[&str])] = &[
        ("block_count", Value::U32(8), &["u32 8", "7, the layers of the package"]),
        ("block_count", Value::U32(100_000), &["u32 100000", "1 to 512"]),
        ("nextn_predict_layers", Value::U32(2), &["u32 2", "0 to 1"]),
        ("leading_dense_block_count", Value::U32(7), &["u32 7", "0 to 6"]),
        ("embedding_length", Value::U64(1 << 40), &["u64 1099511627776", "1 to 1048576"]),
        ("embedding_length", Value::U32(0), &["u32 0"]),
        ("attention.head_count_kv", Value::U32(4), &["u32 4", "expected 1"]),
        ("attention.key_length", Value::U32(64), &["u32 64", "48, `kv_lora_rank` + `rope.dimension_count`"]),
        ("attention.value_length", Value::U32(40), &["u32 40", "32, `kv_lora_rank`"]),
        ("attention.key_length_mla", Value::U32(16), &["u32 16", "17 to"]),
        ("rope.dimension_count", Value::U32(15), &["u32 15", "an even number"]),
        ("rope.dimension_count", Value::U32(0), &["u32 0", "2 to"]),
        ("rope.freq_base", Value::F32(0.0), &["f32 0", "above 0"]),
        ("rope.freq_base", Value::F64(1e300), &["f64", "finite"]),
        ("attention.layer_norm_rms_epsilon", Value::F32(-1.0), &["f32 -1", "above 0"]),
        ("attention.indexer.head_count", Value::U32(0), &["u32 0"]),
        ("attention.indexer.top_k", Value::U32(0), &["u32 0", "1 to"]),
        ("attention.indexer.key_length", Value::U32(96), &["u32 96", "64 times a power of two"]),
        ("attention.indexer.key_length", Value::U32(32), &["u32 32", "64 times a power of two"]),
        ("attention.indexer.key_length", Value::U32(192), &["u32 192", "64 times a power of two"]),
        ("expert_used_count", Value::U32(9), &["u32 9", "1 to 8"]),
        ("expert_shared_count", Value::U32(0), &["u32 0"]),
        ("expert_weights_scale", Value::F32(0.0), &["f32 0", "above 0"]),
        ("expert_weights_norm", Value::U8(1), &["u8 1", "a bool"]),
        ("expert_gating_func", Value::U32(1), &["u32 1", "2 (sigmoid)", "softmax gating is not supported"]),
        ("expert_gating_func", Value::U32(4), &["u32 4", "2 (sigmoid)"]),
        ("expert_gating_func", Value::Str("sigmoid".into()), &["\"sigmoid\"", "2 (sigmoid)"]),
        ("expert_group_count", Value::U32(8), &["u32 8", "0 to 1"]),
    ];
    for (key, value, words) in cases {
        let message = refused(&with(key, value.clone()));
        assert!(message.contains(&format!("`glm-dsa.{key}`")), "{key}: {message}");
        for word in *words {
            assert!(message.contains(word), "{key} = {value:?}: {message} lacks {word}");
        }
    }
    for dim in [64u32, 128, 256, 1024] {
        assert!(Config::read(&with("attention.indexer.key_length", Value::U32(dim)), LAYERS).is_ok(), "{dim}");
    }
    let mut wide = with("rope.dimension_count", Value::U32(66));
    wide.set("glm-dsa.attention.key_length", Value::U32(98));
    assert!(refused(&wide).contains("at least the 66 rotated elements"), "{}", refused(&wide));
    for arch in [Value::Str("llama".into()), Value::U32(1)] {
        let mut metadata = metadata();
        metadata.set("general.architecture", arch);
        assert!(refused(&metadata).contains("expected \"glm-dsa\" or \"deepseek32\""));
    }
}

#[test]
fn roles_are_stated_for_each_trunk_layer_or_refused() {
    let stated = |types: Array| Config::read(&with("attention.indexer.types", types), LAYERS);
    let as_numbers = [1, 1, 0, 0, 1, 0];
    assert_eq!(stated(Array::U32(as_numbers.to_vec())).unwrap().roles, config().roles);
    assert_eq!(stated(Array::I32(as_numbers.map(|n| n as i32).to_vec())).unwrap().roles, config().roles);
    let cases: [(Array, &str); 7] = [
        (Array::Bool(vec![true; 7]), "an array of 7 bool"),
        (Array::Bool(vec![true; 5]), "each of the 6 trunk layers"),
        (Array::Bool(vec![false, true, false, false, true, false]), "true for layer 0"),
        (Array::U32(vec![1, 2, 0, 0, 1, 0]), "not 2"),
        (Array::I32(vec![1, -1, 0, 0, 1, 0]), "not -1"),
        (Array::F32(vec![1.0; 6]), "an array of 6 f32"),
        (Array::Str(vec!["full".into(); 6]), "an array of 6 string"),
    ];
    for (types, word) in cases {
        let error = stated(types).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("attention.indexer.types"), "{word}: {error}");
    }
    let message = refused(&with("attention.indexer.types", Value::Bool(true)));
    assert!(message.contains("bool true") && message.contains("an array of bool"), "{message}");
}

#[test]
fn default_roles_are_those_of_the_cut_rules() {
    for context in [4096u32, 1 << 20] {
        for layers in [7u32, 79] {
            let mut metadata = without("attention.indexer.types");
            metadata.set("glm-dsa.context_length", Value::U32(context));
            metadata.set("glm-dsa.block_count", Value::U32(layers));
            let config = Config::read(&metadata, layers).unwrap();
            let full = |layer| is_full_indexer_layer(&metadata, layers, layer);
            let expected: Vec<_> = (0..layers).map(|layer| if full(layer) { Full } else { Shared }).collect();
            assert_eq!(config.roles, expected, "context {context}, {layers} layers");
            assert_eq!(expected.contains(&Shared), context == 1 << 20);
        }
    }
}

#[test]
fn yarn_is_read_and_other_scalings_are_refused() {
    let scaled = |keys: &[(&str, Value)]| {
        let mut metadata = metadata();
        for (key, value) in keys {
            metadata.set(format!("glm-dsa.rope.scaling.{key}"), value.clone());
        }
        metadata
    };
    let yarn = ("type", Value::Str("yarn".into()));
    let rope = |keys: &[(&str, Value)]| Config::read(&scaled(keys), LAYERS).unwrap().rope;

    let plain = rope(&[yarn.clone(), ("factor", Value::F32(4.0))]);
    let expected = Yarn {
        factor: 4.0,
        original_context: 4096,
        ext_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        log_multiplier: 0.0,
        attn_factor: 1.0,
    };
    assert_eq!(plain.scaling, Scaling::Yarn(expected));
    assert_eq!((plain.freq_scale(), plain.ext_factor(), plain.attn_factor()), (0.25, 1.0, 1.0));
    let magnitude = 1.0 + 0.1 * 4f32.ln();
    assert!((plain.score_factor() - magnitude * magnitude).abs() < 1e-6);

    // The values of DeepSeek-V3.2: mscale_all_dim 1 undoes the magnitude of the rotated part and puts it on the scores.
    let deepseek = rope(&[
        yarn.clone(),
        ("factor", Value::F32(40.0)),
        ("original_context_length", Value::U32(2048)),
        ("yarn_log_multiplier", Value::F32(0.1)),
    ]);
    let magnitude = 1.0 + 0.1 * 40f32.ln();
    assert!((deepseek.attn_factor() * magnitude - 1.0).abs() < 1e-6);
    assert!((deepseek.score_factor() - magnitude * magnitude).abs() < 1e-5);
    assert!(matches!(deepseek.scaling, Scaling::Yarn(Yarn { original_context: 2048, .. })));

    assert_eq!(rope(&[("type", Value::Str("none".into())), ("factor", Value::F32(4.0))]).scaling, Scaling::None);
    assert_eq!(rope(&[("factor", Value::F32(1.0))]).scaling, Scaling::None);
    let refusals: [(Vec<(&str, Value)>, &str); 7] = [
        (vec![yarn.clone()], "rope.scaling.factor` is missing"),
        (vec![yarn.clone(), ("factor", Value::F32(0.5))], "1 to 1000000"),
        (vec![yarn.clone(), ("factor", Value::F32(2.0)), ("yarn_ext_factor", Value::F32(-1.0))], "0 to 1"),
        (vec![("factor", Value::F32(4.0))], "expected 1 without"),
        (vec![("attn_factor", Value::F32(2.0))], "expected 1 without"),
        (vec![("type", Value::Str("longrope".into()))], "is \"longrope\", expected \"none\" or \"yarn\""),
        (vec![("type", Value::U32(2))], "is u32 2"),
    ];
    for (keys, word) in refusals {
        let message = refused(&scaled(&keys));
        assert!(message.contains(word), "{message} lacks {word}");
    }
}
