//! The model of a slice: metadata, tensors, bytes.

use super::{
    Dimensions, SynthError, SynthRequest,
    blocks::{Blocks, Random},
};
use crate::{
    gguf::{Array, GgmlType, GgufError, GgufWriter, Metadata, TensorSpec, Value},
    package::glm_dsa::{Config, TensorRule, Usage},
};
use std::io::Write;

/// Entries of the vocabulary: a few tokens to feed and to compare.
const VOCAB: u32 = 1024;
/// Alignment of tensor data.
const ALIGNMENT: u64 = 32;
/// Bytes that are made at a time, about.
const PIECE: usize = 1 << 20;
/// Half the range of random biases: router scores lie within 0 to 1.
const BIAS: f32 = 0.05;

/// A slice, ready to be written.
pub(super) struct Slice {
    name: String,
    ty: GgmlType,
    seed: u64,
    metadata: Metadata,
    tensors: Vec<(TensorSpec, Content)>,
}

/// What a tensor holds.
#[derive(Clone, Copy)]
enum Content {
    Ones,
    /// Random blocks with this standard deviation.
    Random(f32),
}

impl Slice {
    pub(super) fn new(request: &SynthRequest) -> Result<Self, SynthError> {
        let (dims, layers) = (&request.dimensions, request.layers);
        if layers.end() > dims.trunk_layers {
            return Err(SynthError::Layers { layers, model: dims.name, trunk: dims.trunk_layers });
        }
        if !(dims.n_expert_used..=dims.n_expert).contains(&request.experts) {
            let (got, least, most) = (request.experts, dims.n_expert_used, dims.n_expert);
            return Err(SynthError::Experts { got, least, most });
        }
        let ty = request.ty;
        Blocks::new(ty, 1.0).ok_or(SynthError::Type(ty.name()))?;
        let metadata = metadata(request);
        let config = Config::read(&metadata, layers.len())?;
        let rules = config.boundary_tensors(true, true);
        let rules = rules.into_iter().chain((0..layers.len()).flat_map(|layer| config.layer_tensors(layer)));
        let tensors = rules.map(|rule| tensor(rule, ty)).collect();
        let name = format!("{}-layers-{}-{}-experts-{}", dims.name, layers.start(), layers.end(), request.experts);
        Ok(Self { name, ty, seed: request.seed, metadata, tensors })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn model_id(&self) -> String {
        format!("synthetic/{}:{}", self.name, self.ty.name())
    }

    /// Bytes of all tensors.
    pub(super) fn bytes(&self) -> u64 {
        self.tensors.iter().filter_map(|(spec, _)| spec.ty.tensor_bytes(&spec.shape)).sum()
    }

    /// Writes the model and tells how many bytes more are done.
    pub(super) fn write(&self, out: impl Write, mut done: impl FnMut(u64)) -> Result<(), GgufError> {
        let specs: Vec<TensorSpec> = self.tensors.iter().map(|(spec, _)| spec.clone()).collect();
        let mut writer = GgufWriter::new(out, &self.metadata, &specs, ALIGNMENT)?;
        let mut piece = Vec::with_capacity(PIECE);
        for (spec, content) in &self.tensors {
            // Each tensor has random numbers of its own, whatever comes before it.
            let mut random = Random::new(self.seed, &spec.name);
            let blocks = match content {
                Content::Ones => None,
                Content::Random(deviation) => Blocks::new(spec.ty, *deviation),
            };
            let mut left = spec.ty.tensor_bytes(&spec.shape).unwrap_or(0);
            let whole = PIECE as u64 / spec.ty.block_bytes() * spec.ty.block_bytes();
            while left > 0 {
                let bytes = left.min(whole);
                piece.clear();
                match &blocks {
                    Some(blocks) => {
                        (0..bytes / spec.ty.block_bytes()).for_each(|_| blocks.push(&mut random, &mut piece))
                    }
                    None => (0..bytes / 4).for_each(|_| piece.extend_from_slice(&1f32.to_le_bytes())),
                }
                writer.tensor_chunk(&piece)?;
                done(bytes);
                left -= bytes;
            }
        }
        writer.finish().map(drop)
    }
}

fn tensor(rule: TensorRule, ty: GgmlType) -> (TensorSpec, Content) {
    let width = rule.shape.first().copied().unwrap_or(1);
    let fits = |ty: &GgmlType| width.is_multiple_of(ty.block_len());
    let (ty, content) = match rule.usage {
        Usage::Norm => (GgmlType::F32, Content::Ones),
        Usage::Bias => (GgmlType::F32, Content::Random(BIAS / 3f32.sqrt())),
        Usage::Router => (GgmlType::F32, Content::Random(1.0 / (width as f32).sqrt())),
        Usage::Matrix => {
            let ty = [ty, GgmlType::Q8_0].into_iter().find(fits).unwrap_or(GgmlType::F16);
            // Rows that are looked up rather than multiplied are hidden rows, of the size that a norm gives them.
            let deviation = if rule.name == "token_embd.weight" { 1.0 } else { 1.0 / (width as f32).sqrt() };
            (ty, Content::Random(deviation))
        }
    };
    (TensorSpec { name: rule.name, shape: rule.shape, ty }, content)
}

fn metadata(request: &SynthRequest) -> Metadata {
    let (d, layers) = (&request.dimensions, request.layers);
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", "glm-dsa");
    metadata.set("general.name", format!("{} layers {layers}, random weights", d.name));
    metadata.set("general.description", description(request));
    let numbers = [
        ("block_count", layers.len()),
        ("context_length", d.context_length),
        ("embedding_length", d.n_embd),
        ("feed_forward_length", d.n_ff),
        ("vocab_size", VOCAB),
        ("attention.head_count", d.n_head),
        ("attention.head_count_kv", 1),
        ("attention.key_length", d.kv_lora + d.rope_dim),
        ("attention.value_length", d.kv_lora),
        ("attention.key_length_mla", d.nope_dim + d.rope_dim),
        ("attention.value_length_mla", d.v_dim),
        ("attention.q_lora_rank", d.q_lora),
        ("attention.kv_lora_rank", d.kv_lora),
        ("attention.indexer.head_count", d.indexer_heads),
        ("attention.indexer.key_length", d.indexer_dim),
        ("attention.indexer.top_k", d.top_k),
        ("rope.dimension_count", d.rope_dim),
        ("leading_dense_block_count", d.dense_lead.saturating_sub(layers.start()).min(layers.len())),
        ("expert_count", request.experts),
        ("expert_used_count", d.n_expert_used),
        ("expert_shared_count", d.n_expert_shared),
        ("expert_feed_forward_length", d.n_ff_exp),
        ("expert_gating_func", 2),
    ];
    for (key, number) in numbers {
        metadata.set(format!("glm-dsa.{key}"), Value::U32(number));
    }
    metadata.set("glm-dsa.rope.freq_base", Value::F32(d.rope_theta));
    metadata.set("glm-dsa.attention.layer_norm_rms_epsilon", Value::F32(d.rms_eps));
    metadata.set("glm-dsa.expert_weights_scale", Value::F32(d.expert_scale));
    metadata.set("glm-dsa.expert_weights_norm", Value::Bool(true));
    let types = layers.iter().map(|layer| layer == layers.start() || d.is_full(layer)).collect();
    metadata.set("glm-dsa.attention.indexer.types", Value::Array(Array::Bool(types)));
    metadata.set("tokenizer.ggml.model", "no_vocab");
    metadata
}

/// What the slice is, and where it differs from the model.
fn description(request: &SynthRequest) -> String {
    let SynthRequest { dimensions: d @ Dimensions { name, n_expert, .. }, layers, experts, seed, .. } = request;
    let mut text = format!(
        "Random weights for measurements, with the dimensions of {name}: its layers {layers} as blocks 0..{}, {experts} of \
         {n_expert} experts, a vocabulary of {VOCAB} without tokenizer, no MTP block, {} matrices, seed {seed}.",
        layers.len(),
        request.ty.name()
    );
    if !d.is_full(layers.start()) {
        text.push_str(&format!(" Layer {} shares its selection in the model; here it has an indexer.", layers.start()));
    }
    text
}
