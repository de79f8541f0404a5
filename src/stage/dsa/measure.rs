//! One attention layer at the shapes of a large model, by our paths and by ggml's own operations: what
//! `skippy-stage bench attention` times.

use super::{
    DsaStageError,
    attention::Attention,
    dims::Dims,
    layer::Pass,
    spans::{SpanPlan, SpanWork},
};
use crate::{
    ggml::{Arena, Computer, GgmlError, Graph, Leaf, Memory, Rope, Tensor},
    gguf::GgmlType,
    llama::Threadpool,
    policy::Path,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Rows that a pass of random data writes at a time.
const FILL_ROWS: usize = 1024;

/// A filled cache of one layer, f16, with the attention of GLM-5.2: 64 heads on rows of 512 + 64, indexer 32 x 128.
pub struct AttentionLayer {
    dims: Dims,
    rows: Leaf,
    keys: Leaf,
    n_kv: usize,
    arena: Arena,
    computer: Computer,
    random: Random,
}

/// Times and values of one evaluation.
pub struct Measured {
    /// Indexer and selection.
    pub select: Duration,
    /// Attention on the selection.
    pub attend: Duration,
    /// Values `[512, 64, n]`.
    pub values: Vec<f32>,
}

struct Random(u64);

impl Random {
    /// Uniform in -1..1.
    fn values(&mut self, n: usize) -> Vec<f32> {
        let mut next = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }
}

struct Queries {
    attention: Vec<f32>,
    indexer: Vec<f32>,
    weights: Vec<f32>,
}

impl AttentionLayer {
    /// A cache of `n_kv` random rows.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(pool: Arc<Threadpool>, n_kv: usize, top_k: u32) -> Result<Self, DsaStageError> {
        let dims = glm_5_2(top_k);
        let leaf = |width: i64| -> Result<Leaf, GgmlError> {
            Memory::zeroed(n_kv * width as usize * 2)?.leaf(GgmlType::F16, &[width as u64, n_kv as u64], 0)
        };
        let (rows, keys) = (leaf(dims.row())?, leaf(dims.indexer_dim)?);
        let arena = Arena::new(4096).for_threads(pool.n_threads());
        let computer = Computer::new(pool)?;
        let random = Random(0x9E37_79B9_7F4A_7C15);
        let mut layer = Self { dims, rows, keys, n_kv, arena, computer, random };
        for first in (0..n_kv).step_by(FILL_ROWS) {
            let n = FILL_ROWS.min(n_kv - first);
            let g = layer.arena.graph(0)?;
            for (leaf, width) in [(&layer.rows, layer.dims.row()), (&layer.keys, layer.dims.indexer_dim)] {
                let data = layer.random.values(n * width as usize);
                g.store(g.input_f32(&data, [width, n as i64]), g.rows(g.leaf(leaf), first as i64, n as i64));
            }
            layer.computer.run(&g)?;
        }
        Ok(layer)
    }

    /// By `path`, for the last `n` rows of the cache.
    ///
    /// # Errors
    /// When an evaluation fails.
    pub fn ours(&mut self, n: usize, path: Path) -> Result<Measured, DsaStageError> {
        let queries = self.queries(n);
        let few = n <= super::spans::FEW_ROWS;
        let pos = (self.n_kv - n) as i64;
        let work = SpanWork { base: 0, room: self.n_kv as i64, pos, first: 0, n: n as i64, path, unselected: false };
        let (lists, select) = {
            let g = self.arena.graph(0)?;
            let plan = SpanPlan::new(&g, &self.dims, work, few);
            let pass = Pass { g: &g, dims: &self.dims, pos: g.input_i32(&vec![0; n], [n as i64, 1]), few };
            let [query, weights] = indexer_inputs(&g, &self.dims, &queries, n);
            let lists = pass.lists(query, weights, g.leaf(&self.keys), &plan);
            lists.iter().for_each(|list| g.output(*list));
            let start = Instant::now();
            let done = self.computer.run(&g)?;
            let took = start.elapsed();
            (lists.iter().map(|list| Ok(done.i32(*list)?.to_vec())).collect::<Result<Vec<_>, GgmlError>>()?, took)
        };
        let g = self.arena.graph(0)?;
        let plan = SpanPlan::new(&g, &self.dims, work, few);
        let inputs = lists.iter().map(|list| g.input_i32(list, [self.dims.top_k, list.len() as i64 / self.dims.top_k]));
        let inputs: Vec<_> = inputs.collect();
        let attention = Attention { g: &g, dims: &self.dims, rows: g.leaf(&self.rows) };
        let values = attention.span(attention_input(&g, &self.dims, &queries, n), &plan, &inputs);
        measured(&mut self.computer, &g, values, select)
    }

    /// By ggml's own operations, in the order of llama.cpp's graph: indexer, top-k, mask, flash attention.
    ///
    /// # Errors
    /// When an evaluation fails.
    pub fn upstream(&mut self, n: usize) -> Result<Measured, DsaStageError> {
        let queries = self.queries(n);
        let (n_kv, first) = (self.n_kv, self.n_kv - n);
        let causal = |row: usize, kv: usize| kv <= first + row;
        let (lists, select) = {
            let g = self.arena.graph(0)?;
            let [query, weights] = indexer_inputs(&g, &self.dims, &queries, n);
            let scores = g.lightning_indexer(query, g.leaf(&self.keys), weights, g.input_mask(causal, n_kv, n));
            let lists = g.top_k(scores, self.dims.top_k);
            g.output(lists);
            let start = Instant::now();
            let done = self.computer.run(&g)?;
            let took = start.elapsed();
            (done.i32(lists)?.to_vec(), took)
        };
        let g = self.arena.graph(0)?;
        let lists = g.input_i32(&lists, [self.dims.top_k, n as i64]);
        let mask = g.scattered_mask(g.input_mask(causal, n_kv, n), lists);
        let query = g.permute(attention_input(&g, &self.dims, &queries, n), [0, 2, 1, 3]);
        let rows = g.leaf(&self.rows);
        let values =
            g.flash_attention(query, rows, g.prefix(rows, self.dims.latent), Some(mask), self.dims.score_scale);
        measured(&mut self.computer, &g, values, select)
    }

    /// The same for every call with the same `n`.
    fn queries(&mut self, n: usize) -> Queries {
        let (d, mut random) = (&self.dims, Random(n as u64 + 1));
        // Large enough that single rows stand out, as they do in a trained model.
        let scaled = |values: Vec<f32>, factor: f32| values.into_iter().map(|value| value * factor).collect();
        Queries {
            attention: scaled(random.values(n * (d.heads * d.row()) as usize), 4.0),
            indexer: random.values(n * (d.indexer_heads * d.indexer_dim) as usize),
            weights: random.values(n * d.indexer_heads as usize),
        }
    }
}

fn measured<'g>(
    computer: &mut Computer,
    g: &Graph<'g>,
    values: Tensor<'g>,
    select: Duration,
) -> Result<Measured, DsaStageError> {
    g.output(values);
    let start = Instant::now();
    let done = computer.run(g)?;
    let attend = start.elapsed();
    Ok(Measured { select, attend, values: done.f32(values)?.to_vec() })
}

fn indexer_inputs<'g>(g: &Graph<'g>, d: &Dims, queries: &Queries, n: usize) -> [Tensor<'g>; 2] {
    let query = g.input_f32(&queries.indexer, [d.indexer_dim, d.indexer_heads * n as i64]);
    let query = g.reshape(query, [d.indexer_dim, d.indexer_heads, n as i64, 1]);
    [query, g.input_f32(&queries.weights, [d.indexer_heads, n as i64])]
}

fn attention_input<'g>(g: &Graph<'g>, d: &Dims, queries: &Queries, n: usize) -> Tensor<'g> {
    let query = g.input_f32(&queries.attention, [d.row(), d.heads * n as i64]);
    g.reshape(query, [d.row(), d.heads, n as i64, 1])
}

fn glm_5_2(top_k: u32) -> Dims {
    let rotary = Rope {
        n_dims: 64,
        half_split: false,
        n_ctx_orig: 1 << 20,
        freq_base: 8e6,
        freq_scale: 1.0,
        ext_factor: 0.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    Dims {
        n_embd: 6144,
        heads: 64,
        nope: 192,
        rope: 64,
        latent: 512,
        v_dim: 256,
        indexer_heads: 32,
        indexer_dim: 128,
        top_k: i64::from(top_k),
        experts: 256,
        experts_used: 8,
        expert_norm: true,
        expert_scale: 2.5,
        eps: 1e-5,
        score_scale: 1.0 / 16.0,
        indexer_scale: 1.0 / 64.0,
        rotary,
        indexer_rotary: rotary,
    }
}
