//! Greedy text with the prefix cache, on real models: hot as cold, alone as among neighbours, drafts and stages or not.

use crate::support::{RealModel, TestPackage, package_of};
use skippy_stage::{
    cli::serve::{config::ServeFlags, load},
    serve::{self, Event, GenerateRequest, ServeHandle, ServeOptions, Usage},
    text::SamplingParams,
};
use std::path::{Path, PathBuf};

/// Tokens of an answer.
const TOKENS: u32 = 12;

fn bundled() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/skippy-kjv-6m")
}

/// `bytes` of host memory for prefixes; 0 for a server on which every request is cold.
fn server(package: &Path, lanes: u32, split: &[u32], bytes: u64) -> ServeHandle {
    let flags = ServeFlags {
        package: Some(package.to_owned()),
        split: Some(split.to_vec()),
        lanes: Some(lanes),
        ctx_size: Some(320),
        threads: Some(1),
        ..ServeFlags::default()
    };
    let model = load(&flags.resolve().unwrap()).unwrap();
    let options = ServeOptions {
        lanes: Some(lanes),
        ctx_per_request: Some(320),
        prefix_cache_bytes: bytes,
        ..ServeOptions::default()
    };
    serve::spawn(model.engine, model.text, model.card, options).unwrap().0
}

/// A long beginning with different ends, another beginning, the first again, and a conversation that goes on.
fn prompts(handle: &ServeHandle) -> Vec<Vec<i32>> {
    let begin = "And it came to pass in those days, that there went out a decree that all the world should be taxed. \
                 And all went to be taxed, every one into his own city. And Joseph also went up from Galilee, out of the \
                 city of Nazareth, into Judaea, unto the city of David, which is called Bethlehem; because he was of \
                 the house and lineage of David: to be taxed with Mary his wife, being great with child. And so it \
                 was, that, while they were there, the days were accomplished that she should be delivered. ";
    let ends = ["And so it was", "And", "Behold, the people answered and said unto him", "And so it was, that"];
    let mut texts: Vec<String> = ends.iter().map(|end| format!("{begin}{end}")).collect();
    texts.insert(2, format!("In the beginning was the word. {}", &begin[..250]));
    texts.push(format!("{begin}And so it was, that while they were there, the days were accomplished."));
    let text = handle.text().unwrap();
    texts.iter().map(|prompt| text.tokenize(prompt, true, true).unwrap()).collect()
}

fn ask(prompt: &[i32]) -> GenerateRequest {
    GenerateRequest {
        prompt: prompt.to_vec(),
        sampling: SamplingParams::greedy(),
        max_tokens: Some(TOKENS),
        ignore_eos: true,
        logprobs: Some(0),
        ..GenerateRequest::default()
    }
}

/// Tokens with the bits of their log-probabilities, and the usage.
type Said = (Vec<(i32, u32)>, Usage);

fn answers(handle: &ServeHandle, requests: impl IntoIterator<Item = GenerateRequest>) -> Vec<Said> {
    let running: Vec<_> = requests.into_iter().map(|request| handle.submit(request).unwrap()).collect();
    let collect = |mut events: tokio::sync::mpsc::UnboundedReceiver<Event>| {
        let (mut said, mut counted) = (Vec::new(), Usage::default());
        while let Some(event) = events.blocking_recv() {
            match event {
                Event::Delta { tokens, .. } => said.extend(tokens.iter().map(|t| (t.id, t.logprob.unwrap().to_bits()))),
                Event::Done { usage, .. } => counted = usage,
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
        (said, counted)
    };
    running.into_iter().map(collect).collect()
}

/// Log-probabilities are compared bit for bit.
fn hot_is_cold(package: &Path, split: &[u32], plainly: bool, step: u32) {
    let request = |prompt: &Vec<i32>| GenerateRequest { without_speculation: plainly, ..ask(prompt) };
    let cold = server(package, 1, split, 0);
    let prompts = prompts(&cold);
    let expected: Vec<Said> = prompts.iter().flat_map(|prompt| answers(&cold, [request(prompt)])).collect();
    assert!(expected.iter().all(|(_, usage)| usage.cached_tokens == 0));
    // Else nothing could be taken over.
    let long = |prompt: &&Vec<i32>| prompt.len() >= 2 * step as usize;
    assert!(prompts.iter().filter(long).count() >= prompts.len() - 1, "{prompts:?}");
    drop(cold);
    // One lane: rows stay where they are, or go to host memory and back. Three: they are copied.
    for lanes in [1, 3] {
        let hot = server(package, lanes, split, 1 << 26);
        let mut reused = 0;
        for _ in 0..2 {
            for (prompt, (said, _)) in prompts.iter().zip(&expected) {
                let (got, usage) = answers(&hot, [request(prompt)]).remove(0);
                assert_eq!(&got, said, "{usage:?} with {lanes} lanes");
                assert_eq!(usage.cached_tokens % step, 0);
                reused += usize::from(usage.cached_tokens > 0);
            }
        }
        // In the second round every prompt finds its own rows; in the first, beginnings may be shorter than a step.
        assert!(reused >= prompts.len(), "{reused} of {}", 2 * prompts.len());
    }
}

/// vllm#54490: caching changed greedy output. mesh-llm#1901: the indexer's keys were not saved.
#[test]
fn vllm_54490_mesh_1901_the_bundled_model_hot_and_cold() {
    hot_is_cold(&bundled(), &[], false, 64);
    hot_is_cold(&bundled(), &[4], true, 64);
}

#[test]
fn vllm_54490_smollm2_hot_and_cold() {
    let package = package_of(&RealModel::SmolLm2.path());
    hot_is_cold(package.package.root(), &[], true, 8);
}

/// Everybody at once, with rows of each other, and prompts that arrive while others generate.
fn among_neighbours(package: &Path, n: usize) {
    let handle = server(package, 16, &[], 1 << 26);
    let prompts = prompts(&handle);
    let expected: Vec<Said> =
        prompts.iter().flat_map(|p| answers(&handle, [GenerateRequest { cache_prompt: false, ..ask(p) }])).collect();
    let order: Vec<usize> = (0..n).map(|i| (i * 5) % prompts.len()).collect();
    let got = answers(&handle, order.iter().map(|i| ask(&prompts[*i])));
    for (i, (said, usage)) in order.iter().zip(&got) {
        let tokens = |said: &[(i32, u32)]| said.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        assert_eq!(tokens(said), tokens(&expected[*i].0), "prompt {i}, {usage:?}");
    }
    assert!(got.iter().filter(|(_, usage)| usage.cached_tokens > 0).count() > n / 2, "{got:?}");
}

#[test]
fn among_fifteen_neighbours_the_bundled_model_says_the_same() {
    among_neighbours(&bundled(), 32);
}

#[test]
fn among_fifteen_neighbours_smollm2_says_the_same() {
    let package: TestPackage = package_of(&RealModel::SmolLm2.path());
    among_neighbours(package.package.root(), 16);
}
