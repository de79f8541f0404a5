//! A batch as graphs: each large piece of a prompt by itself, all few-row spans together.

use super::{
    DsaStage,
    layer::{Lists, Pass},
    spans::{FEW_ROWS, SpanPlan, SpanWork, chunks, pieces},
    weights::Head,
};
use crate::{
    ggml::{GgmlError, Graph, Leaf, Tensor},
    stage::{Boundary, Row, StageBatch, StageError, StageInput, TopK},
};
use std::ops::Range;

/// One graph: spans of a batch by their rows, with their work.
struct Group {
    spans: Vec<(Range<usize>, SpanWork)>,
    n: usize,
    few: bool,
}

/// Kinds of graphs (see [`crate::ggml::Arena::graph`]): pieces of prompts.
const PROMPT: usize = 0;
/// Followed rows of the draft head, without a guess.
pub(super) const FOLLOW: usize = 1;
/// Guesses.
pub(super) const DRAFT: usize = 2;
/// Few rows: a kind for each count up to [`MANY_FEW`].
const FIRST_FEW: usize = 3;
/// Counts from here on share a kind.
const MANY_FEW: usize = 4;

/// Operations of a layer besides attention, generously.
const OPS_PER_LAYER: usize = 96;
/// Operations of attention and indexer for one chunk, and of projections and dense FFN for one piece.
const OPS_PER_PIECE: usize = 48;

impl DsaStage {
    /// Computes the batch and extends the caches.
    pub(super) fn run(&mut self, batch: &StageBatch<'_>) -> Result<(), StageError> {
        let groups = self.groups(batch);
        self.out.clear(batch.rows, &self.shape, self.config.top_k as usize);
        self.operations = 0;
        for group in &groups {
            let outcome = self.run_group(batch, group);
            outcome.map_err(|error| StageError::Engine(error.to_string()))?;
        }
        for Row { seq, .. } in batch.rows {
            self.rows_held[seq.0 as usize] += 1;
        }
        Ok(())
    }

    fn groups(&self, batch: &StageBatch<'_>) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let mut start = 0;
        let mut open: Option<usize> = None;
        for (rows, decided) in batch.rows.chunk_by(|a, b| a.seq == b.seq).zip(&self.decisions) {
            let range = start..start + rows.len();
            start = range.end;
            let few = rows.len() <= FEW_ROWS;
            let at = match open.filter(|at| few && groups[*at].n + rows.len() <= FEW_ROWS) {
                Some(at) => at,
                None => {
                    groups.push(Group { spans: Vec::new(), n: 0, few });
                    groups.len() - 1
                }
            };
            if few {
                open = Some(at);
            }
            let group = &mut groups[at];
            let work = SpanWork {
                base: self.cache.base(rows[0].seq.0),
                room: i64::from(self.shape.n_ctx_seq),
                pos: i64::from(rows[0].pos),
                first: group.n as i64,
                n: rows.len() as i64,
                path: self.dims.switches.executed(decided.decision.selected),
                unselected: false,
            };
            group.n += rows.len();
            group.spans.push((range, work));
        }
        groups
    }

    fn run_group(&mut self, batch: &StageBatch<'_>, group: &Group) -> Result<(), GgmlError> {
        let pieces: usize = group.spans.iter().map(|(_, work)| self.pieces(work, group.few)).sum();
        let (layers, hands_on) = (self.weights.layers.len() + 1, self.hands_on_lists());
        let ops = layers * (OPS_PER_LAYER + pieces * OPS_PER_PIECE) + pieces + 16;
        self.arena.reserve(ops);
        let kind = if group.few { FIRST_FEW + group.n.min(MANY_FEW) } else { PROMPT };
        let g = self.arena.graph(kind)?;
        if group.few {
            g.limit_threads(self.useful_threads.0);
        }
        let rows = || group.spans.iter().flat_map(|(range, _)| range.clone());
        let pos: Vec<i32> = rows().map(|row| batch.rows[row].pos as i32).collect();
        let n = group.n as i64;
        let pass = Pass { g: &g, dims: &self.dims, pos: g.input_i32(&pos, [n, 1]), few: group.few };
        let plans: Vec<_> =
            group.spans.iter().map(|(_, work)| SpanPlan::new(&g, &self.dims, *work, group.few)).collect();

        let mut x = incoming_rows(&g, batch, group, self.weights.embed.as_ref())?;
        let mut lists = incoming_lists(&g, batch, group, &plans);
        for ((_, layer), cache) in self.weights.layers.iter().zip(&self.cache.layers) {
            x = pass.layer(x, layer, cache, &plans, &mut lists);
        }

        let result = match &self.weights.head {
            None => hand_on(&g, x, hands_on.then_some(lists)),
            Some(head) => finish(&pass, x, head, batch, group),
        };
        let done = self.computer.run(&g)?;
        match result {
            GroupResult::Hidden { x, lists } => {
                self.out.take_hidden(rows(), done.f32(x)?);
                if let Some(lists) = lists {
                    for (((range, _), plan), lists) in group.spans.iter().zip(&plans).zip(&lists) {
                        let lists = lists.iter().map(|list| done.i32(*list)).collect::<Result<Vec<_>, _>>()?;
                        self.out.take_lists(range.clone(), plan, &lists);
                    }
                }
            }
            GroupResult::Final { logits, normed } => {
                if let Some(logits) = logits {
                    self.out.take_logits(rows(), done.f32(logits)?);
                }
                if let (Some(normed), Some(drafts), Some(tokens)) = (normed, &mut self.drafts, batch.token_ids()) {
                    let hidden = done.f32(normed)?;
                    for (range, work) in group.spans.iter().filter(|(range, _)| follows(batch, range)) {
                        let (row, width) = (batch.rows[range.start], self.shape.n_embd);
                        let part = &hidden[work.first as usize * width..][..range.len() * width];
                        drafts.follow(row.seq, row.pos, &tokens[range.clone()], part);
                    }
                }
            }
        }
        self.operations += g.len();
        drop(g);
        self.flush_drafts()
    }

    /// Chunks and pieces at most.
    fn pieces(&self, work: &SpanWork, few: bool) -> usize {
        chunks(&self.dims, work, few).1.len() + pieces(work.n).count() + 2
    }
}

enum GroupResult<'g> {
    Hidden { x: Tensor<'g>, lists: Option<Lists<'g>> },
    Final { logits: Option<Tensor<'g>>, normed: Option<Tensor<'g>> },
}

/// Whether the draft head follows the sequence of these rows.
fn follows(batch: &StageBatch<'_>, range: &Range<usize>) -> bool {
    batch.span(batch.rows[range.start].seq).is_some_and(|span| span.drafts)
}

/// Token embeddings, or the hidden rows that came in, `[n_embd, n]`.
fn incoming_rows<'g>(
    g: &Graph<'g>,
    batch: &StageBatch<'_>,
    group: &Group,
    embed: Option<&'g Leaf>,
) -> Result<Tensor<'g>, GgmlError> {
    let (n, rows) = (group.n as i64, group.spans.iter().flat_map(|(range, _)| range.clone()));
    match batch.input {
        StageInput::Tokens(tokens) => {
            let ids: Vec<i32> = rows.map(|row| tokens[row]).collect();
            let table = embed.ok_or(GgmlError::Alloc("embeddings"))?;
            Ok(g.get_rows(g.leaf(table), g.input_i32(&ids, [n, 1])))
        }
        StageInput::Hidden(Boundary { rows: hidden, .. }) => {
            let width = hidden.len() / batch.rows.len();
            let picked: Vec<f32> = rows.flat_map(|row| &hidden[row * width..][..width]).copied().collect();
            Ok(g.input_f32(&picked, [width as i64, n]))
        }
    }
}

/// The end of a stage inside the model.
fn hand_on<'g>(g: &Graph<'g>, x: Tensor<'g>, lists: Option<Lists<'g>>) -> GroupResult<'g> {
    g.output(x);
    lists.iter().flatten().flatten().for_each(|list| g.output(*list));
    GroupResult::Hidden { x, lists }
}

/// The end of the model: norm, and head for the rows that want logits.
fn finish<'g>(
    pass: &Pass<'_, 'g>,
    x: Tensor<'g>,
    head: &'g Head,
    batch: &StageBatch<'_>,
    group: &Group,
) -> GroupResult<'g> {
    let g = pass.g;
    let normed = g.rms_norm(x, g.leaf(&head.norm), pass.dims.eps);
    let rows = group.spans.iter().flat_map(|(range, _)| range.clone());
    let wanted: Vec<i32> = rows.zip(0..).filter(|(row, _)| batch.rows[*row].output).map(|(_, i)| i).collect();
    let logits = (!wanted.is_empty()).then(|| {
        let picked = match wanted.len() == group.n {
            true => normed,
            false => g.get_rows(normed, g.input_i32(&wanted, [wanted.len() as i64, 1])),
        };
        let logits = pass.mm(g.leaf(&head.weight), picked);
        g.output(logits);
        logits
    });
    // An output in any case: graphs that are alike share a layout, and one without followed sequences must not leave one in
    // which this memory is used again.
    g.output(normed);
    let followed = group.spans.iter().any(|(range, _)| follows(batch, range));
    GroupResult::Final { logits, normed: followed.then_some(normed) }
}

/// The selection that came with the hidden rows, cut like the spans.
fn incoming_lists<'g>(g: &Graph<'g>, batch: &StageBatch<'_>, group: &Group, plans: &[SpanPlan<'g>]) -> Lists<'g> {
    let StageInput::Hidden(Boundary { top_k: Some(TopK { width, lists }), .. }) = batch.input else {
        return vec![Vec::new(); plans.len()];
    };
    let of_span = |((range, _), plan): (&(Range<usize>, SpanWork), &SpanPlan<'g>)| {
        let of_chunk = |chunk: &super::spans::Chunk<'g>| {
            let first = range.start + chunk.first as usize;
            g.input_i32(&lists[first * width..][..chunk.n as usize * width], [width as i64, chunk.n])
        };
        plan.chunks.iter().map(of_chunk).collect()
    };
    group.spans.iter().zip(plans).map(of_span).collect()
}
