//! Cache types, and what the engine reports of the resolver's decisions.

use crate::support::{
    TestPackage,
    dsa::{self, Reference, load},
    editing::Bytes,
    engine::pool,
    package_of, random_model,
};
use skippy_stage::{
    llama::KvType,
    package::{LayerRange, Verify},
    policy::{Path, Phase, Reason, Resolver, ResolverConfig},
    stage::{
        Purpose, SeqId, Span, StageBatch, StageEngine, StageInput,
        dsa::{DraftAttention, DsaStage, DsaStageOptions, Switches},
    },
};
use std::sync::Arc;

fn options(cache_type: KvType) -> DsaStageOptions {
    DsaStageOptions {
        n_ctx_seq: 256,
        n_batch: 256,
        n_seq_max: 2,
        cache_type,
        drafts: None,
        switches: Switches::default(),
    }
}

/// Logits of a prompt of `cut` tokens, and of those behind it one by one.
fn answer_cut(package: &TestPackage, ids: &[i32], cut: usize, cache_type: KvType, path: Path) -> Vec<f32> {
    let mut stage = load(package, 0, dsa::LAYERS, &options(cache_type)).unwrap();
    let mut all = dsa::logits(&mut stage, 0, 0, &ids[..cut], Purpose::Prefill { prompt: cut as u32 }, Some(path));
    for pos in cut..ids.len() {
        all.extend(dsa::logits(&mut stage, 0, pos as u32, &ids[pos..=pos], Purpose::Decode, Some(path)));
    }
    all
}

fn answer(package: &TestPackage, ids: &[i32], cache_type: KvType, path: Path) -> Vec<f32> {
    answer_cut(package, ids, ids.len() - 4, cache_type, path)
}

/// Largest difference of each row, ascending.
fn by_row(a: &[f32], b: &[f32], n_vocab: usize) -> Vec<f32> {
    let rows = a.chunks(n_vocab).zip(b.chunks(n_vocab));
    let mut worst: Vec<f32> =
        rows.map(|(a, b)| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)).collect();
    worst.sort_by(f32::total_cmp);
    worst
}

/// Below top-k rounding of the cache is all there is. Above it, it can also turn a near tie of the selection, and then a
/// row moves by a lot: most rows must not.
#[test]
fn an_f16_cache_stays_near_the_f32_one() {
    let (package, reference) = (dsa::package(), Reference::open());
    for path in Path::ALL {
        let near = |n: usize| {
            let expected = reference.f32(&format!("full_{n}"));
            let got = answer(&package, &reference.i32(&format!("ids_{n}")), KvType::F16, *path);
            by_row(&got, &expected, 512)
        };
        let short = near(8);
        assert!(short[7] < 1e-2 && short[7] > 1e-6, "{}: {short:?}", path.label());
        let long = near(200);
        assert!(long[100] < 2e-2, "{}: half the rows are off by {}", path.label(), long[100]);
    }
}

#[test]
fn a_q8_0_cache_works_where_a_row_is_whole_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deepseek32.gguf");
    random_model::write("deepseek32", &path);
    let package = package_of(&path);
    let n_vocab = random_model::VOCAB as usize;
    // Below top-k.
    let ids = Bytes::new(4).ids(8, n_vocab as i32);
    for path in Path::ALL {
        let [f32, q8] = [KvType::F32, KvType::Q8_0].map(|ty| answer(&package, &ids, ty, *path));
        let off = by_row(&f32, &q8, n_vocab);
        assert!(off[7] < 0.3 && off[7] > 1e-4, "{}: {off:?}", path.label());
    }
    // Above it rounding turns selections, and random weights make much of that. A path agrees with itself, whatever the
    // pieces; but where ggml's flash attention is used, prompt and single rows round the query differently.
    let ids = Bytes::new(5).ids(60, n_vocab as i32);
    for path in [Path::DirectSparse, Path::CompactFlash, Path::SparseChunked] {
        let [one, other] = [50, 8].map(|cut| answer_cut(&package, &ids, cut, KvType::Q8_0, path));
        let off = by_row(&one, &other, n_vocab);
        assert!(off[30] < 1e-2, "{}: half the rows are off by {}", path.label(), off[30]);
    }
}

#[test]
fn bytes_of_a_position() {
    let package = dsa::package();
    for (ty, bytes) in [(KvType::F32, 4), (KvType::F16, 2)] {
        let whole = load(&package, 0, dsa::LAYERS, &options(ty)).unwrap();
        // Six trunk layers of 32 + 16, three of them with indexer keys of 64.
        assert_eq!(whole.cache_bytes_per_position(), (6 * 48 * bytes, 3 * 64 * bytes));
        let shared = load(&package, 2, 4, &options(ty)).unwrap();
        assert_eq!(shared.cache_bytes_per_position(), (2 * 48 * bytes, 0));
    }
}

/// A stage that asks the package's policy, as serving does.
fn by_policy(package: &TestPackage) -> DsaStage {
    let range = LayerRange::new(0, dsa::LAYERS).unwrap();
    let files = package.package.load(&package.package.select(range).unwrap(), Verify::SizesOnly).unwrap();
    let generation = package.package.manifest().generation.as_ref();
    let resolver = Resolver::new(ResolverConfig { generation, top_k: Some(16), ..ResolverConfig::default() });
    let options = DsaStageOptions { drafts: Some(DraftAttention::Dense), ..options(KvType::F32) };
    DsaStage::load(files, pool(), Arc::new(resolver), &options).unwrap()
}

#[test]
fn decisions_follow_the_package_above_top_k() {
    let (package, reference) = (dsa::package(), Reference::open());
    let (ids, full) = (reference.i32("ids_200"), reference.f32("full_200"));
    let mut stage = by_policy(&package);
    assert!(stage.decisions().is_empty());
    let mut pos = 0;
    let mut pass = |n: usize, purpose| {
        let got = dsa::logits(&mut stage, 0, pos, &ids[pos as usize..][..n], purpose, None);
        let expected = &full[pos as usize * 512..][..n * 512];
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-4), "{n} rows at {pos}");
        pos += n as u32;
        let [decided] = stage.decisions() else { panic!("{:?}", stage.decisions()) };
        assert_eq!(decided.seq, SeqId(0));
        let decision = decided.decision;
        (decision.phase, decision.selected, decision.reason)
    };
    let long = Purpose::Prefill { prompt: 5000 };
    assert_eq!(pass(10, long), (Phase::LongPrefill, Path::Dense, Reason::TopKCoversKv));
    assert_eq!(pass(1, Purpose::Decode), (Phase::Decode, Path::Dense, Reason::TopKCoversKv));
    assert_eq!(pass(5, Purpose::Verify), (Phase::Verify, Path::Dense, Reason::TopKCoversKv));
    // 16 rows are covered; the 17th is not.
    assert_eq!(pass(1, Purpose::Decode), (Phase::Decode, Path::CompactFlash, Reason::Recommended));
    assert_eq!(pass(20, long), (Phase::LongPrefill, Path::SparseChunked, Reason::Recommended));
    let short = Purpose::Prefill { prompt: 100 };
    assert_eq!(pass(60, short), (Phase::ShortPrefill, Path::Dense, Reason::Recommended));
    assert_eq!(pass(3, Purpose::Verify), (Phase::Verify, Path::DirectSparse, Reason::Auto));
    assert_eq!(pass(1, Purpose::Decode), (Phase::Decode, Path::CompactFlash, Reason::Recommended));
}

/// One decision for each sequence, in the order of the batch, and what a request forces goes for its own only.
#[test]
fn each_sequence_has_its_own_decision() {
    let (package, reference) = (dsa::package(), Reference::open());
    let ids = reference.i32("ids_200");
    let mut stage = by_policy(&package);
    dsa::logits(&mut stage, 1, 0, &ids[..40], Purpose::Prefill { prompt: 40 }, None);
    let rows = [dsa::rows(1, 40, 1), dsa::rows(0, 0, 5)].concat();
    let tokens: Vec<i32> = ids[40..41].iter().chain(&ids[..5]).copied().collect();
    let spans = [Span { seq: SeqId(1), purpose: Purpose::Decode, path: Some(Path::Fallback), drafts: false }];
    let batch = StageBatch { spans: &spans, ..StageBatch::new(StageInput::Tokens(&tokens), &rows) };
    stage.forward(&batch).unwrap();
    let decided: Vec<_> = stage
        .decisions()
        .iter()
        .map(|decided| (decided.seq.0, decided.decision.phase, decided.decision.selected, decided.decision.reason))
        .collect();
    assert_eq!(
        decided,
        [
            (1, Phase::Decode, Path::Fallback, Reason::Override),
            // Rows without a span are a prompt of their own.
            (0, Phase::ShortPrefill, Path::Dense, Reason::TopKCoversKv),
        ]
    );
}
