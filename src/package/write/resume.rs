//! Which directories may be written to, and how an interrupted write goes on.
//!
//! While a package is being written, `.skippy-write-state.json` says of what. A second run of the same package finds
//! it, compares every artifact that is there with the source and writes only what is missing or different. The state
//! is trusted for one thing: that the directory is ours. It never vouches for the content of a file.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::layout::ArtifactPlan;
use crate::package::Manifest;

/// File that marks a package as unfinished.
pub const STATE_FILE: &str = ".skippy-write-state.json";
const README: &str = "README.md";

/// What a package is made of, as far as it is known before anything is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Model coordinate.
    pub model_id: String,
    /// Commit of the source repository.
    pub revision: String,
    /// Names and sizes of the source files.
    pub files: Vec<(String, u64)>,
    /// Names of the projectors.
    pub projectors: Vec<String>,
}

/// Why a directory is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutDirError {
    /// The operating system refused.
    #[error("`{}`: cannot {doing}: {error}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The answer.
        error: io::Error,
    },
    /// Not a directory.
    #[error("`{}`: is a file, expected a directory to write the package to", .0.display())]
    NotADirectory(PathBuf),
    /// Files that are not ours.
    #[error("`{}`: is not empty and holds no package of this tool (found `{found}`); choose another `--out-dir`", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// One of the files.
        found: String,
    },
    /// A package, or part of one, of something else.
    #[error(
        "`{}`: holds {what} of {theirs}, expected {ours}; choose another `--out-dir`, or remove this one first", path.display()
    )]
    OtherPackage {
        /// The directory.
        path: PathBuf,
        /// "a package", or "an unfinished package".
        what: &'static str,
        /// Whose it is.
        theirs: String,
        /// Whose is to be written.
        ours: String,
    },
    /// The state file cannot be read as one.
    #[error("`{}`: is not a state file of this tool ({error}); remove the unfinished package and write it again", path.display())]
    State {
        /// The state file.
        path: PathBuf,
        /// Why not.
        error: serde_json::Error,
    },
}

impl OutDirError {
    fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { path: path.to_owned(), doing, error }
    }
}

impl Identity {
    fn describe(&self) -> String {
        let file = self.files.first().map_or("?", |(name, _)| name.as_str());
        let bytes: u64 = self.files.iter().map(|(_, size)| size).sum();
        format!("`{}` at revision `{}` (`{file}`, {bytes} bytes)", self.model_id, self.revision)
    }

    /// Whether a finished package states the same source. Projectors may have changed: they are rewritten.
    fn is_of(&self, manifest: &Manifest) -> bool {
        let source = &manifest.source_model;
        let files = source.files.iter().map(|file| (file.path.as_str(), file.size_bytes));
        self.model_id == manifest.model_id
            && source.revision.as_deref() == Some(&self.revision)
            && files.eq(self.files.iter().map(|(name, size)| (name.as_str(), Some(*size))))
    }
}

/// Makes `dir` ready for the package: creates it, or refuses it when it holds anything else, and marks it unfinished.
/// Returns the time at which the same package was finished before, when it was.
///
/// # Errors
/// When the directory holds files of something else, or cannot be written to. Nothing is changed then.
pub(super) fn prepare(dir: &Path, identity: &Identity, artifacts: &[ArtifactPlan]) -> Result<Option<u64>, OutDirError> {
    let mut created_before = None;
    if dir.exists() {
        if !dir.is_dir() {
            return Err(OutDirError::NotADirectory(dir.into()));
        }
        created_before = check_owner(dir, identity)?;
    }
    let folders: BTreeSet<&Path> = artifacts.iter().filter_map(|plan| Path::new(&plan.path).parent()).collect();
    for folder in folders {
        let folder = dir.join(folder);
        fs::create_dir_all(&folder).map_err(OutDirError::io(&folder, "create the directory"))?;
    }
    let state = dir.join(STATE_FILE);
    let text = serde_json::to_vec_pretty(identity).unwrap_or_default();
    fs::write(&state, text).map_err(OutDirError::io(&state, "write the file"))?;
    // A manifest means a complete package, and this one is not, for now.
    let manifest = dir.join(Manifest::FILE_NAME);
    match fs::remove_file(&manifest) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(OutDirError::io(&manifest, "remove the file")(error))
        }
        _ => Ok(created_before),
    }
}

/// Marks the package finished.
///
/// # Errors
/// When the state file cannot be removed.
pub(super) fn finish(dir: &Path) -> Result<(), OutDirError> {
    let state = dir.join(STATE_FILE);
    fs::remove_file(&state).map_err(OutDirError::io(&state, "remove the file"))
}

/// Whether the directory is ours or nobody's. Returns when the package in it was finished, if it was.
fn check_owner(dir: &Path, identity: &Identity) -> Result<Option<u64>, OutDirError> {
    let other = |what, theirs| OutDirError::OtherPackage { path: dir.into(), what, theirs, ours: identity.describe() };
    if let Some(state) = read_state(dir)? {
        return if state == *identity { Ok(None) } else { Err(other("an unfinished package", state.describe())) };
    }
    let manifest = dir.join(Manifest::FILE_NAME);
    if manifest.exists() {
        let bytes = fs::read(&manifest).map_err(OutDirError::io(&manifest, "read the file"))?;
        return match Manifest::parse(&bytes) {
            Ok(manifest) if identity.is_of(&manifest) => Ok(manifest.created_at_unix_secs),
            Ok(manifest) => {
                let revision = manifest.source_model.revision.as_deref().unwrap_or("unknown");
                Err(other("a package", format!("`{}` at revision `{revision}`", manifest.model_id)))
            }
            Err(_) => Err(other("a package", "something else: its manifest is not readable".into())),
        };
    }
    match foreign_entry(dir)? {
        Some(found) => Err(OutDirError::Foreign { path: dir.into(), found: found.to_string_lossy().into_owned() }),
        None => Ok(None),
    }
}

fn read_state(dir: &Path) -> Result<Option<Identity>, OutDirError> {
    let path = dir.join(STATE_FILE);
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| OutDirError::State { path, error }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OutDirError::io(&path, "read the file")(error)),
    }
}

/// An entry that is not a repository's own: packages are often written into a fresh clone.
fn foreign_entry(dir: &Path) -> Result<Option<OsString>, OutDirError> {
    let list = |error| OutDirError::io(dir, "list the directory")(error);
    for entry in fs::read_dir(dir).map_err(list)? {
        let name = entry.map_err(list)?.file_name();
        if name != ".git" && name != ".gitattributes" {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Path of the README in a package.
pub(super) fn readme_path(dir: &Path) -> PathBuf {
    dir.join(README)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            model_id: "org/repo:q4".into(),
            revision: "abc".into(),
            files: vec![("m.gguf".into(), 12)],
            projectors: Vec::new(),
        }
    }

    #[test]
    fn an_empty_or_absent_directory_is_taken_and_marked() {
        let dir = tempfile::tempdir().unwrap();
        for path in [dir.path().join("new/deep"), dir.path().join("empty")] {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::create_dir_all(&path).unwrap();
            prepare(&path, &identity(), &[]).unwrap();
            assert!(path.join(STATE_FILE).exists());
            prepare(&path, &identity(), &[]).unwrap();
            finish(&path).unwrap();
            assert!(!path.join(STATE_FILE).exists());
        }
    }

    #[test]
    fn a_fresh_clone_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(".git")).unwrap();
        fs::write(dir.path().join(".gitattributes"), "").unwrap();
        prepare(dir.path(), &identity(), &[]).unwrap();
    }

    #[test]
    fn foreign_files_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        let error = prepare(dir.path(), &identity(), &[]).unwrap_err();
        assert!(error.to_string().contains("thesis.tex"), "{error}");
        assert!(!dir.path().join(STATE_FILE).exists());
        let file = dir.path().join("thesis.tex");
        assert!(matches!(prepare(&file, &identity(), &[]), Err(OutDirError::NotADirectory(_))));
    }

    #[test]
    fn an_unfinished_package_of_another_source_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path(), &identity(), &[]).unwrap();
        let other = Identity { revision: "def".into(), ..identity() };
        let text = prepare(dir.path(), &other, &[]).unwrap_err().to_string();
        assert!(text.contains("unfinished") && text.contains("`abc`") && text.contains("`def`"), "{text}");
        fs::write(dir.path().join(STATE_FILE), "{").unwrap();
        assert!(matches!(prepare(dir.path(), &identity(), &[]), Err(OutDirError::State { .. })));
    }
}
