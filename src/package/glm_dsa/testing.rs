//! A tiny GLM-DSA model for tests. All its sizes differ, so that a swapped dimension shows.

use super::Config;
use crate::gguf::{Array, GgmlType, Gguf, GgufString, Metadata, TensorInfo, Value};

/// Layers, MTP block counted.
pub(crate) const LAYERS: u32 = 7;

/// Metadata: 6 trunk layers (full, full, shared, shared, full, shared), the first 2 dense, and an MTP block.
pub(crate) fn metadata() -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", "glm-dsa");
    let numbers = [
        ("block_count", LAYERS),
        ("context_length", 4096),
        ("embedding_length", 96),
        ("feed_forward_length", 224),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 48),
        ("attention.value_length", 32),
        ("attention.key_length_mla", 80),
        ("attention.value_length_mla", 40),
        ("attention.q_lora_rank", 128),
        ("attention.kv_lora_rank", 32),
        ("attention.indexer.head_count", 16),
        ("attention.indexer.key_length", 64),
        ("attention.indexer.top_k", 24),
        ("rope.dimension_count", 16),
        ("leading_dense_block_count", 2),
        ("nextn_predict_layers", 1),
        ("expert_count", 8),
        ("expert_used_count", 2),
        ("expert_shared_count", 1),
        ("expert_feed_forward_length", 56),
        ("expert_group_count", 1),
        ("expert_group_used_count", 1),
        ("expert_gating_func", 2),
    ];
    for (key, number) in numbers {
        metadata.set(format!("glm-dsa.{key}"), Value::U32(number));
    }
    metadata.set("glm-dsa.rope.freq_base", Value::F32(10000.0));
    metadata.set("glm-dsa.attention.layer_norm_rms_epsilon", Value::F32(1e-6));
    metadata.set("glm-dsa.expert_weights_scale", Value::F32(2.5));
    metadata.set("glm-dsa.expert_weights_norm", Value::Bool(true));
    let types = vec![true, true, false, false, true, false];
    metadata.set("glm-dsa.attention.indexer.types", Value::Array(Array::Bool(types)));
    let tokens = (0..512).map(|id| GgufString::from(format!("t{id}"))).collect();
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::Str(tokens)));
    metadata
}

/// The same as a `deepseek32` model, where every layer is full.
pub(crate) fn deepseek32() -> Metadata {
    let renamed = |key: &str| key.replacen("glm-dsa.", "deepseek32.", 1);
    let mut metadata: Metadata = metadata().iter().map(|(key, value)| (renamed(key), value.clone())).collect();
    metadata.set("general.architecture", "deepseek32");
    metadata.remove("deepseek32.attention.indexer.types");
    metadata
}

/// The parsed metadata.
pub(crate) fn config() -> Config {
    Config::read(&metadata(), LAYERS).unwrap()
}

/// A tensor of type F32.
pub(crate) fn tensor(name: &str, shape: &[u64]) -> TensorInfo {
    let n_bytes = GgmlType::F32.tensor_bytes(shape).unwrap();
    TensorInfo { name: name.into(), shape: shape.into(), ty: GgmlType::F32, offset: 0, n_bytes }
}

/// A fragment of these tensors.
pub(crate) fn fragment(tensors: Vec<TensorInfo>) -> Gguf {
    Gguf { version: 3, alignment: 32, metadata: Metadata::default(), tensors, data_start: 0 }
}

/// The fragment of a layer with every tensor that it may have.
pub(crate) fn layer(config: &Config, layer: u32) -> Gguf {
    fragment(config.layer_tensors(layer).iter().map(|rule| tensor(&rule.name, &rule.shape)).collect())
}
