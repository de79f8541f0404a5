//! The `dsa` engine: GLM-DSA and DeepSeek-V3.2 sparse attention as graphs of our own.
//!
//! llama.cpp's graph for these models has one way to attend. Here each sequence of a pass takes the path that the policy
//! resolver chooses for its phase, the top-k lists of IndexShare cross stage boundaries, and the MTP block drafts. Weights
//! are used in place in the mapped fragments, so stages on one host share the page cache.
//!
//! Rows of decoding sequences and of verify windows are computed so that their bits do not depend on who else is in the
//! pass; pieces of a prompt are passes of their own.

mod attention;
mod cache;
mod decide;
mod dims;
mod held;
mod layer;
pub mod measure;
mod mtp;
mod options;
mod out;
mod run;
mod spans;
mod state;
#[cfg(test)]
mod tests;
mod weights;

use super::{
    Announcer, Boundary, DraftRow, Pieces, SeqId, SpanDecision, StageBatch, StageEngine, StageError, StageInput,
    StageOutput, StageShape, TopK,
};
use crate::{
    ggml::{Arena, Computer},
    llama::Threadpool,
    package::{StageFiles, glm_dsa::Config},
    policy::{Resolver, Role},
    telemetry::{labels::Direction, metrics},
};
use cache::Cache;
use dims::Dims;
use mtp::Drafts;
pub use options::{DraftAttention, DsaStageError, DsaStageOptions, Switches};
use out::Out;
use std::sync::Arc;
use weights::Weights;

/// Rows from which ggml's attention takes the rows of a pass in tiles, which rounds otherwise than one by one.
const TILE: u32 = 64;

/// How prompts are cut. From a tile's rows on a row comes out alike whatever the size of its piece, as long as the rows
/// that attend to everything, at most top-k of them, fill tiles too. Where they do not, every piece has the same size.
fn pieces(top_k: u32, n_batch: u32) -> Pieces {
    Pieces { unit: TILE, most: if top_k.is_multiple_of(TILE) { n_batch.max(TILE) } else { TILE } }
}

/// Whether models of this architecture run here.
pub fn serves(arch: &str) -> bool {
    crate::package::glm_dsa::Arch::from_name(arch).is_some()
}

/// A range of layers of a GLM-DSA model.
pub struct DsaStage {
    shape: StageShape,
    config: Config,
    dims: Dims,
    weights: Weights,
    cache: Cache,
    resolver: Arc<Resolver>,
    announcer: Announcer,
    drafts: Option<Drafts>,
    arena: Arena,
    computer: Computer,
    /// Threads worth having for few rows, and for drafts.
    useful_threads: (u32, u32),
    rows_held: Vec<u32>,
    decisions: Vec<SpanDecision>,
    told: held::Told,
    /// Operations of the graphs of the last pass.
    operations: usize,
    /// Results of the last pass, in batch order.
    out: Out,
}

impl DsaStage {
    /// Loads the stage that `files` holds. Nothing is copied: pages are read as they are touched.
    ///
    /// # Errors
    /// [`DsaStageError`]: the package breaks the GLM-DSA contract, or the options do not fit the model.
    pub fn load(
        files: StageFiles,
        pool: Arc<Threadpool>,
        resolver: Arc<Resolver>,
        options: &DsaStageOptions,
    ) -> Result<Self, DsaStageError> {
        let config = Config::of_stage(&files)?;
        let (range, layer_count) = (files.range, files.layer_count);
        if range.start() >= config.trunk_layers {
            return Err(DsaStageError::NoTrunk { layers: range, trunk: config.trunk_layers });
        }
        let dims = Dims { switches: options.switches, ..Dims::new(&config) };
        let weights = Weights::load(files, &config)?;
        let n_batch = options.n_batch.max(options.n_seq_max);
        let has_draft_head = weights.mtp.is_some() && options.drafts.is_some();
        let shape = StageShape {
            layers: range,
            layer_count,
            n_embd: config.n_embd as usize,
            n_vocab: if weights.head.is_some() { config.n_vocab as usize } else { 0 },
            n_ctx: options.n_ctx_seq.saturating_mul(options.n_seq_max),
            n_ctx_seq: options.n_ctx_seq,
            n_seq_max: options.n_seq_max,
            n_batch,
            drafts: has_draft_head,
            pieces: pieces(config.top_k, n_batch),
            prefix_step: if has_draft_head { mtp::STEP } else { 1 },
        };
        let full: Vec<bool> = weights.layers.iter().map(|(_, layer)| layer.indexer.is_some()).collect();
        let cache = Cache::new(&dims, options.cache_type.ggml(), &full, options.n_seq_max, options.n_ctx_seq)?;
        let drafts = match (&weights.mtp, options.drafts) {
            (Some(mtp), Some(attention)) => Some(Drafts::new(mtp, &dims, options, attention)?),
            _ => None,
        };
        let arena = Arena::new(0).for_threads(pool.n_threads());
        let computer = Computer::new(pool)?;
        let useful_threads = weights.useful_threads(&dims);
        let rows_held = vec![0; options.n_seq_max as usize];
        Ok(Self {
            arena,
            shape,
            config,
            dims,
            weights,
            cache,
            resolver,
            announcer: Announcer::default(),
            drafts,
            computer,
            useful_threads,
            rows_held,
            decisions: Vec::new(),
            told: held::Told::default(),
            operations: 0,
            out: Out::default(),
        })
    }

    /// The model's dimensions.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Bytes of one position in the cache: attention rows, then indexer keys, of all layers of the stage.
    pub fn cache_bytes_per_position(&self) -> (usize, usize) {
        self.cache.bytes_per_position()
    }

    /// Operations of the graphs of the last pass, which switches and paths change.
    pub fn operations(&self) -> usize {
        self.operations
    }

    /// Whether the first layer takes its selection from the stage before.
    fn starts_shared(&self) -> bool {
        self.config.roles.get(self.shape.layers.start() as usize) == Some(&Role::Shared)
    }

    /// Whether the layer behind the stage takes its selection from this one.
    fn hands_on_lists(&self) -> bool {
        self.config.roles.get(self.shape.layers.end() as usize) == Some(&Role::Shared)
    }

    fn count_sideband(&self, batch: &StageBatch<'_>) {
        let bytes = TopK::bytes(batch.rows.len(), self.config.top_k as usize);
        if self.starts_shared() {
            metrics::indexshare_sideband(Direction::In, bytes);
        }
        if self.hands_on_lists() {
            metrics::indexshare_sideband(Direction::Out, bytes);
        }
    }

    fn check(&self, batch: &StageBatch<'_>) -> Result<(), StageError> {
        let refuse = |what: String| Err(StageError::InvalidBatch(what));
        let n = batch.rows.len();
        super::check_input(batch, &self.shape)?;
        super::check_rows(batch.rows, &self.shape, |seq| self.n_rows(seq))?;
        if let Some(tokens) = batch.token_ids() {
            if tokens.len() != n {
                return refuse(format!("{} token ids for {n} rows", tokens.len()));
            }
            tokens.iter().try_for_each(|token| self.check_token(*token))?;
        }
        let runs = batch.rows.chunk_by(|a, b| a.seq == b.seq);
        let mut seen = vec![false; self.shape.n_seq_max as usize];
        for run in runs {
            if std::mem::replace(&mut seen[run[0].seq.0 as usize], true) {
                return refuse(format!("the rows of sequence {} are not neighbours", run[0].seq.0));
            }
        }
        if self.starts_shared() {
            self.check_lists(batch)?;
        }
        Ok(())
    }

    fn check_token(&self, token: i32) -> Result<(), StageError> {
        match u32::try_from(token).is_ok_and(|id| id < self.config.n_vocab) {
            true => Ok(()),
            false => Err(StageError::InvalidBatch(format!(
                "token id {token} is outside the vocabulary of {}",
                self.config.n_vocab
            ))),
        }
    }

    /// Lists may come from another process: a position outside the cache would make ggml abort.
    fn check_lists(&self, batch: &StageBatch<'_>) -> Result<(), StageError> {
        let refuse = |what: String| Err(StageError::InvalidBatch(what));
        let StageInput::Hidden(Boundary { top_k: Some(TopK { width, lists }), .. }) = batch.input else {
            // The resolver refuses it, and says so.
            return Ok(());
        };
        let top_k = self.config.top_k as usize;
        if width != top_k || lists.len() != width * batch.rows.len() {
            let (got, rows) = (lists.len(), batch.rows.len());
            return refuse(format!("{got} list entries of width {width} for {rows} rows, expected width {top_k}"));
        }
        for (row, list) in batch.rows.iter().zip(lists.chunks_exact(width)) {
            let used = top_k.min(row.pos as usize + 1);
            let ascending = list[..used].windows(2).all(|pair| pair[0] < pair[1]);
            let inside = list[0] >= 0 && list[used - 1] <= row.pos as i32;
            let rest = list[used..].iter().all(|entry| *entry == -1);
            if !(ascending && inside && rest) {
                return refuse(format!(
                    "the top-k list of position {} must hold {used} ascending positions up to it, then -1",
                    row.pos
                ));
            }
        }
        Ok(())
    }
}

impl StageEngine for DsaStage {
    fn shape(&self) -> &StageShape {
        &self.shape
    }

    fn forward(&mut self, batch: &StageBatch<'_>) -> Result<StageOutput<'_>, StageError> {
        self.check(batch)?;
        self.decide(batch)?;
        self.run(batch)?;
        self.count_sideband(batch);
        self.tell_rows();
        Ok(match self.shape.owns_output() {
            true => StageOutput::Logits(&self.out.logits),
            false => {
                let width = self.config.top_k as usize;
                let top_k = self.hands_on_lists().then_some(TopK { width, lists: &self.out.lists });
                StageOutput::Hidden(Boundary { rows: &self.out.hidden, top_k })
            }
        })
    }

    fn truncate(&mut self, seq: SeqId, n_keep: u32) -> Result<(), StageError> {
        super::check_seq(seq, &self.shape)?;
        let held = &mut self.rows_held[seq.0 as usize];
        *held = n_keep.min(*held);
        if let Some(drafts) = &mut self.drafts {
            drafts.truncate(seq, n_keep);
        }
        self.tell_rows();
        Ok(())
    }

    fn copy(&mut self, from: SeqId, to: SeqId, n_rows: u32) -> Result<(), StageError> {
        super::check_copy((from, to), n_rows, self.n_rows(from), &self.shape)?;
        let failed = |error: crate::ggml::GgmlError| StageError::Engine(error.to_string());
        self.cache.copy(from.0, to.0, n_rows).map_err(failed)?;
        if let Some(drafts) = &mut self.drafts {
            drafts.copy(from, to, n_rows).map_err(failed)?;
        }
        self.rows_held[to.0 as usize] = n_rows;
        self.tell_rows();
        Ok(())
    }

    fn save(&mut self, seq: SeqId, n_rows: u32) -> Result<Vec<u8>, StageError> {
        super::check_held(seq, n_rows, self.n_rows(seq), &self.shape)?;
        self.save_rows(seq, n_rows).map_err(|error| StageError::Engine(error.to_string()))
    }

    fn restore(&mut self, seq: SeqId, state: &[u8], n_rows: u32) -> Result<(), StageError> {
        self.truncate(seq, 0)?;
        let restored = self.restore_rows(seq, state, n_rows);
        self.tell_rows();
        restored
    }

    fn n_rows(&self, seq: SeqId) -> u32 {
        self.rows_held.get(seq.0 as usize).copied().unwrap_or(0)
    }

    fn draft(&mut self, rows: &[DraftRow]) -> Result<&[f32], StageError> {
        for (index, row) in rows.iter().enumerate() {
            super::check_seq(row.seq, &self.shape)?;
            self.check_token(row.token)?;
            if rows[..index].iter().any(|other| other.seq == row.seq) {
                return Err(StageError::InvalidBatch(format!("two drafts asked for sequence {}", row.seq.0)));
            }
        }
        self.run_drafts(rows)
    }

    fn decisions(&self) -> &[SpanDecision] {
        &self.decisions
    }
}
