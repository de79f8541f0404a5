//! The attention paths of one layer over the rows of a span. All give the same values up to rounding.
//!
//! Queries are absorbed: `[latent + rope, heads, n]`. A cache row is key and, in its first `latent` elements, value.

use super::{
    dims::Dims,
    spans::{Chunk, FEW_ROWS, SpanPlan},
};
use crate::{
    ggml::{Graph, Tensor},
    policy::Path,
};
use std::ops::Range;

pub(super) struct Attention<'a, 'g> {
    pub(super) g: &'a Graph<'g>,
    pub(super) dims: &'a Dims,
    /// The layer's cache `[latent + rope, all rows]`.
    pub(super) rows: Tensor<'g>,
}

impl<'g> Attention<'_, 'g> {
    /// Values `[latent, heads, n]` of `rows` of the span, whose `query` `[latent + rope, heads, n]` it is; `lists` has one
    /// selection for each chunk of the plan, and no chunk is cut by the ends of `rows`.
    pub(super) fn values(
        &self,
        query: Tensor<'g>,
        plan: &SpanPlan<'g>,
        lists: &[Tensor<'g>],
        rows: &Range<i64>,
    ) -> Tensor<'g> {
        let (g, pos) = (self.g, plan.work.pos);
        let mut parts = Vec::new();
        let covered = rows.end.min(plan.covered) - rows.start;
        if let Some(everything) = plan.everything.filter(|_| covered > 0) {
            // By lists as well: ggml's flash attention takes several times as long for one row, whose heads share its keys.
            let list = g.rows(everything, rows.start, covered);
            let seen = self.visible(plan, pos + rows.start + covered);
            parts.push(self.listed(g.slices(query, 0, covered), seen, list));
        }
        let mut chunks = plan.chunks.iter().zip(lists).filter(|(chunk, _)| rows.contains(&chunk.first)).peekable();
        if plan.work.path == Path::Dense && plan.work.n > FEW_ROWS as i64 {
            // All under one mask.
            let first = chunks.peek().map_or(rows.end, |(chunk, _)| chunk.first);
            if let Some(list) = chunks.map(|(_, list)| *list).reduce(|all, list| g.concat(all, list, 1)) {
                let query = g.slices(query, first - rows.start, rows.end - first);
                parts.push(self.masked(query, self.visible(plan, pos + rows.end), list));
            }
        } else {
            parts.extend(chunks.map(|(chunk, list)| {
                self.chunk(g.slices(query, chunk.first - rows.start, chunk.n), plan, chunk, *list)
            }));
        }
        parts.into_iter().reduce(|all, part| g.concat(all, part, 2)).unwrap_or(query)
    }

    fn chunk(&self, query: Tensor<'g>, plan: &SpanPlan<'g>, chunk: &Chunk<'g>, list: Tensor<'g>) -> Tensor<'g> {
        let rows = self.visible(plan, chunk.n_kv);
        match (plan.work.path, chunk.gathered) {
            (Path::CompactFlash, Some(gathered)) => self.compact(query, rows, list, gathered),
            (Path::CompactFlash | Path::DirectSparse | Path::SparseChunked, _) => self.listed(query, rows, list),
            (Path::Dense | Path::Fallback, _) => self.masked(query, rows, list),
        }
    }

    /// The first `n_kv` rows of the span's sequence.
    fn visible(&self, plan: &SpanPlan<'g>, n_kv: i64) -> Tensor<'g> {
        self.g.rows(self.rows, plan.work.base, n_kv)
    }

    /// Gathers what the lists name as f32, then attends to the gathered rows alone.
    fn compact(&self, query: Tensor<'g>, rows: Tensor<'g>, list: Tensor<'g>, gathered: Tensor<'g>) -> Tensor<'g> {
        let (g, d) = (self.g, self.dims);
        let flat = g.reshape(list, [d.top_k * query.shape()[2], 1, 1, 1]);
        self.listed(query, g.get_rows(rows, flat), gathered)
    }

    /// Attends to what the lists name where it lies, a tile at a time.
    fn listed(&self, query: Tensor<'g>, rows: Tensor<'g>, list: Tensor<'g>) -> Tensor<'g> {
        self.g.attend_listed(query, rows, list, self.dims.latent, self.dims.score_scale)
    }

    /// Flash attention on all rows under a mask of the lists.
    fn masked(&self, query: Tensor<'g>, rows: Tensor<'g>, list: Tensor<'g>) -> Tensor<'g> {
        let mask = self.g.list_mask(list, rows.shape()[1]);
        self.flash(self.g.permute(query, [0, 2, 1, 3]), rows, Some(mask))
    }

    fn flash(&self, query: Tensor<'g>, rows: Tensor<'g>, mask: Option<Tensor<'g>>) -> Tensor<'g> {
        let values = self.g.prefix(rows, self.dims.latent);
        self.g.flash_attention(query, rows, values, mask, self.dims.score_scale)
    }
}
