//! Tiny packages for tests: a llama-like model of a few layers, cut into fragments in a temporary directory.

use std::{
    fs::{self, File},
    io::BufWriter,
    path::{Path, PathBuf},
};

use serde_json::{Value as Json, json};

use super::{Manifest, Package, PackageError, Sha256Digest};
use crate::gguf::{GgmlType, GgufFile, GgufWriter, Metadata, TensorSpec, Value};

/// What the package is like.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    /// `general.architecture`
    pub(crate) arch: &'static str,
    /// Layers, MTP blocks counted.
    pub(crate) layers: u32,
    /// Width of a hidden row.
    pub(crate) n_embd: u64,
    /// Entries of the vocabulary.
    pub(crate) n_vocab: u64,
    /// No `output.weight`.
    pub(crate) tied: bool,
    /// The last layer is an MTP block; with its own embedding or not.
    pub(crate) mtp: Option<Mtp>,
    /// Where `rope_freqs.weight` lies.
    pub(crate) factors: Option<&'static str>,
    /// Number of projectors.
    pub(crate) projectors: usize,
    /// First byte of every tensor, so that packages differ in content alone.
    pub(crate) fill: u8,
}

/// Kinds of MTP block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mtp {
    /// With `nextn.embed_tokens.weight`.
    OwnEmbeddings,
    /// Without.
    ModelEmbeddings,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            arch: "llama",
            layers: 3,
            n_embd: 8,
            n_vocab: 5,
            tied: false,
            mtp: None,
            factors: None,
            projectors: 0,
            fill: 1,
        }
    }
}

/// A package in a temporary directory.
pub(crate) struct TestPackage {
    dir: tempfile::TempDir,
}

impl Recipe {
    /// Writes the package.
    pub(crate) fn write(&self) -> TestPackage {
        let dir = tempfile::tempdir().unwrap();
        for sub in ["shared", "layers", "projectors"] {
            fs::create_dir(dir.path().join(sub)).unwrap();
        }
        let artifact = |path: &str, metadata: &Metadata, tensors: &[TensorSpec]| {
            write_fragment(&dir.path().join(path), metadata, tensors, self.fill);
            entry(dir.path(), path)
        };
        let with_factors = |part: &str, mut tensors: Vec<TensorSpec>| {
            if self.factors == Some(part) {
                tensors.push(tensor("rope_freqs.weight", &[4]));
            }
            tensors
        };
        let fragment: Metadata = [("general.architecture", self.arch)].into_iter().collect();
        let embeddings = vec![tensor("token_embd.weight", &[self.n_embd, self.n_vocab])];
        let mut output = vec![tensor("output_norm.weight", &[self.n_embd])];
        if !self.tied {
            output.push(tensor("output.weight", &[self.n_embd, self.n_vocab]));
        }
        let layers = (0..self.layers).map(|layer| {
            let path = format!("layers/layer-{layer:05}.gguf");
            let mut artifact = artifact(&path, &fragment, &self.layer(layer));
            artifact["layer_index"] = json!(layer);
            artifact
        });
        let projectors = (0..self.projectors).map(|i| {
            let clip: Metadata = [("general.architecture", "clip")].into_iter().collect();
            let path = format!("projectors/mmproj-{i}.gguf");
            let mut artifact = artifact(&path, &clip, &[tensor("v.blk.0.attn_q.weight", &[4, 4])]);
            artifact["kind"] = json!("mmproj");
            artifact
        });
        let manifest = json!({
            "schema_version": 1,
            "model_id": "test/tiny:F32",
            "source_model": {"path": "/source/tiny.gguf", "sha256": Sha256Digest::of(b"source")},
            "format": "layer-package",
            "layer_count": self.layers,
            "activation_width": self.n_embd,
            "shared": {
                "metadata": artifact("shared/metadata.gguf", &self.metadata(), &with_factors("metadata", Vec::new())),
                "embeddings": artifact("shared/embeddings.gguf", &fragment, &with_factors("embeddings", embeddings)),
                "output": artifact("shared/output.gguf", &fragment, &with_factors("output", output)),
            },
            "layers": layers.collect::<Vec<_>>(),
            "projectors": projectors.collect::<Vec<_>>(),
            "skippy_abi_version": "1.0.0",
            "created_at_unix_secs": 1_790_000_000u64,
        });
        let package = TestPackage { dir };
        package.set_manifest(&manifest);
        package
    }

    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::default();
        let key = |suffix: &str| format!("{}.{suffix}", self.arch);
        metadata.set("general.architecture", self.arch);
        metadata.set("general.name", "Tiny");
        metadata.set(key("block_count"), Value::U32(self.layers));
        metadata.set(key("context_length"), Value::U32(128));
        metadata.set(key("embedding_length"), Value::U32(self.n_embd as u32));
        if self.mtp.is_some() {
            metadata.set(key("nextn_predict_layers"), Value::U32(1));
        }
        metadata.set("tokenizer.ggml.model", "gpt2");
        metadata.set("tokenizer.chat_template", "{{ messages }}");
        metadata
    }

    fn layer(&self, layer: u32) -> Vec<TensorSpec> {
        let name = |suffix: &str| format!("blk.{layer}.{suffix}.weight");
        let mut tensors = vec![
            tensor(&name("attn_norm"), &[self.n_embd]),
            tensor(&name("attn_q"), &[self.n_embd, self.n_embd]),
            tensor(&name("ffn_norm"), &[self.n_embd]),
        ];
        if let Some(mtp) = self.mtp.filter(|_| layer + 1 == self.layers) {
            tensors.push(tensor(&name("nextn.eh_proj"), &[2 * self.n_embd, self.n_embd]));
            if mtp == Mtp::OwnEmbeddings {
                tensors.push(tensor(&name("nextn.embed_tokens"), &[self.n_embd, self.n_vocab]));
            }
        }
        tensors
    }
}

impl TestPackage {
    /// Its directory.
    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    /// A file of it.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    /// Opens it, without a verdict cache.
    pub(crate) fn open(&self) -> Package {
        self.try_open().unwrap()
    }

    /// Opens it, without a verdict cache.
    pub(crate) fn try_open(&self) -> Result<Package, PackageError> {
        Package::open(self.root()).map(|package| package.with_verdicts(None))
    }

    /// The manifest as JSON.
    pub(crate) fn manifest(&self) -> Json {
        serde_json::from_slice(&fs::read(self.file(Manifest::FILE_NAME)).unwrap()).unwrap()
    }

    /// Replaces the manifest.
    pub(crate) fn set_manifest(&self, manifest: &Json) {
        fs::write(self.file(Manifest::FILE_NAME), manifest.to_string()).unwrap();
    }

    /// Changes the manifest.
    pub(crate) fn edit_manifest(&self, edit: impl FnOnce(&mut Json)) {
        let mut manifest = self.manifest();
        edit(&mut manifest);
        self.set_manifest(&manifest);
    }

    /// Writes another fragment and declares its size, digest and tensors, at a JSON pointer like `/layers/1`.
    pub(crate) fn replace_fragment(&self, pointer: &str, metadata: &Metadata, tensors: &[TensorSpec]) {
        let mut manifest = self.manifest();
        let declared = manifest.pointer_mut(pointer).unwrap();
        let path = declared["path"].as_str().unwrap().to_string();
        write_fragment(&self.file(&path), metadata, tensors, 1);
        for (key, value) in entry(self.root(), &path).as_object().unwrap() {
            declared[key] = value.clone();
        }
        self.set_manifest(&manifest);
    }
}

/// A tensor of type F32.
pub(crate) fn tensor(name: &str, shape: &[u64]) -> TensorSpec {
    TensorSpec { name: name.into(), shape: shape.into(), ty: GgmlType::F32 }
}

fn write_fragment(path: &Path, metadata: &Metadata, tensors: &[TensorSpec], fill: u8) {
    let out = BufWriter::new(File::create(path).unwrap());
    let mut writer = GgufWriter::new(out, metadata, tensors, 32).unwrap();
    for tensor in tensors {
        let bytes = tensor.ty.tensor_bytes(&tensor.shape).unwrap() as usize;
        writer.write_tensor(&vec![fill; bytes]).unwrap();
    }
    writer.finish().unwrap();
}

/// The manifest entry of a fragment on disk.
fn entry(root: &Path, path: &str) -> Json {
    let file = GgufFile::open(&root.join(path)).unwrap();
    let tensors = &file.gguf().tensors;
    json!({
        "path": path,
        "tensor_count": tensors.len(),
        "tensor_bytes": tensors.iter().map(|tensor| tensor.n_bytes).sum::<u64>(),
        "artifact_bytes": file.bytes().len(),
        "sha256": Sha256Digest::of(file.bytes()),
    })
}
