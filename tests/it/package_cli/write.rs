//! `write-package`.

use std::{fs, path::Path};

use skippy_stage::{
    gguf::{GgufFile, Source},
    package::{LayerRange, Package, Sha256Digest, Verify},
};

use super::{
    PROVENANCE, Written,
    source::{Model, tensor, write_gguf},
    tool, write_args,
};

#[test]
fn a_package_holds_the_model_and_says_where_it_comes_from() {
    let written = Written::from(&Model::default());
    let manifest = written.manifest();
    let source = fs::read(written.source()).unwrap();
    let digest = Sha256Digest::of(&source).to_string();

    assert_eq!(manifest["schema_version"], 1);
    assert_eq!(manifest["format"], "layer-package");
    assert_eq!(manifest["model_id"], "org/tiny:F32");
    assert_eq!(manifest["layer_count"], 4);
    assert_eq!(manifest["activation_width"], 64);
    assert_eq!(manifest["skippy_abi_version"], "1.0.0");
    assert!(manifest["created_at_unix_secs"].as_u64().unwrap() > 1_700_000_000);
    assert!(manifest.get("generation").is_none(), "nothing to advertise");
    let stated = &manifest["source_model"];
    assert_eq!(stated["path"], "tiny.gguf", "no local path leaks");
    assert_eq!(stated["sha256"], digest.as_str());
    assert_eq!(stated["repo"], "org/tiny");
    assert_eq!(stated["revision"], "c0ffee");
    assert_eq!(stated["canonical_ref"], "org/tiny:F32");
    assert_eq!(stated["distribution_id"], "F32");
    assert_eq!(stated["files"][0]["size_bytes"], source.len());
    assert_eq!(stated["files"][0]["sha256"], digest.as_str());

    // Every source tensor in exactly one fragment, byte for byte, by an independent walk over the files.
    let source = Source::open(&written.source()).unwrap();
    let mut found = 0;
    let layers = (0..4).map(|layer| format!("layers/layer-{layer:05}.gguf"));
    let shared = ["shared/metadata.gguf", "shared/embeddings.gguf", "shared/output.gguf"].map(String::from);
    for path in layers.chain(shared) {
        let fragment = GgufFile::open(&written.file(&path)).unwrap();
        for tensor in &fragment.gguf().tensors {
            let (shard, original) = source.tensors().find(|(_, original)| original.name == tensor.name).unwrap();
            assert_eq!((original.ty, &original.shape), (tensor.ty, &tensor.shape));
            assert_eq!(source.tensor_bytes(shard, original), fragment.tensor_bytes(tensor));
            found += 1;
        }
    }
    assert_eq!(found, source.tensors().count());
    let metadata = GgufFile::open(&written.file("shared/metadata.gguf")).unwrap();
    assert_eq!(&metadata.gguf().metadata, source.metadata());
    assert!(metadata.gguf().tensors.is_empty());
    let layer = GgufFile::open(&written.file("layers/layer-00002.gguf")).unwrap();
    assert_eq!(layer.gguf().metadata.str("skippy.artifact"), Some("layer"));
    assert_eq!(layer.gguf().metadata.uint("skippy.layer_index"), Some(2));
    assert_eq!(layer.gguf().metadata.arch(), Some("llama"));
}

#[test]
fn nothing_but_the_package_is_left_behind() {
    let written = Written::from(&Model::default());
    let mut names: Vec<String> = walk(&written.package());
    names.sort();
    let expected = [
        "README.md",
        "layers/layer-00000.gguf",
        "layers/layer-00001.gguf",
        "layers/layer-00002.gguf",
        "layers/layer-00003.gguf",
        "model-package.json",
        "shared/embeddings.gguf",
        "shared/metadata.gguf",
        "shared/output.gguf",
    ];
    assert_eq!(names, expected);
}

fn walk(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                names.push(path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    names
}

#[test]
fn the_readme_says_what_the_spec_asks_for() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out, projector) =
        (dir.path().join("m.gguf"), dir.path().join("p"), dir.path().join("mmproj-f16.gguf"));
    Model { mtp: true, ..Model::default() }.write(&source);
    let clip = [("general.architecture", "clip")].into_iter().collect();
    write_gguf(&projector, &clip, &[tensor("v.w", &[5], skippy_stage::gguf::GgmlType::F32)], 32, 9);
    let mut args = write_args(&source, &out);
    args.extend(["--projector", projector.to_str().unwrap()]);
    let report = tool(args).json();

    let readme = fs::read_to_string(out.join("README.md")).unwrap();
    let manifest = fs::read(out.join("model-package.json")).unwrap();
    assert_eq!(report["manifest_sha256"], Sha256Digest::of(&manifest).to_string());
    let digest = |path: &Path| Sha256Digest::of(&fs::read(path).unwrap()).to_string();
    for wanted in [
        "org/tiny:F32",
        "c0ffee",
        "tiny.gguf",
        &digest(&source),
        &Sha256Digest::of(&manifest).to_string(),
        "projectors/mmproj-f16.gguf",
        &digest(&projector),
        "| layers | 4 |",
        "| activation width | 64 |",
        "| skippy ABI | `1.0.0` |",
        "default strategy `mtp`",
        "prediction depth 1, layers [3]",
        "skippy-model-package validate-package tiny.gguf .",
        "valid. All 22 tensors",
    ] {
        assert!(readme.contains(wanted), "{wanted} is not in\n{readme}");
    }
}

#[test]
fn mtp_is_advertised_when_its_block_is_whole_and_only_then() {
    let written = Written::from(&Model { mtp: true, ..Model::default() });
    let speculation = &written.manifest()["generation"]["speculative_decoding"];
    assert_eq!(speculation["default"], "mtp");
    assert_eq!(speculation["proposers"]["mtp"]["layer_indices"], serde_json::json!([3]));
    assert_eq!(speculation["strategies"]["mtp"]["window_policy"]["max_window"], 1);

    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("m.gguf"), dir.path().join("p"));
    let edit_tensors = |tensors: &mut Vec<_>| {
        tensors.retain(|t: &skippy_stage::gguf::TensorSpec| !t.name.ends_with("nextn.hnorm.weight"));
    };
    Model { mtp: true, edit_tensors, ..Model::default() }.write(&source);
    let report = tool(write_args(&source, &out)).json();
    assert_eq!(report["generation"], serde_json::Value::Null);
    assert!(report["notes"][0].as_str().unwrap().contains("blk.3.nextn.hnorm.weight is missing"), "{report}");
}

#[test]
fn every_stage_gets_the_rotary_factors() {
    let written = Written::from(&Model { rotary_factors: true, ..Model::default() });
    let package = Package::open(&written.package()).unwrap().with_verdicts(None);
    for range in ["0..1", "1..3", "3..4"] {
        let range: LayerRange = range.parse().unwrap();
        let selection = package.select(range).unwrap();
        let stage = package.load(&selection, Verify::Sha256).unwrap();
        assert!(stage.metadata.gguf().tensor("rope_freqs.weight").is_some());
        assert_eq!(stage.embeddings.is_some(), range.start() == 0, "embeddings are not fetched for the factors");
    }
    assert_eq!(written.manifest()["shared"]["metadata"]["tensor_count"], 1);
    written.validate().json();
}

#[test]
fn other_alignments_and_tied_heads_are_kept() {
    for alignment in [8, 64, 4096] {
        let written = Written::from(&Model { alignment, tied: true, ..Model::default() });
        let fragment = GgufFile::open(&written.file("layers/layer-00001.gguf")).unwrap();
        assert_eq!(fragment.gguf().alignment, alignment);
        assert_eq!(written.validate().json()["valid"], true);
    }
}

#[test]
fn a_model_in_shards_is_one_source() {
    let dir = tempfile::tempdir().unwrap();
    let shards = dir.path().join("shards");
    fs::create_dir(&shards).unwrap();
    let model = Model { rotary_factors: true, ..Model::default() };
    model.write_shards(&shards, "tiny-Q4", 3);
    for (name, source) in [("a", shards.clone()), ("b", shards.join("tiny-Q4-00002-of-00003.gguf"))] {
        let out = dir.path().join(name);
        let mut args = write_args(&source, &out);
        args.retain(|arg| *arg != "tiny.gguf");
        args.push("Q4/tiny-00001-of-00003.gguf");
        tool(args).json();
        let manifest: serde_json::Value =
            serde_json::from_slice(&fs::read(out.join("model-package.json")).unwrap()).unwrap();
        let files = manifest["source_model"]["files"].as_array().unwrap();
        let paths: Vec<&str> = files.iter().map(|file| file["path"].as_str().unwrap()).collect();
        assert_eq!(
            paths,
            ["Q4/tiny-00001-of-00003.gguf", "Q4/tiny-00002-of-00003.gguf", "Q4/tiny-00003-of-00003.gguf"]
        );
        for (file, no) in files.iter().zip(1..) {
            let bytes = fs::read(shards.join(format!("tiny-Q4-{no:05}-of-00003.gguf"))).unwrap();
            assert_eq!(file["sha256"], Sha256Digest::of(&bytes).to_string());
        }
        let metadata = GgufFile::open(&out.join("shared/metadata.gguf")).unwrap();
        assert!(metadata.gguf().metadata.iter().all(|(key, _)| !key.starts_with("split.")));
        tool([Path::new("validate-package"), &shards, &out]);
    }
    // One shard is no model.
    fs::remove_file(shards.join("tiny-Q4-00003-of-00003.gguf")).unwrap();
    let out = dir.path().join("c");
    assert!(tool(write_args(&shards, &out)).error(1).contains("00003"));
    assert!(!out.exists());
}

#[test]
fn one_thread_and_many_write_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("m.gguf");
    Model::default().write(&source);
    let digests = ["1", "5"].map(|jobs| {
        let out = dir.path().join(jobs);
        let mut args = write_args(&source, &out);
        args.extend(["--jobs", jobs]);
        tool(args).json();
        let manifest: serde_json::Value =
            serde_json::from_slice(&fs::read(out.join("model-package.json")).unwrap()).unwrap();
        (manifest["layers"].clone(), manifest["shared"].clone())
    });
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn an_interrupted_run_goes_on_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("m.gguf"), dir.path().join("p"));
    Model::default().write(&source);
    // A directory in the place of a layer stops the run.
    fs::create_dir_all(out.join("layers/layer-00001.gguf/x")).unwrap();
    fs::rename(&out, dir.path().join("obstacle")).unwrap();
    tool(write_args(&source, &out)).json();
    fs::remove_file(out.join("layers/layer-00001.gguf")).unwrap();
    fs::rename(dir.path().join("obstacle/layers/layer-00001.gguf"), out.join("layers/layer-00001.gguf")).unwrap();
    let stopped = tool(write_args(&source, &out));
    assert!(stopped.error(1).contains("layer-00001.gguf"), "{}", stopped.stderr);
    assert!(out.join(".skippy-write-state.json").exists());
    assert!(!out.join("model-package.json").exists(), "an unfinished package has no manifest");

    // Damage of all kinds while it lay there: a cut file, a flipped bit, one that never was written.
    fs::remove_dir_all(out.join("layers/layer-00001.gguf")).unwrap();
    let cut = fs::read(out.join("layers/layer-00002.gguf")).unwrap();
    fs::write(out.join("layers/layer-00002.gguf"), &cut[..cut.len() - 1]).unwrap();
    let mut flipped = fs::read(out.join("shared/output.gguf")).unwrap();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(out.join("shared/output.gguf"), flipped).unwrap();
    let report = tool(write_args(&source, &out)).json();
    assert_eq!(report["artifacts"], 7);
    assert_eq!(report["artifacts_reused"], 4);
    assert!(!out.join(".skippy-write-state.json").exists());
    let args = [Path::new("validate-package"), &source, &out];
    assert_eq!(tool(args).code, Some(0));
    assert!(walk(&out).iter().all(|name| !name.contains(".partial")), "{:?}", walk(&out));
}

#[test]
fn writing_again_changes_nothing() {
    let written = Written::from(&Model::default());
    let before = fs::read(written.file("model-package.json")).unwrap();
    let report = tool(write_args(&written.source(), &written.package())).json();
    assert_eq!(report["artifacts_reused"], 7);
    assert_eq!(fs::read(written.file("model-package.json")).unwrap(), before, "same package, same digest");
}

#[test]
fn directories_of_others_are_left_alone() {
    let written = Written::from(&Model::default());
    // Another revision of the same model.
    let (source, out) = (written.source(), written.package());
    let mut args = write_args(&source, &out);
    *args.iter_mut().find(|arg| **arg == "c0ffee").unwrap() = "deadbeef";
    let refused = tool(args);
    let line = refused.error(1);
    assert!(line.contains("c0ffee") && line.contains("deadbeef"), "{line}");
    // Not a package at all.
    let home = written.dir.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("letter.txt"), "dear").unwrap();
    let refused = tool(write_args(&source, &home));
    assert!(refused.error(1).contains("letter.txt"));
    assert_eq!(walk(&home), ["letter.txt"]);
    // A file.
    assert!(tool(write_args(&source, &home.join("letter.txt"))).error(1).contains("is a file"));
}

#[test]
fn projectors_are_copied_and_counted_apart() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("m.gguf"), dir.path().join("p"));
    Model::default().write(&source);
    let clip = [("general.architecture", "clip")].into_iter().collect();
    let one = dir.path().join("mmproj-a.gguf");
    write_gguf(&one, &clip, &[tensor("v.blk.0.w", &[5], skippy_stage::gguf::GgmlType::F32)], 32, 9);
    let mut args = write_args(&source, &out);
    args.extend(["--projector", one.to_str().unwrap()]);
    tool(args.clone()).json();
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("model-package.json")).unwrap()).unwrap();
    let projector = &manifest["projectors"][0];
    assert_eq!(projector["kind"], "mmproj");
    assert_eq!(projector["path"], "projectors/mmproj-a.gguf");
    assert_eq!((projector["tensor_count"].as_u64(), projector["tensor_bytes"].as_u64()), (Some(1), Some(20)));
    assert_eq!(fs::read(out.join("projectors/mmproj-a.gguf")).unwrap(), fs::read(&one).unwrap());
    assert_eq!(tool([Path::new("validate-package"), &source, &out]).code, Some(0));

    let again = dir.path().join("sub/mmproj-a.gguf");
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::copy(&one, &again).unwrap();
    args.extend(["--projector", again.to_str().unwrap()]);
    assert!(tool(args).error(1).contains("same file name"));
    let fresh = dir.path().join("q");
    let mut args = write_args(&source, &fresh);
    args.extend(["--projector", source.to_str().unwrap()]);
    assert!(tool(args).error(1).contains("`general.architecture` is `llama`"));
}

#[test]
fn provenance_must_be_stated() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("m.gguf"), dir.path().join("p"));
    Model::default().write(&source);
    for (flag, value) in PROVENANCE.chunks(2).map(|pair| (pair[0], pair[1])) {
        let mut args = write_args(&source, &out);
        args.retain(|arg| *arg != flag && *arg != value);
        let refused = tool(args);
        assert!(refused.error(2).contains(&format!("missing {flag} ")), "{}", refused.stderr);
    }
    for (from, to, problem) in [
        ("org/tiny:F32", "tiny.gguf", "--model-id"),
        ("org/tiny:F32", "", "--model-id"),
        ("c0ffee", "", "--source-revision"),
        ("tiny.gguf", "/abs/tiny.gguf", "--source-file"),
        ("tiny.gguf", "../tiny.gguf", "--source-file"),
    ] {
        let mut args = write_args(&source, &out);
        *args.iter_mut().find(|arg| **arg == from).unwrap() = to;
        let refused = tool(args);
        assert!(refused.error(1).contains(problem), "{to}: {}", refused.stderr);
    }
    assert!(!out.exists());
    for coordinate in ["org/repo:Q4_K_M", "hf://org/repo"] {
        let refused = tool(["write-package", coordinate, "--out-dir", out.to_str().unwrap()]);
        let line = refused.error(2);
        assert!(line.contains("not supported yet") && line.contains("--model-id"), "{line}");
    }
}
