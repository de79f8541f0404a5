//! The tensors of every part of a model, with their exact shapes.

use super::Config;
use crate::{gguf::GgmlType, policy::Role};

/// One tensor that a part of the model has or may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRule {
    /// Full name, such as `blk.3.attn_q_a.weight`.
    pub name: String,
    /// Shape in ggml's order: row length first.
    pub shape: Vec<u64>,
    /// Whether it must be there.
    pub kind: Kind,
    /// What it is used for, and so which types it may have.
    pub usage: Usage,
}

/// Whether a tensor must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It must.
    Required,
    /// Another tensor of the model stands in for it.
    Optional,
}

/// What a tensor is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Multiplied with rows, or rows are looked up in it.
    Matrix,
    /// Weight of a norm.
    Norm,
    /// Added to rows.
    Bias,
    /// The router: a small matrix on whose exactness the choice of experts depends.
    Router,
}

impl Usage {
    /// Whether a tensor of this type can be used so.
    pub fn allows(self, ty: GgmlType) -> bool {
        use GgmlType::*;
        match self {
            // ggml has no product with integers or doubles, and Q8_1 and Q8_K are types of activations.
            Self::Matrix => !matches!(ty, I8 | I16 | I32 | I64 | F64 | Q8_1 | Q8_K),
            Self::Norm | Self::Bias => ty == F32,
            Self::Router => matches!(ty, F32 | F16 | BF16),
        }
    }

    /// The types that can be used so, in words.
    pub fn types(self) -> &'static str {
        match self {
            Self::Matrix => "f32, f16, bf16 or a quantized type for weights",
            Self::Norm | Self::Bias => "f32",
            Self::Router => "f32, f16 or bf16",
        }
    }
}

/// End of the name, shape, use.
type Row = (&'static str, Vec<u64>, Usage);

impl Config {
    /// The tensors of a layer: attention, the indexer on a full layer, the feed-forward part, and the frame of the MTP
    /// block. The MTP block may lack the whole indexer. Empty for a layer that the model does not have.
    pub fn layer_tensors(&self, layer: u32) -> Vec<TensorRule> {
        let Some(role) = self.role(layer) else { return Vec::new() };
        let (mut required, mut optional) = (self.attention_rows(), Vec::new());
        match role {
            Role::Full if self.is_mtp(layer) => optional.extend(self.indexer_rows()),
            Role::Full => required.extend(self.indexer_rows()),
            Role::Shared => {}
        }
        required.extend(if self.is_dense(layer) { self.dense_rows() } else { self.moe_rows() });
        if self.is_mtp(layer) {
            let (n_embd, n_vocab) = (u64::from(self.n_embd), u64::from(self.n_vocab));
            required.extend([
                ("nextn.eh_proj.weight", vec![2 * n_embd, n_embd], Usage::Matrix),
                ("nextn.enorm.weight", vec![n_embd], Usage::Norm),
                ("nextn.hnorm.weight", vec![n_embd], Usage::Norm),
            ]);
            // The model's embeddings, output norm and head stand in for these.
            optional.extend([
                ("nextn.embed_tokens.weight", vec![n_embd, n_vocab], Usage::Matrix),
                ("nextn.shared_head_norm.weight", vec![n_embd], Usage::Norm),
                ("nextn.shared_head_head.weight", vec![n_embd, n_vocab], Usage::Matrix),
            ]);
        }
        let rules = |rows: Vec<Row>, kind| {
            let rule = move |(name, shape, usage)| TensorRule { name: layer_tensor(layer, name), shape, kind, usage };
            rows.into_iter().map(rule)
        };
        rules(required, Kind::Required).chain(rules(optional, Kind::Optional)).collect()
    }

    /// The tensors of the input boundary (`shared/embeddings.gguf`) and the output boundary (`shared/output.gguf`). A
    /// model without an output head multiplies with its embeddings.
    pub fn boundary_tensors(&self, input: bool, output: bool) -> Vec<TensorRule> {
        let (n_embd, n_vocab) = (u64::from(self.n_embd), u64::from(self.n_vocab));
        let rule =
            |name: &str, shape: &[u64], kind, usage| TensorRule { name: name.into(), shape: shape.into(), kind, usage };
        let mut rules = Vec::new();
        if input {
            rules.push(rule("token_embd.weight", &[n_embd, n_vocab], Kind::Required, Usage::Matrix));
        }
        if output {
            rules.push(rule("output_norm.weight", &[n_embd], Kind::Required, Usage::Norm));
            rules.push(rule("output.weight", &[n_embd, n_vocab], Kind::Optional, Usage::Matrix));
        }
        rules
    }

    fn attention_rows(&self) -> Vec<Row> {
        let [n_embd, n_head, q_lora, kv_lora] = [self.n_embd, self.n_head, self.q_lora, self.kv_lora].map(u64::from);
        let [head, nope, v_dim, kv_row] = [self.head_dim(), self.nope_dim, self.v_dim, self.kv_row()].map(u64::from);
        vec![
            ("attn_norm.weight", vec![n_embd], Usage::Norm),
            ("attn_q_a.weight", vec![n_embd, q_lora], Usage::Matrix),
            ("attn_q_a_norm.weight", vec![q_lora], Usage::Norm),
            ("attn_q_b.weight", vec![q_lora, n_head * head], Usage::Matrix),
            ("attn_kv_a_mqa.weight", vec![n_embd, kv_row], Usage::Matrix),
            ("attn_kv_a_norm.weight", vec![kv_lora], Usage::Norm),
            ("attn_k_b.weight", vec![nope, kv_lora, n_head], Usage::Matrix),
            ("attn_v_b.weight", vec![kv_lora, v_dim, n_head], Usage::Matrix),
            ("attn_output.weight", vec![n_head * v_dim, n_embd], Usage::Matrix),
            ("ffn_norm.weight", vec![n_embd], Usage::Norm),
        ]
    }

    fn indexer_rows(&self) -> Vec<Row> {
        let [n_embd, q_lora] = [self.n_embd, self.q_lora].map(u64::from);
        let [heads, dim] = [self.indexer_heads, self.indexer_dim].map(u64::from);
        vec![
            ("indexer.attn_q_b.weight", vec![q_lora, heads * dim], Usage::Matrix),
            ("indexer.attn_k.weight", vec![n_embd, dim], Usage::Matrix),
            ("indexer.k_norm.weight", vec![dim], Usage::Norm),
            ("indexer.k_norm.bias", vec![dim], Usage::Bias),
            ("indexer.proj.weight", vec![n_embd, heads], Usage::Matrix),
        ]
    }

    fn dense_rows(&self) -> Vec<Row> {
        let [n_embd, n_ff] = [self.n_embd, self.n_ff].map(u64::from);
        vec![
            ("ffn_gate.weight", vec![n_embd, n_ff], Usage::Matrix),
            ("ffn_up.weight", vec![n_embd, n_ff], Usage::Matrix),
            ("ffn_down.weight", vec![n_ff, n_embd], Usage::Matrix),
        ]
    }

    fn moe_rows(&self) -> Vec<Row> {
        let [n_embd, n_ff, experts] = [self.n_embd, self.n_ff_exp, self.n_expert].map(u64::from);
        let shared = n_ff * u64::from(self.n_expert_shared);
        vec![
            ("ffn_gate_inp.weight", vec![n_embd, experts], Usage::Router),
            ("exp_probs_b.bias", vec![experts], Usage::Bias),
            ("ffn_gate_exps.weight", vec![n_embd, n_ff, experts], Usage::Matrix),
            ("ffn_up_exps.weight", vec![n_embd, n_ff, experts], Usage::Matrix),
            ("ffn_down_exps.weight", vec![n_ff, n_embd, experts], Usage::Matrix),
            ("ffn_gate_shexp.weight", vec![n_embd, shared], Usage::Matrix),
            ("ffn_up_shexp.weight", vec![n_embd, shared], Usage::Matrix),
            ("ffn_down_shexp.weight", vec![shared, n_embd], Usage::Matrix),
        ]
    }
}

/// The full name of a layer's tensor: `blk.<layer>.<end>`.
pub(super) fn layer_tensor(layer: u32, end: &str) -> String {
    format!("blk.{layer}.{end}")
}
