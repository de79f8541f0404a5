//! Tiny models with random weights, one for each architecture whose cuts are certified without a real model.

use skippy_stage::gguf::{Array, GgmlType, GgufWriter, Metadata, TensorSpec, Value};
use std::{fs::File, io::BufWriter, path::Path};

/// Layers of every random model (the MTP block of GLM-DSA counted).
pub(crate) const LAYERS: u32 = 7;
/// Tokens of its vocabulary.
pub(crate) const VOCAB: u64 = 128;

const WIDTH: u64 = 64;
const HEADS: u64 = 4;
const KV_HEADS: u64 = 2;
const HEAD: u64 = 16;
const FFN: u64 = 96;
const EXPERTS: u64 = 4;

/// Writes the model of `arch` to `path`.
pub(crate) fn write(arch: &str, path: &Path) {
    write_edited(arch, path, |_, _| {});
}

/// The same after `edit` has changed its metadata and tensors.
pub(crate) fn write_edited(arch: &str, path: &Path, edit: impl FnOnce(&mut Metadata, &mut Vec<TensorSpec>)) {
    let mut model = Model::new(arch);
    match arch {
        "llama" | "qwen2" | "qwen3" | "qwen3moe" => model.grouped_query(),
        "glm-dsa" => model.sparse(16, 4, &[true, true, false, false, true, false]),
        // Cache rows of whole blocks of 32, and so many indexer heads that no row scores 0 in all of them: who breaks such
        // a tie in another way than we do selects other rows.
        "deepseek32" => model.sparse(32, 16, &[true; 6]),
        other => panic!("no random model of `{other}`"),
    }
    edit(&mut model.metadata, &mut model.tensors);
    model.write(path);
}

struct Model {
    arch: String,
    metadata: Metadata,
    tensors: Vec<TensorSpec>,
}

impl Model {
    fn new(arch: &str) -> Self {
        let mut model = Self { arch: arch.into(), metadata: Metadata::default(), tensors: Vec::new() };
        model.metadata.set("general.architecture", arch);
        // No tokenizer: the engine needs ids only.
        model.metadata.set("tokenizer.ggml.model", "no_vocab");
        for (key, value) in [
            ("block_count", u64::from(LAYERS)),
            ("context_length", 256),
            ("embedding_length", WIDTH),
            ("feed_forward_length", FFN),
            ("attention.head_count", HEADS),
            ("vocab_size", VOCAB),
        ] {
            model.set(key, value);
        }
        model.float("attention.layer_norm_rms_epsilon", 1e-6);
        model.float("rope.freq_base", 10_000.0);
        model.tensor("token_embd.weight", &[WIDTH, VOCAB]);
        model.tensor("output_norm.weight", &[WIDTH]);
        model.tensor("output.weight", &[WIDTH, VOCAB]);
        model
    }

    fn set(&mut self, key: &str, value: u64) {
        self.metadata.set(format!("{}.{key}", self.arch), Value::U32(value as u32));
    }

    fn float(&mut self, key: &str, value: f32) {
        self.metadata.set(format!("{}.{key}", self.arch), Value::F32(value));
    }

    fn tensor(&mut self, name: &str, shape: &[u64]) {
        self.tensors.push(TensorSpec { name: name.into(), shape: shape.to_vec(), ty: GgmlType::F32 });
    }

    fn block(&mut self, layer: u32, tensors: &[(&str, &[u64])]) {
        for (name, shape) in tensors {
            self.tensor(&format!("blk.{layer}.{name}"), shape);
        }
    }

    /// Grouped-query attention with a gated feed-forward network, dense or of experts.
    fn grouped_query(&mut self) {
        let arch = self.arch.clone();
        self.set("attention.head_count_kv", KV_HEADS);
        self.set("rope.dimension_count", HEAD);
        if arch.starts_with("qwen3") {
            self.set("attention.key_length", HEAD);
            self.set("attention.value_length", HEAD);
        }
        if arch == "qwen3moe" {
            self.set("expert_count", EXPERTS);
            self.set("expert_used_count", 2);
            self.set("expert_feed_forward_length", FFN);
        }
        for layer in 0..LAYERS {
            self.block(
                layer,
                &[
                    ("attn_norm.weight", &[WIDTH]),
                    ("attn_q.weight", &[WIDTH, HEADS * HEAD]),
                    ("attn_k.weight", &[WIDTH, KV_HEADS * HEAD]),
                    ("attn_v.weight", &[WIDTH, KV_HEADS * HEAD]),
                    ("attn_output.weight", &[HEADS * HEAD, WIDTH]),
                    ("ffn_norm.weight", &[WIDTH]),
                ],
            );
            match arch.as_str() {
                "qwen2" => self.block(
                    layer,
                    &[
                        ("attn_q.bias", &[HEADS * HEAD]),
                        ("attn_k.bias", &[KV_HEADS * HEAD]),
                        ("attn_v.bias", &[KV_HEADS * HEAD]),
                    ],
                ),
                "qwen3" | "qwen3moe" => {
                    self.block(layer, &[("attn_q_norm.weight", &[HEAD]), ("attn_k_norm.weight", &[HEAD])]);
                }
                _ => {}
            }
            match arch.as_str() {
                "qwen3moe" => self.experts(layer, WIDTH, FFN),
                _ => self.dense(layer, WIDTH, FFN),
            }
        }
    }

    fn dense(&mut self, layer: u32, width: u64, ffn: u64) {
        self.block(
            layer,
            &[("ffn_gate.weight", &[width, ffn]), ("ffn_up.weight", &[width, ffn]), ("ffn_down.weight", &[ffn, width])],
        );
    }

    fn experts(&mut self, layer: u32, width: u64, ffn: u64) {
        self.block(
            layer,
            &[
                ("ffn_gate_inp.weight", &[width, EXPERTS]),
                ("ffn_gate_exps.weight", &[width, ffn, EXPERTS]),
                ("ffn_up_exps.weight", &[width, ffn, EXPERTS]),
                ("ffn_down_exps.weight", &[ffn, width, EXPERTS]),
            ],
        );
    }

    /// Layers that are `full` own an indexer, the others share; layer 6 is the MTP block; 0 and 1 are dense. Sizes differ
    /// on purpose, so that a swapped dimension shows.
    fn sparse(&mut self, rope: u64, indexer_heads: u64, full: &[bool; 6]) {
        const Q_LORA: u64 = 80;
        const KV_LORA: u64 = 32;
        const NOPE: u64 = 48;
        const VALUE: u64 = 40;
        const INDEXER: u64 = 64;
        for (key, value) in [
            ("attention.head_count_kv", 1),
            ("attention.q_lora_rank", Q_LORA),
            ("attention.kv_lora_rank", KV_LORA),
            ("attention.key_length", KV_LORA + rope),
            ("attention.value_length", KV_LORA),
            ("attention.key_length_mla", NOPE + rope),
            ("attention.value_length_mla", VALUE),
            ("rope.dimension_count", rope),
            ("attention.indexer.head_count", indexer_heads),
            ("attention.indexer.key_length", INDEXER),
            ("attention.indexer.top_k", 8),
            ("leading_dense_block_count", 2),
            ("expert_count", EXPERTS),
            ("expert_used_count", 2),
            ("expert_shared_count", 1),
            ("expert_feed_forward_length", 32),
            ("nextn_predict_layers", 1),
        ] {
            self.set(key, value);
        }
        self.float("expert_weights_scale", 2.5);
        self.set("expert_gating_func", 2);
        self.metadata.set(format!("{}.expert_weights_norm", self.arch), Value::Bool(true));
        if full.contains(&false) {
            let types = Value::Array(Array::Bool(full.to_vec()));
            self.metadata.set(format!("{}.attention.indexer.types", self.arch), types);
        }
        for layer in 0..LAYERS {
            self.block(
                layer,
                &[
                    ("attn_norm.weight", &[WIDTH]),
                    ("attn_q_a.weight", &[WIDTH, Q_LORA]),
                    ("attn_q_a_norm.weight", &[Q_LORA]),
                    ("attn_q_b.weight", &[Q_LORA, HEADS * (NOPE + rope)]),
                    ("attn_kv_a_mqa.weight", &[WIDTH, KV_LORA + rope]),
                    ("attn_kv_a_norm.weight", &[KV_LORA]),
                    ("attn_k_b.weight", &[NOPE, KV_LORA, HEADS]),
                    ("attn_v_b.weight", &[KV_LORA, VALUE, HEADS]),
                    ("attn_output.weight", &[HEADS * VALUE, WIDTH]),
                    ("ffn_norm.weight", &[WIDTH]),
                ],
            );
            if full.get(layer as usize).copied().unwrap_or(true) {
                self.block(
                    layer,
                    &[
                        ("indexer.k_norm.weight", &[INDEXER]),
                        ("indexer.k_norm.bias", &[INDEXER]),
                        ("indexer.proj.weight", &[WIDTH, indexer_heads]),
                        ("indexer.attn_k.weight", &[WIDTH, INDEXER]),
                        ("indexer.attn_q_b.weight", &[Q_LORA, indexer_heads * INDEXER]),
                    ],
                );
            }
            if layer < 2 {
                self.dense(layer, WIDTH, FFN);
            } else {
                self.experts(layer, WIDTH, 32);
                self.block(
                    layer,
                    &[
                        ("exp_probs_b.bias", &[EXPERTS]),
                        ("ffn_gate_shexp.weight", &[WIDTH, 32]),
                        ("ffn_up_shexp.weight", &[WIDTH, 32]),
                        ("ffn_down_shexp.weight", &[32, WIDTH]),
                    ],
                );
            }
        }
        self.block(
            LAYERS - 1,
            &[
                ("nextn.eh_proj.weight", &[2 * WIDTH, WIDTH]),
                ("nextn.enorm.weight", &[WIDTH]),
                ("nextn.hnorm.weight", &[WIDTH]),
                ("nextn.shared_head_norm.weight", &[WIDTH]),
            ],
        );
    }

    fn write(&self, path: &Path) {
        let out = BufWriter::new(File::create(path).unwrap());
        let mut writer = GgufWriter::new(out, &self.metadata, &self.tensors, 32).unwrap();
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for tensor in &self.tensors {
            let count: u64 = tensor.shape.iter().product();
            // Norm weights near 1, others scaled so that activations neither vanish nor explode.
            let (offset, scale) = match tensor.name.contains("norm.weight") {
                true => (1.0, 0.2),
                false => (0.0, 1.7 / (tensor.shape[0] as f32).sqrt()),
            };
            let bytes: Vec<u8> = (0..count).flat_map(|_| (offset + scale * random.next()).to_le_bytes()).collect();
            writer.write_tensor(&bytes).unwrap();
        }
        writer.finish().unwrap();
    }
}

/// Numbers in -1..1, the same ones each time (xorshift64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}
