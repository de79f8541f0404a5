//! `glm-dsa-contract` and `validate-glm-dsa-contract`, and what `write-package` advertises for GLM-DSA models.

use serde_json::{Value as Json, json};
use skippy_stage::{
    gguf::{Array, GgmlType, GgufFile, GgufString, Metadata, TensorSpec, Value},
    package::glm_dsa::Config,
};

use super::{
    Run, Written,
    source::{Model, tensor, write_gguf},
    tool, write_args,
};

const LAYERS: u32 = 5;

/// Roles full, full, shared, full and an MTP block; the first layer is dense.
fn metadata() -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", "glm-dsa");
    let numbers = [
        ("block_count", LAYERS),
        ("context_length", 512),
        ("embedding_length", 64),
        ("feed_forward_length", 96),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 40),
        ("attention.key_length_mla", 24),
        ("attention.value_length_mla", 16),
        ("attention.q_lora_rank", 48),
        ("attention.kv_lora_rank", 32),
        ("attention.indexer.head_count", 3),
        ("attention.indexer.key_length", 64),
        ("attention.indexer.top_k", 10),
        ("rope.dimension_count", 8),
        ("leading_dense_block_count", 1),
        ("nextn_predict_layers", 1),
        ("expert_count", 4),
        ("expert_used_count", 2),
        ("expert_shared_count", 1),
        ("expert_feed_forward_length", 32),
    ];
    for (key, number) in numbers {
        metadata.set(format!("glm-dsa.{key}"), Value::U32(number));
    }
    metadata.set("glm-dsa.rope.freq_base", Value::F32(1e4));
    metadata.set("glm-dsa.attention.layer_norm_rms_epsilon", Value::F32(1e-6));
    metadata.set("glm-dsa.expert_weights_scale", Value::F32(1.5));
    metadata.set("glm-dsa.expert_weights_norm", Value::Bool(true));
    metadata.set("glm-dsa.attention.indexer.types", Value::Array(Array::Bool(vec![true, true, false, true])));
    let tokens = (0..20).map(|id| GgufString::from(format!("t{id}"))).collect();
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::Str(tokens)));
    metadata
}

/// Every tensor that the contract lists.
fn tensors() -> Vec<TensorSpec> {
    let config = Config::read(&metadata(), LAYERS).unwrap();
    let layers = (0..LAYERS).flat_map(|layer| config.layer_tensors(layer));
    let rules = config.boundary_tensors(true, true).into_iter().chain(layers);
    rules.map(|rule| tensor(rule.name, &rule.shape, GgmlType::F32)).collect()
}

/// Writes the package of a model; also what the writer said.
fn package(metadata: &Metadata, tensors: &[TensorSpec]) -> (Written, Run) {
    let written = Written { dir: tempfile::tempdir().unwrap() };
    write_gguf(&written.source(), metadata, tensors, 32, 7);
    let run = tool(write_args(&written.source(), &written.package()));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    (written, run)
}

fn sound() -> Written {
    package(&metadata(), &tensors()).0
}

fn run(command: &str, written: &Written, flags: &[&str]) -> Run {
    let package = written.package();
    tool([command, package.to_str().unwrap()].into_iter().chain(flags.iter().copied()))
}

/// The package breaks the contract: the issues, and that one has this code and says all of `words`.
#[track_caller]
fn broken(written: &Written, flags: &[&str], code: &str, words: &[&str]) {
    let run = run("validate-glm-dsa-contract", written, &[flags, &["--json"]].concat());
    assert!(run.error(1).contains("breaks the GLM-DSA contract"));
    let report: Json = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["ok"], false);
    let issues = report["issues"].as_array().unwrap();
    let says = |issue: &Json| {
        let text = format!("{} {}", issue["path"].as_str().unwrap(), issue["message"].as_str().unwrap());
        words.iter().all(|word| text.contains(word))
    };
    assert!(issues.iter().any(|issue| issue["code"] == code && says(issue)), "{code} {words:?}: {issues:#?}");
}

#[test]
fn a_sound_package_shows_its_contract() {
    let written = sound();
    let report = run("glm-dsa-contract", &written, &["--json"]).json();
    assert_eq!((&report["ok"], &report["issues"]), (&json!(true), &json!([])));
    let model = &report["model"];
    assert_eq!((&model["roles"], &model["top_k"]), (&json!("FFSF + MTP"), &json!(10)));
    assert_eq!(model["indexshare_bytes_per_token"], 40);
    // 5 layers of 40 elements, 4 indexers of 64, 2 bytes each.
    assert_eq!(model["kv_bytes_per_token_f16"], json!({"attention_bytes": 400, "indexer_bytes": 512}));
    assert_eq!((&model["dimensions"]["nope_dim"], &model["dimensions"]["n_vocab"]), (&json!(16), &json!(20)));
    assert_eq!(model["mtp"], json!({"layer": 4, "indexer": true, "embeddings": true, "head_norm": true, "head": true}));
    for field in report["generation"].as_array().unwrap() {
        assert_eq!(field["declared"], field["recommended"], "{field}");
    }
    let text = run("glm-dsa-contract", &written, &[]);
    assert_eq!((text.code, text.stderr.as_str()), (Some(0), ""));
    for line in ["  roles: FFSF + MTP\n", "  policy.decode: \"compact-flash\", \"compact-flash\"\n", "rms_eps: 1e-6\n"]
    {
        assert!(text.stdout.contains(line), "{line}: {}", text.stdout);
    }
    for flags in [&[][..], &["--require-generation-policy"]] {
        let valid = run("validate-glm-dsa-contract", &written, flags);
        assert_eq!((valid.code, valid.stderr.as_str()), (Some(0), ""), "{}", valid.stdout);
        assert_eq!(valid.stdout, "valid: glm-dsa of 5 layers, roles FFSF + MTP, top-k 10\n");
    }
}

#[test]
fn the_generation_block_is_held_against_the_model() {
    let required = &["--require-generation-policy"];
    let edited = |pointer: &str, value: Json| {
        let written = sound();
        written.edit_manifest(|manifest| *manifest.pointer_mut(&format!("/generation{pointer}")).unwrap() = value);
        written
    };
    for (pointer, value) in [("/policy/profile", "glm-dsa-v9"), ("/policy/decode", "warp")] {
        let written = edited(pointer, json!(value));
        let unsupported = run("validate-glm-dsa-contract", &written, &[]);
        assert_eq!(unsupported.code, Some(0), "reported, served by a fallback");
        assert!(unsupported.stdout.contains("warning [unsupported_generation_value]"), "{}", unsupported.stdout);
        broken(&written, required, "missing_generation_policy", &[value, "does not know"]);
    }
    let none = sound();
    none.edit_manifest(|manifest| drop(manifest.as_object_mut().unwrap().remove("generation")));
    assert_eq!(run("validate-glm-dsa-contract", &none, &[]).code, Some(0));
    broken(&none, required, "missing_generation_policy", &["generation.policy.profile", "got nothing", "glm-dsa-v1"]);

    let thresholds = "/thresholds/dense_mask_max_bytes";
    broken(&edited(thresholds, json!(-1)), &[], "invalid_threshold", &["got -1", "non-negative"]);
    broken(&edited(thresholds, json!("1 GiB")), &[], "invalid_threshold", &["dense_mask_max_bytes"]);
    let speculation = "/speculative_decoding";
    let default = edited(&format!("{speculation}/default"), json!("tree"));
    broken(&default, &[], "missing_speculative_default_strategy", &["got \"tree\"", "`mtp`"]);
    let layers = edited(&format!("{speculation}/proposers/mtp/layer_indices"), json!([3]));
    layers.edit_manifest(|manifest| {
        manifest["generation"]["speculative_decoding"]["strategies"] =
            json!({"mtp": {"type": "native-mtp", "proposer": "mtp"}});
    });
    broken(&layers, &[], "invalid_speculation", &["proposers.mtp.layer_indices", "got [3]", "expected 4"]);
}

/// Replaces the fragment of a layer, with the manifest's numbers for it.
fn replace_layer(written: &Written, layer: usize, edit: impl FnOnce(&mut Vec<TensorSpec>)) {
    let prefix = format!("blk.{layer}.");
    let mut specs: Vec<TensorSpec> = tensors().into_iter().filter(|spec| spec.name.starts_with(&prefix)).collect();
    edit(&mut specs);
    let path = written.file(&format!("layers/layer-{layer:05}.gguf"));
    let fragment: Metadata = [("general.architecture", "glm-dsa")].into_iter().collect();
    write_gguf(&path, &fragment, &specs, 32, 7);
    let file = GgufFile::open(&path).unwrap();
    written.edit_manifest(|manifest| {
        let declared = &mut manifest["layers"][layer];
        declared["tensor_count"] = json!(specs.len());
        declared["tensor_bytes"] = json!(file.gguf().tensors.iter().map(|tensor| tensor.n_bytes).sum::<u64>());
        declared["artifact_bytes"] = json!(file.bytes().len());
    });
}

#[test]
fn each_fault_of_a_fragment_names_file_and_tensor() {
    type Edit = fn(&mut Vec<TensorSpec>);
    let cases: [(usize, Edit, &str, &[&str]); 6] = [
        (1, |t| drop(t.remove(0)), "glm_dsa_tensor", &["layer-00001.gguf", "blk.1.attn_norm.weight", "missing"]),
        (
            3,
            |t| t.iter_mut().find(|t| t.name.ends_with("attn_k_b.weight")).unwrap().shape.swap(0, 1),
            "glm_dsa_tensor",
            &["blk.3.attn_k_b.weight", "[32, 16, 2]", "expected [16, 32, 2]"],
        ),
        (
            2,
            |t| t.push(tensor("blk.2.ffn_up.weight", &[64, 96], GgmlType::F32)),
            "glm_dsa_tensor",
            &["layer-00002.gguf", "blk.2.ffn_up.weight", "no part of layer 2"],
        ),
        (
            0,
            |t| t.iter_mut().find(|t| t.name.ends_with("attn_norm.weight")).unwrap().ty = GgmlType::F16,
            "glm_dsa_tensor",
            &["blk.0.attn_norm.weight", "type f16", "expected f32"],
        ),
        (
            2,
            |t| t.push(tensor("blk.2.indexer.k_norm.weight", &[64], GgmlType::F32)),
            "glm_dsa_role",
            &["layer-00002.gguf", "layer 2 is shared", "has an indexer"],
        ),
        (
            3,
            |t| t.retain(|t| !t.name.contains(".indexer.")),
            "glm_dsa_role",
            &["layer-00003.gguf", "layer 3 is full", "has no indexer"],
        ),
    ];
    for (layer, edit, code, words) in cases {
        let written = sound();
        replace_layer(&written, layer, edit);
        broken(&written, &[], code, words);
        let shown = run("glm-dsa-contract", &written, &[]);
        assert_eq!(shown.code, Some(0), "what is there is shown");
        assert!(shown.stdout.contains(&format!("error [{code}]")), "{}", shown.stdout);
    }
}

#[test]
fn the_writer_says_why_it_does_not_advertise_the_policy() {
    let mut no_scale = metadata();
    no_scale.remove("glm-dsa.expert_weights_scale");
    let mut scaled = tensors();
    scaled.push(tensor("blk.3.ffn_down_exps.scale", &[4], GgmlType::F32));
    for (metadata, tensors, word) in
        [(no_scale, tensors(), "glm-dsa.expert_weights_scale"), (metadata(), scaled, "blk.3.ffn_down_exps.scale")]
    {
        let (written, run_of_writer) = package(&metadata, &tensors);
        let note = run_of_writer.stderr.lines().find(|line| line.starts_with("note: policy `glm-dsa-v1`")).unwrap();
        assert!(note.contains(word), "{note}");
        let generation = &written.manifest()["generation"];
        assert!(generation.get("policy").is_none(), "{generation}");
        assert_eq!(generation["speculative_decoding"]["default"], "mtp", "the mtp block is whole");
        let code = if word.starts_with("blk.") { "glm_dsa_tensor" } else { "glm_dsa_metadata" };
        broken(&written, &[], code, &[word]);
    }
}

#[test]
fn other_packages_have_no_contract() {
    let llama = Written::from(&Model::default());
    let line = run("glm-dsa-contract", &llama, &[]);
    let line = line.error(1);
    assert!(line.contains("\"llama\"") && line.contains("\"glm-dsa\" or \"deepseek32\""), "{line}");
    broken(&llama, &[], "glm_dsa_metadata", &["general.architecture", "\"llama\""]);
    let nothing = Written { dir: tempfile::tempdir().unwrap() };
    broken(&nothing, &[], "unreadable_manifest", &[]);
}
