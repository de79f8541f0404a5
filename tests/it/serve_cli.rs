//! `skippy-stage serve` and what it says when it cannot: one clear line, a non-zero exit code, no panic and no hang.

use crate::support::{TestPackage, dsa, editing::Model, package_of, random_model};
use std::{
    fs,
    io::{Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

/// Exit code, stdout and stderr of `skippy-stage serve ARGS`, with no `SKIPPY_*` setting of the tests' own.
fn serve(args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skippy-stage"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SKIPPY_")) {
        command.env_remove(name);
    }
    let output = command.arg("serve").args(args).envs(env.iter().copied()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn llama() -> TestPackage {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("llama.gguf");
    random_model::write("llama", &path);
    package_of(&path)
}

/// The one line of stderr that starts with `error:`; there must be no other output on it, and no panic.
fn error_line(args: &[&str], env: &[(&str, &str)]) -> String {
    let (code, stdout, stderr) = serve(args, env);
    assert_eq!(code, Some(1), "stdout: {stdout}\nstderr: {stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{stderr}");
    errors[0].to_owned()
}

#[test]
fn check_accepts_a_sound_package_whole_and_split() {
    let model = llama();
    let dir = model.package.root().to_str().unwrap();
    let (code, stdout, stderr) = serve(&[dir, "--check"], &[]);
    assert_eq!(
        (code, stdout.as_str()),
        (Some(0), "layers 0..7 of 0..7: ok\nspeculative strategy disabled: ok\n"),
        "{stderr}"
    );
    let (code, stdout, stderr) = serve(&[dir, "--check", "--split", "2,5", "--verify-package-sha"], &[]);
    let expected = "layers 0..2 of 0..7: ok\nlayers 2..5 of 0..7: ok\nlayers 5..7 of 0..7: ok\nspeculative strategy disabled: ok\n";
    assert_eq!((code, stdout.as_str()), (Some(0), expected), "{stderr}");
}

/// The GLM-DSA contract is checked before anything is loaded, by `--check` too, and each engine by its own cuts.
#[test]
fn check_holds_a_glm_dsa_package_against_its_contract() {
    let mut model = Model::open(&dsa::fixture("model.gguf"));
    let sound = model.package();
    let dir = sound.package.root().to_str().unwrap();
    // Layer 2 shares the selection of layer 1.
    assert_eq!(serve(&[dir, "--check", "--split", "2"], &[]).0, Some(0));
    let line = error_line(&[dir, "--check", "--split", "2", "--engine", "llama"], &[]);
    assert!(line.contains("`glm-dsa` cannot be cut at layer 2"), "{line}");

    model.remove("blk.4.indexer.k_norm.bias");
    let broken = model.package();
    for args in [&["--check"][..], &[]] {
        let line = error_line(&[&[broken.package.root().to_str().unwrap()], args].concat(), &[]);
        assert!(line.contains("layer-00004.gguf") && line.contains("blk.4.indexer"), "{line}");
    }
}

#[test]
fn ranges_and_cuts_that_cannot_be_are_named() {
    let model = llama();
    let dir = model.package.root().to_str().unwrap();
    for (args, expected) in [
        (["--layers", "3..3"], "layer range 3..3 is empty or reversed"),
        (["--layers", "5..2"], "layer range 5..2 is empty or reversed"),
        (["--layers", "0..8"], "layer range 0..8 is outside the model: it has layers 0..7"),
        (["--layers", "all"], "`all` is not of the form A..B"),
        (["--layers", "2..7"], "lack the input"),
        (["--layers", "0..5"], "lack the output"),
        (["--layers", "2..5"], "lack the input and the output"),
        (["--split", "0"], "`split` 0 is not inside the layers served, 0..7"),
        (["--split", "7"], "`split` 7 is not inside the layers served, 0..7"),
        (["--split", "5,2"], "`split` must ascend, got 5 before 2"),
        (["--lanes", "0"], "`lanes` must be between 1 and 256, got 0"),
    ] {
        // With and without --check: a server must not get further than its own check.
        for check in [&["--check"][..], &[]] {
            let line = error_line(&[&[dir, "--bind", "127.0.0.1:0"], &args[..], check].concat(), &[]);
            assert!(line.contains(expected), "{args:?}: {line}");
        }
    }
}

#[test]
fn damaged_packages_are_refused_with_the_file_and_both_values() {
    type Damage = (&'static str, fn(&Path), &'static [&'static str]);
    let damages: [Damage; 8] = [
        ("truncated", |dir| cut(&layer(dir, 3), 100), &["layer-00003.gguf", "bytes"]),
        ("oversized", |dir| append(&layer(dir, 3), b"more"), &["layer-00003.gguf", "bytes"]),
        ("bit flipped", |dir| flip_last_bit(&layer(dir, 3)), &["layer-00003.gguf", "sha256"]),
        ("swapped", |dir| swap(&layer(dir, 2), &layer(dir, 3)), &["layer-0000", "sha256"]),
        ("missing", |dir| fs::remove_file(layer(dir, 4)).unwrap(), &["layer-00004.gguf"]),
        ("a web page", |dir| page(&layer(dir, 1)), &["layer-00001.gguf", "bytes"]),
        ("unknown ABI", |dir| edit(dir, "\"1.0.0\"", "\"7.0.0\""), &["skippy_abi_version", "7.0.0"]),
        ("unknown format", |dir| edit(dir, "\"layer-package\"", "\"zip\""), &["format", "zip", "layer-package"]),
    ];
    for (name, damage, expected) in damages {
        let model = llama();
        damage(model.package.root());
        let dir = model.package.root().to_str().unwrap();
        let cache = model.package.root().parent().unwrap().join("cache");
        let env = [("SKIPPY_VERIFY_PACKAGE_SHA", "1"), ("SKIPPY_CACHE_DIR", cache.to_str().unwrap())];
        let line = error_line(&[dir, "--check"], &env);
        for part in expected {
            assert!(line.contains(part), "{name}: `{part}` is not in: {line}");
        }
    }
}

/// Sizes equal and checksums off: the fragments themselves must tell.
#[test]
fn swapped_fragments_and_pages_of_the_right_size_are_noticed_without_checksums() {
    let model = llama();
    let root = model.package.root();
    swap(&layer(root, 2), &layer(root, 3));
    let line = error_line(&[root.to_str().unwrap(), "--check"], &[]);
    assert!(line.contains("layer-00002.gguf") && line.contains("blk.3"), "{line}");

    let model = llama();
    let root = model.package.root();
    let size = fs::metadata(layer(root, 2)).unwrap().len() as usize;
    let mut html = b"<!DOCTYPE html><title>Sign in</title>".to_vec();
    html.resize(size, b' ');
    fs::write(layer(root, 2), html).unwrap();
    let line = error_line(&[root.to_str().unwrap(), "--check"], &[]);
    assert!(line.contains("layer-00002.gguf") && line.to_lowercase().contains("html"), "{line}");
}

#[test]
fn what_is_no_package_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let line = error_line(&[&path("nowhere"), "--check"], &[]);
    assert!(line.contains("nowhere"), "{line}");
    let line = error_line(&[dir.path().to_str().unwrap(), "--check"], &[]);
    assert!(line.contains("model-package.json"), "{line}");
    fs::write(dir.path().join("model-package.json"), "<html>").unwrap();
    let line = error_line(&[dir.path().to_str().unwrap(), "--check"], &[]);
    assert!(line.contains("model-package.json") && line.contains("JSON"), "{line}");
    let line = error_line(&[], &[]);
    assert!(line.contains("no package given"), "{line}");
}

#[test]
fn flag_beats_environment_beats_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("serve.toml");
    fs::write(&file, "package = \"/from/file\"\nlanes = 2\nctx-size = 100\nthreads = 3\n").unwrap();
    let args = ["--config", file.to_str().unwrap(), "--print-config", "--lanes", "9"];
    let (code, stdout, stderr) = serve(&args, &[("SKIPPY_LANES", "5"), ("SKIPPY_CTX_SIZE", "200")]);
    assert_eq!(code, Some(0), "{stderr}");
    for line in ["package = \"/from/file\"", "lanes = 9", "ctx-size = 200", "threads = 3", "batch-size = 512"] {
        assert!(stdout.lines().any(|printed| printed == line), "`{line}` is not in:\n{stdout}");
    }
    fs::write(&file, "package = \"x\"\nlane = 2\n").unwrap();
    let line = error_line(&["--config", file.to_str().unwrap(), "--print-config"], &[]);
    assert!(line.contains("serve.toml") && line.contains("lane"), "{line}");
    let (code, _, stderr) = serve(&["x", "--lanes", "many"], &[]);
    assert_eq!(code, Some(2), "a usage error: {stderr}");
}

fn layer(dir: &Path, layer: u32) -> PathBuf {
    dir.join(format!("layers/layer-{layer:05}.gguf"))
}

fn cut(path: &Path, bytes: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() - bytes).unwrap();
}

fn append(path: &Path, bytes: &[u8]) {
    fs::OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

fn flip_last_bit(path: &Path) {
    let last = *fs::read(path).unwrap().last().unwrap();
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::End(-1)).unwrap();
    file.write_all(&[last ^ 1]).unwrap();
}

fn swap(a: &Path, b: &Path) {
    let kept = fs::read(a).unwrap();
    fs::copy(b, a).unwrap();
    fs::write(b, kept).unwrap();
}

fn page(path: &Path) {
    fs::write(path, "<!DOCTYPE html><title>404</title>").unwrap();
}

fn edit(dir: &Path, from: &str, to: &str) {
    let path = dir.join("model-package.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replace(from, to)).unwrap();
}
