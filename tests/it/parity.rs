//! The parity suite: a split model computes what the whole one does, bit for bit, at every cut that is certified.

use crate::support::{
    RealModel, TestPackage,
    engine::{chain, options, pool},
    package_of, random_model,
};
use skippy_stage::{
    cli::parity::{compare, sample_prompt},
    gguf::Metadata,
    llama::KvType,
    package::{LayerRange, Package, Verify},
    stage::{
        StageEngine as _,
        families::{self, check_cut},
        llama::LlamaStageOptions,
    },
};

#[test]
fn smollm2_at_every_cut() {
    let model = package_of(&RealModel::SmolLm2.path());
    assert_eq!(certified_cuts(&model.package), (1..30).collect::<Vec<_>>());
    assert_parity(&model.package, &options());
}

#[test]
fn gemma3_at_multiples_of_its_window_period_and_nowhere_else() {
    let model = package_of(&RealModel::Gemma3.path());
    assert_eq!(certified_cuts(&model.package), [6, 12]);
    assert_parity(&model.package, &options());
    for cut in (1..18).filter(|cut| cut % 6 != 0) {
        // The operator's word does not help: these cuts are known to be wrong.
        let allowing = LlamaStageOptions { allow_uncertified_cuts: true, ..options() };
        let error = chain(&model.package, &[cut], &allowing).err().map(|e| format!("{e:#}")).unwrap();
        assert!(error.contains(&format!("`gemma3` cannot be cut at layer {cut}")), "{error}");
    }
}

/// Every certified family without a real model small enough to test with.
#[test]
fn random_models_of_each_family_at_every_certified_cut() {
    for (arch, cuts) in [
        ("llama", vec![1, 2, 3, 4, 5, 6]),
        ("qwen2", vec![1, 2, 3, 4, 5, 6]),
        ("qwen3", vec![1, 2, 3, 4, 5, 6]),
        ("qwen3moe", vec![1, 2, 3, 4, 5, 6]),
        ("glm-dsa", vec![1, 4]),
    ] {
        let model = random(arch);
        assert_eq!(certified_cuts(&model.package), cuts, "{arch}");
        assert_parity(
            &model.package,
            &LlamaStageOptions { cache_type_k: KvType::F32, cache_type_v: KvType::F32, ..options() },
        );
    }
}

#[test]
fn every_certified_family_is_in_this_suite() {
    let tested = ["llama", "gemma3", "qwen2", "qwen3", "qwen3moe", "glm-dsa"];
    for (arch, _) in families::certified() {
        assert!(tested.contains(&arch), "`{arch}` is certified, but no parity test runs it");
    }
    assert_eq!(families::certified().count(), tested.len());
}

#[test]
fn three_stages_equal_one() {
    let model = random("llama");
    let metadata = metadata(&model.package);
    let prompt = sample_prompt(&metadata);
    let run = |cuts: &[u32]| {
        let mut chain = chain(&model.package, cuts, &options()).unwrap();
        assert_eq!(chain.shape().layers, LayerRange::new(0, random_model::LAYERS).unwrap());
        crate::support::engine::logits(&mut chain, 0, 0, &prompt)
    };
    let whole = run(&[]);
    assert!(whole.iter().any(|logit| *logit != whole[0]), "the model must not answer with a constant");
    assert_eq!(run(&[2, 5]), whole);
    assert_eq!(run(&[1, 2, 3, 4, 5, 6]), whole);
}

/// A wrong cut shows: what certification protects from.
#[test]
fn the_comparison_notices_another_models_stage() {
    let (one, other) = (random("llama"), package_of(&RealModel::SmolLm2.path()));
    let prompt: Vec<i32> = (0..8).collect();
    let equal = compare(&one.package, &[3], &prompt, &options().into(), &pool()).unwrap();
    assert!(equal[0].bit_equal && equal[0].max_abs_diff == 0.0);
    let q8 = LlamaStageOptions { cache_type_k: KvType::Q8_0, ..options() };
    let (mut f16, mut rounded) =
        (chain(&other.package, &[], &options()).unwrap(), chain(&other.package, &[], &q8).unwrap());
    let logits = |chain| crate::support::engine::logits(chain, 0, 0, &prompt);
    assert_ne!(logits(&mut f16), logits(&mut rounded), "a cache type must have an effect");
}

/// 512 rows of 262144 logits are 512 MiB that a stage without the output head must not pay for. In a process of its own,
/// where memory is this stage's alone.
#[test]
#[cfg(target_os = "linux")]
fn a_first_stage_does_not_pay_for_logits() {
    let gguf = RealModel::Gemma3.path();
    let model = package_of(&gguf);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_skippy-stage"))
        .args(["bench", "load", "--split", "6,12", "--rounds", "1", "--json", "--gguf"])
        .args([&gguf, model.package.root()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for stage in report["stages"].as_array().unwrap() {
        let bytes = |key: &str| stage[key].as_u64().unwrap();
        // Weights, cache, and compute buffers of a batch of 512: 19 MiB, and 64 MiB of logits behind the last stage.
        let buffers: u64 = if stage["layers"] == "12..18" { 96 << 20 } else { 32 << 20 };
        let allowed = bytes("tensor_bytes") * 21 / 20 + bytes("kv_bytes") + buffers;
        assert!(bytes("anonymous_bytes") <= allowed, "{stage}: allowed {allowed}");
    }
}

fn random(arch: &str) -> TestPackage {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(format!("{arch}.gguf"));
    random_model::write(arch, &path);
    package_of(&path)
}

fn metadata(package: &Package) -> Metadata {
    let whole = LayerRange::new(0, package.manifest().layer_count).unwrap();
    let files = package.load(&package.select(whole).unwrap(), Verify::SizesOnly).unwrap();
    files.metadata.gguf().metadata.clone()
}

fn certified_cuts(package: &Package) -> Vec<u32> {
    let (metadata, layer_count) = (metadata(package), package.manifest().layer_count);
    (1..layer_count).filter(|cut| check_cut(&metadata, layer_count, *cut, false).is_ok()).collect()
}

fn assert_parity(package: &Package, options: &LlamaStageOptions) {
    let cuts = certified_cuts(package);
    let prompt = sample_prompt(&metadata(package));
    for result in compare(package, &cuts, &prompt, &(*options).into(), &pool()).unwrap() {
        assert!(result.bit_equal, "cut {}: largest difference {}", result.cut, result.max_abs_diff);
    }
}
