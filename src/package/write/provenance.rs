//! Where a package says it comes from.

use std::{fmt, path::Path, str::FromStr};

use crate::{
    gguf::{ShardName, Source},
    package::{RelPath, RelPathError},
};

/// A model coordinate: `org/repo` or `org/repo:distribution`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelId {
    repo: String,
    distribution: Option<String>,
}

/// The text is not a model coordinate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("model id is `{0}`, expected a coordinate such as `org/repo:distribution` (letters, digits, `.`, `_`, `-`)")]
pub struct ModelIdError(String);

impl ModelId {
    /// `org/repo`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// What follows the colon.
    pub fn distribution(&self) -> Option<&str> {
        self.distribution.as_deref()
    }
}

impl FromStr for ModelId {
    type Err = ModelIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || ModelIdError(text.chars().take(200).flat_map(char::escape_debug).collect());
        let (repo, distribution) = match text.split_once(':') {
            Some((repo, distribution)) => (repo, Some(distribution)),
            None => (text, None),
        };
        let (org, name) = repo.split_once('/').ok_or_else(refuse)?;
        if [org, name].into_iter().chain(distribution).all(is_name) && !text.to_ascii_lowercase().ends_with(".gguf") {
            Ok(Self { repo: repo.into(), distribution: distribution.map(Into::into) })
        } else {
            Err(refuse())
        }
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        self.distribution.iter().try_for_each(|distribution| write!(f, ":{distribution}"))
    }
}

fn is_name(part: &str) -> bool {
    let plain = part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    plain && part.chars().any(|c| c.is_ascii_alphanumeric())
}

/// Where the source model comes from, as its user states it: never guessed from local paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provenance {
    /// The model.
    pub model_id: ModelId,
    /// Commit of its repository.
    pub revision: String,
    /// Names of the source files within the repository, in the order of the shards.
    pub files: Vec<RelPath>,
}

/// Why a provenance is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProvenanceError {
    /// Not a coordinate.
    #[error("`--model-id`: {0}")]
    ModelId(#[from] ModelIdError),
    /// Empty, or with white space or control characters.
    #[error("`--source-revision` is `{0}`, expected the commit (or tag) of the source repository, without spaces")]
    Revision(String),
    /// Not a path within a repository.
    #[error("`--source-file` is `{got}`, expected {error}, as within the source repository")]
    File {
        /// What was stated.
        got: String,
        /// What is expected.
        error: RelPathError,
    },
    /// Several shards, and the file stated is not named like their first.
    #[error(
        "`--source-file` is `{got}`, but the source has {count} shards: expected the name of the first, ending in `-00001-of-{count:05}.gguf`"
    )]
    Shards {
        /// What was stated.
        got: String,
        /// How many shards there are.
        count: usize,
    },
}

impl Provenance {
    /// Checks what the user states about `source`.
    ///
    /// # Errors
    /// When a part is malformed, or the file name does not fit the number of shards.
    pub fn new(source: &Source, model_id: &str, revision: &str, file: &str) -> Result<Self, ProvenanceError> {
        let model_id = model_id.parse()?;
        if revision.is_empty() || revision.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(ProvenanceError::Revision(revision.escape_debug().to_string()));
        }
        let first = RelPath::new(file)
            .map_err(|error| ProvenanceError::File { got: file.escape_debug().to_string(), error })?;
        let files = shard_names(first, source.files().len())?;
        Ok(Self { model_id, revision: revision.into(), files })
    }

    /// The file, or first shard.
    pub fn primary_file(&self) -> &str {
        self.files.first().map_or("", RelPath::as_str)
    }

    /// The distribution that the model id names, else the stem of the primary file.
    pub fn distribution(&self) -> &str {
        let stem = || Path::new(self.primary_file()).file_stem().and_then(|stem| stem.to_str());
        self.model_id.distribution().or_else(stem).unwrap_or("default")
    }
}

fn shard_names(first: RelPath, count: usize) -> Result<Vec<RelPath>, ProvenanceError> {
    if count <= 1 {
        return Ok(vec![first]);
    }
    let (dir, file_name) = first.as_str().rsplit_once('/').map_or(("", first.as_str()), |(dir, name)| (dir, name));
    let refuse = || ProvenanceError::Shards { got: first.as_str().into(), count };
    let shard = ShardName::parse(file_name).filter(|shard| shard.no == 1 && shard.count as usize == count);
    let shard = shard.ok_or_else(refuse)?;
    let names = (1..=shard.count).map(|no| {
        let name = shard.with_no(no).to_string();
        let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
        RelPath::new(path).map_err(|error| ProvenanceError::File { got: first.as_str().into(), error })
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_are_taken_apart() {
        let id: ModelId = "Qwen/Qwen3-235B-A22B-GGUF:UD-Q4_K_XL".parse().unwrap();
        assert_eq!((id.repo(), id.distribution()), ("Qwen/Qwen3-235B-A22B-GGUF", Some("UD-Q4_K_XL")));
        assert_eq!(id.to_string(), "Qwen/Qwen3-235B-A22B-GGUF:UD-Q4_K_XL");
        assert_eq!("org/repo".parse::<ModelId>().unwrap().distribution(), None);
    }

    #[test]
    fn what_is_not_a_coordinate_is_refused() {
        for text in
            ["", "model", "a/b/c", "/abs", "a/", "/b", "a/b:", "a/..", "../b", "a b/c", "a/b\n", "dir/model.gguf"]
        {
            let error = text.parse::<ModelId>().unwrap_err().to_string();
            assert!(error.contains("org/repo:distribution") && !error.contains('\n'), "{text:?}: {error}");
        }
    }

    #[test]
    fn shards_are_named_after_the_first() {
        let names = shard_names(RelPath::new("Q4/m-00001-of-00003.gguf").unwrap(), 3).unwrap();
        let names: Vec<&str> = names.iter().map(RelPath::as_str).collect();
        assert_eq!(names, ["Q4/m-00001-of-00003.gguf", "Q4/m-00002-of-00003.gguf", "Q4/m-00003-of-00003.gguf"]);
        for wrong in ["m.gguf", "m-00002-of-00003.gguf", "m-00001-of-00002.gguf"] {
            let error = shard_names(RelPath::new(wrong).unwrap(), 3).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("-00001-of-00003.gguf"), "{error}");
        }
        assert_eq!(shard_names(RelPath::new("m.gguf").unwrap(), 1).unwrap().len(), 1);
    }
}
