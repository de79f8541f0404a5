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
    /// Values `[latent, heads, span rows]` of `query` `[latent + rope, heads, pass rows]`; `lists` has one selection for each
    /// chunk of the plan.
    pub(super) fn span(&self, query: Tensor<'g>, plan: &SpanPlan<'g>, lists: &[Tensor<'g>]) -> Tensor<'g> {
        let piece = |rows: Range<i64>| {
            let query = self.g.slices(query, plan.work.first + rows.start, rows.end - rows.start);
            self.piece(query, plan, lists, &rows)
        };
        let pieces = plan.pieces(plan.work.n).into_iter().map(piece);
        pieces.reduce(|all, part| self.g.concat(all, part, 2)).unwrap_or(query)
    }

    /// Values of `rows` of the span, one of its pieces, whose `query` it is.
    pub(super) fn piece(
        &self,
        query: Tensor<'g>,
        plan: &SpanPlan<'g>,
        lists: &[Tensor<'g>],
        rows: &Range<i64>,
    ) -> Tensor<'g> {
        let seen = plan.work.pos + rows.end;
        if let Some(everything) = plan.everything.filter(|_| rows.end <= plan.covered) {
            // By lists as well: ggml's flash attention takes several times as long for one row, whose heads share its keys.
            let list = self.g.rows(everything, rows.start, rows.end - rows.start);
            return self.listed(query, self.visible(plan, seen), list);
        }
        let chunks = plan.chunks.iter().zip(lists).filter(|(chunk, _)| rows.contains(&chunk.first));
        let together = |all, part| self.g.concat(all, part, 1);
        if plan.work.path == Path::Dense && plan.work.n > FEW_ROWS as i64 {
            let list = chunks.map(|(_, list)| *list).reduce(together);
            return list.map_or(query, |list| self.masked(query, self.visible(plan, seen), list));
        }
        let chunk = |(chunk, list): (&Chunk<'g>, &Tensor<'g>)| {
            let part = self.g.slices(query, chunk.first - rows.start, chunk.n);
            let rows = self.visible(plan, chunk.n_kv);
            match plan.work.path {
                Path::CompactFlash => match chunk.gathered {
                    Some(gathered) => self.compact(part, rows, *list, gathered),
                    None => self.listed(part, rows, *list),
                },
                Path::DirectSparse | Path::SparseChunked => self.listed(part, rows, *list),
                Path::Dense | Path::Fallback => self.masked(part, rows, *list),
            }
        };
        chunks.map(chunk).reduce(|all, part| self.g.concat(all, part, 2)).unwrap_or(query)
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
