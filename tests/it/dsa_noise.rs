//! Weights, rows and caches that are no numbers: nothing ends the process, and nothing stays behind.

use crate::support::{
    TestPackage,
    dsa::{self, load, three_sequences},
    editing::{Bytes, Model},
};
use skippy_stage::{
    gguf::GgmlType,
    llama::KvType,
    policy::Path,
    stage::{
        Boundary, DraftRow, Purpose, Row, SeqId, Span, StageBatch, StageEngine, StageInput, StageOutput,
        dsa::{DsaStage, DsaStageOptions},
    },
};

const LAYERS: u32 = dsa::LAYERS;

/// Whatever the weights are, passes end: prompts by every path, decoding beside others, verify windows, drafts.
fn run_everything(package: &TestPackage, cache_type: KvType) {
    for path in Path::ALL {
        let mut stage = load(package, 0, LAYERS, &three_sequences(cache_type)).unwrap();
        let ids = Bytes::new(3).ids(48, 512);
        let forward = |stage: &mut DsaStage, spans: &[(u32, u32, usize, Purpose)]| {
            let rows: Vec<Row> = spans.iter().flat_map(|(seq, pos, n, _)| dsa::rows(*seq, *pos, *n)).collect();
            let tokens: Vec<i32> =
                spans.iter().flat_map(|(_, pos, n, _)| &ids[*pos as usize..][..*n]).copied().collect();
            let span = |(seq, _, _, purpose): &(u32, u32, usize, Purpose)| Span {
                seq: SeqId(*seq),
                purpose: *purpose,
                path: Some(*path),
                drafts: true,
            };
            let spans: Vec<Span> = spans.iter().map(span).collect();
            let batch = StageBatch { spans: &spans, ..StageBatch::new(StageInput::Tokens(&tokens), &rows) };
            match stage.forward(&batch).unwrap() {
                StageOutput::Logits(logits) => assert_eq!(logits.len(), rows.len() * 512),
                StageOutput::Hidden(_) => panic!("no logits"),
            }
        };
        forward(&mut stage, &[(0, 0, 40, Purpose::Prefill { prompt: 40 })]);
        forward(&mut stage, &[(1, 0, 7, Purpose::Prefill { prompt: 7 }), (0, 40, 1, Purpose::Decode)]);
        let rows = [0, 1].map(|seq| DraftRow { seq: SeqId(seq), token: 5 });
        assert_eq!(stage.draft(&rows).unwrap().len(), 2 * 512);
        forward(&mut stage, &[(0, 41, 3, Purpose::Verify), (1, 7, 20, Purpose::Prefill { prompt: 27 })]);
        assert_eq!(stage.draft(&rows).unwrap().len(), 2 * 512);
    }
}

/// Infinities and numbers that are none in every tensor.
#[test]
fn weights_that_are_no_numbers() {
    for seed in 0..3 {
        let (mut model, mut random) = (Model::open(&dsa::fixture("model.gguf")), Bytes::new(seed));
        for tensor in &mut model.tensors {
            // All of them, and then a few among sound ones: then some experts score, and some rows select, and some do not.
            let every = [1, 50, 1000][seed as usize];
            for value in tensor.data.chunks_exact_mut(4).step_by(every) {
                value.iter_mut().for_each(|byte| *byte = random.next());
            }
        }
        run_everything(&model.package(), KvType::F32);
        run_everything(&model.package(), KvType::F16);
    }
}

/// The same in blocks: whatever the bytes of a quantised tensor are.
#[test]
fn blocks_of_noise() {
    use GgmlType::*;
    for (seed, ty) in [Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4, F16, BF16].into_iter().enumerate() {
        let (mut model, mut random) = (Model::open(&dsa::fixture("model.gguf")), Bytes::new(seed as u64));
        let vector = |name: &str| name.contains("norm") || name.contains("bias") || name.contains("ffn_gate_inp");
        for tensor in model.tensors.iter_mut().filter(|tensor| !vector(&tensor.spec.name)) {
            tensor.become_noise(ty, &mut random);
        }
        run_everything(&model.package(), KvType::F16);
    }
}

/// Boundary rows come from other processes.
#[test]
fn hidden_rows_that_are_no_numbers() {
    let package = dsa::package();
    for value in [f32::NAN, f32::INFINITY, f32::MAX, -0.0] {
        let mut stage = load(&package, 4, LAYERS, &three_sequences(KvType::F16)).unwrap();
        let (hidden, rows, tokens) = (vec![value; 40 * 96], dsa::rows(0, 0, 40), vec![7; 40]);
        let spans = [Span { seq: SeqId(0), purpose: Purpose::Prefill { prompt: 40 }, path: None, drafts: true }];
        let batch = StageBatch {
            tokens: Some(&tokens),
            spans: &spans,
            ..StageBatch::new(StageInput::Hidden(Boundary::new(&hidden)), &rows)
        };
        assert!(stage.forward(&batch).is_ok());
        assert!(stage.draft(&[DraftRow { seq: SeqId(0), token: 7 }]).is_ok());
    }
}

/// They stay in the cache behind the end of the sequence that takes the place, which must not see them.
#[test]
fn rows_that_are_no_numbers_leave_no_trace() {
    let package = dsa::package();
    let (rows, tokens) = (dsa::rows(0, 0, 200), Bytes::new(6).ids(130, 512));
    let hidden: Vec<f32> = Bytes::new(7).ids(130 * 96, 2000).iter().map(|x| *x as f32 / 1000.0 - 1.0).collect();
    let answers = |stage: &mut DsaStage, path: Path| {
        let mut all = Vec::new();
        // A prompt, a window and single rows.
        for (pos, n, purpose) in [
            (0, 100, Purpose::Prefill { prompt: 100 }),
            (100, 3, Purpose::Verify),
            (103, 1, Purpose::Decode),
            (104, 26, Purpose::Prefill { prompt: 26 }),
        ] {
            let spans = [Span { seq: SeqId(0), purpose, path: Some(path), drafts: true }];
            let input = StageInput::Hidden(Boundary::new(&hidden[pos * 96..][..n * 96]));
            let tokens = Some(&tokens[pos..][..n]);
            let batch = StageBatch { tokens, spans: &spans, ..StageBatch::new(input, &rows[pos..][..n]) };
            match stage.forward(&batch).unwrap() {
                StageOutput::Logits(logits) => all.extend_from_slice(logits),
                StageOutput::Hidden(_) => panic!("no logits"),
            }
            all.extend_from_slice(stage.draft(&[DraftRow { seq: SeqId(0), token: 7 }]).unwrap());
        }
        all
    };
    let options = |cache_type| DsaStageOptions { n_ctx_seq: 256, n_batch: 200, ..three_sequences(cache_type) };
    for path in Path::ALL {
        for cache_type in [KvType::F32, KvType::F16] {
            let mut fresh = load(&package, 4, LAYERS, &options(cache_type)).unwrap();
            let expected = answers(&mut fresh, *path);
            assert!(expected.iter().all(|logit| logit.is_finite()));
            let mut stage = load(&package, 4, LAYERS, &options(cache_type)).unwrap();
            let noise = vec![f32::NAN; 200 * 96];
            let spans = [Span { seq: SeqId(0), purpose: Purpose::Prefill { prompt: 200 }, path: None, drafts: true }];
            let input = StageInput::Hidden(Boundary::new(&noise));
            let batch = StageBatch { tokens: Some(&[1; 200]), spans: &spans, ..StageBatch::new(input, &rows) };
            stage.forward(&batch).unwrap();
            stage.truncate(SeqId(0), 0).unwrap();
            assert_eq!(answers(&mut stage, *path), expected, "{}", path.label());
        }
    }
}
