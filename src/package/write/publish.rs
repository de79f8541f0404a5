//! The manifest, the README, and the order in which they become visible.

use std::{
    fs::{self, File},
    io,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    WriteError,
    derive::Derived,
    job::{Done, Pending, install},
    layout::ArtifactPlan,
    provenance::Provenance,
    readme::{self, Facts},
    resume,
    transfer::TransferError,
};
use crate::package::{
    Artifact, Extra, Format, LayerArtifact, Manifest, Projector, ProjectorKind, RelPath, SchemaVersion, Sha256Digest,
    Shared, SourceFile, SourceModel, abi::ABI_VERSION, classify::Role,
};

/// What the manifest is made of.
pub(super) struct Parts<'a> {
    pub(super) provenance: &'a Provenance,
    pub(super) files: Vec<SourceFile>,
    pub(super) layer_count: u32,
    pub(super) activation_width: u32,
    pub(super) plans: &'a [ArtifactPlan],
    pub(super) done: &'a [Done],
}

/// Puts the manifest together and has the reader check it.
pub(super) fn assemble(parts: Parts<'_>) -> Result<Manifest, WriteError> {
    let Parts { provenance, files, layer_count, activation_width, plans, done } = parts;
    let mut shared = [None, None, None];
    let mut layers = Vec::new();
    let mut projectors = Vec::new();
    for (plan, done) in plans.iter().zip(done) {
        let artifact = artifact(plan, done)?;
        match plan.role {
            Some(Role::Metadata) => shared[0] = Some(artifact),
            Some(Role::Embeddings) => shared[1] = Some(artifact),
            Some(Role::Output) => shared[2] = Some(artifact),
            Some(Role::Layer(layer_index)) => layers.push(LayerArtifact { layer_index, artifact }),
            None => projectors.push(Projector { kind: ProjectorKind::Mmproj, artifact }),
        }
    }
    let [Some(metadata), Some(embeddings), Some(output)] = shared else {
        unreachable!("a layout has the three shared artifacts")
    };
    let primary_sha256 = files.first().and_then(|file| file.sha256).unwrap_or(Sha256Digest::of(b""));
    let mut source_model = SourceModel::new(provenance.primary_file(), primary_sha256);
    source_model.repo = Some(provenance.model_id.repo().into());
    source_model.revision = Some(provenance.revision.clone());
    source_model.primary_file = Some(provenance.primary_file().into());
    source_model.canonical_ref = Some(provenance.model_id.to_string());
    source_model.distribution_id = Some(provenance.distribution().into());
    source_model.files = files;
    let manifest = Manifest {
        schema_version: SchemaVersion,
        model_id: provenance.model_id.to_string(),
        source_model,
        format: Format,
        layer_count,
        activation_width: Some(activation_width),
        shared: Shared { metadata, embeddings, output, extra: Extra::new() },
        generation: None,
        layers,
        projectors,
        skippy_abi_version: ABI_VERSION,
        created_at_unix_secs: SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs()),
        extra: Extra::new(),
    };
    Ok(Manifest::parse(manifest.to_json().as_bytes())?)
}

fn artifact(plan: &ArtifactPlan, done: &Done) -> Result<Artifact, WriteError> {
    let path = RelPath::new(plan.path.clone());
    let path = path.map_err(|error| WriteError::ProjectorName { path: plan.path.clone().into(), error })?;
    Ok(Artifact::new(path, plan.tensors as u64, plan.tensor_bytes, plan.file_len, done.sha256))
}

/// Makes the artifacts' names durable, then writes the README and, last of all, the manifest.
pub(super) fn publish(
    out_dir: &Path,
    manifest: &Manifest,
    arch: &str,
    tensors: usize,
    derived: &Derived,
) -> Result<Sha256Digest, WriteError> {
    let text = manifest.to_json();
    let manifest_sha256 = Sha256Digest::of(text.as_bytes());
    let readme = readme::readme(Facts { manifest, manifest_sha256, arch, tensors, derived });
    for folder in ["shared", "layers", "projectors"].map(|folder| out_dir.join(folder)) {
        sync_directory(&folder)?;
    }
    write_durably(&resume::readme_path(out_dir), readme.as_bytes())?;
    write_durably(&out_dir.join(Manifest::FILE_NAME), text.as_bytes())?;
    resume::finish(out_dir)?;
    sync_directory(out_dir)?;
    Ok(manifest_sha256)
}

fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), TransferError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let from = path.with_file_name(format!(".{name}.partial"));
    fs::write(&from, bytes).map_err(TransferError::io(&from, "write the file"))?;
    let file = File::open(&from).map_err(TransferError::io(&from, "open the file"))?;
    install(Pending { file, from, to: path.into() })
}

fn sync_directory(path: &Path) -> Result<(), TransferError> {
    match File::open(path) {
        Ok(directory) => directory.sync_all().map_err(TransferError::io(path, "write the directory to disk")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(TransferError::io(path, "open the directory")(error)),
    }
}
