//! Sources that cannot be cut: one clear line each, and nothing written.

use std::fs;

use skippy_stage::gguf::{GgmlType, Value};

use super::{
    source::{Model, tensor},
    tool, write_args,
};

/// Writing `model` fails with a line that says all of `says`.
#[track_caller]
fn refused(model: &Model, says: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("m.gguf"), dir.path().join("p"));
    model.write(&source);
    let run = tool(write_args(&source, &out));
    let line = run.error(1);
    for text in says.iter().chain(&["m.gguf"]) {
        assert!(line.contains(text), "`{text}` is not in: {line}");
    }
    assert!(!out.exists(), "nothing is written for a source that is refused");
}

#[test]
fn models_that_cannot_be_cut_are_refused() {
    let model = Model::default();
    let no_arch = Model { edit: |m| drop(m.remove("general.architecture")), ..model.clone() };
    refused(&no_arch, &["general.architecture", "missing"]);
    let no_count = Model { edit: |m| drop(m.remove("llama.block_count")), ..model.clone() };
    refused(&no_count, &["llama.block_count", "missing"]);
    let text = Model { edit: |m| m.set("llama.block_count", "four"), ..model.clone() };
    refused(&text, &["llama.block_count", "of type string"]);
    let none = Model { edit: |m| m.set("llama.block_count", Value::U32(0)), ..model.clone() };
    refused(&none, &["llama.block_count", "0"]);
    let negative = Model { edit: |m| m.set("llama.block_count", Value::I32(-4)), ..model.clone() };
    refused(&negative, &["llama.block_count"]);
    let no_width = Model { edit: |m| drop(m.remove("llama.embedding_length")), ..model.clone() };
    refused(&no_width, &["llama.embedding_length"]);
}

#[test]
fn counts_and_blocks_must_agree() {
    let model = Model::default();
    let stripped = Model { edit: |m| m.set("llama.block_count", Value::U32(5)), ..model.clone() };
    refused(&stripped, &["llama.block_count", "5", "block 4"]);
    let short = Model { edit: |m| m.set("llama.block_count", Value::U32(3)), ..model.clone() };
    refused(&short, &["blk.3.", "expected blocks 0..3"]);
    let huge = Model { edit: |m| m.set("llama.block_count", Value::U32(u32::MAX)), ..model.clone() };
    refused(&huge, &["4294967295", "19 tensors"]);
    let wide = Model { edit: |m| m.set("llama.block_count", Value::U64(1 << 40)), ..model.clone() };
    refused(&wide, &["1099511627776"]);
}

#[test]
fn odd_tensor_names_are_refused() {
    let model = Model::default();
    let encoder = Model { edit_tensors: |t| t.push(tensor("enc.blk.0.w", &[4], GgmlType::F32)), ..model.clone() };
    refused(&encoder, &["enc.blk.0.w", "encoder-decoder"]);
    let unnumbered = Model { edit_tensors: |t| t.push(tensor("blk.x.w", &[4], GgmlType::F32)), ..model.clone() };
    refused(&unnumbered, &["blk.x.w", "no block number"]);
}

#[test]
fn files_that_are_no_models_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("p");
    let whole = dir.path().join("whole.gguf");
    Model::default().write(&whole);
    let whole = fs::read(&whole).unwrap();
    let cases: [(&str, &[u8], &str); 4] = [
        ("page.gguf", b"<!DOCTYPE html><title>404</title>", "HTML"),
        ("empty.gguf", b"", "empty"),
        ("cut.gguf", &whole[..whole.len() / 2], "need"),
        ("header.gguf", &whole[..20], "ends inside"),
    ];
    for (name, bytes, says) in cases {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        let run = tool(write_args(&path, &out));
        let line = run.error(1);
        assert!(line.contains(name) && line.contains(says), "{line}");
    }
    let run = tool(write_args(&dir.path().join("absent.gguf"), &out));
    assert!(run.error(1).contains("absent.gguf"));
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(tool(write_args(&empty, &out)).error(1).contains("empty"));
    assert!(!out.exists());
}
