//! One row per check of the spec's section Consumer Validation.

use std::fs;

use serde_json::json;

use super::*;
use crate::{
    gguf::{Metadata, TensorSpec, Value},
    package::{
        Code,
        testing::{Mtp, Recipe, TestPackage, tensor},
    },
};

fn load(package: &TestPackage, range: &str, verify: Verify) -> Result<StageFiles, PackageError> {
    let package = package.try_open()?;
    let selection = package.select(range.parse().unwrap())?;
    package.load(&selection, verify)
}

/// Loads the whole model and gives the one issue and its message.
fn refused(package: &TestPackage, verify: Verify) -> (Code, String) {
    let error = load(package, "0..3", verify).unwrap_err();
    assert!(!error.to_string().contains('\n'), "{error}");
    (error.issues()[0].code, error.to_string())
}

fn fragment(arch: &str) -> Metadata {
    [("general.architecture", arch)].into_iter().collect()
}

#[test]
fn opens_what_a_stage_owns() {
    let recipe = Recipe { projectors: 1, ..Recipe::default() };
    let package = recipe.write();
    for verify in [Verify::SizesOnly, Verify::Sha256] {
        let files = load(&package, "0..3", verify).unwrap();
        assert!(files.owns_input() && files.owns_output());
        assert_eq!(files.layers.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(files.projectors, [package.root().canonicalize().unwrap().join("projectors/mmproj-0.gguf")]);
        assert_eq!(files.metadata.gguf().metadata.arch(), Some("llama"));
        assert!(files.embeddings.unwrap().gguf().tensor("token_embd.weight").is_some());
        assert!(files.output.unwrap().gguf().tensor("output.weight").is_some());

        let files = load(&package, "1..2", verify).unwrap();
        assert!(!files.owns_input() && !files.owns_output());
        assert!(files.embeddings.is_none() && files.output.is_none() && files.projectors.is_empty());
        assert_eq!(files.layers[0].1.gguf().tensors[0].name, "blk.1.attn_norm.weight");
    }
    let files = load(&Recipe { mtp: Some(Mtp::ModelEmbeddings), ..recipe }.write(), "2..3", Verify::Sha256).unwrap();
    assert!(files.embeddings.is_some());
}

type Break = fn(&TestPackage);

/// One broken package: what is done to it, the code, and what the message must say.
#[rustfmt::skip]
fn broken() -> Vec<(Break, Code, &'static [&'static str])> {
    const LAYER: &str = "layers/layer-00001.gguf";
    vec![
        (|p| fs::remove_file(p.file(LAYER)).unwrap(),
            Code::MissingArtifact, &["`layers/layer-00001.gguf` (`layers[1]`)", "does not exist"]),
        (|p| { fs::remove_file(p.file(LAYER)).unwrap(); fs::create_dir(p.file(LAYER)).unwrap(); },
            Code::ArtifactNotAFile, &["`layers[1]`", "got a directory, expected a regular file"]),
        #[cfg(unix)]
        (|p| { fs::remove_file(p.file(LAYER)).unwrap(); drop(std::os::unix::net::UnixListener::bind(p.file(LAYER)).unwrap()); },
            Code::ArtifactNotAFile, &["`layers[1]`", "got a device, socket or pipe, expected a regular file"]),
        (|p| { let bytes = fs::read(p.file(LAYER)).unwrap(); fs::write(p.file(LAYER), &bytes[..bytes.len() - 1]).unwrap(); },
            Code::ArtifactSizeMismatch, &["`layers[1]`", "truncated: got 575 bytes, expected `artifact_bytes` = 576"]),
        (|p| { let mut bytes = fs::read(p.file(LAYER)).unwrap(); bytes.push(0); fs::write(p.file(LAYER), &bytes).unwrap(); },
            Code::ArtifactSizeMismatch, &["`layers[1]`", "oversized: got 577 bytes, expected `artifact_bytes` = 576"]),
        (|p| fs::write(p.file(LAYER), "").unwrap(),
            Code::ArtifactSizeMismatch, &["truncated: got 0 bytes"]),
        (|p| { let html = format!("{:576}", "<!DOCTYPE html><html>not found</html>"); fs::write(p.file(LAYER), html).unwrap(); },
            Code::InvalidArtifact, &["`layers[1]`", "layer-00001.gguf`: starts with `<!DO`", "HTML"]),
        (|p| {
            let (a, b, c) = (p.file(LAYER), p.file("layers/layer-00002.gguf"), p.file("layers/x"));
            for (from, to) in [(&a, &c), (&b, &a), (&c, &b)] { fs::rename(from, to).unwrap(); }
        }, Code::ForeignTensor, &["`layers[1]`", "got tensor `blk.2.attn_norm.weight` of layer 2, expected only tensors of layer 1"]),
        (|p| p.replace_fragment("/layers/1", &fragment("llama"), &[]),
            Code::ArtifactTensorMismatch, &["`layers[1]`", "got no tensors, expected those of layer 1"]),
        (|p| p.edit_manifest(|m| m["layers"][1]["tensor_count"] = json!(4)),
            Code::ArtifactTensorMismatch, &["`layers[1]`", "got 3 tensors, expected `tensor_count` = 4"]),
        (|p| p.edit_manifest(|m| m["layers"][1]["tensor_bytes"] = json!(319)),
            Code::ArtifactTensorMismatch, &["`layers[1]`", "got 320 bytes of tensors, expected `tensor_bytes` = 319"]),
        (|p| p.replace_fragment("/layers/1", &fragment("llama"), &[tensor("blk.1.attn_norm.weight", &[8]), tensor("blk.2.attn_q.weight", &[8])]),
            Code::ForeignTensor, &["`layers[1]`", "got tensor `blk.2.attn_q.weight` of layer 2"]),
        (|p| p.replace_fragment("/layers/1", &fragment("llama"), &[tensor("blk.1.attn_norm.weight", &[8]), tensor("stray.weight", &[8])]),
            Code::ForeignTensor, &["`layers[1]`", "got tensor `stray.weight` of no layer, expected only tensors of layer 1"]),
        (|p| p.replace_fragment("/layers/1", &fragment("llama"), &[tensor("blk.1.attn_norm.weight", &[8]), tensor("output.weight", &[8, 5])]),
            Code::ForeignTensor, &["`layers[1]`", "got tensor `output.weight` of the output boundary"]),
        (|p| p.replace_fragment("/shared/embeddings", &fragment("llama"), &[tensor("token_embd.weight", &[8, 5]), tensor("blk.0.x.weight", &[8])]),
            Code::ForeignTensor, &["`shared.embeddings`", "`blk.0.x.weight` of layer 0, expected only tensors of the input boundary"]),
        (|p| p.replace_fragment("/shared/output", &fragment("llama"), &[tensor("token_embd.weight", &[8, 5])]),
            Code::ForeignTensor, &["`shared.output`", "`token_embd.weight` of the input boundary, expected only tensors of the output boundary"]),
        (|p| p.replace_fragment("/shared/embeddings", &fragment("llama"), &[tensor("output_norm.weight", &[8])]),
            Code::ForeignTensor, &["`shared.embeddings`", "`output_norm.weight` of the output boundary"]),
        (|p| p.replace_fragment("/shared/embeddings", &fragment("llama"), &[tensor("position_embd.weight", &[8, 5])]),
            Code::ArtifactTensorMismatch, &["`shared.embeddings`", "`token_embd.weight` is missing", "owns the input boundary"]),
        (|p| {
            p.replace_fragment("/shared/embeddings", &fragment("llama"), &[tensor("token_embd.weight", &[8, 5]), tensor("shared.bias", &[8])]);
            p.replace_fragment("/shared/output", &fragment("llama"), &[tensor("output.weight", &[8, 5]), tensor("shared.bias", &[8])]);
        }, Code::DuplicateTensor, &["`shared.output`", "tensor `shared.bias` is in `shared/embeddings.gguf` too"]),
        (|p| p.replace_fragment("/layers/1", &fragment("gemma3"), &layer(8)),
            Code::ForeignArtifact, &["`layers[1]`", "`general.architecture` is \"gemma3\", expected \"llama\""]),
        (|p| { let mut other = fragment("llama"); other.set("llama.embedding_length", Value::U32(16)); p.replace_fragment("/layers/1", &other, &layer(8)); },
            Code::ForeignArtifact, &["`layers[1]`", "`llama.embedding_length` is 16, expected 8"]),
        (|p| p.replace_fragment("/layers/1", &fragment("llama"), &layer(16)),
            Code::ForeignArtifact, &["`layers[1]`", "`blk.1.attn_norm.weight` has shape [16], expected rows of 8 elements"]),
        (|p| p.replace_fragment("/shared/embeddings", &fragment("llama"), &[tensor("token_embd.weight", &[5, 8])]),
            Code::ForeignArtifact, &["`shared.embeddings`", "`token_embd.weight` has shape [5, 8], expected rows of 8 elements"]),
        (|p| fs::remove_file(p.file("projectors/mmproj-0.gguf")).unwrap(),
            Code::MissingArtifact, &["`projectors[0]`", "does not exist"]),
        (|p| fs::write(p.file("projectors/mmproj-0.gguf"), "x").unwrap(),
            Code::ArtifactSizeMismatch, &["`projectors[0]`", "truncated: got 1 bytes"]),
        (|p| fs::write(p.file("shared/metadata.gguf"), "x").unwrap(),
            Code::ArtifactSizeMismatch, &["`shared.metadata`", "truncated: got 1 bytes"]),
    ]
}

fn layer(width: u64) -> Vec<TensorSpec> {
    vec![tensor("blk.1.attn_norm.weight", &[width]), tensor("blk.1.attn_q.weight", &[8, 8])]
}

#[test]
fn every_broken_artifact_names_file_field_got_and_expected() {
    for (i, (damage, code, words)) in broken().into_iter().enumerate() {
        let package = Recipe { projectors: 1, ..Recipe::default() }.write();
        damage(&package);
        let (got, message) = refused(&package, Verify::SizesOnly);
        assert_eq!(got, code, "row {i}: {message}");
        for word in words {
            assert!(message.contains(word), "row {i}: {message} lacks {word}");
        }
        assert!(message.contains(code.remedy()), "{message}");
    }
}

/// aprender PR#2011, huggingface_hub#3643: a size says nothing about the content.
#[test]
fn one_flipped_bit_is_seen_with_verification_only() {
    let package = Recipe { projectors: 1, ..Recipe::default() }.write();
    for path in ["shared/embeddings.gguf", "shared/output.gguf", "layers/layer-00002.gguf", "projectors/mmproj-0.gguf"]
    {
        let sound = fs::read(package.file(path)).unwrap();
        let mut flipped = sound.clone();
        *flipped.last_mut().unwrap() ^= 1;
        fs::write(package.file(path), &flipped).unwrap();
        assert!(load(&package, "0..3", Verify::SizesOnly).is_ok());
        let (code, message) = refused(&package, Verify::Sha256);
        assert_eq!(code, Code::ArtifactSha256Mismatch);
        for digest in [&sound, &flipped].map(|bytes| crate::package::Sha256Digest::of(bytes)) {
            assert!(message.contains(path) && message.contains(&digest.to_string()), "{message}");
        }
        fs::write(package.file(path), &sound).unwrap();
    }
    assert!(load(&package, "0..3", Verify::Sha256).is_ok());
}

#[test]
fn files_of_other_stages_may_be_absent_or_broken() {
    let package = Recipe::default().write();
    fs::remove_file(package.file("layers/layer-00000.gguf")).unwrap();
    fs::write(package.file("layers/layer-00002.gguf"), "x").unwrap();
    assert!(load(&package, "1..2", Verify::Sha256).is_ok());
}

#[cfg(unix)]
#[test]
fn links_may_not_leave_the_package() {
    let outside = tempfile::tempdir().unwrap();
    let package = Recipe::default().write();
    let layer = package.file("layers/layer-00001.gguf");
    let moved = outside.path().join("layer.gguf");
    fs::copy(&layer, &moved).unwrap();
    fs::remove_file(&layer).unwrap();
    std::os::unix::fs::symlink(&moved, &layer).unwrap();
    let (code, message) = refused(&package, Verify::SizesOnly);
    assert_eq!(code, Code::ArtifactOutsidePackage);
    assert!(message.contains("`layers[1]`") && message.contains("layer.gguf`, outside the package root"), "{message}");

    // A directory may not leave it either; a link within the package is fine, and so is a link to the package.
    fs::remove_file(&layer).unwrap();
    fs::rename(package.file("layers"), outside.path().join("layers")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("layers"), package.file("layers")).unwrap();
    assert_eq!(refused(&package, Verify::SizesOnly).0, Code::ArtifactOutsidePackage);
    fs::remove_file(package.file("layers")).unwrap();
    fs::rename(outside.path().join("layers"), package.file("real")).unwrap();
    fs::copy(&moved, package.file("real/one.gguf")).unwrap();
    std::os::unix::fs::symlink("one.gguf", package.file("real/layer-00001.gguf")).unwrap();
    std::os::unix::fs::symlink("real", package.file("layers")).unwrap();
    assert!(load(&package, "0..3", Verify::Sha256).is_ok());
    let link = outside.path().join("link");
    std::os::unix::fs::symlink(package.root(), &link).unwrap();
    let package = Package::open(&link).unwrap().with_verdicts(None);
    let selection = package.select("0..3".parse().unwrap()).unwrap();
    assert!(package.load(&selection, Verify::Sha256).is_ok());
}

#[cfg(unix)]
#[test]
fn a_dangling_or_circular_link_is_an_error() {
    let package = Recipe::default().write();
    let layer = package.file("layers/layer-00001.gguf");
    fs::remove_file(&layer).unwrap();
    std::os::unix::fs::symlink("nowhere", &layer).unwrap();
    assert_eq!(refused(&package, Verify::SizesOnly).0, Code::MissingArtifact);
    fs::remove_file(&layer).unwrap();
    std::os::unix::fs::symlink("layer-00001.gguf", &layer).unwrap();
    assert_eq!(refused(&package, Verify::SizesOnly).0, Code::UnreadableArtifact);
}

#[test]
fn the_environment_asks_for_checksums() {
    for value in [None, Some(""), Some("0"), Some("false"), Some("No"), Some(" off ")] {
        assert_eq!(Verify::from_value(value), Verify::SizesOnly, "{value:?}");
    }
    for value in ["1", "true", "YES", "on", "sha256", "maybe"] {
        assert_eq!(Verify::from_value(Some(value)), Verify::Sha256, "{value}");
    }
}
