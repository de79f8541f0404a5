//! One engine under measurement: its layers, a filled cache, and passes behind it.

use super::rows::CachedRows;
use crate::{
    cli::engine::{EngineChoice, EngineOptions},
    llama::{KvType, Threadpool},
    package::{LayerRange, Package, StageFiles, Verify, glm_dsa::Config, synth::Random},
    stage::{
        Boundary, Purpose, Row, SeqId, Span, StageBatch, StageEngine, StageInput, StageOutput,
        dsa::DsaStage,
        llama::{LlamaStage, LlamaStageOptions},
    },
};
use anyhow::Context as _;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The one sequence.
const SEQ: SeqId = SeqId(0);

/// An engine and what is in its cache.
pub(super) struct Side {
    engine: Box<dyn StageEngine>,
    fill: Fill,
    /// Its state of one row.
    one: Vec<u8>,
    /// Rows that were filled in.
    at: u32,
    n_vocab: u32,
}

/// Makes a state with so many rows of one with one row.
type Fill = fn(&CachedRows, &[u8], u32) -> Option<Vec<u8>>;

/// Both engines with the same limits: KV rows, and rows of a pass.
fn options((n_ctx_seq, n_batch): (u32, u32), engine: EngineChoice) -> EngineOptions {
    let llama = LlamaStageOptions {
        n_ctx_seq,
        n_batch,
        n_seq_max: 1,
        cache_type_k: KvType::F16,
        cache_type_v: KvType::F16,
        gpu_layers: Some(0),
        allow_uncertified_cuts: false,
    };
    EngineOptions { engine, ..EngineOptions::from(llama) }
}

fn files(package: &Package, layers: LayerRange) -> anyhow::Result<StageFiles> {
    Ok(package.load(&package.select(layers)?, Verify::SizesOnly)?)
}

/// The model's dimensions.
pub(super) fn config(package: &Package, layers: LayerRange) -> anyhow::Result<Config> {
    Ok(Config::of_stage(&files(package, layers)?)?)
}

impl Side {
    /// The `dsa` engine, with the policy of the package.
    pub(super) fn dsa(
        package: &Package,
        layers: LayerRange,
        pool: &Arc<Threadpool>,
        limits: (u32, u32),
    ) -> anyhow::Result<Self> {
        let (files, options) = (files(package, layers)?, options(limits, EngineChoice::Dsa));
        let resolver = Arc::new(options.resolver(&files, package.manifest().generation.as_ref())?);
        let options = options.dsa(&resolver);
        let engine = DsaStage::load(files, pool.clone(), resolver, &options)?;
        Self::new(Box::new(engine), CachedRows::dsa_state)
    }

    /// The `llama` engine, with or without flash attention.
    pub(super) fn llama(
        package: &Package,
        layers: LayerRange,
        pool: &Arc<Threadpool>,
        limits: (u32, u32),
        flash: bool,
    ) -> anyhow::Result<Self> {
        let options = options(limits, EngineChoice::Llama);
        let load = if flash { LlamaStage::load_flash } else { LlamaStage::load };
        let engine = load(files(package, layers)?, pool.clone(), &options.llama)?;
        Self::new(Box::new(engine), CachedRows::llama_state)
    }

    fn new(engine: Box<dyn StageEngine>, fill: Fill) -> anyhow::Result<Self> {
        // A token that every vocabulary has; a stage inside the model has none.
        let n_vocab = u32::try_from(engine.shape().n_vocab)?.max(1);
        let mut side = Self { engine, fill, one: Vec::new(), at: 0, n_vocab };
        side.forward(0, 1, 1)?;
        side.one = side.engine.save(SEQ, 1)?;
        Ok(side)
    }

    /// Makes the first `n` of `cached` the content of the cache.
    pub(super) fn fill(&mut self, cached: &CachedRows, n: u32) -> anyhow::Result<()> {
        let state =
            (self.fill)(cached, &self.one, n).context("the engine's saved state has another form than expected")?;
        self.engine.restore(SEQ, &state, n)?;
        self.at = n;
        Ok(())
    }

    /// Forgets all but the first `n` rows that were filled in.
    pub(super) fn shorten(&mut self, n: u32) -> anyhow::Result<()> {
        self.engine.truncate(SEQ, n)?;
        self.at = n;
        Ok(())
    }

    /// Rows of output of a prefill pass of `chunk` rows, the last `most` of them, and of a token behind it.
    pub(super) fn outputs(&mut self, chunk: u32, most: u32) -> anyhow::Result<Vec<Vec<f32>>> {
        let mut rows = self.forward(self.at, chunk, most)?;
        rows.extend(self.forward(self.at + chunk, 1, 1)?);
        self.engine.truncate(SEQ, self.at)?;
        Ok(rows)
    }

    /// Time of a prefill pass of `n` rows behind the filled ones.
    pub(super) fn prefill(&mut self, n: u32) -> anyhow::Result<Duration> {
        self.timed(|side| side.forward(side.at, n, 1).map(drop))
    }

    /// Time of `n` tokens, one after the other, behind the filled rows.
    pub(super) fn decode(&mut self, n: u32) -> anyhow::Result<Duration> {
        self.timed(|side| (0..n).try_for_each(|i| side.forward(side.at + i, 1, 1).map(drop)))
    }

    /// Reads a prompt of `n` rows behind the filled ones, `chunk` at a time.
    pub(super) fn prompt(&mut self, n: u32, chunk: u32) -> anyhow::Result<()> {
        let pieces = (0..n).step_by(chunk as usize);
        self.timed(|side| {
            pieces.into_iter().try_for_each(|at| side.forward(side.at + at, chunk.min(n - at), 1).map(drop))
        })?;
        Ok(())
    }

    fn timed(&mut self, work: impl FnOnce(&mut Self) -> anyhow::Result<()>) -> anyhow::Result<Duration> {
        let start = Instant::now();
        work(self)?;
        let took = start.elapsed();
        self.engine.truncate(SEQ, self.at)?;
        Ok(took)
    }

    /// A pass of `n` rows from `pos` on, whose last `most` give output.
    fn forward(&mut self, pos: u32, n: u32, most: u32) -> anyhow::Result<Vec<Vec<f32>>> {
        let shape = self.engine.shape();
        let first_output = n - most.min(n);
        let rows: Vec<Row> = (0..n).map(|row| Row { seq: SEQ, pos: pos + row, output: row >= first_output }).collect();
        let tokens: Vec<i32> =
            (pos..pos + n).map(|pos| (pos.wrapping_mul(2_654_435_761) % self.n_vocab) as i32).collect();
        let mut random = Random::new(u64::from(pos), "hidden");
        let width = shape.n_embd;
        let hidden: Vec<f32> = match shape.owns_input() {
            true => Vec::new(),
            false => (0..n as usize * width).map(|_| random.unit() * 3f32.sqrt()).collect(),
        };
        let input = match shape.owns_input() {
            true => StageInput::Tokens(&tokens),
            false => StageInput::Hidden(Boundary::new(&hidden)),
        };
        let purpose = if n == 1 { Purpose::Decode } else { Purpose::Prefill { prompt: pos + n } };
        let spans = [Span { seq: SEQ, purpose, path: None, drafts: false }];
        let batch = StageBatch { spans: &spans, ..StageBatch::new(input, &rows) };
        // A stage inside the model hands on every row.
        let (values, width, skipped) = match self.engine.forward(&batch)? {
            StageOutput::Logits(logits) => (logits, self.n_vocab as usize, 0),
            StageOutput::Hidden(hidden) => (hidden.rows, width, first_output as usize),
        };
        Ok(values.chunks_exact(width).skip(skipped).map(<[f32]>::to_vec).collect())
    }
}
