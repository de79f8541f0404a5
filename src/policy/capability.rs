//! What a backend can do: an input of the resolver that no manifest states.

use serde::{Serialize, Serializer, ser::SerializeSeq as _};

use super::types::{Path, closed};

closed! {
    /// What computes.
    Backend {
        /// ggml's CPU backend and our own kernels beside it.
        Cpu => "cpu",
        /// NVIDIA.
        Cuda => "cuda",
        /// Apple.
        Metal => "metal",
        /// Vulkan.
        Vulkan => "vulkan",
    }
}

/// A set of paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathSet(u8);

impl PathSet {
    /// The set of these.
    pub const fn of(paths: &[Path]) -> Self {
        let (mut set, mut i) = (0, 0);
        while i < paths.len() {
            set |= 1 << paths[i] as u8;
            i += 1;
        }
        Self(set)
    }

    /// Whether `path` is in it.
    pub fn contains(self, path: Path) -> bool {
        self.0 & (1 << path as u8) != 0
    }

    /// Puts `path` in; false when it was there already.
    pub fn insert(&mut self, path: Path) -> bool {
        let new = !self.contains(path);
        self.0 |= 1 << path as u8;
        new
    }

    /// The paths in it, in the order of [`Path::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Path> {
        Path::ALL.iter().copied().filter(move |path| self.contains(*path))
    }
}

impl Serialize for PathSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(None)?;
        self.iter().try_for_each(|path| seq.serialize_element(&path))?;
        seq.end()
    }
}

/// What a stage's backend can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// The backend.
    pub backend: Backend,
    /// The device, as evidence names it: the model of the CPU, or what the backend calls it; the backend where nobody
    /// has looked.
    pub device: String,
    /// Instructions that our kernels use there, as evidence names them.
    pub isa: String,
    /// The paths it has. [`Path::Fallback`] counts as had, whatever is in here.
    pub paths: PathSet,
    /// Whether the MTP block runs on it.
    pub native_mtp: bool,
}

impl Capability {
    /// What this build can do on `backend`. Attending on rows where they lie is a kernel of ours, for the CPU only.
    pub fn of(backend: Backend) -> Self {
        let paths = match backend {
            Backend::Cpu => PathSet::of(Path::ALL),
            Backend::Cuda | Backend::Metal | Backend::Vulkan => {
                PathSet::of(&[Path::Dense, Path::CompactFlash, Path::SparseChunked, Path::Fallback])
            }
        };
        Self { backend, device: backend.label().to_owned(), isa: "portable".to_owned(), paths, native_mtp: true }
    }

    /// Whether the backend has `path`.
    pub fn has(&self, path: Path) -> bool {
        path == Path::Fallback || self.paths.contains(path)
    }
}

impl Default for Capability {
    fn default() -> Self {
        Self::of(Backend::Cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_sparse_is_for_the_cpu_and_fallback_for_all() {
        for backend in Backend::ALL {
            let capability = Capability::of(*backend);
            assert_eq!(capability.has(Path::DirectSparse), *backend == Backend::Cpu);
            for path in [Path::Dense, Path::CompactFlash, Path::SparseChunked, Path::Fallback] {
                assert!(capability.has(path), "{backend} {path}");
            }
        }
        let nothing = Capability { paths: PathSet::default(), ..Capability::default() };
        assert_eq!(Path::ALL.iter().filter(|path| nothing.has(**path)).collect::<Vec<_>>(), [&Path::Fallback]);
    }
}
