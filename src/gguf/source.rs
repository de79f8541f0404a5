//! A model in one file or in shards.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
};

use super::{GgufError, GgufFile, Metadata, ShardName, TensorInfo, error::shown};

const SPLIT_NO: &str = "split.no";
const SPLIT_COUNT: &str = "split.count";
const SPLIT_TENSORS: &str = "split.tensors.count";

/// All files of a model, checked against each other.
#[derive(Debug)]
pub struct Source {
    files: Vec<GgufFile>,
    metadata: Metadata,
}

impl Source {
    /// Opens a model by its file, by any of its shards, or by a directory that holds this one model.
    ///
    /// # Errors
    /// When a file is not sound, a shard is missing or contradicts the others, a tensor appears twice, or the directory
    /// holds no model or several.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        if path.is_dir() { Self::open_file(&only_model_in(path)?) } else { Self::open_file(path) }
    }

    /// The files, shards in order.
    pub fn files(&self) -> &[GgufFile] {
        &self.files
    }

    /// Key-values of the first file, without the `split.` keys.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors with the number of their file, from 0.
    pub fn tensors(&self) -> impl Iterator<Item = (usize, &TensorInfo)> {
        self.files.iter().enumerate().flat_map(|(shard, file)| file.gguf().tensors.iter().map(move |t| (shard, t)))
    }

    /// The data of a tensor that [`Source::tensors`] gave with this `shard`.
    ///
    /// # Panics
    /// May panic when it did not.
    pub fn tensor_bytes(&self, shard: usize, tensor: &TensorInfo) -> &[u8] {
        self.files[shard].tensor_bytes(tensor)
    }

    fn open_file(path: &Path) -> Result<Self, GgufError> {
        let first = GgufFile::open(path)?;
        let files = match shard_name(&first).map_err(|error| error.in_file(path))? {
            None => vec![first],
            Some(name) => open_shards(first, &name)?,
        };
        let mut metadata = files.first().map(|file| file.gguf().metadata.clone()).unwrap_or_default();
        metadata.retain(|key| !key.starts_with("split."));
        Ok(Self { files, metadata })
    }
}

/// The shard name of a file, `None` for a model in one file. Name and metadata must agree.
fn shard_name(file: &GgufFile) -> Result<Option<ShardName>, GgufError> {
    let metadata = &file.gguf().metadata;
    let name = file.path().file_name().and_then(|name| ShardName::parse(name.to_str()?));
    let count = match (metadata.get(SPLIT_COUNT), &name) {
        (Some(_), _) => split_key(metadata, SPLIT_COUNT)?,
        (None, Some(name)) if name.count > 1 => {
            return Err(GgufError::ShardWithoutKeys { no: name.no, count: name.count });
        }
        (None, _) => return Ok(None),
    };
    if count <= 1 {
        return Ok(None);
    }
    let no = split_key(metadata, SPLIT_NO)?;
    if no >= count {
        return Err(GgufError::SplitKey { key: SPLIT_NO, got: no.to_string(), expected: format!("below {count}") });
    }
    match name {
        Some(name) if u64::from(name.no) == no + 1 && u64::from(name.count) == count => Ok(Some(name)),
        _ => Err(GgufError::ShardFileName { no: no + 1, count, expected: ShardName::suffix(no + 1, count) }),
    }
}

/// A `split.` number; llama.cpp writes 16-bit ones for shards and a signed 32-bit one for tensors.
fn split_key(metadata: &Metadata, key: &'static str) -> Result<u64, GgufError> {
    let refuse = |got: String| GgufError::SplitKey { key, got, expected: "a non-negative integer".into() };
    match metadata.get(key) {
        None => Err(refuse("missing".into())),
        Some(value) => value.as_uint().ok_or_else(|| refuse(format!("of type {}", value.value_type().name()))),
    }
}

fn open_shards(given: GgufFile, name: &ShardName) -> Result<Vec<GgufFile>, GgufError> {
    let path_of = |no| given.path().with_file_name(name.with_no(no).to_string());
    let others = (1..=name.count).filter(|&no| no != name.no);
    let mut files = others.map(|no| open_shard(&path_of(no), no, name.count)).collect::<Result<Vec<_>, _>>()?;
    // Numbers run from 1 and all others are there, so this is its place.
    files.insert(name.no as usize - 1, given);
    check_together(&files)?;
    Ok(files)
}

fn open_shard(path: &Path, no: u32, count: u32) -> Result<GgufFile, GgufError> {
    if !path.exists() {
        return Err(GgufError::MissingShard { no, count }.in_file(path));
    }
    let file = GgufFile::open(path)?;
    let name = shard_name(&file).map_err(|error| error.in_file(path))?;
    if name.is_some() {
        return Ok(file);
    }
    let got = file.gguf().metadata.uint(SPLIT_COUNT).unwrap_or(0).to_string();
    Err(GgufError::SplitKey { key: SPLIT_COUNT, got, expected: count.to_string() }.in_file(path))
}

/// No tensor in two shards, and as many as the shards say.
fn check_together(files: &[GgufFile]) -> Result<(), GgufError> {
    let mut seen: HashMap<&str, &Path> = HashMap::new();
    for file in files {
        for tensor in &file.gguf().tensors {
            if let Some(other) = seen.insert(&tensor.name, file.path()) {
                let error =
                    GgufError::TensorInTwoShards { tensor: shown(tensor.name.as_bytes()), other: other.to_owned() };
                return Err(error.in_file(file.path()));
            }
        }
    }
    let total = seen.len() as u64;
    for (index, file) in files.iter().enumerate() {
        let metadata = &file.gguf().metadata;
        // Only the first shard must have the key: its readers ask for it there.
        if index > 0 && metadata.get(SPLIT_TENSORS).is_none() {
            continue;
        }
        let got = split_key(metadata, SPLIT_TENSORS).map_err(|error| error.in_file(file.path()))?;
        if got != total {
            let expected = format!("{total}, the tensors of all {} shards", files.len());
            let error = GgufError::SplitKey { key: SPLIT_TENSORS, got: got.to_string(), expected };
            return Err(error.in_file(file.path()));
        }
    }
    Ok(())
}

/// The one file, or first shard, that a directory holds.
fn only_model_in(dir: &Path) -> Result<PathBuf, GgufError> {
    let refuse = |error: GgufError| error.in_file(dir);
    let io = |error| refuse(GgufError::Io { doing: "list the directory", error });
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        // A name that is not UTF-8 stays as it is: it cannot be a shard's.
        if Path::new(&name).extension().is_some_and(|extension| extension == "gguf") {
            let shard = name.to_str().and_then(ShardName::parse);
            found.insert(shard.map_or(name, |shard| shard.with_no(1).to_string().into()));
        }
    }
    match (found.len(), found.pop_first()) {
        (1, Some(name)) => first_existing(dir, Path::new(&name)),
        (_, None) => Err(refuse(GgufError::NoModel)),
        (_, Some(first)) => {
            let names = [first].into_iter().chain(found).map(|name| name.to_string_lossy().into_owned());
            Err(refuse(GgufError::SeveralModels { found: names.collect() }))
        }
    }
}

/// The path of the model file, unless it is a first shard that is not there.
fn first_existing(dir: &Path, name: &Path) -> Result<PathBuf, GgufError> {
    let path = dir.join(name);
    match name.to_str().and_then(ShardName::parse) {
        Some(shard) if !path.exists() => {
            Err(GgufError::MissingShard { no: shard.no, count: shard.count }.in_file(&path))
        }
        _ => Ok(path),
    }
}
