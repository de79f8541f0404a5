use std::{
    fs::{File, FileTimes},
    time::UNIX_EPOCH,
};

use super::*;
use crate::package::{
    Code, Package,
    load::Verify,
    testing::{Recipe, TestPackage},
};

const LAYER: &str = "layers/layer-00001.gguf";

/// A cache that remembers verdicts about files however young they are.
fn cache(dir: &Path) -> Verdicts {
    Verdicts { dir: dir.into(), settle: Duration::ZERO }
}

fn verify(package: &TestPackage, verdicts: &Verdicts) -> Result<(), crate::package::PackageError> {
    let package = Package::open(package.root())?.with_verdicts(Some(verdicts.clone()));
    let selection = package.select("0..3".parse().unwrap())?;
    package.load(&selection, Verify::Sha256).map(drop)
}

fn records(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).map(|entries| entries.map(|entry| entry.unwrap().path()).collect()).unwrap_or_default()
}

/// Flips the last bit of a file, keeps its size and sets the time of its last modification.
fn damage(path: &Path, modified: SystemTime) {
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
    File::options().write(true).open(path).unwrap().set_times(FileTimes::new().set_modified(modified)).unwrap();
}

/// Stores a verdict for the damaged state of a file. That it is believed shows that the file is not read.
#[test]
fn a_remembered_verdict_spares_the_hash() {
    let (package, dir) = (Recipe::default().write(), tempfile::tempdir().unwrap());
    let verdicts = cache(dir.path());
    verify(&package, &verdicts).unwrap();
    assert_eq!(records(dir.path()).len(), 6);
    damage(&package.file(LAYER), UNIX_EPOCH);
    assert_eq!(verify(&package, &verdicts).unwrap_err().issues()[0].code, Code::ArtifactSha256Mismatch);
    let opened = package.open();
    let artifact = &opened.manifest().layer(1).unwrap().artifact;
    verdicts.store(opened.manifest_sha256(), artifact, &FileState::of(&package.file(LAYER)).unwrap());
    verify(&package, &verdicts).unwrap();
}

#[test]
fn a_changed_file_is_hashed_again() {
    let (package, dir) = (Recipe::default().write(), tempfile::tempdir().unwrap());
    let verdicts = cache(dir.path());
    verify(&package, &verdicts).unwrap();
    verify(&package, &verdicts).unwrap();
    damage(&package.file(LAYER), UNIX_EPOCH + Duration::from_secs(1));
    let error = verify(&package, &verdicts).unwrap_err();
    assert_eq!(error.issues()[0].code, Code::ArtifactSha256Mismatch);
    // The verdict about a bad file is not remembered.
    assert!(verify(&package, &verdicts).is_err());
    assert_eq!(records(dir.path()).len(), 6);
}

#[test]
fn a_verdict_belongs_to_one_manifest_artifact_and_state() {
    let (package, dir) = (Recipe::default().write(), tempfile::tempdir().unwrap());
    let verdicts = cache(dir.path());
    let opened = package.open();
    let (manifest, artifact) = (opened.manifest_sha256(), &opened.manifest().layer(1).unwrap().artifact);
    let state = FileState::of(&package.file(LAYER)).unwrap();
    assert!(!verdicts.holds(manifest, artifact, &state));
    verdicts.store(manifest, artifact, &state);
    assert!(verdicts.holds(manifest, artifact, &state));
    assert!(!verdicts.holds(Sha256Digest::of(b"other"), artifact, &state));
    let mut other = artifact.clone();
    other.sha256 = Sha256Digest::of(b"other");
    assert!(!verdicts.holds(manifest, &other, &state));
    other = artifact.clone();
    other.path = "layers/other.gguf".parse().unwrap();
    assert!(!verdicts.holds(manifest, &other, &state));
    for i in 0..state.words.len() {
        let mut changed = state.clone();
        changed.words[i] += 1;
        assert!(!verdicts.holds(manifest, artifact, &changed), "word {i}");
    }
}

#[test]
fn records_tell_nothing_about_paths() {
    let (package, dir) = (Recipe::default().write(), tempfile::tempdir().unwrap());
    verify(&package, &cache(dir.path())).unwrap();
    let root = package.root().file_name().unwrap().to_str().unwrap().to_string();
    for record in records(dir.path()) {
        let text = format!("{}{}", record.file_name().unwrap().to_str().unwrap(), fs::read_to_string(&record).unwrap());
        for secret in [root.as_str(), "/", "gguf", "layer-", "shared", "tmp"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[test]
fn a_corrupt_cache_is_ignored() {
    let (package, dir) = (Recipe::default().write(), tempfile::tempdir().unwrap());
    let verdicts = cache(dir.path());
    verify(&package, &verdicts).unwrap();
    let opened = package.open();
    let artifact = &opened.manifest().layer(1).unwrap().artifact;
    let state = FileState::of(&package.file(LAYER)).unwrap();
    for content in ["", "skippy", "skippy-stage sha256 verdict 2\n", "\0\0\0"] {
        records(dir.path()).iter().for_each(|record| fs::write(record, content).unwrap());
        assert!(!verdicts.holds(opened.manifest_sha256(), artifact, &state));
        verify(&package, &verdicts).unwrap();
        assert!(verdicts.holds(opened.manifest_sha256(), artifact, &state));
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_no_error() {
    let (package, dir) = (Recipe::default().write(), tempfile::tempdir().unwrap());
    let blocked = dir.path().join("file");
    fs::write(&blocked, "in the way").unwrap();
    verify(&package, &cache(&blocked.join("verdicts"))).unwrap();
    verify(&package, &cache(&blocked)).unwrap();
    assert_eq!(fs::read_to_string(&blocked).unwrap(), "in the way");
}

/// A file that was written a moment ago may be written again within the same tick of the file system's clock.
#[test]
fn a_young_file_is_not_remembered() {
    let (package, dir) = (Recipe::default().write(), tempfile::tempdir().unwrap());
    verify(&package, &Verdicts { dir: dir.path().into(), settle: Duration::from_secs(3600) }).unwrap();
    assert!(records(dir.path()).is_empty());
}

#[test]
fn nothing_half_written_stays() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("verdicts/record");
    write_atomically(&dir.path().join("verdicts"), &record).unwrap();
    assert_eq!(records(&dir.path().join("verdicts")), std::slice::from_ref(&record));
    let taken = dir.path().join("verdicts/taken");
    fs::create_dir(&taken).unwrap();
    assert!(write_atomically(&dir.path().join("verdicts"), &taken).is_err());
    assert_eq!(records(&dir.path().join("verdicts")).len(), 2);
}

#[test]
fn the_place_of_the_cache() {
    let place = |vars: &[(&str, &str)]| {
        cache_dir(|name| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)))
    };
    let home = ("HOME", "/home/u");
    assert_eq!(place(&[("SKIPPY_CACHE_DIR", "/c"), ("XDG_CACHE_HOME", "/x"), home]), Some("/c".into()));
    assert_eq!(place(&[("XDG_CACHE_HOME", "/x"), home]), Some("/x/skippy-stage".into()));
    assert_eq!(place(&[("XDG_CACHE_HOME", "x"), home]), Some("/home/u/.cache/skippy-stage".into()));
    assert_eq!(place(&[("SKIPPY_CACHE_DIR", ""), home]), Some("/home/u/.cache/skippy-stage".into()));
    assert_eq!(place(&[]), None);
}
