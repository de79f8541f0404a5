//! The heavy part: everything that reads or writes tensor data.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
};

use rayon::prelude::*;

use super::{
    WriteError,
    layout::ArtifactPlan,
    transfer::{self, Compare, OnBytes, SourceFiles, TransferError},
};
use crate::{
    gguf::{GgmlType, GgufFile},
    package::Sha256Digest,
};

/// Threads that wait for the disk. A disk commits several files in about the time of one.
const SYNCERS: usize = 4;

/// What is to be written from what.
pub(super) struct Job<'a> {
    pub(super) files: &'a SourceFiles,
    pub(super) plans: &'a [ArtifactPlan],
    pub(super) out_dir: &'a Path,
    pub(super) on_bytes: OnBytes<'a>,
}

/// An artifact that is on disk under its name.
pub(super) struct Done {
    pub(super) sha256: Sha256Digest,
    pub(super) reused: bool,
}

/// A file that is written and compared, but not yet known to be on disk.
pub(super) struct Pending {
    pub(super) file: File,
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
}

impl Job<'_> {
    /// Hashes the first `shards` source files and writes all artifacts, on `jobs` threads.
    pub(super) fn run(&self, shards: usize, jobs: usize) -> Result<(Vec<Sha256Digest>, Vec<Done>), WriteError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs.max(1)).thread_name(|i| format!("package-{i}"));
        let pool = pool.build().map_err(|error| WriteError::Threads { jobs, error })?;
        // Syncing waits for the disk while the others compute.
        let (to_sync, pending) = mpsc::channel::<Pending>();
        let pending = Mutex::new(pending);
        std::thread::scope(|scope| {
            let syncers: Vec<_> = (0..SYNCERS).map(|_| scope.spawn(|| install_all(&pending))).collect();
            let results = pool.install(|| {
                rayon::join(
                    || {
                        (0..shards)
                            .into_par_iter()
                            .map(|at| self.files.hash(at, self.on_bytes))
                            .collect::<Result<_, _>>()
                    },
                    || self.write_all(&to_sync),
                )
            });
            drop(to_sync);
            let synced = syncers.into_iter().map(|syncer| match syncer.join() {
                Ok(synced) => synced,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            let synced = synced.collect::<Vec<_>>().into_iter().collect::<Result<Vec<()>, _>>();
            let (digests, done) = (results.0?, results.1?);
            synced?;
            Ok((digests, done))
        })
    }

    fn write_all(&self, to_sync: &mpsc::Sender<Pending>) -> Result<Vec<Done>, WriteError> {
        // Largest first, one at a time: the threads then end together.
        let mut order: Vec<usize> = (0..self.plans.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(self.plans[at].file_len));
        let next = AtomicUsize::new(0);
        let workers = 0..rayon::current_num_threads();
        let lists = workers.into_par_iter().with_max_len(1).map(|_| {
            let mut done = Vec::new();
            while let Some(&at) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                let artifact = self.write_one(&self.plans[at], to_sync).inspect_err(|_| {
                    // The others stop at the end of their artifact.
                    next.store(order.len(), Ordering::Relaxed);
                })?;
                done.push((at, artifact));
            }
            Ok::<_, WriteError>(done)
        });
        let mut done: Vec<(usize, Done)> = lists.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        done.sort_by_key(|(at, _)| *at);
        Ok(done.into_iter().map(|(_, done)| done).collect())
    }

    fn write_one(&self, plan: &ArtifactPlan, to_sync: &mpsc::Sender<Pending>) -> Result<Done, WriteError> {
        let to = self.out_dir.join(&plan.path);
        if fs::metadata(&to).is_ok_and(|on_disk| on_disk.is_file() && on_disk.len() == plan.file_len) {
            match transfer::compare(plan, self.files, &to, Compare::BytesAndHash) {
                Ok(Some(sha256)) => {
                    (self.on_bytes)(plan.file_len);
                    return Ok(Done { sha256, reused: true });
                }
                Ok(None) | Err(TransferError::Differs { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let name = to.file_name().unwrap_or_default().to_string_lossy();
        let from = to.with_file_name(format!(".{name}.partial"));
        let (sha256, file) = transfer::write(plan, self.files, &from, self.on_bytes)?;
        transfer::compare(plan, self.files, &from, Compare::Bytes)?;
        Self::check_header(plan, &from)?;
        // The receiver stops early only with an error of its own, which is reported instead.
        let _ = to_sync.send(Pending { file, from, to });
        Ok(Done { sha256, reused: false })
    }

    /// Opens the fragment with the checked reader: what it says about each tensor is what the source says.
    fn check_header(plan: &ArtifactPlan, path: &Path) -> Result<(), WriteError> {
        if plan.role.is_none() {
            return Ok(());
        }
        let fragment = GgufFile::open(path)?;
        let gguf = fragment.gguf();
        let differs = |tensor: &str, got: String, expected: String| WriteError::ReadBack {
            path: path.into(),
            tensor: tensor.into(),
            got,
            expected,
        };
        for (piece, got) in plan.pieces.iter().zip(&gguf.tensors) {
            let Some(spec) = &piece.tensor else { continue };
            let says = |name: &str, ty: GgmlType, shape: &[u64], n_bytes: u64, at: u64| {
                format!("`{name}`, {} {shape:?}, {n_bytes} bytes at offset {at}", ty.name())
            };
            let expected = says(&spec.name, spec.ty, &spec.shape, piece.n_bytes, piece.offset);
            let got = says(&got.name, got.ty, &got.shape, got.n_bytes, gguf.data_start + got.offset);
            if got != expected {
                return Err(differs(&spec.name, got, expected));
            }
        }
        if gguf.tensors.len() != plan.pieces.len() {
            return Err(differs("(all)", format!("{} tensors", gguf.tensors.len()), plan.pieces.len().to_string()));
        }
        Ok(())
    }
}

/// Installs files until no more are coming.
fn install_all(pending: &Mutex<mpsc::Receiver<Pending>>) -> Result<(), TransferError> {
    loop {
        // The lock is given back before the disk is waited for.
        let next = match pending.lock() {
            Ok(pending) => pending.recv(),
            Err(_) => return Ok(()),
        };
        match next {
            Ok(next) => install(next)?,
            Err(mpsc::RecvError) => return Ok(()),
        }
    }
}

/// Makes a written file durable and gives it its name.
pub(super) fn install(pending: Pending) -> Result<(), TransferError> {
    pending.file.sync_all().map_err(TransferError::io(&pending.from, "write the file to disk"))?;
    fs::rename(&pending.from, &pending.to).map_err(TransferError::io(&pending.to, "rename the finished file"))
}
