//! How a prompt is cut changes no bit of a row, and neither does beginning with rows of another sequence, copied, or saved
//! and restored: what `StageShape::pieces` and `prefix_step` promise, on real models and both engines.
//!
//! The scheduler builds on it: it reads prompts in pieces of any size, by how busy it is, and reuses rows of others.

use crate::support::{RealModel, TestPackage, package_of};
use skippy_stage::{
    cli::engine::{self as cli_engine, EngineOptions},
    llama::{KvType, Threadpool},
    package::Package,
    stage::{
        DraftRow, Purpose, Row, SeqId, Span, StageBatch, StageEngine, StageError, StageInput, StageOutput,
        dsa::DraftAttention, llama::LlamaStageOptions, local_chain::LocalChain,
    },
};
use std::{path::Path, sync::Arc};

/// Tokens of the prompts: more than one tile of any kernel, and no multiple of anything.
const TOKENS: usize = 141;

/// A model in an engine, with what its prompts are made of.
struct Model {
    engine: LocalChain,
    n_vocab: i32,
}

impl Model {
    fn load(package: &Package, cuts: &[u32], kv: KvType, threads: u32) -> Self {
        let llama = LlamaStageOptions {
            n_ctx_seq: 512,
            n_batch: 256,
            n_seq_max: 3,
            cache_type_k: kv,
            cache_type_v: kv,
            gpu_layers: None,
            allow_uncertified_cuts: false,
        };
        let drafts = Some(DraftAttention::default());
        let options = EngineOptions { drafts, llama, ..EngineOptions::from(llama) };
        let options = EngineOptions { engine: cli_engine::EngineChoice::Auto, ..options };
        let pool = Arc::new(Threadpool::new(threads).unwrap());
        let engine = cli_engine::chain(package, cuts, &options, &pool).unwrap().chain;
        let n_vocab = i32::try_from(engine.shape().n_vocab).unwrap();
        Self { engine, n_vocab }
    }

    fn prompt(&self, seed: i32) -> Vec<i32> {
        (0..TOKENS as i32).map(|i| (i * 7919 + seed) % self.n_vocab).collect()
    }

    /// Reads `tokens` into `seq`, behind what it holds, and returns the logits of the last row; of the draft head too,
    /// where there is one.
    fn read(&mut self, seq: u32, tokens: &[i32], mut wish: impl FnMut() -> u32) -> Vec<f32> {
        let (seq, pieces, drafts) = (SeqId(seq), self.engine.shape().pieces, self.engine.shape().drafts);
        let mut last = Vec::new();
        let mut pos = self.engine.n_rows(seq) as usize;
        while pos < tokens.len() {
            let n = pieces.next((tokens.len() - pos) as u32, wish()) as usize;
            let purpose = Purpose::Prefill { prompt: tokens.len() as u32 };
            let row = |pos: usize| Row { seq, pos: pos as u32, output: pos + 1 == tokens.len() };
            let rows: Vec<Row> = (pos..pos + n).map(row).collect();
            last = self.forward(&tokens[pos..pos + n], &rows, Span { seq, purpose, path: None, drafts });
            pos += n;
        }
        last.extend(self.draft(seq));
        last
    }

    /// Logits behind `token`, computed alone.
    fn decode(&mut self, seq: u32, token: i32) -> Vec<f32> {
        let (seq, drafts) = (SeqId(seq), self.engine.shape().drafts);
        let rows = [Row { seq, pos: self.engine.n_rows(seq), output: true }];
        let mut logits = self.forward(&[token], &rows, Span { seq, purpose: Purpose::Decode, path: None, drafts });
        logits.extend(self.draft(seq));
        logits
    }

    fn forward(&mut self, tokens: &[i32], rows: &[Row], span: Span) -> Vec<f32> {
        let spans = [span];
        let batch = StageBatch { spans: &spans, ..StageBatch::new(StageInput::Tokens(tokens), rows) };
        match self.engine.forward(&batch).unwrap() {
            StageOutput::Logits(logits) => logits.to_vec(),
            StageOutput::Hidden(_) => panic!("a whole model answers with logits"),
        }
    }

    fn draft(&mut self, seq: SeqId) -> Vec<f32> {
        match self.engine.shape().drafts {
            true => self.engine.draft(&[DraftRow { seq, token: 7 }]).unwrap().to_vec(),
            false => Vec::new(),
        }
    }

    fn empty(&mut self, seq: u32) {
        self.engine.truncate(SeqId(seq), 0).unwrap();
    }

    /// Cold logits: of the prompt, then of two tokens behind it.
    fn cold(&mut self, tokens: &[i32]) -> [Vec<f32>; 3] {
        self.empty(0);
        [self.read(0, tokens, || u32::MAX), self.decode(0, 5), self.decode(0, 6)]
    }

    fn cutting_changes_nothing(&mut self) {
        let prompt = self.prompt(13);
        let expected = self.cold(&prompt);
        for sizes in [&[8u32] as &[u32], &[48, 8, 100]] {
            self.empty(1);
            let mut sizes_again = sizes.iter().cycle();
            let got = self.read(1, &prompt, || *sizes_again.next().unwrap());
            assert!(got == expected[0], "pieces of {sizes:?}");
            assert!(self.decode(1, 5) == expected[1] && self.decode(1, 6) == expected[2], "behind pieces of {sizes:?}");
        }
    }

    /// Others' rows: `take` makes the first rows of sequence 0 those of 2.
    fn taking_over_changes_nothing(&mut self, take: impl Fn(&mut LocalChain, u32) -> Result<(), StageError>) {
        let (first, mut second) = (self.prompt(13), self.prompt(13));
        second[110..].iter_mut().for_each(|token| *token = (*token + 1) % self.n_vocab);
        let expected = self.cold(&second);
        self.cold(&first);
        let shape = self.engine.shape();
        let step = shape.prefix_step.max(shape.pieces.unit);
        for rows in [step, 110 / step * step] {
            // Something else was there before.
            self.empty(2);
            self.read(2, &first[..70], || u32::MAX);
            take(&mut self.engine, rows).unwrap();
            assert_eq!(self.engine.n_rows(SeqId(2)), rows);
            let got = [self.read(2, &second, || 64), self.decode(2, 5), self.decode(2, 6)];
            assert!(got == expected, "behind {rows} rows");
        }
    }

    fn all(&mut self) {
        self.cutting_changes_nothing();
        self.taking_over_changes_nothing(|engine, rows| engine.copy(SeqId(0), SeqId(2), rows));
        self.saving_changes_nothing();
    }

    fn saving_changes_nothing(&mut self) {
        self.taking_over_changes_nothing(|engine, rows| {
            let state = engine.save(SeqId(0), rows + 13)?;
            engine.restore(SeqId(2), &state, rows)
        });
    }
}

fn smollm2() -> TestPackage {
    package_of(&RealModel::SmolLm2.path())
}

fn bundled() -> Package {
    Package::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/skippy-kjv-6m")).unwrap()
}

#[test]
fn llama_engine_with_every_cache_type() {
    let package = smollm2();
    Model::load(&package.package, &[], KvType::F16, 1).all();
    Model::load(&package.package, &[], KvType::Q8_0, 1).cutting_changes_nothing();
    Model::load(&package.package, &[], KvType::F32, 1).cutting_changes_nothing();
}

#[test]
fn llama_engine_in_three_stages_on_two_threads() {
    Model::load(&smollm2().package, &[7, 21], KvType::F16, 2).saving_changes_nothing();
}

/// Repacked weights, and sliding windows, of which llama.cpp cannot save a part.
#[test]
fn llama_engine_with_sliding_windows() {
    let package = package_of(&RealModel::Gemma3.path());
    let mut model = Model::load(&package.package, &[], KvType::F16, 1);
    model.cutting_changes_nothing();
    model.taking_over_changes_nothing(|engine, rows| engine.copy(SeqId(0), SeqId(2), rows));
    let refusal = model.engine.save(SeqId(0), 8).unwrap_err();
    assert!(matches!(refusal, StageError::Unsupported(_)), "{refusal}");
}

#[test]
fn dsa_engine_with_drafts() {
    let package = bundled();
    Model::load(&package, &[], KvType::F32, 1).all();
    Model::load(&package, &[], KvType::F16, 2).all();
    Model::load(&package, &[4], KvType::F32, 1).all();
}

/// What the draft head has not followed stays unfollowed, also elsewhere.
#[test]
fn rows_that_the_draft_head_has_not_followed_are_restored_as_such() {
    let mut model = Model::load(&bundled(), &[], KvType::F32, 1);
    let prompt = model.prompt(1);
    let span = Span { seq: SeqId(0), purpose: Purpose::Prefill { prompt: 64 }, path: None, drafts: false };
    let rows: Vec<Row> = (0..64).map(|pos| Row { seq: SeqId(0), pos, output: false }).collect();
    model.forward(&prompt[..64], &rows, span);
    let state = model.engine.save(SeqId(0), 64).unwrap();
    // Sequence 1 was followed before.
    model.read(1, &prompt[..64], || 64);
    model.engine.restore(SeqId(1), &state, 64).unwrap();
    let refusal = model.engine.draft(&[DraftRow { seq: SeqId(1), token: 7 }]).unwrap_err();
    assert!(matches!(refusal, StageError::InvalidBatch(_)), "{refusal}");
}

#[test]
fn states_that_are_none_are_refused_and_leave_nothing() {
    for (package, cuts) in
        [(bundled(), vec![]), (bundled(), vec![4]), (smollm2().package, vec![]), (smollm2().package, vec![9])]
    {
        let mut model = Model::load(&package, &cuts, KvType::F32, 1);
        let prompt = model.prompt(3);
        let expected = model.read(0, &prompt, || 64);
        let state = model.engine.save(SeqId(0), 128).unwrap();
        for (state, rows) in [(&state[..0], 64), (&state[..7], 64), (&state[..state.len() / 2], 128), (&state[..], 129)]
        {
            let refusal = model.engine.restore(SeqId(1), state, rows).unwrap_err();
            assert!(matches!(refusal, StageError::InvalidBatch(_)), "{refusal}");
            assert_eq!(model.engine.n_rows(SeqId(1)), 0);
        }
        assert!(model.engine.save(SeqId(0), TOKENS as u32 + 1).is_err() && model.engine.save(SeqId(9), 1).is_err());
        assert!(model.engine.restore(SeqId(9), &state, 64).is_err());
        assert!(model.read(1, &prompt, || 64) == expected, "the sequence is as good as new");
    }
}
