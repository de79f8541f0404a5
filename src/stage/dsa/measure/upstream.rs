//! Indexer, selection and attention of one layer: ggml's operations, in the order of llama.cpp's graph, and what both sides
//! are held against.

use super::{
    Timed,
    attention::{AttentionLayer, Shape},
    timed, timed_values,
};
use crate::stage::dsa::DsaStageError;

const SELECT: usize = 0;
const ATTEND: usize = 1;
const SCORES: usize = 2;
const EXACT: usize = 3;

impl AttentionLayer {
    /// Scores of all rows `[n_kv, tokens]`, -inf where not visible: what a selection is judged by.
    ///
    /// # Errors
    /// When the evaluation fails.
    pub fn scores(&mut self, shape: &Shape) -> Result<Vec<f32>, DsaStageError> {
        let queries = self.queries(shape);
        let g = self.arena.graph(SCORES)?;
        let [query, weights] = queries.indexer(&g, &self.dims);
        let keys = g.rows(g.leaf(&self.keys), 0, shape.n_kv as i64);
        let mask = g.input_mask(causal(shape), shape.n_kv, shape.tokens);
        let scores = g.lightning_indexer(query, keys, weights, mask);
        g.output(scores);
        Ok(self.computer.run(&g)?.f32(scores)?.to_vec())
    }

    /// The selection by ggml's indexer and top-k `[top_k, tokens]`, in no order.
    ///
    /// # Errors
    /// When the evaluation fails.
    pub fn upstream_select(&mut self, shape: &Shape) -> Result<Timed<Vec<i32>>, DsaStageError> {
        let queries = self.queries(shape);
        let g = self.arena.graph(SELECT)?;
        let [query, weights] = queries.indexer(&g, &self.dims);
        let keys = g.rows(g.leaf(&self.keys), 0, shape.n_kv as i64);
        let mask = g.input_mask(causal(shape), shape.n_kv, shape.tokens);
        let lists = g.top_k(g.lightning_indexer(query, keys, weights, mask), shape.top_k as i64);
        g.output(lists);
        timed(&mut self.computer, &g, |done| Ok(done.i32(lists)?.to_vec()))
    }

    /// Values `[512, 64, n]` under the mask of `list` `[top_k, tokens]`.
    ///
    /// # Errors
    /// When the evaluation fails.
    pub fn upstream_attend(&mut self, shape: &Shape, list: &[i32]) -> Result<Timed<Vec<f32>>, DsaStageError> {
        let queries = self.queries(shape);
        let g = self.arena.graph(ATTEND)?;
        let lists = g.input_i32(list, [shape.top_k as i64, shape.tokens as i64]);
        let mask = g.scattered_mask(g.input_mask(causal(shape), shape.n_kv, shape.tokens), lists);
        let query = g.permute(queries.attention(&g, &self.dims), [0, 2, 1, 3]);
        let rows = g.rows(g.leaf(&self.rows), 0, shape.n_kv as i64);
        let values = g.prefix(rows, self.dims.latent);
        let values = g.flash_attention(query, rows, values, Some(mask), self.dims.score_scale);
        timed_values(&mut self.computer, &g, values)
    }

    /// The same by plain products in f32 on the rows that `list` names, token by token: ggml's flash attention sums the values
    /// of a few rows in halves, and cannot tell a rounding of ours from its own.
    ///
    /// # Errors
    /// When the evaluation fails.
    pub fn exact(&mut self, shape: &Shape, list: &[i32]) -> Result<Vec<f32>, DsaStageError> {
        let queries = self.queries(shape);
        let g = self.arena.graph(EXACT)?;
        let (query, d) = (queries.attention(&g, &self.dims), &self.dims);
        let mut parts = Vec::new();
        for (token, list) in (0..shape.tokens as i64).zip(list.chunks(shape.top_k)) {
            let named: Vec<i32> = list.iter().copied().filter(|row| *row >= 0).collect();
            let n = named.len() as i64;
            let rows = g.get_rows(g.leaf(&self.rows), g.input_i32(&named, [n, 1]));
            let query = g.reshape(g.slices(query, token, 1), [d.row(), d.heads, 1, 1]);
            let weights = g.softmax(g.mul_mat(rows, query), None, d.score_scale);
            let values = g.cont(g.permute(g.prefix(rows, d.latent), [1, 0, 2, 3]));
            let values = g.mul_mat(values, weights);
            g.output(values);
            parts.push(values);
        }
        let done = self.computer.run(&g)?;
        let mut all = Vec::with_capacity(parts.len() * (d.latent * d.heads) as usize);
        for part in parts {
            all.extend_from_slice(done.f32(part)?);
        }
        Ok(all)
    }
}

fn causal(shape: &Shape) -> impl Fn(usize, usize) -> bool {
    let first = shape.n_kv - shape.tokens;
    move |row, kv| kv <= first + row
}
