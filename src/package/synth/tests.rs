use super::*;
use crate::{
    gguf::{GgufFile, Source},
    package::{Package, glm_dsa::contract, validate::validate},
};
use std::collections::BTreeMap;

/// The same kind of model in small; sizes differ, so that a swapped dimension shows.
const TINY: Dimensions = Dimensions {
    name: "tiny",
    trunk_layers: 12,
    context_length: 4096,
    n_embd: 256,
    n_head: 4,
    q_lora: 512,
    kv_lora: 32,
    rope_dim: 16,
    nope_dim: 64,
    v_dim: 40,
    indexer_heads: 16,
    indexer_dim: 64,
    top_k: 24,
    n_ff: 768,
    n_expert: 12,
    n_expert_used: 2,
    n_ff_exp: 512,
    ..Dimensions::GLM_5_2
};

fn request(dir: &Path, layers: &str, ty: GgmlType) -> SynthRequest {
    SynthRequest {
        dimensions: TINY,
        layers: layers.parse().unwrap(),
        experts: 4,
        ty,
        seed: 1,
        out_dir: dir.join("package"),
        keep_source: None,
        jobs: 2,
    }
}

#[test]
fn a_slice_keeps_the_contract_and_says_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source.gguf");
    let request = SynthRequest { keep_source: Some(source.clone()), ..request(dir.path(), "2..8", GgmlType::Q4_K) };
    let written = synthesise(&request, &()).unwrap();
    assert_eq!(written.manifest.layer_count, 6);
    assert_eq!(written.manifest.model_id, "synthetic/tiny-layers-2-8-experts-4:q4_K");
    let report = contract(&request.out_dir, true);
    assert!(report.ok, "{:?}", report.issues);
    assert_eq!(report.model.unwrap().roles.to_string(), "FSSSFS");
    assert!(validate(&source, &request.out_dir, 2, &()).unwrap().valid);

    let metadata = GgufFile::open(&request.out_dir.join("shared/metadata.gguf")).unwrap();
    let metadata = &metadata.gguf().metadata;
    assert_eq!(metadata.arch_uint("leading_dense_block_count"), Some(1), "layer 2 is the last dense one");
    let description = metadata.str("general.description").unwrap();
    assert!(description.contains("layers 2..8 as blocks 0..6, 4 of 12 experts"), "{description}");
    assert!(!description.contains("has an indexer"), "layer 2 is full in the model too: {description}");
}

#[test]
fn a_shared_layer_that_comes_first_is_made_full() {
    let dir = tempfile::tempdir().unwrap();
    let request = request(dir.path(), "3..6", GgmlType::Q4_K);
    synthesise(&request, &()).unwrap();
    let report = contract(&request.out_dir, false);
    assert!(report.ok, "{:?}", report.issues);
    assert_eq!(report.model.unwrap().roles.to_string(), "FSS");
    let package = Package::open(&request.out_dir).unwrap();
    let metadata = GgufFile::open(&request.out_dir.join(package.manifest().shared.metadata.path.as_str())).unwrap();
    let description = metadata.gguf().metadata.str("general.description").unwrap();
    assert!(description.contains("Layer 3 shares its selection in the model"), "{description}");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["package"], "the source is removed");
}

#[test]
fn the_same_seed_writes_the_same_bytes_and_tensors_differ() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, seed: u64| -> BTreeMap<String, Vec<u8>> {
        let source = dir.path().join(name);
        let out_dir = dir.path().join(format!("{name}.package"));
        let request = SynthRequest {
            seed,
            out_dir,
            keep_source: Some(source.clone()),
            ..request(dir.path(), "0..4", GgmlType::Q8_0)
        };
        synthesise(&request, &()).unwrap();
        let source = Source::open(&source).unwrap();
        source
            .tensors()
            .map(|(file, tensor)| (tensor.name.clone(), source.files()[file].tensor_bytes(tensor).to_vec()))
            .collect()
    };
    let (first, again, other) = (write("a", 5), write("b", 5), write("c", 6));
    assert!(first == again);
    assert_ne!(first["blk.0.attn_q_a.weight"], other["blk.0.attn_q_a.weight"]);
    assert_ne!(first["blk.0.attn_q_a.weight"], first["blk.1.attn_q_a.weight"]);
}

#[test]
fn roles_of_glm_5_2() {
    let full: Vec<u32> = (0..20).filter(|layer| Dimensions::GLM_5_2.is_full(*layer)).collect();
    assert_eq!(full, [0, 1, 2, 6, 10, 14, 18]);
}

#[test]
fn what_the_model_does_not_have_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let base = request(dir.path(), "3..6", GgmlType::Q4_K);
    let refused = |request: SynthRequest| synthesise(&request, &()).unwrap_err().to_string();
    let layers = refused(SynthRequest { layers: "11..13".parse().unwrap(), ..base.clone() });
    assert!(layers.contains("11..13") && layers.contains("0..12"), "{layers}");
    for experts in [1, 13] {
        let error = refused(SynthRequest { experts, ..base.clone() });
        assert!(error.contains("2") && error.contains("12"), "{error}");
    }
    let ty = refused(SynthRequest { ty: GgmlType::IQ2_S, ..base.clone() });
    assert!(ty.contains("iq2_s"), "{ty}");
    assert!(!base.out_dir.exists());
}
