//! How the rows of a sequence are cut into pieces of attention.
//!
//! A row that sees at most top-k rows attends to all of them: the selection would choose every one. Rows behind that
//! boundary attend to what the indexer selects, in chunks whose buffers are bounded.

use super::dims::Dims;
use crate::{
    ggml::{Graph, Tensor},
    policy::Path,
};
use std::ops::Range;

/// Rows of a pass up to which every row is computed on its own, so that its bits do not depend on its neighbours.
pub(super) const FEW_ROWS: usize = 16;

/// Bytes of selected rows that one chunk of `compact-flash` gathers at most; a row that selects more is a chunk alone.
const COMPACT_BYTES: i64 = 64 << 20;
/// Bytes of the f16 mask of one chunk at most, where there is one; a row that sees more is a chunk alone.
const MASK_BYTES: i64 = 8 << 20;
/// Rows of a long pass whose queries and values exist at a time, from its start on: at 64 heads, those of a row take 400 KiB.
/// More would make neither the projections cheaper nor the indexer's pass over the keys.
pub(super) const PIECE_ROWS: i64 = 64;

/// Scored rows are a multiple of this, where the cache has as many.
const KV_STEP: i64 = 64;

/// Rows of one sequence in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpanWork {
    /// First cache row of the sequence's region.
    pub(super) base: i64,
    /// Rows of that region.
    pub(super) room: i64,
    /// Position of the first row.
    pub(super) pos: i64,
    /// Its place in the pass.
    pub(super) first: i64,
    /// Rows.
    pub(super) n: i64,
    /// How attention runs.
    pub(super) path: Path,
    /// Attend to everything visible, whatever top-k says: the draft head's dense mode.
    pub(super) unselected: bool,
}

/// Rows that attend to selected rows, together.
pub(super) struct Chunk<'g> {
    /// First row, from the start of the span.
    pub(super) first: i64,
    pub(super) n: i64,
    /// Rows that the last of them sees, or a few more.
    pub(super) n_kv: i64,
    /// Rows that each of them sees, `[n]` i32.
    pub(super) visible: Tensor<'g>,
    /// Where the selected rows lie once they are gathered, `[top_k, n]` i32: one after the other. For
    /// [`Path::CompactFlash`].
    pub(super) gathered: Option<Tensor<'g>>,
}

/// A span with the inputs of its attention, the same for all layers.
pub(super) struct SpanPlan<'g> {
    pub(super) work: SpanWork,
    /// Rows at the start that see at most top-k rows.
    pub(super) covered: i64,
    /// What those rows see, `[pos + covered or a few more, covered]` i32: a list for each, -1 where it has ended.
    pub(super) everything: Option<Tensor<'g>>,
    pub(super) chunks: Vec<Chunk<'g>>,
}

/// `n` rows of a long pass in pieces.
pub(super) fn pieces(n: i64) -> impl Iterator<Item = Range<i64>> {
    (0..n).step_by(PIECE_ROWS as usize).map(move |first| first..(first + PIECE_ROWS).min(n))
}

/// First row and row count of the chunks behind the covered rows.
pub(super) fn chunks(dims: &Dims, work: &SpanWork, few: bool) -> (i64, Vec<(i64, i64)>) {
    if work.unselected {
        return (work.n, Vec::new());
    }
    let covered = (dims.top_k - work.pos).clamp(0, work.n);
    // The kernels compute each row of a chunk by itself; ggml's flash attention does not.
    let alone = few && matches!(work.path, Path::Dense | Path::Fallback);
    let rows = if alone { 1 } else { chunk_rows(dims, work) };
    let mut pieces = Vec::new();
    let mut first = covered;
    while first < work.n {
        // No chunk lies in two pieces.
        let n = rows.min(work.n - first).min(PIECE_ROWS - first % PIECE_ROWS);
        pieces.push((first, n));
        first += n;
    }
    (covered, pieces)
}

fn chunk_rows(dims: &Dims, work: &SpanWork) -> i64 {
    let rows = match work.path {
        Path::CompactFlash => COMPACT_BYTES / (dims.top_k * dims.row() * 4),
        // Neither the indexer nor attention on a list holds anything as long as the context.
        Path::SparseChunked | Path::DirectSparse => PIECE_ROWS,
        Path::Dense | Path::Fallback => MASK_BYTES / ((work.pos + work.n) * 2),
    };
    rows.clamp(1, PIECE_ROWS)
}

impl<'g> Chunk<'g> {
    /// The chunk of `n` rows from `first` on, of a span that does `work`.
    pub(super) fn new(g: &Graph<'g>, dims: &Dims, work: &SpanWork, few: bool, (first, n): (i64, i64)) -> Self {
        let visible: Vec<i32> = (0..n).map(|row| (work.pos + first + row + 1) as i32).collect();
        // Rounded up where one row comes after the other, so that the buffers of a growing sequence seldom change; what is
        // not visible is never selected. Not for many rows: with those, flash attention multiplies hidden rows by 0, which
        // does not take away what is no number.
        let end = work.pos + first + n;
        let n_kv = if few { ((end + KV_STEP - 1) / KV_STEP * KV_STEP).min(work.room) } else { end };
        let gathered = (work.path == Path::CompactFlash).then(|| {
            let places: Vec<i32> = (0..(n * dims.top_k) as i32).collect();
            g.input_i32(&places, [dims.top_k, n])
        });
        Self { first, n, n_kv, visible: g.input_i32(&visible, [n, 1]), gathered }
    }
}

impl<'g> SpanPlan<'g> {
    pub(super) fn new(g: &Graph<'g>, dims: &Dims, work: SpanWork, few: bool) -> Self {
        let (covered, pieces) = chunks(dims, &work, few);
        let chunks = pieces.iter().map(|piece| Chunk::new(g, dims, &work, few, *piece)).collect();
        let everything = (covered > 0).then(|| {
            let width = (work.pos + covered + KV_STEP - 1) / KV_STEP * KV_STEP;
            let list = |row| (0..width as i32).map(move |at| if i64::from(at) <= work.pos + row { at } else { -1 });
            g.input_i32(&(0..covered).flat_map(list).collect::<Vec<_>>(), [width, covered])
        });
        Self { work, covered, everything, chunks }
    }
}
