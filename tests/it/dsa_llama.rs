//! The `dsa` engine against llama.cpp's own graphs in the `llama` engine: the same numbers by other code.

use crate::support::{
    TestPackage,
    dsa::{self, Reference},
    editing::{Bytes, Model},
    engine, package_of, random_model,
};
use skippy_stage::{
    gguf::Value,
    llama::KvType,
    policy::Path,
    stage::{Purpose, dsa::DsaStage, llama::LlamaStageOptions, local_chain::LocalChain},
};
use std::path::Path as FsPath;

/// Largest difference of a logit: float32 in another order of addition.
const TOLERANCE: f32 = 1e-4;

fn llama(package: &TestPackage) -> LocalChain {
    let options =
        LlamaStageOptions { n_batch: 256, cache_type_k: KvType::F32, cache_type_v: KvType::F32, ..engine::options() };
    engine::chain(&package.package, &[], &options).unwrap()
}

fn prefill(stage: &mut DsaStage, ids: &[i32], path: Option<Path>) -> Vec<f32> {
    dsa::logits(stage, 0, 0, ids, Purpose::Prefill { prompt: ids.len() as u32 }, path)
}

fn worst(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Prompts in one pass and the tokens behind them, by every path.
fn assert_agrees(package: &TestPackage, prompts: &[Vec<i32>], what: &str) {
    for ids in prompts {
        let (n, last) = (ids.len(), ids.len() - 3);
        let expected = engine::logits(&mut llama(package), 0, 0, ids);
        assert!(expected.iter().all(|logit| logit.is_finite()));
        let n_vocab = expected.len() / n;
        for path in Path::ALL {
            let mut stage = dsa::whole(package, None);
            let mut got = prefill(&mut stage, &ids[..last], Some(*path));
            for pos in last..n {
                got.extend(dsa::logits(&mut stage, 0, pos as u32, &ids[pos..=pos], Purpose::Decode, Some(*path)));
            }
            let off = worst(&got, &expected);
            assert!(off <= TOLERANCE, "{what}, {n} tokens of {n_vocab}, {}: off by {off}", path.label());
        }
    }
}

fn fixture_prompts() -> Vec<Vec<i32>> {
    let reference = Reference::open();
    [8, 40, 200].map(|n| reference.i32(&format!("ids_{n}"))).into()
}

#[test]
fn the_fixture_by_every_path() {
    assert_agrees(&dsa::package(), &fixture_prompts(), "fixture");
}

#[test]
fn greedy_answers_are_the_same_tokens() {
    let package = dsa::package();
    for ids in fixture_prompts() {
        let (mut ours, mut theirs) = (dsa::whole(&package, None), llama(&package));
        let mut rows = (prefill(&mut ours, &ids, None), engine::logits(&mut theirs, 0, 0, &ids));
        for step in 0..32 {
            let last = |logits: &[f32]| dsa::argmax(&logits[logits.len() - 512..]);
            let (next, pos) = (last(&rows.0), (ids.len() + step) as u32);
            assert_eq!(next, last(&rows.1), "{} tokens, step {step}", ids.len());
            rows = (
                dsa::logits(&mut ours, 0, pos, &[next], Purpose::Decode, None),
                engine::logits(&mut theirs, 0, pos, &[next]),
            );
        }
    }
}

/// `model` with its context stretched four times beyond 64 trained tokens.
fn stretched(path: &FsPath, more: &[(&str, f32)]) -> TestPackage {
    let mut model = Model::open(path);
    let arch = model.metadata.arch().unwrap().to_owned();
    let mut set = |key: &str, value: Value| model.metadata.set(format!("{arch}.rope.scaling.{key}"), value);
    set("type", Value::from("yarn"));
    set("factor", Value::F32(4.0));
    set("original_context_length", Value::U32(64));
    more.iter().for_each(|(key, value)| set(key, Value::F32(*value)));
    model.package()
}

fn assert_yarn_agrees(path: &FsPath, prompts: &[Vec<i32>], keys: &[&[(&str, f32)]]) {
    let longest = prompts.last().unwrap();
    let plain = prefill(&mut dsa::whole(&package_of(path), None), longest, None);
    for more in keys {
        let package = stretched(path, more);
        assert_agrees(&package, prompts, &format!("yarn {more:?}"));
        let scaled = prefill(&mut dsa::whole(&package, None), longest, None);
        assert!(worst(&scaled, &plain) > 0.1, "{more:?} must matter");
    }
}

/// For this architecture llama.cpp reads no `yarn_*` keys.
#[test]
fn yarn() {
    let keys: [&[(&str, f32)]; 2] = [&[], &[("attn_factor", 1.25)]];
    assert_yarn_agrees(&dsa::fixture("model.gguf"), &fixture_prompts(), &keys);
}

fn deepseek32_prompts() -> [Vec<i32>; 3] {
    [6, 40, 120].map(|n| Bytes::new(n as u64).ids(n, random_model::VOCAB as i32))
}

#[test]
fn yarn_with_a_multiplier_of_the_magnitude() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deepseek32.gguf");
    random_model::write("deepseek32", &path);
    let keys: [&[(&str, f32)]; 3] =
        [&[], &[("yarn_log_multiplier", 0.1)], &[("yarn_log_multiplier", 0.07), ("attn_factor", 1.25)]];
    assert_yarn_agrees(&path, &deepseek32_prompts(), &keys);
}

/// DeepSeek-V3.2: an indexer on every layer, with half-split rotation. Top-k is 8.
#[test]
fn deepseek32() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deepseek32.gguf");
    random_model::write("deepseek32", &path);
    let package = package_of(&path);
    let prompts = deepseek32_prompts();
    assert_agrees(&package, &prompts, "deepseek32");
    // Its rotation is another one than that of GLM: the same weights as `glm-dsa` answer differently.
    let mut model = Model::open(&path);
    let renamed = |key: &str| key.replacen("deepseek32.", "glm-dsa.", 1);
    model.metadata = model.metadata.iter().map(|(key, value)| (renamed(key), value.clone())).collect();
    model.metadata.set("general.architecture", "glm-dsa");
    let interleaved = model.package();
    let [below, above] = [0, 2].map(|at: usize| {
        let run = |package| prefill(&mut dsa::whole(package, None), &prompts[at], None);
        worst(&run(&package), &run(&interleaved))
    });
    assert!(below <= TOLERANCE && above > 0.1, "{below}, {above}");
}
