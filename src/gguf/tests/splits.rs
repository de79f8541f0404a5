//! Models in shards and directories.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::*;

/// A directory of files made by the test.
struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, metadata: &Metadata, tensors: &[&str]) -> &Self {
        let specs: Vec<_> = tensors.iter().map(|name| spec(name, &[2], GgmlType::F32)).collect();
        fs::write(self.path(name), file_of(metadata, &specs, 32)).unwrap();
        self
    }

    /// A shard as llama.cpp writes it: 16-bit number and count, 32-bit signed number of tensors.
    fn shard(&self, no: u16, count: u16, total: i32, tensors: &[&str]) -> &Self {
        let mut meta = split_keys(no, count, total);
        if no == 0 {
            meta.set("general.architecture", "glm");
        }
        self.file(&format!("m-{:05}-of-{count:05}.gguf", no + 1), &meta, tensors)
    }

    fn message(&self, name: &str) -> String {
        let error = Source::open(&self.path(name)).unwrap_err();
        let GgufError::InFile { path, error } = error else { panic!("{error} names no file") };
        assert!(path.starts_with(self.0.path()));
        format!("{}: {error}", path.strip_prefix(self.0.path()).unwrap().display())
    }
}

fn split_keys(no: u16, count: u16, total: i32) -> Metadata {
    let keys = [("split.no", Value::from(no)), ("split.count", count.into()), ("split.tensors.count", total.into())];
    keys.into_iter().collect()
}

fn names(source: &Source) -> Vec<(usize, &str)> {
    source.tensors().map(|(shard, tensor)| (shard, tensor.name.as_str())).collect()
}

fn three_shards() -> Dir {
    let dir = Dir::new();
    dir.shard(0, 3, 3, &[]).shard(1, 3, 3, &["a", "b"]).shard(2, 3, 3, &["c"]);
    dir
}

#[test]
fn one_file_is_a_model() {
    let dir = Dir::new();
    dir.file("model.gguf", &metadata_of_every_type(), &["a", "b"]);
    for path in [dir.path("model.gguf"), dir.path("")] {
        let source = Source::open(&path).unwrap();
        assert_eq!(names(&source), [(0, "a"), (0, "b")]);
        assert_eq!(source.metadata(), &metadata_of_every_type());
        let (shard, tensor) = source.tensors().nth(1).unwrap();
        assert_eq!(source.tensor_bytes(shard, tensor), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

#[test]
fn any_shard_or_the_directory_opens_all_of_them() {
    let dir = three_shards();
    fs::write(dir.path("README.md"), "not a model").unwrap();
    for name in ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf", ""] {
        let source = Source::open(&dir.path(name)).unwrap();
        assert_eq!(names(&source), [(1, "a"), (1, "b"), (2, "c")]);
        assert_eq!(source.files().len(), 3);
        let keys: Vec<_> = source.metadata().iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["general.architecture"], "split keys say nothing about the whole model");
        assert_eq!(source.tensors().map(|(shard, tensor)| source.tensor_bytes(shard, tensor).len()).sum::<usize>(), 24);
    }
}

#[cfg(unix)]
#[test]
fn shards_behind_links_are_found_by_the_names_of_the_links() {
    let (blobs, dir) = (three_shards(), Dir::new());
    for no in 1..=3 {
        let blob = blobs.path(&format!("blob{no}"));
        let name = format!("m-0000{no}-of-00003.gguf");
        fs::rename(blobs.path(&name), &blob).unwrap();
        std::os::unix::fs::symlink(&blob, dir.path(&name)).unwrap();
    }
    assert_eq!(Source::open(&dir.path("")).unwrap().files().len(), 3);
}

#[test]
fn a_missing_shard_is_named() {
    let dir = three_shards();
    fs::remove_file(dir.path("m-00002-of-00003.gguf")).unwrap();
    for name in ["m-00001-of-00003.gguf", "m-00003-of-00003.gguf", ""] {
        assert_eq!(dir.message(name), "m-00002-of-00003.gguf: shard 2 of 3 is missing");
    }
    fs::remove_file(dir.path("m-00001-of-00003.gguf")).unwrap();
    assert_eq!(dir.message(""), "m-00001-of-00003.gguf: shard 1 of 3 is missing");
}

#[test]
fn shards_that_contradict_each_other_are_refused() {
    let dir = three_shards();
    dir.file("m-00002-of-00003.gguf", &split_keys(1, 4, 3), &["a", "b"]);
    assert_eq!(
        dir.message("m-00001-of-00003.gguf"),
        "m-00002-of-00003.gguf: is shard 2 of 4 by its metadata, so its name must end in `-00002-of-00004.gguf`, \
         which it does not"
    );
    dir.file("m-00002-of-00003.gguf", &split_keys(2, 3, 3), &["a", "b"]);
    assert!(dir.message("").contains("is shard 3 of 3 by its metadata"));
    dir.file("m-00002-of-00003.gguf", &split_keys(0, 1, 3), &["a", "b"]);
    assert_eq!(dir.message(""), "m-00002-of-00003.gguf: metadata key `split.count` is 1, expected 3");
    dir.file("m-00002-of-00003.gguf", &Metadata::default(), &["a", "b"]);
    assert!(dir.message("").ends_with("is named as shard 2 of 3, but has no metadata key `split.count`"));
    dir.file("m-00002-of-00003.gguf", &split_keys(1, 3, 2), &["a", "b"]);
    assert_eq!(
        dir.message(""),
        "m-00002-of-00003.gguf: metadata key `split.tensors.count` is 2, expected 3, the tensors of all 3 shards"
    );
}

#[test]
fn llama_cpp_6836_duplicate_tensor_across_shards() {
    let dir = three_shards();
    dir.shard(2, 3, 3, &["b"]);
    let first = dir.path("m-00002-of-00003.gguf");
    assert_eq!(dir.message(""), format!("m-00003-of-00003.gguf: tensor `b` is also in `{}`", first.display()));
}

#[test]
fn llama_cpp_3917_missing_tensor_is_noticed_at_once() {
    let dir = three_shards();
    dir.shard(2, 3, 3, &[]);
    assert_eq!(
        dir.message(""),
        "m-00001-of-00003.gguf: metadata key `split.tensors.count` is 3, expected 2, the tensors of all 3 shards"
    );
}

#[test]
fn split_keys_are_checked() {
    let dir = Dir::new();
    let refused = |change: &dyn Fn(&mut Metadata)| {
        let mut meta = split_keys(0, 2, 0);
        change(&mut meta);
        dir.file("m-00001-of-00002.gguf", &meta, &[]);
        dir.message("")
    };
    let no_out_of_range = refused(&|meta| meta.set("split.no", 2u16));
    assert!(no_out_of_range.ends_with("metadata key `split.no` is 2, expected below 2"));
    let no_number = refused(&|meta| drop(meta.remove("split.no")));
    assert!(no_number.ends_with("metadata key `split.no` is missing, expected a non-negative integer"));
    let count_text = refused(&|meta| meta.set("split.count", "2"));
    assert!(count_text.ends_with("metadata key `split.count` is of type string, expected a non-negative integer"));
    let count_negative = refused(&|meta| meta.set("split.count", -2i32));
    assert!(count_negative.contains("`split.count` is of type i32"));
    let huge = refused(&|meta| meta.set("split.count", u64::MAX));
    assert!(huge.contains("is shard 1 of 18446744073709551615 by its metadata"), "{huge}");
}

#[test]
fn a_renamed_shard_is_refused() {
    let dir = Dir::new();
    dir.file("model.gguf", &split_keys(0, 2, 0), &[]);
    assert_eq!(
        dir.message("model.gguf"),
        "model.gguf: is shard 1 of 2 by its metadata, so its name must end in `-00001-of-00002.gguf`, which it does not"
    );
}

#[test]
fn a_split_of_one_is_a_model_in_one_file() {
    let dir = Dir::new();
    dir.shard(0, 1, 1, &["a"]);
    assert_eq!(Source::open(&dir.path("")).unwrap().files().len(), 1);
}

#[test]
fn a_directory_holds_exactly_one_model() {
    let dir = Dir::new();
    assert!(matches!(Source::open(&dir.path("")).unwrap_err().kind(), GgufError::NoModel));
    dir.shard(0, 2, 1, &[]).shard(1, 2, 1, &["a"]).file("other.gguf", &Metadata::default(), &[]);
    let error = Source::open(&dir.path("")).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "`{}`: directory holds 2 models (m-00001-of-00002.gguf, other.gguf); name one of them",
            dir.path("").display()
        )
    );
    assert!(Source::open(&dir.path("other.gguf")).is_ok());
    assert!(Source::open(Path::new("/nonexistent.gguf")).is_err());
}
