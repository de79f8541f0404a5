//! Streams artifacts from the source files to disk, and compares the disk with the source.
//!
//! Everything goes through buffers of [`CHUNK`] bytes and `pread`, never through a map: memory stays flat for a source
//! of any size, and a source that shrinks meanwhile is an error instead of a SIGBUS.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use super::layout::{ArtifactPlan, Segment};
use crate::{gguf::GgufFile, package::digest::Sha256Digest};

/// Bytes moved at once: large enough to make system calls cheap, small enough to stay in the second-level cache.
pub(crate) const CHUNK: usize = 256 << 10;

/// Called with the bytes done since the last call, from several threads.
pub(crate) type OnBytes<'a> = &'a (dyn Fn(u64) + Sync);

/// Why a transfer failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The operating system refused.
    #[error("`{}`: cannot {doing}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The answer.
        error: io::Error,
    },
    /// What is on disk is not what the source says.
    #[error("`{}`: differs from the source {what}; the disk or its file system does not keep what is written", path.display())]
    Differs {
        /// The artifact.
        path: PathBuf,
        /// Where.
        what: String,
    },
    /// The source was replaced or modified.
    #[error("`{}`: changed while it was read; write the package again from a source that stays as it is", path.display())]
    SourceChanged {
        /// The source file.
        path: PathBuf,
    },
}

impl TransferError {
    pub(crate) fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { path: path.to_owned(), doing, error }
    }
}

/// The files that artifacts are cut from.
#[derive(Debug)]
pub(crate) struct SourceFiles(Vec<SourceFile>);

#[derive(Debug)]
struct SourceFile {
    path: PathBuf,
    file: File,
    stamp: Stamp,
}

/// What tells that a file was replaced or written to.
type Stamp = (u64, u64, Option<std::time::SystemTime>);

impl SourceFiles {
    pub(crate) fn open<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<Self, TransferError> {
        let files = paths.into_iter().map(|path| {
            let file = File::open(path).map_err(TransferError::io(path, "open the file"))?;
            let stamp = stamp(path)?;
            Ok(SourceFile { path: path.to_owned(), file, stamp })
        });
        files.collect::<Result<_, _>>().map(Self)
    }

    /// Sizes in bytes.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        self.0.iter().map(|source| source.stamp.0).collect()
    }

    /// Digest of file `index`.
    pub(crate) fn hash(&self, index: usize, on_bytes: OnBytes<'_>) -> Result<Sha256Digest, TransferError> {
        let mut hasher = Sha256::new();
        let size = self.0.get(index).map_or(0, |source| source.stamp.0);
        self.read(index, 0, size, &mut vec![0; CHUNK], &mut |chunk| {
            hasher.update(chunk);
            on_bytes(chunk.len() as u64);
            Ok(())
        })?;
        Ok(Sha256Digest::from_hasher(hasher))
    }

    /// Whether file `index` is the one that `parsed` was read from.
    pub(crate) fn check_header(&self, index: usize, parsed: &GgufFile) -> Result<(), TransferError> {
        let mut left = parsed.bytes();
        let len = parsed.gguf().data_start.min(left.len() as u64);
        self.read(index, 0, len, &mut vec![0; CHUNK], &mut |chunk| match left.split_at_checked(chunk.len()) {
            Some((expected, rest)) if expected == chunk => {
                left = rest;
                Ok(())
            }
            _ => Err(TransferError::SourceChanged { path: parsed.path().to_owned() }),
        })
    }

    /// Whether the files are still those that were opened.
    pub(crate) fn check_unchanged(&self) -> Result<(), TransferError> {
        match self.0.iter().find(|source| stamp(&source.path).ok().as_ref() != Some(&source.stamp)) {
            Some(source) => Err(TransferError::SourceChanged { path: source.path.clone() }),
            None => Ok(()),
        }
    }

    /// Gives `sink` the bytes `offset..offset + len` of file `index`, in chunks.
    fn read(
        &self,
        index: usize,
        offset: u64,
        len: u64,
        buffer: &mut [u8],
        sink: Sink<'_>,
    ) -> Result<(), TransferError> {
        let Some(source) = self.0.get(index) else { return Ok(()) };
        let mut at = 0;
        while at < len {
            let n = (len - at).min(buffer.len() as u64) as usize;
            source.file.read_exact_at(&mut buffer[..n], offset + at).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => TransferError::SourceChanged { path: source.path.clone() },
                _ => TransferError::io(&source.path, "read the file")(error),
            })?;
            sink(&buffer[..n])?;
            at += n as u64;
        }
        Ok(())
    }

    /// The first byte at which `len` bytes of file and offset `source` differ from those of file, path and offset
    /// `other`.
    pub(crate) fn first_difference(
        &self,
        source: (usize, u64),
        other: (&File, &Path, u64),
        len: u64,
    ) -> Result<Option<u64>, TransferError> {
        let (file, path, offset) = other;
        let mut on_disk = vec![0; CHUNK];
        let (mut at, mut found) = (0, None);
        self.read(source.0, source.1, len, &mut vec![0; CHUNK], &mut |expected| {
            let got = &mut on_disk[..expected.len()];
            file.read_exact_at(got, offset + at).map_err(TransferError::io(path, "read the file"))?;
            if found.is_none() && got != expected {
                let within = got.iter().zip(expected).position(|(got, expected)| got != expected);
                found = within.map(|within| at + within as u64);
            }
            at += expected.len() as u64;
            Ok(())
        })?;
        Ok(found)
    }

    /// Gives `sink` an artifact from front to back.
    fn stream(&self, plan: &ArtifactPlan, sink: Sink<'_>) -> Result<(), TransferError> {
        let mut buffer = vec![0; CHUNK];
        for segment in plan.segments() {
            match segment {
                Segment::Bytes(bytes) => bytes.chunks(CHUNK).try_for_each(&mut *sink)?,
                Segment::Source(piece) => {
                    self.read(piece.file, piece.source_offset, piece.n_bytes, &mut buffer, sink)?
                }
                Segment::Zeros(mut left) => {
                    while left > 0 {
                        let n = left.min(buffer.len() as u64) as usize;
                        buffer[..n].fill(0);
                        sink(&buffer[..n])?;
                        left -= n as u64;
                    }
                }
            }
        }
        Ok(())
    }
}

type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), TransferError>;

fn stamp(path: &Path) -> Result<Stamp, TransferError> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).map_err(TransferError::io(path, "read its size"))?;
    Ok((metadata.len(), metadata.ino(), metadata.modified().ok()))
}

/// Writes an artifact to `path` and returns its digest, computed on the way, and the open file, not yet synced.
pub(crate) fn write(
    plan: &ArtifactPlan,
    sources: &SourceFiles,
    path: &Path,
    on_bytes: OnBytes<'_>,
) -> Result<(Sha256Digest, File), TransferError> {
    let mut file = File::create(path).map_err(TransferError::io(path, "create the file"))?;
    let mut hasher = Sha256::new();
    sources.stream(plan, &mut |chunk| {
        hasher.update(chunk);
        file.write_all(chunk).map_err(TransferError::io(path, "write the file"))?;
        on_bytes(chunk.len() as u64);
        Ok(())
    })?;
    Ok((Sha256Digest::from_hasher(hasher), file))
}

/// How much of a comparison is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    /// The bytes only: the digest is known from writing them.
    Bytes,
    /// The bytes, and their digest.
    BytesAndHash,
}

/// Reads the artifact at `path` back and compares every byte with the source. Returns the digest when asked for.
pub(crate) fn compare(
    plan: &ArtifactPlan,
    sources: &SourceFiles,
    path: &Path,
    mode: Compare,
) -> Result<Option<Sha256Digest>, TransferError> {
    let mut file = File::open(path).map_err(TransferError::io(path, "open the file"))?;
    let differs = |what: String| TransferError::Differs { path: path.to_owned(), what };
    let size = file.metadata().map_err(TransferError::io(path, "read its size"))?.len();
    if size != plan.file_len {
        return Err(differs(format!("in size: got {size} bytes, expected {}", plan.file_len)));
    }
    let mut hasher = (mode == Compare::BytesAndHash).then(Sha256::new);
    let mut on_disk = vec![0; CHUNK];
    let mut at = 0u64;
    sources.stream(plan, &mut |expected| {
        let got = &mut on_disk[..expected.len()];
        file.read_exact(got).map_err(TransferError::io(path, "read the file back"))?;
        if got != expected {
            let place = plan.pieces.iter().rev().find(|piece| piece.offset <= at);
            let place = place.map_or("in its header".into(), |piece| format!("at or after tensor `{}`", piece.name()));
            return Err(differs(format!("{place} (offset {at} or up to {} bytes later)", expected.len())));
        }
        if let Some(hasher) = &mut hasher {
            hasher.update(expected);
        }
        at += expected.len() as u64;
        Ok(())
    })?;
    Ok(hasher.map(Sha256Digest::from_hasher))
}
