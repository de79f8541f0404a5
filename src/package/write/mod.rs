//! Writes a layer package from a GGUF model (spec, "Publishing Rules").
//!
//! [`write_package`] lays everything out from the source's headers, then streams: source files are hashed while
//! artifacts are copied, hashed, read back and compared, on all cores at once. Each artifact appears under its name only
//! when it is whole and on disk, the manifest last of all; an interrupted run goes on where it stopped.

pub mod derive;
mod job;
pub mod layout;
mod projector;
pub mod provenance;
mod publish;
mod readme;
mod resume;
pub(super) mod transfer;

use std::path::{Path, PathBuf};

use self::{
    derive::{Derived, Inventory},
    job::Job,
    layout::{Layout, LayoutError},
    projector::{ProjectorSource, check_unique},
    provenance::{Provenance, ProvenanceError},
    publish::{Parts, assemble, publish},
    transfer::SourceFiles,
};
pub use self::{
    resume::{Identity, OutDirError, STATE_FILE},
    transfer::TransferError,
};
use super::{
    Extra, LayerRange, Manifest, ManifestError, Package, PackageError, RelPathError, Sha256Digest, SourceFile, Verify,
};
use crate::gguf::{GgufError, GgufFile, Source};

/// What to write, from what, to where.
#[derive(Clone, Debug)]
pub struct WriteRequest {
    /// A GGUF file, a shard, or a directory with one model.
    pub source: PathBuf,
    /// The package directory.
    pub out_dir: PathBuf,
    /// Model coordinate, `org/repo:distribution`.
    pub model_id: String,
    /// Commit of the source repository.
    pub source_revision: String,
    /// Name of the source file, or of its first shard, within the source repository.
    pub source_file: String,
    /// Projector files to copy.
    pub projectors: Vec<PathBuf>,
    /// Threads, at least 1.
    pub jobs: usize,
}

/// What was written.
#[derive(Debug)]
pub struct Written {
    /// The manifest.
    pub manifest: Manifest,
    /// Its digest.
    pub manifest_sha256: Sha256Digest,
    /// Artifacts that were there already, whole and equal to the source.
    pub reused: usize,
    /// The generation block and what was left out of it.
    pub derived: Derived,
}

/// Why a package was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The source is not a sound GGUF model, or a fragment is not a sound GGUF file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The source cannot be cut into layers.
    #[error("`{}`: {error}", path.display())]
    Layout {
        /// The source.
        path: PathBuf,
        /// Why not.
        error: LayoutError,
    },
    /// The user's statements about the source are malformed.
    #[error(transparent)]
    Provenance(#[from] ProvenanceError),
    /// The directory cannot be used.
    #[error(transparent)]
    OutDir(#[from] OutDirError),
    /// Reading or writing failed, or what was written differs from the source.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// A projector that is not one.
    #[error("`{}`: {problem}, expected a multimodal projector (`general.architecture` `clip`)", path.display())]
    NotAProjector {
        /// The file.
        path: PathBuf,
        /// What it is.
        problem: String,
    },
    /// A projector whose file name cannot be used in a package.
    #[error("`{}`: its file name cannot be used in a package: expected {error}", path.display())]
    ProjectorName {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: RelPathError,
    },
    /// Two projectors of the same name.
    #[error("`{}`: another projector has the same file name; rename one of them", path.display())]
    DuplicateProjector {
        /// The second file.
        path: PathBuf,
    },
    /// A fragment says something else than the source about a tensor.
    #[error("`{}`: tensor `{tensor}` reads back as {got}, expected {expected}", path.display())]
    ReadBack {
        /// The fragment.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What the fragment says.
        got: String,
        /// What the source says.
        expected: String,
    },
    /// The manifest breaks a rule of the spec.
    #[error("the manifest of this model would be refused by its readers: {0}")]
    Manifest(#[from] ManifestError),
    /// A stage would refuse the package.
    #[error("the package of this model would be refused by its readers: {0}")]
    Package(#[from] PackageError),
    /// No threads.
    #[error("cannot start {jobs} threads: {error}")]
    Threads {
        /// How many were asked for.
        jobs: usize,
        /// Why not.
        error: rayon::ThreadPoolBuildError,
    },
}

/// What is told about the progress, from several threads.
pub trait Progress: Sync {
    /// The bytes that will be hashed or written in all.
    fn start(&self, total: u64);
    /// That many bytes more are done.
    fn add(&self, bytes: u64);
}

/// Nobody watches.
impl Progress for () {
    fn start(&self, _: u64) {}
    fn add(&self, _: u64) {}
}

/// Writes the package, or goes on with one that was begun.
///
/// # Errors
/// When the source or a statement about it is refused, the directory holds something else, or reading, writing or
/// comparing fails. The directory then holds no manifest, and the same call goes on where this one stopped.
pub fn write_package(request: &WriteRequest, progress: &dyn Progress) -> Result<Written, WriteError> {
    let source = Source::open(&request.source)?;
    let layout = Layout::new(&source).map_err(|error| WriteError::Layout { path: request.source.clone(), error })?;
    let provenance = Provenance::new(&source, &request.model_id, &request.source_revision, &request.source_file)?;
    let projectors =
        request.projectors.iter().map(|path| ProjectorSource::open(path)).collect::<Result<Vec<_>, _>>()?;

    let shards = source.files().len();
    let paths = source.files().iter().map(GgufFile::path).chain(request.projectors.iter().map(PathBuf::as_path));
    let files = SourceFiles::open(paths)?;
    for (at, file) in source.files().iter().enumerate() {
        files.check_header(at, file)?;
    }
    let sizes = files.sizes();
    let mut plans = layout.artifacts;
    for (index, projector) in projectors.iter().enumerate() {
        plans.push(projector.plan(shards + index, sizes.get(shards + index).copied().unwrap_or(0)));
        check_unique(&plans, projector)?;
    }
    let shard_sizes = sizes.get(..shards).unwrap_or_default();
    let identity = Identity {
        model_id: provenance.model_id.to_string(),
        revision: provenance.revision.clone(),
        files: provenance.files.iter().map(ToString::to_string).zip(shard_sizes.iter().copied()).collect(),
        projectors: projectors.iter().map(|projector| projector.path.to_string()).collect(),
    };
    let created_before = resume::prepare(&request.out_dir, &identity, &plans)?;
    progress.start(shard_sizes.iter().sum::<u64>() + plans.iter().map(|plan| plan.file_len).sum::<u64>());

    let job = Job { files: &files, plans: &plans, out_dir: &request.out_dir, on_bytes: &|n| progress.add(n) };
    let (digests, done) = job.run(shards, request.jobs)?;
    files.check_unchanged()?;

    let source_files = identity.files.iter().zip(&digests);
    let source_files = source_files.map(|((path, size), digest)| SourceFile {
        path: path.clone(),
        size_bytes: Some(*size),
        sha256: Some(*digest),
        extra: Extra::new(),
    });
    let reused = done.iter().filter(|done| done.reused).count();
    let mut manifest = assemble(Parts {
        provenance: &provenance,
        files: source_files.collect(),
        layer_count: layout.layer_count,
        activation_width: layout.activation_width,
        plans: &plans,
        done: &done,
    })?;
    let derived = derive::derive(source.metadata(), &open_as_reader(&request.out_dir, &manifest)?);
    manifest.generation = derived.generation.clone();
    if reused == done.len() && created_before.is_some() {
        // The same package as before: the same manifest, and so the same digest.
        manifest.created_at_unix_secs = created_before;
    }
    let manifest = Manifest::parse(manifest.to_json().as_bytes())?;
    let tensors = source.tensors().count();
    let manifest_sha256 = publish(&request.out_dir, &manifest, &layout.arch, tensors, &derived)?;
    Ok(Written { manifest, manifest_sha256, reused, derived })
}

/// Opens the package as a stage that owns all of it would, and lists its tensors.
fn open_as_reader(out_dir: &Path, manifest: &Manifest) -> Result<Inventory, WriteError> {
    let root = out_dir.canonicalize().map_err(TransferError::io(out_dir, "open the directory"))?;
    let package = Package::unchecked(root, manifest.clone(), Sha256Digest::of(manifest.to_json().as_bytes()));
    let selection = package.select(LayerRange::new(0, manifest.layer_count).map_err(PackageError::from)?)?;
    let files = package.load(&selection, Verify::SizesOnly)?;
    let tensors = |file: &GgufFile| file.gguf().tensors.clone();
    Ok(Inventory {
        embeddings: files.embeddings.as_ref().map(tensors).unwrap_or_default(),
        layers: files.layers.iter().map(|(_, file)| tensors(file)).collect(),
        output: files.output.as_ref().map(tensors).unwrap_or_default(),
    })
}
