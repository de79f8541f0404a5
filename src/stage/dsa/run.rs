//! A batch as graphs: each large piece of a prompt by itself, all few-row spans together.

use super::{
    DsaStage, Out,
    layer::{Lists, Pass},
    spans::{FEW_ROWS, SpanPlan, SpanWork, chunks},
};
use crate::{
    ggml::{GgmlError, Graph, Tensor},
    stage::{Boundary, Row, StageBatch, StageError, StageInput, StageShape, TopK},
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
/// Operations of attention and indexer for one chunk, or one row of a few-row pass.
const OPS_PER_CHUNK: usize = 16;

impl DsaStage {
    /// Computes the batch and extends the caches.
    pub(super) fn run(&mut self, batch: &StageBatch<'_>) -> Result<(), StageError> {
        let groups = self.groups(batch);
        let n = batch.rows.len();
        let outputs = output_places(batch.rows);
        self.out.clear(n, &self.shape, self.config.top_k as usize, outputs.n);
        for group in &groups {
            let outcome = self.run_group(batch, group, &outputs);
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
                path: decided.decision.selected,
                unselected: false,
            };
            group.n += rows.len();
            group.spans.push((range, work));
        }
        groups
    }

    fn run_group(&mut self, batch: &StageBatch<'_>, group: &Group, outputs: &Outputs) -> Result<(), GgmlError> {
        let pieces: usize = group.spans.iter().map(|(_, work)| self.pieces(work, group.few)).sum();
        let layers = self.weights.layers.len() + 1;
        let ops = layers * (OPS_PER_LAYER + pieces * OPS_PER_CHUNK) + pieces + 16;
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

        let mut x = match batch.input {
            StageInput::Tokens(tokens) => {
                let ids: Vec<i32> = rows().map(|row| tokens[row]).collect();
                let table = self.weights.embed.as_ref().ok_or(GgmlError::Alloc("embeddings"))?;
                g.get_rows(g.leaf(table), g.input_i32(&ids, [n, 1]))
            }
            StageInput::Hidden(Boundary { rows: hidden, .. }) => {
                let width = self.shape.n_embd;
                let picked: Vec<f32> = rows().flat_map(|row| &hidden[row * width..][..width]).copied().collect();
                g.input_f32(&picked, [width as i64, n])
            }
        };
        let mut lists = incoming_lists(&g, batch, group, &plans);
        for ((_, layer), cache) in self.weights.layers.iter().zip(&self.cache.layers) {
            x = pass.layer(x, layer, cache, &plans, &mut lists);
        }

        let result = match &self.weights.head {
            None => {
                g.output(x);
                let keep_lists =
                    self.config.roles.get(self.shape.layers.end() as usize) == Some(&crate::policy::Role::Shared);
                if keep_lists {
                    lists.iter().flatten().for_each(|list| g.output(*list));
                }
                GroupResult::Hidden { x, lists: keep_lists.then_some(lists) }
            }
            Some(head) => {
                let normed = g.rms_norm(x, g.leaf(&head.norm), self.dims.eps);
                let wanted: Vec<i32> =
                    rows().zip(0..).filter(|(row, _)| batch.rows[*row].output).map(|(_, i)| i).collect();
                let logits = (!wanted.is_empty()).then(|| {
                    let picked = match wanted.len() == group.n {
                        true => normed,
                        false => g.get_rows(normed, g.input_i32(&wanted, [wanted.len() as i64, 1])),
                    };
                    let logits = pass.mm(g.leaf(&head.weight), picked);
                    g.output(logits);
                    logits
                });
                let follows = group.spans.iter().any(|(range, _)| follows(batch, range));
                if follows {
                    g.output(normed);
                } else {
                    g.keep(normed);
                }
                GroupResult::Final { logits, normed: follows.then_some(normed) }
            }
        };

        let done = self.computer.run(&g)?;
        match result {
            GroupResult::Hidden { x, lists } => {
                let width = self.shape.n_embd;
                for (row, values) in rows().zip(done.f32(x)?.chunks_exact(width)) {
                    self.out.hidden[row * width..][..width].copy_from_slice(values);
                }
                if let Some(lists) = lists {
                    let top_k = self.config.top_k as usize;
                    for (((range, work), plan), lists) in group.spans.iter().zip(&plans).zip(&lists) {
                        let out = &mut self.out.lists[range.start * top_k..range.end * top_k];
                        cover(out, top_k, work.pos, plan.covered);
                        for (chunk, list) in plan.chunks.iter().zip(lists) {
                            let at = chunk.first as usize * top_k;
                            out[at..at + chunk.n as usize * top_k].copy_from_slice(done.i32(*list)?);
                        }
                    }
                }
            }
            GroupResult::Final { logits, normed } => {
                if let Some(logits) = logits {
                    let n_vocab = self.shape.n_vocab;
                    let places = rows().filter_map(|row| outputs.places[row]);
                    for (place, values) in places.zip(done.f32(logits)?.chunks_exact(n_vocab)) {
                        self.out.logits[place * n_vocab..][..n_vocab].copy_from_slice(values);
                    }
                }
                if let (Some(normed), Some(drafts)) = (normed, &mut self.drafts) {
                    let hidden = done.f32(normed)?;
                    let tokens = batch.token_ids();
                    for (range, work) in &group.spans {
                        let part =
                            &hidden[work.first as usize * self.shape.n_embd..][..range.len() * self.shape.n_embd];
                        if let (true, Some(tokens)) = (follows(batch, range), tokens) {
                            let row = batch.rows[range.start];
                            drafts.follow(row.seq, row.pos, &tokens[range.clone()], part);
                        }
                    }
                }
            }
        }
        drop(g);
        self.flush_drafts()
    }

    fn pieces(&self, work: &SpanWork, few: bool) -> usize {
        let (covered, chunks) = chunks(&self.dims, work, few);
        chunks.len() + if few { covered as usize } else { 1 }
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

/// Which row of the logits each row of the batch has.
struct Outputs {
    places: Vec<Option<usize>>,
    n: usize,
}

fn output_places(rows: &[Row]) -> Outputs {
    let mut n = 0;
    let mut place = |row: &Row| {
        let place = row.output.then_some(n);
        n += usize::from(row.output);
        place
    };
    let places = rows.iter().map(&mut place).collect();
    Outputs { places, n }
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

/// Lists of rows that see no more than `top_k` rows: all of them.
fn cover(out: &mut [i32], top_k: usize, pos: i64, covered: i64) {
    for (row, list) in (0..covered).zip(out.chunks_exact_mut(top_k)) {
        let visible = pos + row + 1;
        for (entry, at) in list.iter_mut().zip(0..) {
            *entry = if at < visible { at as i32 } else { -1 };
        }
    }
}

impl Out {
    fn clear(&mut self, n: usize, shape: &StageShape, top_k: usize, n_outputs: usize) {
        self.logits.clear();
        self.logits.resize(n_outputs * shape.n_vocab, 0.0);
        self.hidden.clear();
        self.lists.clear();
        if !shape.owns_output() {
            self.hidden.resize(n * shape.n_embd, 0.0);
            self.lists.resize(n * top_k, -1);
        }
    }
}
