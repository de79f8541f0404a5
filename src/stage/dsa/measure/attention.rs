//! Indexer, selection and attention of one layer: our side.

use super::{Random, Timed, glm_5_2, timed, timed_values};
use crate::{
    ggml::{Arena, Computer, GgmlError, Graph, Leaf, Memory, Tensor},
    gguf::GgmlType,
    llama::Threadpool,
    policy::Path,
    stage::dsa::{
        DsaStageError, Switches,
        attention::Attention,
        dims::Dims,
        layer::Pass,
        spans::{Chunk, FEW_ROWS, SpanPlan, SpanWork},
    },
};
use std::sync::Arc;

/// Rows that filling the cache writes at a time.
const FILL_ROWS: usize = 1024;
/// Kinds of graphs (see [`Arena::graph`]) up to here are upstream's; each of our variants has two of its own behind them, so
/// that none pays for another's memory layout.
const OUR_KINDS: usize = 4;

/// The last rows of a sequence attend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// KV rows that the last of them sees.
    pub n_kv: usize,
    /// Rows of the pass.
    pub tokens: usize,
    /// Rows that each selects.
    pub top_k: usize,
}

/// One of our ways to compute a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// How attention runs.
    pub path: Path,
    /// Select even where top-k covers every visible row, which production does not: what the kernels cost exactly there.
    pub always_select: bool,
    /// Rows of a chunk, where not what production takes.
    pub chunk_rows: Option<usize>,
    /// Threads at most.
    pub threads: Option<u32>,
    /// Experimental switches.
    pub switches: Switches,
}

impl Variant {
    /// `path` as production runs it.
    pub fn of(path: Path) -> Self {
        Self { path, always_select: false, chunk_rows: None, threads: None, switches: Switches::default() }
    }

    fn kind(self) -> usize {
        let forms = [self.always_select, self.switches.selected_row_flash].map(usize::from);
        OUR_KINDS + 2 * (self.path as usize + Path::ALL.len() * (forms[0] + 2 * forms[1]))
    }
}

/// A filled cache of one layer, f16, with the attention of GLM-5.2: 64 heads on rows of 512 + 64, indexer 32 x 128.
pub struct AttentionLayer {
    pub(super) dims: Dims,
    pub(super) rows: Leaf,
    pub(super) keys: Leaf,
    room: usize,
    pub(super) arena: Arena,
    pub(super) computer: Computer,
}

/// Activations of the attending rows.
pub(super) struct Queries {
    attention: Vec<f32>,
    indexer: Vec<f32>,
    weights: Vec<f32>,
}

impl AttentionLayer {
    /// A cache of `room` random rows.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(pool: Arc<Threadpool>, room: usize) -> Result<Self, DsaStageError> {
        let dims = glm_5_2();
        let leaf = |width: i64| -> Result<Leaf, GgmlError> {
            Memory::zeroed(room * width as usize * 2)?.leaf(GgmlType::F16, &[width as u64, room as u64], 0)
        };
        let (rows, keys) = (leaf(dims.row())?, leaf(dims.indexer_dim)?);
        let arena = Arena::new(4096).for_threads(pool.n_threads());
        let computer = Computer::new(pool)?;
        let mut layer = Self { dims, rows, keys, room, arena, computer };
        let mut random = Random::new(1);
        for first in (0..room).step_by(FILL_ROWS) {
            let n = FILL_ROWS.min(room - first);
            let g = layer.arena.graph(0)?;
            for (leaf, width) in [(&layer.rows, layer.dims.row()), (&layer.keys, layer.dims.indexer_dim)] {
                let data = random.values(n * width as usize, 1.0);
                g.store(g.input_f32(&data, [width, n as i64]), g.rows(g.leaf(leaf), first as i64, n as i64));
            }
            layer.computer.run(&g)?;
        }
        Ok(layer)
    }

    /// Bytes of a cache of `room` rows.
    pub fn bytes(room: usize) -> usize {
        let dims = glm_5_2();
        room * (dims.row() + dims.indexer_dim) as usize * 2
    }

    /// Multiplications, each with an addition, of indexer and attention. A path that selects attends to top-k rows, the others
    /// to all that are visible.
    pub fn macs(shape: &Shape, path: Path) -> (f64, f64) {
        let d = glm_5_2();
        let attends = match path {
            Path::Dense | Path::Fallback => shape.n_kv,
            Path::DirectSparse | Path::CompactFlash | Path::SparseChunked => shape.top_k.min(shape.n_kv),
        };
        let pairs = |rows: usize| (shape.tokens * rows) as f64;
        (
            pairs(shape.n_kv) * (d.indexer_heads * d.indexer_dim) as f64,
            pairs(attends) * (d.heads * (d.row() + d.latent)) as f64,
        )
    }

    /// The selection `[top_k, rows that select]`, as production lists it. `None` where every row attends to all it sees.
    ///
    /// # Errors
    /// When the evaluation fails.
    pub fn select(&mut self, shape: &Shape, variant: &Variant) -> Result<Option<Timed<Vec<i32>>>, DsaStageError> {
        let queries = self.queries(shape);
        self.dims.top_k = shape.top_k as i64;
        let g = self.arena.graph(variant.kind())?;
        limit(&g, variant.threads);
        let (few, n) = (shape.tokens <= FEW_ROWS, shape.tokens);
        let plan = plan(&g, &self.dims, shape, variant, self.room);
        if plan.chunks.is_empty() {
            return Ok(None);
        }
        let pass = Pass { g: &g, dims: &self.dims, pos: g.input_i32(&vec![0; n], [n as i64, 1]), few };
        let [query, weights] = queries.indexer(&g, &self.dims);
        let lists = pass.lists(query, weights, g.leaf(&self.keys), &plan);
        lists.iter().for_each(|list| g.output(*list));
        let value = timed(&mut self.computer, &g, |done| {
            let lists: Result<Vec<_>, GgmlError> = lists.iter().map(|list| done.i32(*list)).collect();
            Ok(lists?.concat())
        })?;
        Ok(Some(value))
    }

    /// Values `[512, 64, n]` on `list`, one of [`AttentionLayer::select`]'s form; empty where it said `None`.
    ///
    /// # Errors
    /// When the evaluation fails.
    pub fn attend(&mut self, shape: &Shape, variant: &Variant, list: &[i32]) -> Result<Timed<Vec<f32>>, DsaStageError> {
        let queries = self.queries(shape);
        self.dims.top_k = shape.top_k as i64;
        let g = self.arena.graph(variant.kind() + 1)?;
        limit(&g, variant.threads);
        let plan = plan(&g, &self.dims, shape, variant, self.room);
        let of_chunk = |chunk: &Chunk<'_>| {
            let first = (chunk.first - plan.covered) as usize * shape.top_k;
            let part = list.get(first..first + chunk.n as usize * shape.top_k).unwrap_or_default();
            g.input_i32(part, [self.dims.top_k, chunk.n])
        };
        let lists: Vec<_> = plan.chunks.iter().map(of_chunk).collect();
        let attention = Attention { g: &g, dims: &self.dims, rows: g.leaf(&self.rows) };
        let values = attention.values(queries.attention(&g, &self.dims), &plan, &lists, &(0..plan.work.n));
        timed_values(&mut self.computer, &g, values)
    }

    /// The same for every call with the same shape.
    pub(super) fn queries(&self, shape: &Shape) -> Queries {
        let (d, n, mut random) = (&self.dims, shape.tokens, Random::new(shape.tokens as u64 + 2));
        Queries {
            // Large enough that single rows stand out, as they do in a trained model.
            attention: random.values(n * (d.heads * d.row()) as usize, 4.0),
            indexer: random.values(n * (d.indexer_heads * d.indexer_dim) as usize, 1.0),
            weights: random.values(n * d.indexer_heads as usize, 1.0),
        }
    }
}

impl Queries {
    pub(super) fn indexer<'g>(&self, g: &Graph<'g>, d: &Dims) -> [Tensor<'g>; 2] {
        let n = self.weights.len() as i64 / d.indexer_heads;
        let query = g.input_f32(&self.indexer, [d.indexer_dim, d.indexer_heads * n]);
        let query = g.reshape(query, [d.indexer_dim, d.indexer_heads, n, 1]);
        [query, g.input_f32(&self.weights, [d.indexer_heads, n])]
    }

    pub(super) fn attention<'g>(&self, g: &Graph<'g>, d: &Dims) -> Tensor<'g> {
        let n = self.weights.len() as i64 / d.indexer_heads;
        let query = g.input_f32(&self.attention, [d.row(), d.heads * n]);
        g.reshape(query, [d.row(), d.heads, n, 1])
    }
}

fn limit(g: &Graph<'_>, threads: Option<u32>) {
    if let Some(threads) = threads {
        g.limit_threads(threads);
    }
}

fn plan<'g>(g: &Graph<'g>, dims: &Dims, shape: &Shape, variant: &Variant, room: usize) -> SpanPlan<'g> {
    let (n, pos) = (shape.tokens as i64, (shape.n_kv - shape.tokens) as i64);
    let path = variant.switches.executed(variant.path);
    let work = SpanWork { base: 0, room: room as i64, pos, first: 0, n, path, unselected: false };
    let few = shape.tokens <= FEW_ROWS;
    let mut plan = SpanPlan::new(g, dims, work, few);
    if variant.always_select {
        (plan.covered, plan.everything) = (0, None);
    }
    if variant.always_select || variant.chunk_rows.is_some() {
        let rows = variant.chunk_rows.map_or(n, |rows| rows as i64).max(1);
        let pieces = (plan.covered..n).step_by(rows as usize).map(|first| (first, rows.min(n - first)));
        plan.chunks = pieces.map(|piece| Chunk::new(g, dims, &work, few, piece)).collect();
    }
    plan
}
