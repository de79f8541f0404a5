//! The `llama` engine: any llama.cpp architecture at any certified cut, on the unmodified library.
//!
//! `virtual_gguf` turns the fragments of a range into a model that llama.cpp can load; `embedder` feeds the first
//! stage; [`crate::llama::Context`] captures the last layer's rows where the range ends before the output head.

mod attention;
mod checks;
mod embedder;
mod groups;
mod passes;
mod virtual_gguf;

use super::{
    Boundary, Row, SeqId, StageBatch, StageEngine, StageError, StageOutput, StageShape,
    families::{self, CutError, EmbeddingScale},
};
use crate::{
    gguf::{GgufError, Metadata},
    llama::{Context, ContextOptions, KvType, LlamaError, LlamaText, Model, ModelOptions, Threadpool},
    package::StageFiles,
};
use attention::Attention;
pub use checks::CheckError;
use embedder::Embedder;
use passes::Pass;
use std::sync::Arc;

/// How a stage is loaded.
#[derive(Clone, Copy, Debug)]
pub struct LlamaStageOptions {
    /// KV rows of one sequence. llama.cpp rounds up to a multiple of 256.
    pub n_ctx_seq: u32,
    /// Rows of one forward pass at most; raised to the number of sequences.
    pub n_batch: u32,
    /// Sequences.
    pub n_seq_max: u32,
    /// Type of the K cache.
    pub cache_type_k: KvType,
    /// Type of the V cache.
    pub cache_type_v: KvType,
    /// Layers to put on a GPU; `None` leaves it to llama.cpp.
    pub gpu_layers: Option<u32>,
    /// Try cuts of families that no parity run has certified.
    pub allow_uncertified_cuts: bool,
}

/// Why a stage could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LlamaStageError {
    /// The range starts or ends where the family must not be cut.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// llama.cpp would abort on it.
    #[error("the model cannot be loaded: {0}")]
    Check(#[from] CheckError),
    /// The in-memory header could not be made.
    #[error("cannot lay the stage out as a model: {0}")]
    Gguf(#[from] GgufError),
    /// llama.cpp refused.
    #[error(transparent)]
    Llama(#[from] LlamaError),
    /// A metadata key that every model has.
    #[error("`shared/metadata.gguf` lacks `{key}`")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// The final stage has neither `output.weight` nor a tied embedding.
    #[error("the stage owns the output but has neither `output.weight` nor a tied `token_embd.weight`")]
    NoOutput,
    /// The first stage has no embedding table.
    #[error("the stage owns the input but `shared/embeddings.gguf` lacks `token_embd.weight`")]
    NoEmbeddings,
    /// The embedding table does not fit the model.
    #[error("`token_embd.weight` has shape {shape:?}, expected [{n_embd}, n_vocab]")]
    EmbeddingShape {
        /// The table's shape.
        shape: Vec<u64>,
        /// The model's hidden width.
        n_embd: usize,
    },
    /// ggml has no conversion to f32 for the table.
    #[error("`token_embd.weight` has type {ty}, which ggml cannot turn into f32 rows")]
    EmbeddingType {
        /// The table's type.
        ty: &'static str,
    },
    /// A token id outside the table.
    #[error("token id {token} is outside the vocabulary of {n_vocab}")]
    TokenId {
        /// The id.
        token: i32,
        /// Rows of the table.
        n_vocab: u64,
    },
    /// A placeholder tensor would overflow.
    #[error("placeholder tensor `{tensor}` is too large")]
    TooLarge {
        /// Its name.
        tensor: String,
    },
    /// A model that cannot be decoded token by token.
    #[error("`{arch}` is not a decoder-only model; this engine serves those only")]
    NotDecoder {
        /// Architecture.
        arch: String,
    },
    /// A cut through a recurrent model.
    #[error("`{arch}` keeps recurrent state, so its rows cannot be taken out between layers; serve it whole")]
    Recurrent {
        /// Architecture.
        arch: String,
    },
}

/// Rows of one pass that get logits, when there are not more lanes than that. llama.cpp reserves this many times the
/// vocabulary: with the 262144 tokens of gemma-3 64 MiB, where every row of a batch of 512 would take 512.
const LOGITS_ROWS: u32 = 64;

/// A range of layers in llama.cpp.
pub struct LlamaStage {
    shape: StageShape,
    context: Context,
    embedder: Option<Embedder>,
    can_forget: bool,
    max_outputs: usize,
    rows_held: Vec<u32>,
    pass: Pass,
    output: Vec<f32>,
}

impl LlamaStage {
    /// Loads the stage that `files` holds. The fragments are unmapped again before this returns; only a first stage of
    /// a split model keeps `shared/embeddings.gguf` mapped.
    ///
    /// # Errors
    /// [`LlamaStageError`].
    pub fn load(
        files: StageFiles,
        pool: Arc<Threadpool>,
        options: &LlamaStageOptions,
    ) -> Result<Self, LlamaStageError> {
        Self::load_with(files, pool, options, Attention::of(options))
    }

    /// The same with ggml's flash attention, whatever that does to the bits of a row: for measurements. An f32 cache stays
    /// without.
    ///
    /// # Errors
    /// [`LlamaStageError`].
    pub fn load_flash(
        files: StageFiles,
        pool: Arc<Threadpool>,
        options: &LlamaStageOptions,
    ) -> Result<Self, LlamaStageError> {
        Self::load_with(files, pool, options, Attention::Flash)
    }

    fn load_with(
        mut files: StageFiles,
        pool: Arc<Threadpool>,
        options: &LlamaStageOptions,
        attention: Attention,
    ) -> Result<Self, LlamaStageError> {
        let metadata = files.metadata.gguf().metadata.clone();
        let arch = metadata.arch().unwrap_or("unknown").to_owned();
        let (owns_input, owns_output) = (files.owns_input(), files.owns_output());
        for cut in [files.range.start(), files.range.end()] {
            if cut != 0 && cut != files.layer_count {
                families::check_cut(&metadata, files.layer_count, cut, options.allow_uncertified_cuts)?;
            }
        }

        checks::check(&files)?;
        let model = {
            let gguf = virtual_gguf::build(&files)?;
            Model::load(&gguf.segments(), &ModelOptions { vocab_only: false, gpu_layers: options.gpu_layers })?
        };
        if !model.is_decoder_only() {
            return Err(LlamaStageError::NotDecoder { arch });
        }
        if !(owns_input && owns_output) && model.is_recurrent_or_hybrid() {
            return Err(LlamaStageError::Recurrent { arch });
        }

        let embedder = match (owns_input && !owns_output, files.embeddings.take()) {
            (true, Some(embeddings)) => {
                let scale = families::family(&arch).map_or(EmbeddingScale::One, |family| family.embedding);
                Some(Embedder::new(embeddings, model.n_embd(), scale)?)
            }
            (true, None) => return Err(LlamaStageError::NoEmbeddings),
            (false, _) => None,
        };
        let (range, layer_count) = (files.range, files.layer_count);
        drop(files);
        crate::llama::trim_heap();

        // Every lane must get a row into a pass, and every row of a stage that hands rows on is an output.
        let n_batch = options.n_batch.max(options.n_seq_max);
        let n_outputs_max = if owns_output { LOGITS_ROWS.clamp(options.n_seq_max, n_batch) } else { n_batch };
        let context = Context::new(
            Arc::new(model),
            pool,
            &ContextOptions {
                n_ctx_seq: options.n_ctx_seq,
                n_batch,
                n_seq_max: options.n_seq_max,
                n_outputs_max,
                cache_type_k: options.cache_type_k,
                cache_type_v: options.cache_type_v,
                flash_attention: attention != Attention::Plain,
                capture_layer: (!owns_output).then(|| range.len() - 1),
            },
        )?;
        let model = context.model();
        let can_forget = !model.is_recurrent_or_hybrid();
        let shape = StageShape {
            layers: range,
            layer_count,
            n_embd: model.n_embd(),
            n_vocab: if owns_output { model.n_vocab() } else { 0 },
            n_ctx: context.n_ctx_seq().saturating_mul(options.n_seq_max),
            n_ctx_seq: context.n_ctx_seq(),
            n_seq_max: options.n_seq_max,
            n_batch,
            drafts: false,
            pieces: attention.pieces(n_batch),
            prefix_step: u32::from(can_forget),
        };
        let rows_held = vec![0; options.n_seq_max as usize];
        let (pass, output) = (Pass::default(), Vec::new());
        let max_outputs = if owns_output { n_outputs_max as usize } else { usize::MAX };
        Ok(Self { shape, context, embedder, can_forget, max_outputs, rows_held, pass, output })
    }

    /// The model's vocabulary; `None` for a stage that does not own the output, which is loaded without one.
    pub fn text(&self) -> Option<LlamaText> {
        self.shape.owns_output().then(|| LlamaText::new(self.context.model().clone()))
    }

    /// What llama.cpp saves of a model with sliding windows lacks the rows that have left the window, so that nothing but
    /// the very end could be gone on from.
    fn check_can_save(&self) -> Result<(), StageError> {
        match self.can_forget && !self.context.model().has_sliding_window() {
            true => Ok(()),
            false => Err(StageError::Unsupported(
                "save part of a sequence of a model with recurrent state or sliding windows",
            )),
        }
    }

    fn check(&self, batch: &StageBatch<'_>) -> Result<(), StageError> {
        super::check_input(batch, &self.shape)?;
        super::check_rows(batch.rows, &self.shape, |seq| self.n_rows(seq))
    }
}

impl StageEngine for LlamaStage {
    fn shape(&self) -> &StageShape {
        &self.shape
    }

    fn forward(&mut self, batch: &StageBatch<'_>) -> Result<StageOutput<'_>, StageError> {
        self.check(batch)?;
        // Bridging rows count towards the batch that llama.cpp sees, and need a KV row for the moment.
        let room = (self.shape.n_batch as usize).saturating_sub(batch.rows.len());
        let bridge = self.can_forget && room >= self.shape.n_seq_max as usize;
        let can_bridge = |seq| bridge && self.n_rows(seq) < self.shape.n_ctx_seq;
        let groups = groups::groups(batch.rows, can_bridge, self.max_outputs);
        let whole = groups::is_whole_batch(&groups);
        if whole {
            self.run(batch, &groups[0])?;
        } else {
            self.run_groups(batch, &groups)?;
        }
        for Row { seq, .. } in batch.rows {
            self.rows_held[seq.0 as usize] += 1;
        }
        Ok(match (self.shape.owns_output(), whole) {
            (true, true) => StageOutput::Logits(self.context.logits()),
            (true, false) => StageOutput::Logits(&self.output),
            (false, true) => StageOutput::Hidden(Boundary::new(self.context.hidden())),
            (false, false) => StageOutput::Hidden(Boundary::new(&self.output)),
        })
    }

    fn truncate(&mut self, seq: SeqId, n_keep: u32) -> Result<(), StageError> {
        super::check_seq(seq, &self.shape)?;
        // Emptying is never skipped: after a failed pass the cache may hold rows that were not counted.
        if n_keep > 0 && n_keep >= self.n_rows(seq) {
            return Ok(());
        }
        self.forget(seq, n_keep)?;
        self.rows_held[seq.0 as usize] = n_keep;
        Ok(())
    }

    fn copy(&mut self, from: SeqId, to: SeqId, n_rows: u32) -> Result<(), StageError> {
        let held = self.n_rows(from);
        super::check_copy((from, to), n_rows, held, &self.shape)?;
        self.truncate(to, 0)?;
        if n_rows == 0 {
            return Ok(());
        }
        if self.check_can_save().is_ok() {
            let state = self.save(from, n_rows)?;
            return self.restore(to, &state, n_rows);
        }
        // llama.cpp copies before it computes next, not now. That goes well as long as nothing else writes into the cache
        // in between, and `restore` is the only one that could.
        self.context.copy(from.0, to.0).map_err(|e| StageError::Engine(e.to_string()))?;
        self.rows_held[to.0 as usize] = held;
        self.truncate(to, n_rows)
    }

    /// How many rows are asked for and how many the sequence holds, then llama.cpp's own state of all of them.
    fn save(&mut self, seq: SeqId, n_rows: u32) -> Result<Vec<u8>, StageError> {
        let held = self.n_rows(seq);
        super::check_held(seq, n_rows, held, &self.shape)?;
        self.check_can_save()?;
        let mut state = [n_rows, held].map(u32::to_le_bytes).concat();
        self.context.save(seq.0, &mut state).map_err(|e| StageError::Engine(e.to_string()))?;
        Ok(state)
    }

    fn restore(&mut self, seq: SeqId, state: &[u8], n_rows: u32) -> Result<(), StageError> {
        super::check_seq(seq, &self.shape)?;
        self.check_can_save()?;
        self.truncate(seq, 0)?;
        let Some((&[a, b, c, d, e, f, g, h], state)) = state.split_first_chunk() else {
            return Err(StageError::InvalidBatch("a state without a beginning".into()));
        };
        let (saved, held) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        if n_rows > saved || saved > held || held > self.shape.n_ctx_seq {
            return Err(StageError::InvalidBatch(format!("restore {n_rows} rows of a state that holds {saved}")));
        }
        if let Err(error) = self.context.restore(seq.0, state) {
            self.forget(seq, 0)?;
            return Err(StageError::InvalidBatch(error.to_string()));
        }
        self.rows_held[seq.0 as usize] = held;
        self.truncate(seq, n_rows)
    }

    fn n_rows(&self, seq: SeqId) -> u32 {
        self.rows_held.get(seq.0 as usize).copied().unwrap_or(0)
    }
}

/// The vocabulary of a package, from its metadata alone, for a process whose stage does not own the output.
///
/// # Errors
/// When llama.cpp refuses the tokenizer.
pub fn load_vocabulary(metadata: &Metadata) -> Result<LlamaText, LlamaStageError> {
    let gguf = virtual_gguf::build_vocabulary(metadata)?;
    let model = Model::load(&gguf.segments(), &ModelOptions { vocab_only: true, gpu_layers: Some(0) })?;
    Ok(LlamaText::new(Arc::new(model)))
}
