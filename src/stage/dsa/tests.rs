//! What only shows from inside: the plan of attention, and a wrong rotation of the indexer.

mod chunking;
mod rotation;

use super::*;
use crate::{
    gguf::GgufFile,
    llama::KvType,
    package::{
        LayerRange, Package, Verify,
        write::{WriteRequest, write_package},
    },
};
use std::path::{Path as FsPath, PathBuf};

fn fixture(name: &str) -> PathBuf {
    FsPath::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/glm52").join(name)
}

/// The whole model of the fixture.
fn stage() -> DsaStage {
    let dir = tempfile::tempdir().unwrap();
    let out_dir = dir.path().join("package");
    let request = WriteRequest {
        source: fixture("model.gguf"),
        out_dir: out_dir.clone(),
        model_id: "test/model:file".into(),
        source_revision: "test".into(),
        source_file: "model.gguf".into(),
        projectors: Vec::new(),
        jobs: 1,
    };
    write_package(&request, &()).unwrap();
    let package = Package::open(&out_dir).unwrap();
    let selection = package.select(LayerRange::new(0, 7).unwrap()).unwrap();
    let files = package.load(&selection, Verify::SizesOnly).unwrap();
    let options = DsaStageOptions {
        n_ctx_seq: 256,
        n_batch: 256,
        n_seq_max: 1,
        cache_type: KvType::F32,
        drafts: None,
        switches: Switches::default(),
    };
    let pool = Arc::new(Threadpool::new(1).unwrap());
    DsaStage::load(files, pool, Arc::new(Resolver::default()), &options).unwrap()
}

/// An array of the reference.
fn reference(name: &str) -> Vec<[u8; 4]> {
    let file = GgufFile::open(&fixture("reference.gguf")).unwrap();
    file.tensor_bytes(file.gguf().tensor(name).unwrap()).as_chunks::<4>().0.to_vec()
}
