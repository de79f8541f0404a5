//! What a stage holds besides weights: KV rows and the buffers of a pass.

use crate::{
    gguf::{GgmlType, Metadata, Value},
    package::glm_dsa::{Arch, Config},
    policy::Role,
};

/// Which engine will run the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanEngine {
    /// llama.cpp's own graphs.
    Llama,
    /// Graphs of our own, for GLM-DSA.
    Dsa,
}

/// How the stages will be served. Defaults are those of `skippy-stage serve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Engine; `None` for the one that `auto` takes.
    pub engine: Option<PlanEngine>,
    /// Tokens of one sequence; `None` for the model's own length up to 4096.
    pub ctx_size: Option<u32>,
    /// Sequences.
    pub lanes: u32,
    /// Tokens of a prompt in one pass.
    pub batch_size: u32,
    /// Type of the K cache, and of the only one that the `dsa` engine has.
    pub cache_type_k: GgmlType,
    /// Type of the V cache.
    pub cache_type_v: GgmlType,
}

impl Default for Sizing {
    fn default() -> Self {
        Self {
            engine: None,
            ctx_size: None,
            lanes: 4,
            batch_size: 512,
            cache_type_k: GgmlType::F16,
            cache_type_v: GgmlType::F16,
        }
    }
}

/// Longest context that is taken when none is asked for.
const DEFAULT_CTX_SIZE: u64 = 4096;

/// Cells of a sequence that llama.cpp rounds up to.
const LLAMA_CELLS: u64 = 256;

/// Rows of a pass that llama.cpp reserves logits for, when there are not more lanes.
const LLAMA_LOGITS_ROWS: u64 = 64;

/// Rows of a chunk of sparse attention, and the bytes its buffers are bounded by: selected rows, and scores.
const DSA_CHUNK: (u64, u64, u64) = (64, 64 << 20, 16 << 20);

/// Positions for each of which the draft head keeps one hidden row.
const DSA_MARK: u64 = 16;

const F32: u64 = 4;

/// KV rows and buffers of one model under one [`Sizing`].
#[derive(Clone, Debug, Default)]
pub(super) struct Estimate {
    kv: Vec<u64>,
    inner: u64,
    last: u64,
    pub(super) notes: Vec<String>,
}

impl Estimate {
    /// KV bytes of a layer, all lanes together.
    pub(super) fn kv(&self, layer: usize) -> u64 {
        self.kv.get(layer).copied().unwrap_or(0)
    }

    /// Buffers of a stage that owns the output, or does not.
    pub(super) fn compute(&self, owns_output: bool) -> u64 {
        if owns_output { self.last } else { self.inner }
    }
}

impl Sizing {
    /// The engine for a model.
    pub fn engine(&self, metadata: &Metadata) -> PlanEngine {
        let dsa = metadata.arch().is_some_and(|arch| Arch::from_name(arch).is_some());
        self.engine.unwrap_or(if dsa { PlanEngine::Dsa } else { PlanEngine::Llama })
    }

    /// Tokens of one sequence.
    pub fn ctx_size(&self, metadata: &Metadata) -> u64 {
        let trained = metadata.arch_uint("context_length").unwrap_or(DEFAULT_CTX_SIZE);
        self.ctx_size.map_or(trained.clamp(1, DEFAULT_CTX_SIZE), u64::from)
    }

    pub(super) fn estimate(&self, metadata: &Metadata, layer_count: u32) -> Estimate {
        let config = metadata.arch().and_then(Arch::from_name).map(|_| Config::read(metadata, layer_count));
        match config {
            Some(Ok(config)) => self.glm_dsa(metadata, &config),
            Some(Err(error)) => {
                let mut estimate = self.heads(metadata, layer_count);
                estimate
                    .notes
                    .push(format!("KV and compute are rough, since the metadata breaks the contract: {error}"));
                estimate
            }
            None => self.heads(metadata, layer_count),
        }
    }

    /// Rows of one pass, where `window` rows of every other lane fit beside a piece of a prompt.
    fn rows(&self, window: u64) -> u64 {
        u64::from(self.batch_size).saturating_add(window.saturating_mul(u64::from(self.lanes.saturating_sub(1))))
    }

    /// Models with K and V heads, in llama.cpp.
    fn heads(&self, metadata: &Metadata, layer_count: u32) -> Estimate {
        let mut notes = Vec::new();
        let n_embd = metadata.arch_uint("embedding_length").unwrap_or(0);
        let most = |suffix: &str| (0..layer_count).filter_map(|layer| per_layer(metadata, suffix, layer)).max();
        let heads = most("attention.head_count").filter(|heads| *heads > 0);
        let head_dim = |suffix: &str| metadata.arch_uint(suffix).or_else(|| Some(n_embd / heads?));
        if heads.is_none() {
            notes.push(format!(
                "no `{}`: K and V rows are counted as wide as hidden rows",
                metadata.arch_key("attention.head_count")
            ));
        }
        let ctx = self.ctx_size(metadata).next_multiple_of(LLAMA_CELLS);
        let cells = ctx.saturating_mul(u64::from(self.lanes));
        let kv = (0..layer_count).map(|layer| {
            let own = per_layer(metadata, "attention.head_count_kv", layer);
            let own = own.or_else(|| per_layer(metadata, "attention.head_count", layer)).filter(|_| heads.is_some());
            let width = |suffix: &str| own.and_then(|own| own.checked_mul(head_dim(suffix)?)).unwrap_or(n_embd);
            let k = row_bytes(self.cache_type_k, width("attention.key_length"));
            let v = row_bytes(self.cache_type_v, width("attention.value_length"));
            k.saturating_add(v).saturating_mul(cells)
        });
        let kv = kv.collect();

        let (heads, rows, vocab) = (heads.unwrap_or(1), self.rows(1), vocabulary(metadata));
        let used = most("expert_used_count").unwrap_or(0);
        let experts =
            sum([product([used, most("expert_feed_forward_length").unwrap_or(0), 2]), product([used, n_embd])]);
        let inside = most("feed_forward_length").unwrap_or(0).max(experts);
        let query = product([heads, head_dim("attention.key_length").unwrap_or(n_embd)]);
        let wide = product([rows, F32, sum([product([4, n_embd]), product([2, query]), inside])]);
        // One mask for each kind of layer, and its copy for flash attention, which a quantised V cache goes with.
        let flash = self.cache_type_v == GgmlType::Q8_0;
        let kinds = if metadata.arch_uint("attention.sliding_window").unwrap_or(0) > 0 { 2 } else { 1 };
        let masks = product([kinds, ctx, rows, if flash { F32 + 2 } else { F32 }]);
        let scores = if flash { 0 } else { product([rows, heads, ctx, F32]) };
        let logits = product([LLAMA_LOGITS_ROWS.max(u64::from(self.lanes)).min(rows), vocab, F32]);
        let handed_on = product([2, rows, n_embd, F32]);
        Estimate {
            kv,
            inner: sum([masks, wide, scores, handed_on]),
            last: sum([masks, wide, scores.max(logits), product([u64::from(self.lanes), vocab, F32])]),
            notes,
        }
    }

    /// GLM-DSA: one key head of latent and rotated key, and keys of the indexer.
    fn glm_dsa(&self, metadata: &Metadata, config: &Config) -> Estimate {
        let engine = self.engine(metadata);
        let mut ctx = self.ctx_size(metadata);
        if engine == PlanEngine::Llama {
            ctx = ctx.next_multiple_of(LLAMA_CELLS);
        }
        let cells = ctx.saturating_mul(u64::from(self.lanes));
        let n_embd = u64::from(config.n_embd);
        let row = row_bytes(self.cache_type_k, u64::from(config.kv_row()));
        let key = row_bytes(self.cache_type_k, u64::from(config.indexer_dim));
        let kv = (0..config.layer_count).map(|layer| {
            let key = if config.role(layer) == Some(Role::Full) { key } else { 0 };
            // The draft head keeps hidden rows too.
            let marks = if config.is_mtp(layer) { n_embd * F32 / DSA_MARK } else { 0 };
            sum([row, key, marks]).saturating_mul(cells)
        });
        let kv = kv.collect();

        let window = if config.nextn_layers > 0 { 2 } else { 1 };
        let rows = self.rows(window);
        let [heads, latent, top_k, vocab] =
            [config.n_head, config.kv_lora, config.top_k, config.n_vocab].map(u64::from);
        let indexer = u64::from(config.indexer_heads) * u64::from(config.indexer_dim);
        let head = u64::from(config.head_dim()) + 2 * u64::from(config.kv_row()) + 2 * latent + u64::from(config.v_dim);
        let attention = sum([product([heads, head]), u64::from(config.q_lora), 2 * indexer]);
        let [used, shared, n_ff_exp] = [config.n_expert_used, config.n_expert_shared, config.n_ff_exp].map(u64::from);
        let routed = product([used, 3 * n_ff_exp + 2 * n_embd]);
        let experts = sum([routed, product([3, shared, n_ff_exp]), 2 * u64::from(config.n_expert)]);
        let wide = 4 * n_embd + attention.max(experts).max(3 * u64::from(config.n_ff));
        let (chunk, selected_most, scores_most) = DSA_CHUNK;
        let selected_row = product([top_k, u64::from(config.kv_row()), F32]);
        let selected = product([chunk, selected_row]).min(selected_most.max(selected_row));
        let scores = product([chunk, ctx, F32]).min(scores_most.max(ctx * F32));
        let covered = product([rows.min(top_k), ctx.min(top_k), 2]);
        let masks = sum([covered, product([chunk, ctx, F32 + 2])]);
        let inside = match engine {
            PlanEngine::Dsa => sum([selected, scores, masks]),
            // llama.cpp masks and scores whole contexts.
            PlanEngine::Llama => sum([product([rows, ctx, 2 * F32]), product([rows, heads, ctx, F32])]),
        };
        let base = sum([product([rows, wide, F32]), inside]);
        let handed_on = product([2, rows, n_embd + top_k, F32]);
        // As if a whole piece of a prompt was to be scored: once in the graph and once for whoever reads it.
        let output_rows = if engine == PlanEngine::Dsa { 2 * rows } else { LLAMA_LOGITS_ROWS.min(rows) };
        let last = base.saturating_add(product([output_rows, vocab, F32]));
        Estimate { kv, inner: base.saturating_add(handed_on), last, notes: Vec::new() }
    }
}

/// A number that a model states once, or for each layer.
fn per_layer(metadata: &Metadata, suffix: &str, layer: u32) -> Option<u64> {
    match metadata.get(&metadata.arch_key(suffix))? {
        Value::Array(array) => array.value(layer as usize)?.as_uint(),
        value => value.as_uint(),
    }
}

fn vocabulary(metadata: &Metadata) -> u64 {
    let tokens = metadata.array("tokenizer.ggml.tokens").map(|tokens| tokens.len() as u64);
    tokens.or_else(|| metadata.arch_uint("vocab_size")).unwrap_or(0)
}

/// Bytes of a cache row, whole blocks.
fn row_bytes(ty: GgmlType, width: u64) -> u64 {
    width.div_ceil(ty.block_len()).saturating_mul(ty.block_bytes())
}

// Metadata is foreign: what cannot be counted counts as more than any machine has.
fn product<const N: usize>(factors: [u64; N]) -> u64 {
    factors.into_iter().fold(1, u64::saturating_mul)
}

fn sum<const N: usize>(terms: [u64; N]) -> u64 {
    terms.into_iter().fold(0, u64::saturating_add)
}
