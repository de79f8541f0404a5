//! The MTP block as a draft head of depth 1.
//!
//! Row p of the block takes the token at position p and the trunk's normed hidden row of position p - 1 (zeros before the
//! first), and guesses the token at p + 1. Its own cache must hold a row for every position, but only the newest row needs
//! attention and feed-forward: for older ones the cache row alone is computed. They are collected behind the trunk's
//! passes and computed together with the next draft, or earlier when there are many (a prompt).

use super::{
    DraftAttention, DsaStage, DsaStageError, DsaStageOptions,
    cache::Cache,
    dims::Dims,
    layer::Pass,
    run::{DRAFT, FOLLOW},
    spans::{FEW_ROWS, SpanPlan, SpanWork},
    weights::Mtp,
};
use crate::{
    ggml::{GgmlError, Graph, Tensor},
    policy::Path,
    stage::{DraftRow, SeqId, StageError},
};
use std::collections::VecDeque;

/// Rows of a sequence that may wait for the next draft.
const WAITING_MAX: usize = 8;
/// Hidden rows kept of a sequence, so that a rejected draft can be dropped: more than any verify window.
const RECENT_MAX: usize = 32;
/// Positions between two at which the head's state can be gone back to, whatever came behind.
pub(super) const STEP: u32 = 16;
/// Operations of the block besides attention, generously.
const OPS: usize = 160;

/// State of the draft head.
pub(super) struct Drafts {
    pub(super) cache: Cache,
    attention: DraftAttention,
    n_embd: usize,
    followers: Vec<Follower>,
    logits: Vec<f32>,
}

/// How far the block has followed one sequence.
#[derive(Clone, Default)]
pub(super) struct Follower {
    /// Positions whose cache row is computed.
    pub(super) rows: u32,
    /// Token of the last of them while only a draft has seen it.
    ahead: Option<i32>,
    /// Positions behind `rows`: token, and hidden row of the position before.
    pub(super) waiting: Vec<(i32, Vec<f32>)>,
    /// Hidden rows of the latest positions, ascending.
    recent: VecDeque<(u32, Vec<f32>)>,
    /// Hidden rows of the last position of each [`STEP`], from the first on: where a sequence may be parted.
    pub(super) marks: Vec<Vec<f32>>,
}

impl Follower {
    /// One whose first `rows` cache rows are there.
    pub(super) fn at(rows: u32) -> Self {
        Self { rows, ..Self::default() }
    }

    fn end(&self) -> u32 {
        self.rows + self.waiting.len() as u32
    }

    /// The hidden row of `pos`; zeros when it is not known (the first position, or a sequence cut far back between two
    /// marks). A wrong row costs a guess, never an answer.
    fn hidden_at(&self, pos: Option<u32>, n_embd: usize) -> Vec<f32> {
        let recent = |pos: u32| self.recent.iter().find(|(at, _)| *at == pos).map(|(_, hidden)| hidden);
        let marked = |pos: u32| self.marks.get((pos / STEP) as usize).filter(|_| is_mark(pos));
        let found = pos.and_then(|pos| recent(pos).or_else(|| marked(pos)));
        found.map_or_else(|| vec![0.0; n_embd], Vec::clone)
    }

    /// Keeps the hidden row of `pos`, the newest position.
    fn remember(&mut self, pos: u32, hidden: &[f32]) {
        if is_mark(pos) && self.marks.len() == (pos / STEP) as usize {
            self.marks.push(hidden.to_vec());
        }
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((pos, hidden.to_vec()));
    }

    pub(super) fn truncate(&mut self, n_keep: u32) {
        if n_keep < self.rows {
            self.rows = n_keep;
            self.ahead = None;
        }
        self.waiting.truncate(n_keep.saturating_sub(self.rows) as usize);
        self.recent.retain(|(pos, _)| *pos < n_keep);
        self.marks.truncate((n_keep / STEP) as usize);
    }
}

/// Whether a hidden row is kept as long as the sequence: the last one of a step.
fn is_mark(pos: u32) -> bool {
    pos % STEP == STEP - 1
}

impl Drafts {
    pub(super) fn new(
        mtp: &Mtp,
        dims: &Dims,
        options: &DsaStageOptions,
        attention: DraftAttention,
    ) -> Result<Self, DsaStageError> {
        let sparse = attention == DraftAttention::Sparse && mtp.layer.indexer.is_some();
        let attention = if sparse { DraftAttention::Sparse } else { DraftAttention::Dense };
        let ty = options.cache_type.ggml();
        let cache = Cache::new(dims, ty, &[sparse], options.n_seq_max, options.n_ctx_seq)?;
        let followers = vec![Follower::default(); options.n_seq_max as usize];
        Ok(Self { cache, attention, n_embd: dims.n_embd as usize, followers, logits: Vec::new() })
    }

    /// Takes in rows that the trunk has computed: positions from `pos` on, their tokens and normed hidden rows.
    pub(super) fn follow(&mut self, seq: SeqId, pos: u32, tokens: &[i32], hidden: &[f32]) {
        let n_embd = self.n_embd;
        let Some(follower) = self.followers.get_mut(seq.0 as usize) else { return };
        for ((pos, token), row) in (pos..).zip(tokens).zip(hidden.chunks_exact(n_embd)) {
            let seen = pos + 1 == follower.rows && follower.ahead == Some(*token);
            if seen {
                follower.ahead = None;
            } else {
                if pos < follower.end() {
                    follower.truncate(pos);
                }
                // A gap stays a gap: the sequence was not followed from its first row on, and `draft` will say so.
                if pos == follower.end() {
                    let before = follower.hidden_at(pos.checked_sub(1), n_embd);
                    follower.waiting.push((*token, before));
                }
            }
            follower.remember(pos, row);
        }
    }

    /// What is known of the first `n_rows` positions of a sequence; `None` when it was not followed that far.
    pub(super) fn followed(&self, seq: SeqId, n_rows: u32) -> Option<Follower> {
        let follower = self.followers.get(seq.0 as usize).filter(|follower| follower.end() >= n_rows)?;
        let mut follower = follower.clone();
        follower.truncate(n_rows);
        Some(follower)
    }

    /// Makes `follower` what is known of a sequence; its cache rows are there already.
    pub(super) fn adopt(&mut self, seq: SeqId, follower: Follower) {
        if let Some(place) = self.followers.get_mut(seq.0 as usize) {
            *place = follower;
        }
    }

    /// Cache rows of all sequences, indexer keys counted.
    pub(super) fn rows(&self) -> u64 {
        let (rows, keys) = self.cache.rows_per_position();
        let positions: u64 = self.followers.iter().map(|follower| u64::from(follower.rows)).sum();
        positions * (rows + keys) as u64
    }

    pub(super) fn truncate(&mut self, seq: SeqId, n_keep: u32) {
        if let Some(follower) = self.followers.get_mut(seq.0 as usize) {
            follower.truncate(n_keep);
        }
    }

    pub(super) fn copy(&mut self, from: SeqId, to: SeqId, n_rows: u32) -> Result<(), GgmlError> {
        let mut follower = self.followers.get(from.0 as usize).cloned().unwrap_or_default();
        follower.truncate(n_rows);
        self.cache.copy(from.0, to.0, follower.rows)?;
        self.adopt(to, follower);
        Ok(())
    }
}

/// Rows of one sequence in a pass of the block.
struct Piece {
    seq: SeqId,
    tokens: Vec<i32>,
    hidden: Vec<f32>,
    work: SpanWork,
}

impl DsaStage {
    /// Computes the cache rows of sequences that have many waiting.
    pub(super) fn flush_drafts(&mut self) -> Result<(), GgmlError> {
        let Some(drafts) = &self.drafts else { return Ok(()) };
        let many = drafts.followers.iter().zip(0..).filter(|(follower, _)| follower.waiting.len() > WAITING_MAX);
        let many: Vec<u32> = many.map(|(_, seq)| seq).collect();
        for seq in many {
            let Some(piece) = self.piece(SeqId(seq), None, 0) else { continue };
            self.arena.reserve(OPS);
            let (Some(mtp), Some(drafts)) = (&self.weights.mtp, &mut self.drafts) else { return Ok(()) };
            let g = self.arena.graph(FOLLOW)?;
            let few = piece.tokens.len() <= FEW_ROWS;
            let (pass, joined) = join(&g, mtp, &self.dims, &[&piece], few);
            let normed = g.rms_norm(joined, g.leaf(&mtp.layer.attn_norm), self.dims.eps);
            pass.store(normed, &mtp.layer, &drafts.cache.layers[0], std::iter::once(&piece.work));
            self.computer.run(&g)?;
            let follower = &mut drafts.followers[seq as usize];
            follower.rows = follower.end();
            follower.ahead = None;
            follower.waiting.clear();
        }
        Ok(())
    }

    /// Guesses, `[rows.len(), n_vocab]`.
    pub(super) fn run_drafts(&mut self, rows: &[DraftRow]) -> Result<&[f32], StageError> {
        let Some(drafts) = &mut self.drafts else {
            return Err(StageError::InvalidBatch("this stage has no draft head, or was loaded without it".into()));
        };
        drafts.logits.clear();
        for row in rows {
            let (seq, held) = (row.seq.0 as usize, self.rows_held[row.seq.0 as usize]);
            let follower = &mut drafts.followers[seq];
            // A guess asked for a second time: the row it left is computed again.
            follower.truncate(held);
            if follower.end() != held {
                let (end, seq) = (follower.end(), row.seq.0);
                let what = format!("the draft head has followed sequence {seq} for {end} of {held} rows");
                return Err(StageError::InvalidBatch(what));
            }
            if held >= self.shape.n_ctx_seq {
                return Err(StageError::KvFull { rows: 1, n_ctx: self.shape.n_ctx_seq });
            }
        }
        // At most `WAITING_MAX + 1` rows of a sequence at a time.
        for rows in rows.chunks((FEW_ROWS / (WAITING_MAX + 1)).max(1) * 4) {
            self.draft_group(rows).map_err(|error| StageError::Engine(error.to_string()))?;
        }
        Ok(self.drafts.as_ref().map_or(&[], |drafts| &drafts.logits))
    }

    fn draft_group(&mut self, rows: &[DraftRow]) -> Result<(), GgmlError> {
        let mut pieces = Vec::with_capacity(rows.len());
        let mut first = 0;
        for row in rows {
            let Some(piece) = self.piece(row.seq, Some(row.token), first) else { continue };
            first += piece.work.n;
            pieces.push(piece);
        }
        self.arena.reserve(OPS + 24 * rows.len());
        let (Some(mtp), Some(drafts)) = (&self.weights.mtp, &mut self.drafts) else { return Ok(()) };
        let (g, dims, cache) = (self.arena.graph(DRAFT)?, &self.dims, &drafts.cache.layers[0]);
        g.limit_threads(self.useful_threads.1);
        let borrowed: Vec<&Piece> = pieces.iter().collect();
        let (pass, joined) = join(&g, mtp, dims, &borrowed, true);
        let normed = g.rms_norm(joined, g.leaf(&mtp.layer.attn_norm), dims.eps);
        pass.store(normed, &mtp.layer, cache, pieces.iter().map(|piece| &piece.work));

        // From here on only the newest row of each sequence.
        let n = pieces.len() as i64;
        let last = |piece: &Piece| piece.work.first + piece.work.n - 1;
        let newest: Vec<i32> = pieces.iter().map(|piece| last(piece) as i32).collect();
        let positions: Vec<i32> = pieces.iter().map(|piece| (piece.work.pos + piece.work.n - 1) as i32).collect();
        let newest = g.input_i32(&newest, [n, 1]);
        let pass = Pass { pos: g.input_i32(&positions, [n, 1]), ..pass };
        let (joined, normed) = (g.get_rows(joined, newest), g.get_rows(normed, newest));
        let plans: Vec<_> = pieces
            .iter()
            .zip(0..)
            .map(|(piece, first)| {
                let pos = piece.work.pos + piece.work.n - 1;
                SpanPlan::new(&g, dims, SpanWork { pos, first, n: 1, ..piece.work }, true)
            })
            .collect();
        let x = pass.attend(joined, normed, &mtp.layer, cache, &plans, &mut vec![Vec::new(); plans.len()]);
        let x = g.rms_norm(x, g.leaf(&mtp.head_norm), dims.eps);
        let logits = pass.mm(g.leaf(&mtp.head), x);
        g.output(logits);
        let done = self.computer.run(&g)?;
        drafts.logits.extend_from_slice(done.f32(logits)?);
        for (piece, row) in pieces.iter().zip(rows) {
            let follower = &mut drafts.followers[piece.seq.0 as usize];
            follower.rows = follower.end() + 1;
            follower.ahead = Some(row.token);
            follower.waiting.clear();
        }
        Ok(())
    }

    /// What waits of a sequence, and `token` behind it.
    fn piece(&self, seq: SeqId, token: Option<i32>, first: i64) -> Option<Piece> {
        let drafts = self.drafts.as_ref()?;
        let follower = drafts.followers.get(seq.0 as usize)?;
        let (mut tokens, mut hidden) = (Vec::new(), Vec::new());
        for (token, row) in &follower.waiting {
            tokens.push(*token);
            hidden.extend_from_slice(row);
        }
        if let Some(token) = token {
            tokens.push(token);
            hidden.extend(follower.hidden_at(follower.end().checked_sub(1), drafts.n_embd));
        }
        let work = SpanWork {
            base: drafts.cache.base(seq.0),
            room: i64::from(self.shape.n_ctx_seq),
            pos: i64::from(follower.rows),
            first,
            n: tokens.len() as i64,
            path: Path::CompactFlash,
            unselected: drafts.attention == DraftAttention::Dense,
        };
        Some(Piece { seq, tokens, hidden, work })
    }
}

/// Rows `[n_embd, n]` that enter the block's layer: token embedding and hidden row, normed, joined and projected.
fn join<'a, 'g>(
    g: &'a Graph<'g>,
    mtp: &'g Mtp,
    dims: &'a Dims,
    pieces: &[&Piece],
    few: bool,
) -> (Pass<'a, 'g>, Tensor<'g>) {
    let tokens: Vec<i32> = pieces.iter().flat_map(|piece| piece.tokens.iter().copied()).collect();
    let hidden: Vec<f32> = pieces.iter().flat_map(|piece| piece.hidden.iter().copied()).collect();
    let pos: Vec<i32> = pieces.iter().flat_map(|piece| (piece.work.pos as i32..).take(piece.tokens.len())).collect();
    let n = tokens.len() as i64;
    let pass = Pass { g, dims, pos: g.input_i32(&pos, [n, 1]), few };
    let embedded = g.get_rows(g.leaf(&mtp.embed), g.input_i32(&tokens, [n, 1]));
    let embedded = g.rms_norm(embedded, g.leaf(&mtp.embed_norm), dims.eps);
    let hidden = g.rms_norm(g.input_f32(&hidden, [dims.n_embd, n]), g.leaf(&mtp.hidden_norm), dims.eps);
    let joined = pass.mm(g.leaf(&mtp.project), g.concat(embedded, hidden, 0));
    (pass, joined)
}
