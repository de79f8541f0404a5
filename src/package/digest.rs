//! SHA-256 digests, of bytes and of files.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::Path,
    str::FromStr,
};

use indicatif::{ProgressBar, ProgressStyle};
use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};

use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest. Printed as 64 lower-case hexadecimal digits; read in either case.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sha256Digest([u8; 32]);

/// The text is not a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("64 hexadecimal digits")]
pub struct DigestError;

impl Sha256Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest that a hasher has come to.
    pub fn from_hasher(hasher: Sha256) -> Self {
        Self(hasher.finalize().into())
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for Sha256Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| DigestError)?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256Digest({self})")
    }
}

impl Serialize for Sha256Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Bytes read at a time: large enough for the disk, small enough to stay in the second-level cache while hashed.
const CHUNK: usize = 256 << 10;

/// Digest of a file. `progress` is told how many more bytes were hashed.
///
/// # Errors
/// When the file cannot be read.
pub fn hash_file(path: &Path, progress: &dyn Fn(u64)) -> io::Result<Sha256Digest> {
    hash_reader(File::open(path)?, progress)
}

/// Digest of all that `reader` yields. `progress` is told how many more bytes were hashed.
///
/// # Errors
/// When reading fails.
pub fn hash_reader(mut reader: impl Read, progress: &dyn Fn(u64)) -> io::Result<Sha256Digest> {
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = match reader.read(&mut chunk) {
            Ok(0) => return Ok(Sha256Digest::from_hasher(hasher)),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(chunk.get(..read).unwrap_or_default());
        progress(read as u64);
    }
}

/// Digests of many files, hashed in parallel, with a progress bar when standard error is a terminal. One result for
/// each path, in order. `total_bytes` is the sum of their sizes, for the bar.
pub fn hash_files<P: AsRef<Path> + Sync>(paths: &[P], total_bytes: u64) -> Vec<io::Result<Sha256Digest>> {
    let bar = progress_bar("verifying", total_bytes);
    // Files differ in size by orders of magnitude, so each is a task of its own.
    let digests =
        paths.par_iter().with_max_len(1).map(|path| hash_file(path.as_ref(), &|bytes| bar.inc(bytes))).collect();
    bar.finish_and_clear();
    digests
}

/// A bar that counts bytes on standard error; it draws nothing where that is no terminal.
pub fn progress_bar(doing: &'static str, total_bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(total_bytes).with_message(doing);
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fs};

    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn reads_either_case_and_prints_lower() {
        assert_eq!(Sha256Digest::of(b"").to_string(), EMPTY);
        assert_eq!(EMPTY.to_uppercase().parse(), Ok(Sha256Digest::of(b"")));
        assert_eq!(serde_json::to_value(Sha256Digest::of(b"")).unwrap(), EMPTY);
    }

    #[test]
    fn refuses_what_is_not_a_digest() {
        for text in
            ["", "e3b0", &EMPTY[1..], &format!("{EMPTY}0"), &EMPTY.replace('e', "g"), &format!(" {}", &EMPTY[1..])]
        {
            assert_eq!(text.parse::<Sha256Digest>(), Err(DigestError), "{text}");
        }
    }

    #[test]
    fn hashes_files_of_any_size_and_reports_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let sizes = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17];
        let paths: Vec<_> = sizes.iter().map(|size| dir.path().join(size.to_string())).collect();
        let bytes = |size: usize| (0..size).map(|i| (i % 251) as u8).collect::<Vec<u8>>();
        for (size, path) in sizes.iter().zip(&paths) {
            fs::write(path, bytes(*size)).unwrap();
            let told = Cell::new(0);
            let digest = hash_file(path, &|more| told.set(told.get() + more)).unwrap();
            assert_eq!((digest, told.get()), (Sha256Digest::of(&bytes(*size)), *size as u64));
        }
        let digests = hash_files(&paths, sizes.iter().sum::<usize>() as u64);
        for (size, digest) in sizes.iter().zip(digests) {
            assert_eq!(digest.unwrap(), Sha256Digest::of(&bytes(*size)));
        }
        let missing = hash_files(&[dir.path().join("no")], 0);
        assert_eq!(missing[0].as_ref().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
