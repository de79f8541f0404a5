//! A path inside a package that cannot leave it.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use serde::Serialize;

/// A safe path relative to the package root: `/`-separated, every segment a plain name.
///
/// Links on disk are another matter: [`crate::package::Package::load`] resolves them and refuses those that leave the
/// root.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct RelPath(String);

/// Why a path is unsafe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RelPathError {
    /// The empty string.
    #[error("a non-empty path relative to the package root")]
    Empty,
    /// Longer than any file system takes.
    #[error("a path of at most {} bytes", RelPath::MAX_LEN)]
    TooLong,
    /// Starts with `/` or a drive letter.
    #[error("a path relative to the package root, not an absolute one")]
    Absolute,
    /// `\` separates nothing here, and separates on Windows.
    #[error("a path with `/` between its segments and no backslash")]
    Backslash,
    /// NUL, newline and the like.
    #[error("a path without control characters")]
    Control,
    /// `..`
    #[error("a path inside the package root, without `..`")]
    Parent,
    /// `.`, `a//b`, `a/`
    #[error("a path without `.` or empty segments")]
    Segment,
}

impl RelPath {
    /// Longest path, in bytes.
    pub const MAX_LEN: usize = 1024;

    /// Checks `text`.
    ///
    /// # Errors
    /// When the path is empty, absolute, has a `.`, `..` or empty segment, a backslash, a drive letter or a control
    /// character.
    pub fn new(text: impl Into<String>) -> Result<Self, RelPathError> {
        let text = text.into();
        if text.is_empty() {
            return Err(RelPathError::Empty);
        }
        if text.len() > Self::MAX_LEN {
            return Err(RelPathError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(RelPathError::Control);
        }
        if text.contains('\\') {
            return Err(RelPathError::Backslash);
        }
        let mut start = text.chars();
        let drive = matches!((start.next(), start.next()), (Some(letter), Some(':')) if letter.is_ascii_alphabetic());
        if text.starts_with('/') || drive {
            return Err(RelPathError::Absolute);
        }
        for segment in text.split('/') {
            match segment {
                ".." => return Err(RelPathError::Parent),
                "" | "." => return Err(RelPathError::Segment),
                _ => {}
            }
        }
        Ok(Self(text))
    }

    /// The path as written in the manifest.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path below `root`.
    pub fn below(&self, root: &Path) -> PathBuf {
        root.join(&self.0)
    }
}

impl FromStr for RelPath {
    type Err = RelPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_safe_paths() {
        for text in ["a", "shared/metadata.gguf", "layers/layer-00000.gguf", "a/..b/c..", "ä/ö.gguf", "a b", "x/C:y"]
        {
            let path = RelPath::new(text).unwrap();
            assert_eq!(path.as_str(), text);
            assert!(path.below(Path::new("/root")).starts_with("/root"));
        }
    }

    #[test]
    fn refuses_unsafe_paths() {
        let long = "a".repeat(RelPath::MAX_LEN + 1);
        let table = [
            ("", RelPathError::Empty),
            (long.as_str(), RelPathError::TooLong),
            ("/etc/passwd", RelPathError::Absolute),
            ("C:/x.gguf", RelPathError::Absolute),
            ("c:x.gguf", RelPathError::Absolute),
            ("..", RelPathError::Parent),
            ("a/../../b", RelPathError::Parent),
            ("a/..", RelPathError::Parent),
            ("./a", RelPathError::Segment),
            ("a/./b", RelPathError::Segment),
            ("a//b", RelPathError::Segment),
            ("a/", RelPathError::Segment),
            ("a\\b", RelPathError::Backslash),
            ("..\\b", RelPathError::Backslash),
            ("a\0b", RelPathError::Control),
            ("a\nb", RelPathError::Control),
        ];
        for (text, error) in table {
            assert_eq!(RelPath::new(text), Err(error), "{text:?}");
        }
    }
}
