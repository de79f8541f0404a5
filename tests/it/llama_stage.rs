//! The `llama` engine as the scheduler uses it: several sequences, truncate, copy, drop, and what it refuses.

use crate::support::{
    TestPackage,
    engine::{chain, logits, options, pool, rows},
    package_of, random_model,
};
use skippy_stage::{
    gguf::{Array, Metadata, TensorSpec, Value},
    package::{LayerRange, Verify},
    stage::{
        Boundary, Row, SeqId, StageBatch, StageEngine, StageError, StageInput, StageOutput, llama::LlamaStage,
        local_chain::LocalChain,
    },
    text::TextModel as _,
};

/// One stage and two stages: everything below must hold for both.
fn engines() -> [LocalChain; 2] {
    let model = model();
    [&[][..], &[3]].map(|cuts| chain(&model.package, cuts, &options()).unwrap())
}

fn model() -> TestPackage {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("llama.gguf");
    random_model::write("llama", &path);
    package_of(&path)
}

fn stage(range: LayerRange) -> LlamaStage {
    let model = model();
    let files = model.package.load(&model.package.select(range).unwrap(), Verify::SizesOnly).unwrap();
    LlamaStage::load(files, pool(), &options()).unwrap()
}

const PROMPT: [i32; 6] = [3, 14, 15, 92, 65, 35];

#[test]
fn sequences_do_not_see_each_other() {
    for mut engine in engines() {
        let alone = logits(&mut engine, 0, 0, &PROMPT);
        logits(&mut engine, 1, 0, &[9, 9, 9, 9]);
        assert_eq!(logits(&mut engine, 2, 0, &PROMPT), alone);
        assert_eq!([0, 1, 2, 3].map(|seq| engine.n_rows(SeqId(seq))), [6, 4, 6, 0]);
    }
}

#[test]
fn one_batch_may_mix_prompts_and_single_tokens_of_several_sequences() {
    for mut engine in engines() {
        let (first, second) = (logits(&mut engine, 0, 0, &PROMPT), logits(&mut engine, 1, 0, &[7, 8]));
        let n_vocab = engine.shape().n_vocab;
        for seq in 0..2 {
            engine.truncate(SeqId(seq), 0).unwrap();
        }
        let mixed: Vec<Row> = [rows(0, 0, 6), rows(1, 0, 2)].concat();
        let tokens = [&PROMPT[..], &[7, 8]].concat();
        let output = engine.forward(&StageBatch::new(StageInput::Tokens(&tokens), &mixed)).unwrap();
        let StageOutput::Logits(output) = output else { panic!("no logits") };
        let (a, b) = output.split_at(6 * n_vocab);
        assert_eq!((a, b), (&first[..], &second[..]), "neighbours must not change a sequence's rounding");
    }
}

/// Lanes 0 and 3 decode while 1 and 2 are idle or hold something else: the rows between are bridged, and leave no trace.
#[test]
fn gaps_between_decoding_sequences_leave_no_trace() {
    for mut engine in engines() {
        let mut expected = Vec::new();
        for seq in [0, 3] {
            logits(&mut engine, seq, 0, &PROMPT);
            expected.extend(logits(&mut engine, seq, 6, &[seq as i32]));
            engine.truncate(SeqId(seq), 6).unwrap();
        }
        let held = logits(&mut engine, 2, 0, &[4, 4, 4]);
        let both = [rows(0, 6, 1), rows(3, 6, 1)].concat();
        let output = engine.forward(&StageBatch::new(StageInput::Tokens(&[0, 3]), &both)).unwrap();
        let StageOutput::Logits(output) = output else { panic!("no logits") };
        // These weights are F32, which ggml multiplies with another kernel for several rows than for one.
        assert!(largest_difference(output, &expected) < 1e-3);
        assert_eq!([0, 1, 2, 3].map(|seq| engine.n_rows(SeqId(seq))), [7, 0, 3, 7]);
        engine.truncate(SeqId(2), 0).unwrap();
        assert_eq!(logits(&mut engine, 2, 0, &[4, 4, 4]), held);
        assert_eq!(logits(&mut engine, 1, 0, &[4, 4, 4]), held);
    }
}

#[test]
fn a_full_sequence_between_two_that_decode_is_left_alone() {
    for mut engine in engines() {
        let capacity = engine.shape().n_ctx_seq;
        for pos in (0..capacity).step_by(64) {
            logits(&mut engine, 1, pos, &[1; 64]);
        }
        let mut expected = Vec::new();
        for seq in [0, 2] {
            logits(&mut engine, seq, 0, &PROMPT);
            expected.extend(logits(&mut engine, seq, 6, &[seq as i32]));
            engine.truncate(SeqId(seq), 6).unwrap();
        }
        // Without a bridge llama.cpp computes the two in two passes of its own.
        let both = [rows(0, 6, 1), rows(2, 6, 1)].concat();
        let output = engine.forward(&StageBatch::new(StageInput::Tokens(&[0, 2]), &both)).unwrap();
        assert!(matches!(output, StageOutput::Logits(output) if output == expected));
        assert_eq!([0, 1, 2].map(|seq| engine.n_rows(SeqId(seq))), [7, capacity, 7]);
    }
}

#[test]
fn truncating_forgets_exactly_the_tail() {
    for mut engine in engines() {
        logits(&mut engine, 0, 0, &PROMPT);
        let expected = logits(&mut engine, 0, 6, &[1]);
        engine.truncate(SeqId(0), 6).unwrap();
        logits(&mut engine, 0, 6, &[77]);
        engine.truncate(SeqId(0), 6).unwrap();
        assert_eq!(logits(&mut engine, 0, 6, &[1]), expected);
        engine.truncate(SeqId(0), 0).unwrap();
        assert_eq!(engine.n_rows(SeqId(0)), 0);
        engine.truncate(SeqId(0), 5).unwrap();
        assert_eq!(engine.n_rows(SeqId(0)), 0, "truncating beyond the end keeps what is there");
    }
}

#[test]
fn a_copy_goes_its_own_way() {
    for mut engine in engines() {
        logits(&mut engine, 0, 0, &PROMPT);
        logits(&mut engine, 3, 0, &[5, 5]);
        engine.copy(SeqId(0), SeqId(3), 4).unwrap();
        assert_eq!(engine.n_rows(SeqId(3)), 4);
        let on_copy = logits(&mut engine, 3, 4, &PROMPT[4..]);
        let fresh = logits(&mut engine, 1, 0, &PROMPT);
        // Two pieces instead of one: another batch shape may round differently, by far less than a wrong row would show.
        assert!(largest_difference(&on_copy, &fresh[4 * engine.shape().n_vocab..]) < 1e-3);
        // The original is untouched by what happens to the copy.
        engine.truncate(SeqId(3), 0).unwrap();
        let continued = logits(&mut engine, 0, 6, &[1]);
        assert_eq!(continued, logits(&mut engine, 1, 6, &[1]));
        let too_many = engine.copy(SeqId(0), SeqId(3), 99).unwrap_err();
        assert!(too_many.to_string().contains("it holds 7"), "{too_many}");
    }
}

#[test]
fn logits_come_for_the_rows_that_ask_and_in_order() {
    for mut engine in engines() {
        let all = logits(&mut engine, 0, 0, &PROMPT);
        let n_vocab = engine.shape().n_vocab;
        let mut some = rows(1, 0, 6);
        for (row, wanted) in some.iter_mut().zip([false, true, false, false, true, false]) {
            row.output = wanted;
        }
        let output = engine.forward(&StageBatch::new(StageInput::Tokens(&PROMPT), &some)).unwrap();
        let StageOutput::Logits(output) = output else { panic!("no logits") };
        assert_eq!(output.len(), 2 * n_vocab);
        assert!(largest_difference(&output[..n_vocab], &all[n_vocab..2 * n_vocab]) < 1e-3);
        assert!(largest_difference(&output[n_vocab..], &all[4 * n_vocab..5 * n_vocab]) < 1e-3);

        some.iter_mut().for_each(|row| row.output = false);
        engine.truncate(SeqId(1), 0).unwrap();
        let output = engine.forward(&StageBatch::new(StageInput::Tokens(&PROMPT), &some)).unwrap();
        assert!(matches!(output, StageOutput::Logits([])));
    }
}

#[test]
fn what_cannot_be_right_is_refused_and_changes_nothing() {
    for mut engine in engines() {
        logits(&mut engine, 0, 0, &PROMPT);
        let row = |seq, pos| Row { seq: SeqId(seq), pos, output: true };
        let many: Vec<Row> = rows(1, 0, 65);
        let cases: [(&[i32], &[Row], &str); 8] = [
            (&[1], &[row(0, 5)], "position 5 for sequence 0, expected 6"),
            (&[1], &[row(0, 7)], "positions must not jump"),
            (&[1, 2], &[row(1, 0), row(1, 2)], "position 2 for sequence 1, expected 1"),
            (&[1], &[row(4, 0)], "sequence 4, allowed 0 to 3"),
            (&[128], &[row(1, 0)], "token id 128"),
            (&[-1], &[row(1, 0)], "token id -1"),
            (&[1, 2], &[row(1, 0)], "2 token ids for 1 rows"),
            (&[], &[], "0 rows"),
        ];
        for (tokens, rows, expected) in cases {
            let error = engine.forward(&StageBatch::new(StageInput::Tokens(tokens), rows)).unwrap_err();
            assert!(matches!(error, StageError::InvalidBatch(_)), "{error:?}");
            assert!(error.to_string().contains(expected), "{error}");
        }
        let error = engine.forward(&StageBatch::new(StageInput::Tokens(&[1; 65]), &many)).unwrap_err();
        assert!(error.to_string().contains("65 rows, allowed 1 to 64"), "{error}");
        let hidden = engine.forward(&StageBatch::new(StageInput::Hidden(Boundary::new(&[0.0; 64])), &[row(1, 0)]));
        assert!(hidden.unwrap_err().to_string().contains("hidden rows for the first stage"));
        assert_eq!([0, 1, 2, 3].map(|seq| engine.n_rows(SeqId(seq))), [6, 0, 0, 0]);
    }
}

/// llama.cpp#23652: the overflow of one must leave the others alone.
#[test]
fn llama_cpp_23652_a_full_cache_is_an_error_and_the_others_go_on() {
    let model = model();
    for cuts in [&[][..], &[3]] {
        let mut engine = chain(&model.package, cuts, &options()).unwrap();
        let capacity = engine.shape().n_ctx_seq;
        logits(&mut engine, 1, 0, &PROMPT);
        let mut pos = 0;
        let error = loop {
            let tokens = [1; 64];
            match engine.forward(&StageBatch::new(StageInput::Tokens(&tokens), &rows(0, pos, 64))) {
                Ok(_) => pos += 64,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, StageError::KvFull { rows: 64, n_ctx } if n_ctx == capacity), "{error:?}");
        assert_eq!(engine.n_rows(SeqId(0)), pos);
        logits(&mut engine, 1, 6, &[2]);
        engine.truncate(SeqId(0), 0).unwrap();
        logits(&mut engine, 0, 0, &PROMPT);
    }
}

#[test]
fn a_stage_takes_and_gives_what_its_boundaries_say() {
    let n_layers = random_model::LAYERS;
    let mut first = stage(LayerRange::new(0, 2).unwrap());
    let mut middle = stage(LayerRange::new(2, 5).unwrap());
    let last = stage(LayerRange::new(5, n_layers).unwrap());
    assert_eq!([first.shape().n_vocab, middle.shape().n_vocab, last.shape().n_vocab], [0, 0, 128]);
    assert!(first.text().is_none() && last.text().is_some_and(|text| text.n_vocab() == 128));

    let six = rows(0, 0, 6);
    let batch = StageBatch::new(StageInput::Tokens(&PROMPT), &six);
    let Ok(StageOutput::Hidden(hidden)) = first.forward(&batch) else { panic!("no hidden rows") };
    assert_eq!(hidden.rows.len(), 6 * 64);
    let rows_out = hidden.rows.to_vec();
    let hidden = Boundary::new(&rows_out);
    let tokens_inside = middle.forward(&batch).unwrap_err();
    assert!(tokens_inside.to_string().contains("token ids for layers 2..5"), "{tokens_inside}");
    let short = StageBatch::new(StageInput::Hidden(Boundary::new(&hidden.rows[1..])), &six);
    let narrow = middle.forward(&short).unwrap_err();
    assert!(narrow.to_string().contains("383 floats for 6 rows of width 64"), "{narrow}");
    let whole = StageBatch::new(StageInput::Hidden(hidden), &six);
    assert!(
        matches!(middle.forward(&whole), Ok(StageOutput::Hidden(out)) if out.rows.len() == 6 * 64 && out != hidden)
    );
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// llama.cpp ends the process on each of these; the stage must say so instead.
#[test]
fn what_llama_cpp_would_abort_on_is_refused_by_name() {
    type Edit = fn(&mut Metadata, &mut Vec<TensorSpec>);
    fn set(metadata: &mut Metadata, key: &str, value: u32) {
        metadata.set(key, Value::U32(value));
    }
    fn types(metadata: &mut Metadata, types: &[bool]) {
        metadata.set("glm-dsa.attention.indexer.types", Value::Array(Array::Bool(types.to_vec())));
    }
    let cases: [(&str, Edit, &str); 14] = [
        ("llama", |m, _| set(m, "llama.attention.head_count", 0), "`llama.attention.head_count`"),
        ("llama", |m, _| set(m, "llama.attention.head_count_kv", 3), "a divisor of the 4 heads"),
        ("llama", |m, _| set(m, "llama.rope.dimension_count", 8), "`llama.rope.dimension_count` is 8, expected 16"),
        ("llama", |m, _| set(m, "llama.expert_used_count", 2), "`llama.expert_used_count` is 2, expected 0"),
        ("llama", |m, _| m.set("tokenizer.ggml.tokens", Value::U32(7)), "`tokenizer.ggml.tokens`"),
        ("qwen3moe", |m, _| set(m, "qwen3moe.expert_used_count", 5), "1 to the 4 experts"),
        ("qwen3moe", |m, _| drop(m.remove("qwen3moe.expert_used_count")), "`qwen3moe.expert_used_count` is 0"),
        (
            "glm-dsa",
            |m, _| drop(m.remove("glm-dsa.attention.head_count_kv")),
            "`glm-dsa.attention.head_count_kv` is missing",
        ),
        ("glm-dsa", |m, _| drop(m.remove("glm-dsa.attention.key_length")), "`glm-dsa.attention.key_length` is missing"),
        ("glm-dsa", |m, _| drop(m.remove("glm-dsa.expert_count")), "expert"),
        ("glm-dsa", |m, _| set(m, "glm-dsa.attention.indexer.key_length", 96), "64 times a power of two"),
        ("glm-dsa", |m, _| types(m, &[false, true, false, false, true, false]), "the first layer of the stage"),
        ("glm-dsa", |m, _| types(m, &[true, true]), "one for each of the 6 trunk layers"),
        (
            "glm-dsa",
            |_, t| t.retain(|t| t.name != "blk.4.indexer.k_norm.bias"),
            "`blk.4.indexer.k_norm.bias` is missing",
        ),
    ];
    for (arch, edit, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        random_model::write_edited(arch, &path, edit);
        let model = package_of(&path);
        let error = chain(&model.package, &[], &options()).err().map(|e| format!("{e:#}")).unwrap_or_default();
        assert!(error.contains(expected), "{arch}: `{expected}` is not in: {error}");
    }
}
