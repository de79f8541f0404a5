//! The GLM-DSA fixture: a random model, and what another implementation computes with it.

use super::{TestPackage, engine::pool, package_of};
use skippy_stage::{
    gguf::GgufFile,
    llama::KvType,
    package::{LayerRange, Verify},
    policy::{Path, Resolver},
    stage::{
        Purpose, Row, SeqId, Span, StageBatch, StageEngine, StageInput, StageOutput,
        dsa::{DraftAttention, DsaStage, DsaStageError, DsaStageOptions, Switches},
        local_chain::LocalChain,
    },
};
use std::{path::PathBuf, sync::Arc};

/// Layers of the model, the MTP block counted.
pub(crate) const LAYERS: u32 = 7;

/// A file of the fixture.
pub(crate) fn fixture(name: &str) -> PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/glm52").join(name)
}

/// The model.
pub(crate) fn package() -> TestPackage {
    package_of(&fixture("model.gguf"))
}

/// What the other implementation computed, by array name.
pub(crate) struct Reference(GgufFile);

impl Reference {
    pub(crate) fn open() -> Self {
        Self(GgufFile::open(&fixture("reference.gguf")).unwrap())
    }

    fn bytes(&self, name: &str) -> &[u8] {
        let tensor = self.0.gguf().tensor(name).unwrap_or_else(|| panic!("no array {name}"));
        self.0.tensor_bytes(tensor)
    }

    pub(crate) fn f32(&self, name: &str) -> Vec<f32> {
        self.bytes(name).as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    pub(crate) fn i32(&self, name: &str) -> Vec<i32> {
        self.bytes(name).as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect()
    }
}

/// Three short sequences, with drafts.
pub(crate) fn three_sequences(cache_type: KvType) -> DsaStageOptions {
    DsaStageOptions {
        n_ctx_seq: 64,
        n_batch: 48,
        n_seq_max: 3,
        cache_type,
        drafts: Some(DraftAttention::Sparse),
        switches: Switches::default(),
    }
}

/// Layers `start..end` with an f32 cache.
pub(crate) fn range(package: &TestPackage, start: u32, end: u32, drafts: Option<DraftAttention>) -> DsaStage {
    let options = DsaStageOptions {
        n_ctx_seq: 256,
        n_batch: 256,
        n_seq_max: 4,
        cache_type: KvType::F32,
        drafts,
        switches: Switches::default(),
    };
    load(package, start, end, &options).unwrap()
}

/// Layers `start..end`, if they can be loaded.
pub(crate) fn load(
    package: &TestPackage,
    start: u32,
    end: u32,
    options: &DsaStageOptions,
) -> Result<DsaStage, DsaStageError> {
    let range = LayerRange::new(start, end).unwrap();
    let files = package.package.load(&package.package.select(range).unwrap(), Verify::SizesOnly).unwrap();
    DsaStage::load(files, pool(), Arc::new(Resolver::default()), options)
}

/// The whole model.
pub(crate) fn whole(package: &TestPackage, drafts: Option<DraftAttention>) -> DsaStage {
    range(package, 0, LAYERS, drafts)
}

/// The model as stages that meet at `cuts`.
pub(crate) fn chain(package: &TestPackage, cuts: &[u32], drafts: Option<DraftAttention>) -> LocalChain {
    let mut start = 0;
    let ends = cuts.iter().copied().chain([LAYERS]);
    let stages = ends.map(|end| {
        let stage = range(package, start, end, drafts);
        start = end;
        Box::new(stage) as Box<dyn StageEngine>
    });
    LocalChain::new(stages.collect()).unwrap()
}

/// Rows for `n` tokens of `seq` from `pos` on, all with output.
pub(crate) fn rows(seq: u32, pos: u32, n: usize) -> Vec<Row> {
    (pos..).take(n).map(|pos| Row { seq: SeqId(seq), pos, output: true }).collect()
}

/// Logits of `tokens` appended to `seq`, which holds `pos` rows.
pub(crate) fn logits(
    engine: &mut dyn StageEngine,
    seq: u32,
    pos: u32,
    tokens: &[i32],
    purpose: Purpose,
    path: Option<Path>,
) -> Vec<f32> {
    forward(engine, Span { seq: SeqId(seq), purpose, path, drafts: false }, pos, tokens)
}

/// The same for sequence 0, followed by the draft head.
pub(crate) fn tracked(engine: &mut dyn StageEngine, pos: u32, tokens: &[i32], purpose: Purpose) -> Vec<f32> {
    forward(engine, Span { seq: SeqId(0), purpose, path: None, drafts: true }, pos, tokens)
}

fn forward(engine: &mut dyn StageEngine, span: Span, pos: u32, tokens: &[i32]) -> Vec<f32> {
    let rows = rows(span.seq.0, pos, tokens.len());
    let spans = [span];
    let batch = StageBatch { spans: &spans, ..StageBatch::new(StageInput::Tokens(tokens), &rows) };
    match engine.forward(&batch).unwrap() {
        StageOutput::Logits(logits) => logits.to_vec(),
        StageOutput::Hidden(_) => panic!("hidden rows from a stage that owns the output"),
    }
}

pub(crate) fn argmax(logits: &[f32]) -> i32 {
    skippy_stage::text::argmax(logits).unwrap() as i32
}
