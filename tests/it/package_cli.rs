//! `skippy-model-package`, run as a user runs it, on small generated models.

mod bad_input;
mod bundled;
mod contract;
mod describe;
mod source;
mod synth;
mod validate;
mod write;

use std::{
    path::Path,
    process::{Command, Output},
};

use serde_json::Value as Json;

use self::source::Model;

/// What a run of the tool left behind.
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs the tool.
fn tool<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skippy-model-package"));
    let Output { status, stdout, stderr } = command.args(args).env_remove("RUST_LOG").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

impl Run {
    /// The run succeeded; its JSON.
    #[track_caller]
    fn json(&self) -> Json {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// The run failed with `code` and one clear line, which is returned.
    #[track_caller]
    fn error(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        let line = self.stderr.strip_suffix('\n').unwrap();
        assert!(line.starts_with("error: ") && !line.contains('\n'), "{line}");
        line
    }
}

const PROVENANCE: [&str; 6] =
    ["--model-id", "org/tiny:F32", "--source-revision", "c0ffee", "--source-file", "tiny.gguf"];

/// `write-package` with provenance; add flags as needed.
fn write_args<'a>(source: &'a Path, out: &'a Path) -> Vec<&'a str> {
    let mut args = vec!["write-package", source.to_str().unwrap(), "--out-dir", out.to_str().unwrap(), "--json"];
    args.extend(PROVENANCE);
    args
}

/// A source and the package written from it.
struct Written {
    dir: tempfile::TempDir,
}

impl Written {
    fn from(model: &Model) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let written = Self { dir };
        model.write(&written.source());
        tool(write_args(&written.source(), &written.package())).json();
        written
    }

    fn source(&self) -> std::path::PathBuf {
        self.dir.path().join("tiny.gguf")
    }

    fn package(&self) -> std::path::PathBuf {
        self.dir.path().join("package")
    }

    fn file(&self, path: &str) -> std::path::PathBuf {
        self.package().join(path)
    }

    fn manifest(&self) -> Json {
        serde_json::from_slice(&std::fs::read(self.file("model-package.json")).unwrap()).unwrap()
    }

    fn edit_manifest(&self, edit: impl FnOnce(&mut Json)) {
        let mut manifest = self.manifest();
        edit(&mut manifest);
        std::fs::write(self.file("model-package.json"), manifest.to_string()).unwrap();
    }

    fn validate(&self) -> Run {
        let (source, package) = (self.source(), self.package());
        tool([Path::new("validate-package"), &source, &package, Path::new("--json")])
    }
}
