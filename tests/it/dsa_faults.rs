//! What the `dsa` engine refuses, and that nothing it is fed ends the process.

use crate::support::{
    TestPackage,
    dsa::{self, load, three_sequences},
    editing::{Bytes, Model},
};
use skippy_stage::{
    gguf::{GgmlType, Value},
    llama::KvType,
    stage::{
        Boundary, DraftRow, Purpose, Row, SeqId, StageBatch, StageEngine, StageError, StageInput,
        dsa::{DsaStage, DsaStageError, DsaStageOptions},
    },
};

const LAYERS: u32 = dsa::LAYERS;

fn whole(package: &TestPackage) -> DsaStage {
    load(package, 0, LAYERS, &three_sequences(KvType::F32)).unwrap()
}

fn refused(stage: &mut DsaStage, tokens: &[i32], rows: &[Row]) -> String {
    match stage.forward(&StageBatch::new(StageInput::Tokens(tokens), rows)) {
        Err(error @ (StageError::InvalidBatch(_) | StageError::KvFull { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn batches_that_contradict_the_stage() {
    let package = dsa::package();
    let mut stage = whole(&package);
    let (ids, other) = ([1, 2, 3], dsa::rows(1, 0, 1));
    let before = dsa::logits(&mut stage, 0, 0, &ids, Purpose::Prefill { prompt: 3 }, None);
    let rows = |seq, pos, n| dsa::rows(seq, pos, n);
    let mixed = [rows(1, 0, 1), rows(0, 3, 1), rows(1, 1, 1)].concat();
    for (tokens, rows, what) in [
        (vec![], vec![], "0 rows"),
        (vec![512], rows(0, 3, 1), "token id 512 is outside the vocabulary of 512"),
        (vec![i32::MAX], rows(0, 3, 1), "token id 2147483647"),
        (vec![-1], rows(0, 3, 1), "token id -1"),
        (vec![1, 2], rows(0, 3, 1), "2 token ids for 1 rows"),
        (vec![1], rows(0, 3, 2), "1 token ids for 2 rows"),
        (vec![1], rows(0, 4, 1), "position 4 for sequence 0, expected 3"),
        (vec![1], rows(0, 2, 1), "position 2 for sequence 0, expected 3"),
        (vec![1], rows(1, 1, 1), "position 1 for sequence 1, expected 0"),
        (vec![1], rows(3, 0, 1), "sequence 3, allowed 0 to 2"),
        (vec![1], rows(u32::MAX, 0, 1), "sequence 4294967295"),
        (vec![1; 3], mixed, "the rows of sequence 1 are not neighbours"),
        (vec![1; 49], rows(1, 0, 49), "49 rows, allowed 1 to 48"),
        (vec![1; 2], [other.clone(), other.clone()].concat(), "position 0 for sequence 1, expected 1"),
    ] {
        let error = refused(&mut stage, &tokens, &rows);
        assert!(error.contains(what), "{what}: {error}");
        assert_eq!([0, 1, 2].map(|seq| stage.n_rows(SeqId(seq))), [3, 0, 0], "nothing was changed");
    }
    // And nothing was: the sequence goes on as if it had never been asked.
    stage.truncate(SeqId(0), 0).unwrap();
    assert_eq!(dsa::logits(&mut stage, 0, 0, &ids, Purpose::Prefill { prompt: 3 }, None), before);
}

#[test]
fn inputs_of_the_wrong_kind_or_width() {
    let package = dsa::package();
    let (mut first, mut last) = (whole(&package), load(&package, 4, LAYERS, &three_sequences(KvType::F32)).unwrap());
    let rows = dsa::rows(0, 0, 2);
    let hidden = vec![0.25; 2 * 96];
    fn message(stage: &mut DsaStage, input: StageInput<'_>) -> String {
        let error = stage.forward(&StageBatch::new(input, &dsa::rows(0, 0, 2))).unwrap_err();
        assert!(matches!(error, StageError::InvalidBatch(_)), "{error}");
        error.to_string()
    }
    assert!(
        message(&mut first, StageInput::Hidden(Boundary::new(&hidden))).contains("hidden rows for the first stage")
    );
    assert!(message(&mut last, StageInput::Tokens(&[1, 2])).contains("start inside the model"));
    for len in [0, 96, 191, 193] {
        let wrong = vec![0.0; len];
        assert!(message(&mut last, StageInput::Hidden(Boundary::new(&wrong))).contains("for 2 rows of width 96"));
    }
    // Token ids behind hidden rows are held against the vocabulary too: the draft head looks them up.
    for (tokens, what) in [(&[1, 512][..], "token id 512"), (&[1], "1 token ids for 2 rows")] {
        let input = StageInput::Hidden(Boundary::new(&hidden));
        let error = last.forward(&StageBatch { tokens: Some(tokens), ..StageBatch::new(input, &rows) }).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
    assert!(last.forward(&StageBatch::new(StageInput::Hidden(Boundary::new(&hidden)), &rows)).is_ok());
}

#[test]
fn a_full_sequence_and_its_neighbours() {
    let mut stage = whole(&dsa::package());
    let ids = Bytes::new(1).ids(64, 512);
    dsa::logits(&mut stage, 0, 0, &ids[..48], Purpose::Prefill { prompt: 64 }, None);
    // 16 rows fit, 17 do not, and those that do not leave everything as it was.
    let error = refused(&mut stage, &[1; 17], &dsa::rows(0, 48, 17));
    assert!(error.contains("kv cache is full"), "{error}");
    dsa::logits(&mut stage, 0, 48, &ids[48..], Purpose::Prefill { prompt: 64 }, None);
    assert_eq!(stage.n_rows(SeqId(0)), 64);
    assert!(refused(&mut stage, &[1], &dsa::rows(0, 64, 1)).contains("kv cache is full"));
    // A full region does not reach into the next one.
    let alone = dsa::logits(&mut stage, 1, 0, &ids[..30], Purpose::Prefill { prompt: 30 }, None);
    let mut fresh = whole(&dsa::package());
    assert_eq!(dsa::logits(&mut fresh, 1, 0, &ids[..30], Purpose::Prefill { prompt: 30 }, None), alone);
}

#[test]
fn copies_and_cuts_that_make_no_sense() {
    let mut stage = whole(&dsa::package());
    dsa::logits(&mut stage, 0, 0, &[1, 2, 3], Purpose::Prefill { prompt: 3 }, None);
    for (from, to, n) in [(0, 1, 4), (0, 0, 1), (1, 0, 1), (0, 3, 1), (3, 0, 0), (0, u32::MAX, 1), (0, 1, u32::MAX)] {
        let error = stage.copy(SeqId(from), SeqId(to), n).unwrap_err();
        assert!(matches!(error, StageError::InvalidBatch(_)), "{from} to {to}, {n} rows: {error}");
    }
    assert_eq!([0, 1, 2].map(|seq| stage.n_rows(SeqId(seq))), [3, 0, 0]);
    assert!(stage.truncate(SeqId(3), 0).is_err());
    stage.truncate(SeqId(0), 100).unwrap();
    assert_eq!(stage.n_rows(SeqId(0)), 3, "cutting behind the end keeps what is there");
    stage.copy(SeqId(0), SeqId(1), 0).unwrap();
    stage.copy(SeqId(0), SeqId(2), 3).unwrap();
    assert_eq!([0, 1, 2, 9].map(|seq| stage.n_rows(SeqId(seq))), [3, 0, 3, 0]);
}

#[test]
fn drafts_that_cannot_be_had() {
    let package = dsa::package();
    let draft = |stage: &mut DsaStage, rows: &[(u32, i32)]| {
        let rows: Vec<_> = rows.iter().map(|(seq, token)| DraftRow { seq: SeqId(*seq), token: *token }).collect();
        stage.draft(&rows).map(<[f32]>::len).map_err(|error| error.to_string())
    };
    let mut without =
        load(&package, 0, LAYERS, &DsaStageOptions { drafts: None, ..three_sequences(KvType::F32) }).unwrap();
    let mut front = load(&package, 0, 4, &three_sequences(KvType::F32)).unwrap();
    for stage in [&mut without, &mut front] {
        assert!(!stage.shape().drafts);
        assert!(draft(stage, &[(0, 1)]).unwrap_err().contains("no draft head"));
    }

    let mut stage = whole(&package);
    assert!(stage.shape().drafts);
    assert_eq!(draft(&mut stage, &[]), Ok(0));
    for (rows, what) in [
        (&[(3, 1)][..], "sequence 3, allowed 0 to 2"),
        (&[(0, 512)], "token id 512"),
        (&[(0, -1)], "token id -1"),
        (&[(0, 1), (1, 1), (0, 2)], "two drafts asked for sequence 0"),
    ] {
        let error = draft(&mut stage, rows).unwrap_err();
        assert!(error.contains(what), "{error}");
    }
    // Before anything was read there is nothing in the way of a guess.
    assert_eq!(draft(&mut stage, &[(2, 1)]), Ok(512));
    // A sequence that was read without being followed.
    dsa::logits(&mut stage, 0, 0, &[1, 2, 3], Purpose::Prefill { prompt: 3 }, None);
    let error = draft(&mut stage, &[(0, 4)]).unwrap_err();
    assert!(error.contains("has followed sequence 0 for 0 of 3 rows"), "{error}");
    // One that is followed from the middle on is not followed.
    dsa::tracked(&mut stage, 3, &[4, 5], Purpose::Prefill { prompt: 5 });
    assert!(draft(&mut stage, &[(0, 6)]).unwrap_err().contains("for 0 of 5 rows"));
    // From the start on it is, also after a cut.
    stage.truncate(SeqId(0), 0).unwrap();
    dsa::tracked(&mut stage, 0, &[1, 2, 3, 4], Purpose::Prefill { prompt: 4 });
    assert_eq!(draft(&mut stage, &[(0, 5)]), Ok(512));
    stage.truncate(SeqId(0), 2).unwrap();
    assert_eq!(draft(&mut stage, &[(0, 5), (1, 1)]), Ok(1024));
}

/// A guess for the last position that there is, and none behind it.
#[test]
fn drafts_at_the_end_of_the_context() {
    let mut stage = whole(&dsa::package());
    let ids = Bytes::new(2).ids(64, 512);
    dsa::tracked(&mut stage, 0, &ids[..48], Purpose::Prefill { prompt: 63 });
    dsa::tracked(&mut stage, 48, &ids[48..63], Purpose::Prefill { prompt: 63 });
    let row = DraftRow { seq: SeqId(0), token: ids[63] };
    assert!(stage.draft(&[row]).unwrap().iter().all(|logit| logit.is_finite()));
    dsa::tracked(&mut stage, 63, &ids[63..], Purpose::Decode);
    let error = stage.draft(&[row]).unwrap_err();
    assert!(matches!(error, StageError::KvFull { rows: 1, n_ctx: 64 }), "{error}");
    // The refusal changed nothing: one row shorter it works again, with the same result each time.
    stage.truncate(SeqId(0), 63).unwrap();
    let guess = stage.draft(&[row]).unwrap().to_vec();
    assert_eq!(stage.draft(&[row]).unwrap(), guess);
}

fn load_error(package: &TestPackage, start: u32, end: u32, options: &DsaStageOptions) -> DsaStageError {
    load(package, start, end, options).err().expect("a stage that should not load")
}

#[test]
fn a_stage_of_the_mtp_block_alone() {
    let error = load_error(&dsa::package(), 6, 7, &three_sequences(KvType::F32));
    assert!(matches!(error, DsaStageError::NoTrunk { trunk: 6, .. }), "{error}");
    assert!(error.to_string().contains("the MTP block starts at 6"), "{error}");
}

#[test]
fn a_cache_type_that_cannot_hold_a_row() {
    let error = load_error(&dsa::package(), 0, 7, &three_sequences(KvType::Q8_0)).to_string();
    assert_eq!(error, "a cache of type q8_0 holds rows in blocks of 32, but a row of this model has 48 elements");
}

#[test]
fn a_cache_larger_than_the_address_space() {
    let options = DsaStageOptions { n_ctx_seq: u32::MAX, n_seq_max: u32::MAX, ..three_sequences(KvType::F32) };
    let error = load_error(&dsa::package(), 0, 7, &options).to_string();
    assert!(error.contains("could not allocate"), "{error}");
}

#[test]
fn tensors_that_break_the_contract_are_named_with_their_file() {
    type Edit = fn(&mut Model);
    let cases: [(Edit, &str, &str); 8] = [
        (
            |model| model.remove("blk.3.attn_k_b.weight"),
            "layers/layer-00003.gguf",
            "`blk.3.attn_k_b.weight` is missing",
        ),
        (|model| model.remove("blk.1.indexer.proj.weight"), "layers/layer-00001.gguf", "`blk.1.indexer.proj.weight`"),
        (|model| model.remove("blk.6.nextn.eh_proj.weight"), "layers/layer-00006.gguf", "`blk.6.nextn.eh_proj.weight`"),
        (
            |model| model.add("blk.2.attn_q_a.scale", &[1], GgmlType::F32),
            "layers/layer-00002.gguf",
            "`blk.2.attn_q_a.scale`, which is no part of layer 2",
        ),
        (
            |model| model.add("blk.2.indexer.proj.weight", &[96, 16], GgmlType::F32),
            "layers/layer-00002.gguf",
            "layer 2 is shared",
        ),
        (
            |model| {
                let tensor = model.ending("blk.4.attn_q_b.weight").remove(0);
                tensor.spec.shape = vec![320, 128];
            },
            "layers/layer-00004.gguf",
            "`blk.4.attn_q_b.weight` has shape [320, 128], expected [128, 320]",
        ),
        (
            |model| {
                let norm = model.ending("output_norm.weight").remove(0);
                norm.spec.ty = GgmlType::F16;
                norm.become_zeros();
            },
            "shared/output.gguf",
            "`output_norm.weight` has type f16, expected f32",
        ),
        (
            |model| {
                let tensor = model.ending("token_embd.weight").remove(0);
                tensor.spec.ty = GgmlType::I32;
            },
            "shared/embeddings.gguf",
            "`token_embd.weight` has type i32",
        ),
    ];
    for (edit, file, what) in cases {
        let mut model = Model::open(&dsa::fixture("model.gguf"));
        edit(&mut model);
        let error = load_error(&model.package(), 0, LAYERS, &three_sequences(KvType::F32)).to_string();
        assert!(error.contains(file) && error.contains(what), "{file}, {what}: {error}");
    }
}

#[test]
fn metadata_that_breaks_the_contract() {
    for (key, value, what) in [
        ("attention.indexer.top_k", Value::U32(0), "top_k"),
        ("attention.indexer.key_length", Value::U32(65), "64 times a power of two"),
        ("expert_gating_func", Value::U32(1), "softmax gating is not supported"),
        ("rope.scaling.type", Value::from("linear"), "the scalings that this engine computes"),
        ("attention.key_length", Value::U32(49), "attention.key_length"),
    ] {
        let mut model = Model::open(&dsa::fixture("model.gguf"));
        model.metadata.set(format!("glm-dsa.{key}"), value);
        let error = load_error(&model.package(), 0, LAYERS, &three_sequences(KvType::F32)).to_string();
        assert!(error.contains(what) && error.contains("shared/metadata.gguf"), "{key}: {error}");
    }
}
