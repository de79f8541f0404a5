//! The package in `assets/`, by the tool that wrote it.

use super::tool;
use serde_json::Value as Json;
use skippy_stage::{
    gguf::{GgufWriter, TensorSpec},
    package::{LayerRange, Package, Verify},
};
use std::{fs::File, io::BufWriter, path::Path};

fn package() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/skippy-kjv-6m"))
}

#[test]
fn preflight_hashes_every_artifact_and_finds_nothing() {
    let report = tool(["preflight", package().to_str().unwrap(), "--verify-sha256"]).json();
    assert_eq!(report["ok"], true);
    assert_eq!(report["sha256_verified"], true);
    assert_eq!(report["issues"], Json::Array(Vec::new()));
}

#[test]
fn it_keeps_the_contract_of_its_architecture() {
    let run = tool(["validate-glm-dsa-contract", package().to_str().unwrap(), "--require-generation-policy"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stdout.starts_with("valid: glm-dsa of 9 layers, roles FFSSFFSS + MTP"), "{}", run.stdout);
}

/// The source is not committed. Its tensors and metadata are all in the fragments: put together again in the order of
/// the source, they are the very file whose digest the manifest names.
#[test]
fn fragments_put_together_are_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("skippy-kjv-6m.Q8_0.gguf");
    assemble(&source);
    let report = tool([Path::new("validate-package"), &source, package(), Path::new("--json")]).json();
    assert_eq!(report["valid"], true);
    assert_eq!(report["issues"], Json::Array(Vec::new()));
    assert_eq!(report["equal_tensors"], report["source_tensors"]);
}

fn assemble(path: &Path) {
    let package = Package::open(package()).unwrap();
    let range = LayerRange::new(0, package.manifest().layer_count).unwrap();
    let files = package.load(&package.select(range).unwrap(), Verify::Sha256).unwrap();
    let layers = files.layers.iter().map(|(_, file)| file);
    let fragments: Vec<_> = files.embeddings.iter().chain(&files.output).chain(layers).collect();
    let tensors = || fragments.iter().flat_map(|file| file.gguf().tensors.iter().map(move |tensor| (file, tensor)));
    let spec = |tensor: &skippy_stage::gguf::TensorInfo| TensorSpec {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        ty: tensor.ty,
    };
    let specs: Vec<TensorSpec> = tensors().map(|(_, tensor)| spec(tensor)).collect();
    let out = BufWriter::new(File::create(path).unwrap());
    let mut writer = GgufWriter::new(out, &files.metadata.gguf().metadata, &specs, 32).unwrap();
    for (file, tensor) in tensors() {
        writer.write_tensor(file.tensor_bytes(tensor)).unwrap();
    }
    writer.finish().unwrap();
}
