//! What several integration tests need: real models, random models, and packages made of both.

#[cfg(feature = "engine")]
pub(crate) mod dsa;
#[cfg(feature = "engine")]
pub(crate) mod editing;
#[cfg(feature = "engine")]
pub(crate) mod engine;
pub(crate) mod random_model;

use skippy_stage::package::{
    Package,
    write::{WriteRequest, write_package},
};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A real model, fetched by `make test-models`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RealModel {
    /// SmolLM2-135M-Instruct, arch `llama`, 30 layers, tied output.
    SmolLm2,
    /// gemma-3-270m, arch `gemma3`, 18 layers, tied output, 262144 tokens.
    Gemma3,
}

impl RealModel {
    /// Its GGUF file. Fails, rather than skips, without it: a parity suite that does not run certifies nothing.
    pub(crate) fn path(self) -> PathBuf {
        let dir = std::env::var_os("SKIPPY_TEST_MODELS")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/models"), PathBuf::from);
        let path = dir.join(match self {
            Self::SmolLm2 => "SmolLM2-135M-Instruct.Q4_1.gguf",
            Self::Gemma3 => "gemma-3-270m.Q4_K_M.gguf",
        });
        assert!(path.is_file(), "{} is not there: run `make test-models`", path.display());
        path
    }
}

/// A package in a directory that goes with it.
pub(crate) struct TestPackage {
    pub(crate) package: Package,
    _dir: TempDir,
}

/// Packages a GGUF file.
pub(crate) fn package_of(gguf: &Path) -> TestPackage {
    let dir = tempfile::tempdir().unwrap();
    let out_dir = dir.path().join("package");
    let request = WriteRequest {
        source: gguf.to_owned(),
        out_dir: out_dir.clone(),
        model_id: "test/model:file".into(),
        source_revision: "test".into(),
        source_file: gguf.file_name().unwrap().to_string_lossy().into_owned(),
        projectors: Vec::new(),
        jobs: 2,
    };
    write_package(&request, &()).unwrap();
    TestPackage { package: Package::open(&out_dir).unwrap(), _dir: dir }
}
