//! `vendor/PIN.toml` against what is really built: the lock file, the manifest, the compiled library.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;

#[derive(Deserialize)]
struct Pin {
    llama_cpp: LlamaCpp,
    families: BTreeMap<String, Family>,
}

#[derive(Deserialize)]
struct Family {
    cuts: String,
}

#[derive(Deserialize)]
struct LlamaCpp {
    #[serde(rename = "crate")]
    name: String,
    version: String,
    checksum: String,
    #[cfg_attr(not(feature = "engine"), expect(dead_code))]
    ggml_version: String,
    features: Vec<String>,
    patches: usize,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<LockedPackage>,
}

#[derive(Deserialize)]
struct LockedPackage {
    name: String,
    version: String,
    checksum: Option<String>,
}

#[test]
fn lock_file_holds_the_pinned_crate_and_no_other_version_of_it() {
    let pin = pin().llama_cpp;
    let lock: Lock = parse("Cargo.lock");
    let locked: Vec<_> = lock.package.iter().filter(|package| package.name == pin.name).collect();
    let [locked] = locked[..] else {
        panic!("Cargo.lock holds {} versions of `{}`, expected 1", locked.len(), pin.name);
    };
    assert_eq!(locked.version, pin.version, "Cargo.lock (left) and vendor/PIN.toml (right): version of `{}`", pin.name);
    assert_eq!(
        locked.checksum.as_deref(),
        Some(pin.checksum.as_str()),
        "Cargo.lock (left) and vendor/PIN.toml (right): checksum of `{}`",
        pin.name
    );
}

#[test]
fn manifest_pins_exactly_and_passes_the_named_features_through() {
    let pin = pin().llama_cpp;
    let manifest: toml::Table = parse("Cargo.toml");
    let dependency = &manifest["dependencies"][pin.name.as_str()];
    assert_eq!(dependency["version"].as_str(), Some(format!("={}", pin.version).as_str()));
    assert_eq!(dependency["default-features"].as_bool(), Some(false));
    for feature in &pin.features {
        let passed = format!("{}/{feature}", pin.name);
        let enables = manifest["features"][feature.as_str()].as_array().unwrap();
        assert!(
            enables.iter().any(|it| it.as_str() == Some(&passed)),
            "feature `{feature}` does not enable `{passed}`"
        );
    }
}

#[test]
fn sources_are_unpatched() {
    assert_eq!(pin().llama_cpp.patches, 0);
    let manifest: toml::Table = parse("Cargo.toml");
    assert!(!manifest.contains_key("patch"), "Cargo.toml replaces crates in [patch]");
    assert!(!root().join("vendor/patches").exists());
}

#[cfg(feature = "engine")]
#[test]
fn compiled_ggml_is_the_version_named() {
    // SAFETY: takes nothing and returns a pointer to a string constant of the library.
    #[allow(unsafe_code)]
    let version = unsafe { std::ffi::CStr::from_ptr(llama_cpp_sys_2::ggml_version()) };
    assert_eq!(version.to_str(), Ok(pin().llama_cpp.ggml_version.as_str()));
}

#[test]
fn certified_families_are_the_ones_the_engine_lets_through() {
    let pinned: BTreeMap<_, _> = pin().families.into_iter().map(|(arch, family)| (arch, family.cuts)).collect();
    let in_code: BTreeMap<_, _> =
        skippy_stage::stage::families::certified().map(|(arch, cuts)| (arch.to_owned(), cuts)).collect();
    assert_eq!(in_code, pinned, "src/stage/families.rs (left) and vendor/PIN.toml (right)");
}

fn pin() -> Pin {
    parse("vendor/PIN.toml")
}

fn parse<T: serde::de::DeserializeOwned>(path: &str) -> T {
    let text = std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    toml::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
