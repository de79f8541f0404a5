//! Greedy text of the server against llama.cpp's own, on a real model: alone, and eight at a time.
//!
//! Batching changes nothing here, because each sequence has its own KV stream and a prompt is computed apart from its
//! neighbours (see `stage/llama/groups.rs`), and because every matrix product of this model treats its rows one by one.
//! Where that does not hold, batching may round differently: ggml multiplies F32, F16, BF16, Q8_0 and repacked Q4_0 or
//! Q4_K weights with other kernels for several rows than for one. Attention is computed without flash kernels, on both sides
//! here: theirs depend on neighbours (`stage/llama/attention.rs`).

use crate::support::{RealModel, TestPackage, package_of};
use skippy_stage::{
    cli::serve::{config::ServeFlags, load},
    llama::baseline::{Baseline, BaselineOptions},
    serve::{self, Event, GenerateRequest, ServeHandle, ServeOptions},
    text::SamplingParams,
};
use std::sync::OnceLock;

const PROMPTS: [&str; 10] = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):",
    "1, 2, 3, 4, 5,",
    "The three laws of motion were first written down by Isaac Newton. The first of them says that",
    "Q: What is the largest planet of the solar system?\nA:",
    "Dear Sir or Madam,\n\nI am writing to",
    "Water boils at a temperature of",
    "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer the slings and arrows of \
     outrageous fortune, or to take arms against a sea of troubles",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, it was \
     the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of Darkness, it \
     was the spring of hope, it was the winter of despair, we had everything before us, we had nothing before us, we were \
     all going direct to Heaven, we were all going direct the other way - in short, the period was so far like the present \
     period, that some of its noisiest authorities insisted on its being received, for good or for evil, in the \
     superlative degree of comparison only. There were a king with a large jaw and a queen with a plain face, on the \
     throne of England; there were a king with a large jaw and a queen with a fair face, on the throne of",
];
const TOKENS: u32 = 24;

fn package() -> &'static TestPackage {
    static PACKAGE: OnceLock<TestPackage> = OnceLock::new();
    PACKAGE.get_or_init(|| package_of(&RealModel::SmolLm2.path()))
}

fn server(lanes: u32, split: &[u32]) -> ServeHandle {
    let flags = ServeFlags {
        package: Some(package().package.root().to_owned()),
        split: Some(split.to_vec()),
        lanes: Some(lanes),
        ctx_size: Some(256),
        threads: Some(1),
        ..ServeFlags::default()
    };
    let model = load(&flags.resolve().unwrap()).unwrap();
    let options = ServeOptions { lanes: Some(lanes), ctx_per_request: Some(256), ..ServeOptions::default() };
    serve::spawn(model.engine, model.text, model.card, options).unwrap().0
}

fn prompts(handle: &ServeHandle) -> Vec<Vec<i32>> {
    let text = handle.text().unwrap();
    PROMPTS.iter().map(|prompt| text.tokenize(prompt, true, false).unwrap()).collect()
}

fn expected(prompts: &[Vec<i32>], together: usize) -> Vec<Vec<i32>> {
    let options = BaselineOptions {
        n_ctx: 256 * together as u32,
        n_batch: 256,
        n_seq_max: together as u32,
        n_threads: 1,
        exact: false,
        flash_attention: false,
    };
    let mut plain = Baseline::load(&RealModel::SmolLm2.path(), &options).unwrap();
    prompts.chunks(together).flat_map(|group| plain.generate(group, TOKENS as usize).unwrap().tokens).collect()
}

/// Submits all prompts of a group at once and collects their tokens.
fn served(handle: &ServeHandle, prompts: &[Vec<i32>], together: usize) -> Vec<Vec<i32>> {
    let request = |prompt: &Vec<i32>| GenerateRequest {
        prompt: prompt.clone(),
        sampling: SamplingParams::greedy(),
        max_tokens: Some(TOKENS),
        ignore_eos: true,
        ..GenerateRequest::default()
    };
    let mut all = Vec::new();
    for group in prompts.chunks(together) {
        let running: Vec<_> = group.iter().map(|prompt| handle.submit(request(prompt)).unwrap()).collect();
        for mut events in running {
            let mut ids = Vec::new();
            while let Some(event) = events.blocking_recv() {
                match event {
                    Event::Delta { tokens, .. } => ids.extend(tokens.iter().map(|token| token.id)),
                    Event::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            }
            all.push(ids);
        }
    }
    all
}

#[test]
fn alone_it_equals_llama_cpp() {
    let handle = server(1, &[]);
    let prompts = prompts(&handle);
    assert_eq!(served(&handle, &prompts, 1), expected(&prompts, 1));
}

#[test]
fn eight_at_a_time_it_equals_llama_cpp() {
    let handle = server(8, &[]);
    let prompts = prompts(&handle);
    let together = served(&handle, &prompts, 8);
    assert_eq!(together, expected(&prompts, 8), "llama.cpp decoding the same eight sequences");
    assert_eq!(together, expected(&prompts, 1), "llama.cpp with one sequence at a time");
}

#[test]
fn three_stages_equal_one() {
    let (whole, split) = (server(4, &[]), server(4, &[7, 21]));
    let prompts = prompts(&whole);
    assert_eq!(served(&split, &prompts, 1), served(&whole, &prompts, 1));
}
