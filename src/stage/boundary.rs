//! What crosses a stage boundary: hidden rows, and for GLM-DSA the selection that shared layers reuse.

/// Hidden rows between two stages, and the top-k lists behind them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Boundary<'a> {
    /// Hidden rows `[n_rows, n_embd]`, row-major f32, in batch order.
    pub rows: &'a [f32],
    /// The lists of the last full-indexer layer before the boundary (IndexShare). A stage that starts on a shared layer
    /// refuses to run without them; any other stage ignores them.
    pub top_k: Option<TopK<'a>>,
}

impl<'a> Boundary<'a> {
    /// Hidden rows alone.
    pub fn new(rows: &'a [f32]) -> Self {
        Self { rows, top_k: None }
    }
}

/// One list of selected KV positions for each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK<'a> {
    /// Entries of a list: the model's top-k.
    pub width: usize,
    /// `[n_rows, width]` positions, ascending, each visible to its row; unused entries at the end are -1. A row that
    /// sees no more than `width` positions lists all of them.
    pub lists: &'a [i32],
}

impl TopK<'_> {
    /// Bytes of the lists of `n_rows` rows: what IndexShare costs at a stage boundary.
    pub fn bytes(n_rows: usize, width: usize) -> u64 {
        (n_rows * width * size_of::<i32>()) as u64
    }
}
