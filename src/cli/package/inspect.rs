//! `inspect`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::{Value as Json, json};

use super::{print, print_json, refuse_hub_source, size};
use crate::{
    gguf::{GgufFile, Source, TensorInfo},
    package::{Manifest, Package, classify::classify},
};

/// Describe a package by its manifest and shared metadata, or a GGUF model by its header.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A package directory, a GGUF file, or a directory that holds one GGUF model.
    path: PathBuf,
    /// Print the description as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    refuse_hub_source(&args.path)?;
    let description = if is_package(&args.path) { package(&args.path)? } else { model(&args.path)? };
    if args.json {
        print_json(&description)?;
    } else {
        let mut out = String::new();
        render(&description, 0, &mut out);
        print(&out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A directory is a package unless it holds GGUF files and no manifest.
fn is_package(path: &Path) -> bool {
    let holds_gguf = || {
        let mut entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.any(|entry| entry.path().extension().is_some_and(|extension| extension == "gguf"))
    };
    path.is_dir() && (path.join(Manifest::FILE_NAME).exists() || !holds_gguf())
}

fn package(path: &Path) -> anyhow::Result<Json> {
    let package = Package::open(path)?;
    let mut description = serde_json::to_value(package.inspect()?)?;
    if let Some(fields) = description.as_object_mut() {
        fields.shift_insert(0, "kind".into(), "layer-package".into());
        let source = &package.manifest().source_model;
        fields.insert("source_sha256".into(), source.sha256.to_string().into());
        fields.insert("source_revision".into(), source.revision.clone().into());
    }
    Ok(description)
}

fn model(path: &Path) -> anyhow::Result<Json> {
    // A fragment, or a single shard of a model whose others are elsewhere, is described by itself.
    let source = Source::open(path)?;
    let metadata = source.metadata();
    let arch = metadata.arch().unwrap_or_default();
    let tensors: Vec<&TensorInfo> = source.tensors().map(|(_, tensor)| tensor).collect();
    let (mut types, mut artifacts) = (BTreeMap::new(), BTreeMap::new());
    for tensor in &tensors {
        *types.entry(tensor.ty.name()).or_insert(0u64) += tensor.n_bytes;
        let role = classify(arch, &tensor.name).map_or_else(|_| "none".into(), |role| role.to_string());
        let role = if role.starts_with("layer") { "layers".to_owned() } else { role };
        *artifacts.entry(role).or_insert(0u64) += tensor.n_bytes;
    }
    let files = source.files().iter().map(|file| file.path().file_name().unwrap_or_default().to_string_lossy());
    let first = source.files().first().map(GgufFile::gguf);
    Ok(json!({
        "kind": "gguf",
        "files": files.collect::<Vec<_>>(),
        "version": first.map(|gguf| gguf.version),
        "alignment": first.map(|gguf| gguf.alignment),
        "architecture": metadata.arch(),
        "name": metadata.str("general.name"),
        "layer_count": metadata.arch_uint("block_count"),
        "mtp_layers": metadata.arch_uint("nextn_predict_layers").unwrap_or(0),
        "activation_width": metadata.arch_uint("embedding_length"),
        "context_length": metadata.arch_uint("context_length"),
        "metadata_keys": metadata.len(),
        "tensors": tensors.len(),
        "tensor_bytes": tensors.iter().map(|tensor| tensor.n_bytes).sum::<u64>(),
        "type_bytes": types,
        "artifact_bytes": artifacts,
    }))
}

/// JSON as indented lines for people; sizes with units.
pub(super) fn render(value: &Json, depth: usize, out: &mut String) {
    let Some(fields) = value.as_object() else { return };
    for (key, value) in fields {
        let label = format!("{:indent$}{key}", "", indent = depth * 2);
        match value {
            Json::Null => {}
            Json::Object(_) => {
                out.push_str(&format!("{label}\n"));
                render(value, depth + 1, out);
            }
            Json::Array(items) if items.is_empty() => {}
            Json::Array(items) => {
                let items: Vec<String> = items.iter().map(plain).collect();
                out.push_str(&format!("{label}: {}\n", items.join(", ")));
            }
            Json::Number(number) if key.ends_with("bytes") || is_byte_table(&label, out) => {
                out.push_str(&format!("{label}: {}\n", size(number.as_u64().unwrap_or(0))));
            }
            other => out.push_str(&format!("{label}: {}\n", plain(other))),
        }
    }
}

/// Whether the line belongs to a table of sizes, whose heading is the last line that is not indented.
fn is_byte_table(label: &str, out: &str) -> bool {
    label.starts_with("  ")
        && out.lines().rev().find(|line| !line.starts_with(' ')).is_some_and(|line| line.ends_with("bytes"))
}

/// A value on one line, without the control characters a foreign file may hold.
fn plain(value: &Json) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), Into::into);
    super::one_line(&text)
}
