//! Remembers which files have been verified, so that a large package is hashed once and not at every start.
//!
//! A verdict is an empty-handed record: its name is a digest over the manifest, the artifact and the state of the file
//! (device, inode, size, times of change), its content a fixed line. No path is stored. A file that changes in any way
//! gets another name and is hashed again.

use std::{
    ffi::OsString,
    fs::{self, Metadata},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use sha2::{Digest as _, Sha256};

use super::{Sha256Digest, manifest::Artifact};

/// A directory of verdicts.
#[derive(Clone, Debug)]
pub struct Verdicts {
    dir: PathBuf,
    settle: Duration,
}

/// The state of a file, as far as the file system tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileState {
    words: [u64; 6],
    changed: Option<SystemTime>,
}

impl FileState {
    /// The state of the file at `path`.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        let nanos = |time: io::Result<SystemTime>| {
            let since = time.ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
            since.map_or(0, |since| since.as_nanos() as u64)
        };
        let (device, inode, changed) = identity(&metadata);
        let modified = metadata.modified();
        let changed_time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(changed));
        let words = [device, inode, metadata.len(), nanos(modified), changed, u64::from(metadata.is_file())];
        Ok(Self { words, changed: changed_time })
    }
}

/// Device, inode and time of the last change of the inode in nanoseconds.
#[cfg(unix)]
fn identity(metadata: &Metadata) -> (u64, u64, u64) {
    use std::os::unix::fs::MetadataExt;
    let seconds = u64::try_from(metadata.ctime()).unwrap_or(0);
    let nanos = u64::try_from(metadata.ctime_nsec()).unwrap_or(0);
    (metadata.dev(), metadata.ino(), seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(not(unix))]
fn identity(metadata: &Metadata) -> (u64, u64, u64) {
    let created = metadata.created().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    (0, 0, created.map_or(0, |since| since.as_nanos() as u64))
}

/// What a record holds. Anything else is not a verdict.
const RECORD: &str = "skippy-stage sha256 verdict 1\n";

impl Verdicts {
    /// A file changed less than this before it was hashed might change again without a new time stamp, so its verdict
    /// is not remembered. Coarse file systems count in steps of two seconds.
    const SETTLE: Duration = Duration::from_secs(2);

    /// Verdicts in `dir`, which is made when the first one is stored.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), settle: Self::SETTLE }
    }

    /// Verdicts in the user's cache: `$SKIPPY_CACHE_DIR`, else `$XDG_CACHE_HOME/skippy-stage`, else
    /// `~/.cache/skippy-stage`. `None` when there is no such place.
    pub fn from_env() -> Option<Self> {
        cache_dir(|name| std::env::var_os(name)).map(|dir| Self::new(dir.join("verdicts")))
    }

    /// Whether `artifact`, in this state, was verified before.
    pub fn holds(&self, manifest: Sha256Digest, artifact: &Artifact, state: &FileState) -> bool {
        fs::read(self.record(manifest, artifact, state)).is_ok_and(|content| content == RECORD.as_bytes())
    }

    /// Remembers that `artifact`, in this state, has its declared digest. A cache that cannot be written is a warning,
    /// not an error.
    pub fn store(&self, manifest: Sha256Digest, artifact: &Artifact, state: &FileState) {
        let age = state.changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
        if age.is_none_or(|age| age < self.settle) {
            return;
        }
        if let Err(error) = write_atomically(&self.dir, &self.record(manifest, artifact, state)) {
            let dir = self.dir.display();
            tracing::warn!(%error, %dir, "cannot remember verified checksums: files will be hashed again next time");
        }
    }

    fn record(&self, manifest: Sha256Digest, artifact: &Artifact, state: &FileState) -> PathBuf {
        let mut key = Sha256::new();
        key.update(RECORD);
        key.update(manifest.as_bytes());
        key.update(artifact.sha256.as_bytes());
        for word in state.words {
            key.update(word.to_le_bytes());
        }
        key.update(artifact.path.as_str());
        self.dir.join(Sha256Digest::from_hasher(key).to_string())
    }
}

fn write_atomically(dir: &Path, record: &Path) -> io::Result<()> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    fs::create_dir_all(dir)?;
    let unique = COUNTER.fetch_add(1, Ordering::Relaxed);
    let partial = dir.join(format!(".{}-{unique}.partial", std::process::id()));
    let written = fs::File::create(&partial).and_then(|mut file| file.write_all(RECORD.as_bytes()));
    written.and_then(|()| fs::rename(&partial, record)).inspect_err(|_| drop(fs::remove_file(&partial)))
}

fn cache_dir(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG specification tells to ignore a relative path.
    let xdg = path("XDG_CACHE_HOME").filter(|dir| dir.is_absolute());
    path("SKIPPY_CACHE_DIR")
        .or_else(|| xdg.map(|dir| dir.join("skippy-stage")))
        .or_else(|| path("HOME").map(|home| home.join(".cache/skippy-stage")))
}

#[cfg(test)]
mod tests;
