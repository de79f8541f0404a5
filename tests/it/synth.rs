//! Synthetic slices, in both engines: the same hidden rows and logits from the same fragments.

use crate::support::engine::pool;
use skippy_stage::{
    gguf::GgmlType,
    llama::KvType,
    package::{
        LayerRange, Package, StageFiles, Verify,
        synth::{Dimensions, SynthRequest, synthesise},
    },
    policy::Resolver,
    stage::{
        Boundary, Row, SeqId, StageBatch, StageEngine, StageInput, StageOutput,
        dsa::{DsaStage, DsaStageOptions, Switches},
        llama::{LlamaStage, LlamaStageOptions},
    },
};
use std::sync::Arc;

/// GLM-5.2 in small. So many indexer heads that no row scores 0 in all of them.
const TINY: Dimensions = Dimensions {
    name: "tiny",
    n_embd: 256,
    n_head: 4,
    q_lora: 512,
    kv_lora: 64,
    rope_dim: 32,
    nope_dim: 64,
    v_dim: 64,
    indexer_heads: 16,
    indexer_dim: 64,
    top_k: 24,
    n_ff: 768,
    n_expert: 8,
    n_expert_used: 2,
    n_ff_exp: 512,
    ..Dimensions::GLM_5_2
};

struct Slice {
    package: Package,
    dir: tempfile::TempDir,
}

impl Slice {
    fn new(layers: &str, ty: GgmlType) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let request = SynthRequest {
            dimensions: TINY,
            layers: layers.parse().unwrap(),
            experts: 4,
            ty,
            seed: 7,
            out_dir: dir.path().join("package"),
            keep_source: None,
            jobs: 1,
        };
        synthesise(&request, &()).unwrap();
        Self { package: Package::open(&request.out_dir).unwrap(), dir }
    }

    fn files(&self, layers: &str) -> StageFiles {
        let range: LayerRange = layers.parse().unwrap();
        self.package.load(&self.package.select(range).unwrap(), Verify::SizesOnly).unwrap()
    }

    /// The layers in the `dsa` and in the `llama` engine.
    fn engines(&self, layers: &str, cache: KvType) -> [Box<dyn StageEngine>; 2] {
        let options = DsaStageOptions {
            n_ctx_seq: 256,
            n_batch: 256,
            n_seq_max: 1,
            cache_type: cache,
            drafts: None,
            switches: Switches::default(),
        };
        let dsa = DsaStage::load(self.files(layers), pool(), Arc::new(Resolver::default()), &options).unwrap();
        let options = LlamaStageOptions {
            n_ctx_seq: 256,
            n_batch: 256,
            n_seq_max: 1,
            cache_type_k: cache,
            cache_type_v: cache,
            gpu_layers: None,
            allow_uncertified_cuts: false,
        };
        let llama = LlamaStage::load(self.files(layers), pool(), &options).unwrap();
        [Box::new(dsa), Box::new(llama)]
    }
}

/// Values of a pass of `n` rows behind `pos` others: logits or hidden rows.
fn forward(engine: &mut dyn StageEngine, pos: u32, n: usize) -> Vec<f32> {
    let rows: Vec<Row> = (pos..).take(n).map(|pos| Row { seq: SeqId(0), pos, output: true }).collect();
    let tokens: Vec<i32> = rows.iter().map(|row| (row.pos as i32 * 37 + 5) % 1024).collect();
    let width = engine.shape().n_embd;
    let hidden: Vec<f32> = (0..n * width).map(|at| ((at + pos as usize * width) as f32 * 0.7).sin()).collect();
    let input = match engine.shape().owns_input() {
        true => StageInput::Tokens(&tokens),
        false => StageInput::Hidden(Boundary::new(&hidden)),
    };
    match engine.forward(&StageBatch::new(input, &rows)).unwrap() {
        StageOutput::Logits(logits) => logits.to_vec(),
        StageOutput::Hidden(hidden) => hidden.rows.to_vec(),
    }
}

/// Of a prompt of `n` rows and two tokens behind it, the worst: the largest difference over the largest value, and the
/// root mean square of the differences over that of the values.
fn difference([ours, theirs]: &mut [Box<dyn StageEngine>; 2], n: usize) -> (f32, f32) {
    let mean = |values: &[f32]| (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt();
    let mut worst = (0f32, 0f32);
    for (pos, n) in [(0, n), (n as u32, 1), (n as u32 + 1, 1)] {
        let (ours, theirs) = (forward(ours.as_mut(), pos, n), forward(theirs.as_mut(), pos, n));
        assert_eq!(ours.len(), theirs.len());
        let largest = theirs.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        assert!(largest.is_finite() && largest > 0.1, "{largest}");
        let off: Vec<f32> = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).collect();
        assert!(ours.iter().all(|value| value.is_finite()));
        let most = off.iter().fold(0f32, |most, off| most.max(*off));
        worst = (worst.0.max(most / largest), worst.1.max(mean(&off) / mean(&theirs)));
    }
    worst
}

/// Far beyond top-k: what is selected must agree as well.
#[test]
fn whole_slices_and_middle_stages_agree_in_f32() {
    let slice = Slice::new("0..8", GgmlType::F32);
    for layers in ["0..8", "0..2", "2..6", "1..6", "6..8"] {
        let (off, _) = difference(&mut slice.engines(layers, KvType::F32), 120);
        assert!(off < 1e-4, "{layers}: off by {off}");
    }
    let slice = Slice::new("3..6", GgmlType::F32);
    let (off, _) = difference(&mut slice.engines("0..3", KvType::F32), 120);
    assert!(off < 1e-4, "3..6: off by {off}");
}

/// Both engines read every type that slices are written in. Activations are rounded to the type's partner, at different
/// places, and a row whose experts nearly tie may take another one. Within top-k, so that no selection hangs on it.
#[test]
fn every_type_is_read_alike() {
    for ty in [GgmlType::F16, GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::Q3_K, GgmlType::Q2_K] {
        let slice = Slice::new("2..4", ty);
        let (_, off) = difference(&mut slice.engines("0..2", KvType::F16), 20);
        println!("{ty}: {off}");
        assert!(off < 0.05, "{ty}: off by {off}");
    }
}

/// `bench stage` on the slice: exit code, stdout, stderr.
fn bench(slice: &Slice, args: &[&str]) -> (Option<i32>, String, String) {
    let package = slice.dir.path().join("package");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_skippy-stage"))
        .args(["bench", "stage", package.to_str().unwrap(), "--threads", "1", "--rounds", "1", "--decode", "2"])
        .args(args)
        .env_remove("RUST_LOG")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Rows that nobody has computed, in both caches: below top-k and far beyond it, from tokens and from hidden rows.
#[test]
fn the_stage_bench_compares_both_engines_on_filled_caches() {
    let slice = Slice::new("0..8", GgmlType::F16);
    for (layers, flash) in [("0..8", false), ("2..6", false), ("2..6", true)] {
        let mut args = vec!["--layers", layers, "--at", "4,200", "--chunk", "18", "--memory", "40", "--json"];
        args.extend(flash.then_some("--llama-flash"));
        let (code, stdout, stderr) = bench(&slice, &args);
        assert_eq!(code, Some(0), "{stderr}");
        let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((&report["layers"], &report["llama_flash"]), (&layers.into(), &flash.into()));
        for (depth, at) in report["depths"].as_array().unwrap().iter().zip([4, 200]) {
            let number = |key: &str| depth[key].as_f64().unwrap();
            assert_eq!(depth["at"], at);
            assert!(number("difference") < 0.01 && number("influence") > 0.05, "{depth}");
            for sample in ["dsa_prefill", "llama_prefill", "dsa_decode_ms", "llama_decode_ms"] {
                assert!(depth[sample]["median"].as_f64().unwrap() > 0.0, "{depth}");
            }
        }
        assert!(report["memory"]["extra_bytes"].as_u64().unwrap() > 0, "{report}");
    }
    let (code, stdout, stderr) = bench(&slice, &["--at", "64", "--chunk", "8", "--memory", "0", "--alone"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("\n64 "), "{stdout}");
    let (code, _, stderr) = bench(&slice, &["--layers", "3..6", "--at", "64", "--memory", "0"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("top-k lists") || stderr.contains("cut"), "{stderr}");
}
