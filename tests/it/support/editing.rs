//! GGUF models taken apart, changed and packaged.

use super::{TestPackage, package_of};
use skippy_stage::gguf::{GgmlType, GgufFile, GgufWriter, Metadata, TensorSpec};
use std::{fs::File, io::BufWriter, path::Path};

/// A model in memory.
pub(crate) struct Model {
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<Tensor>,
}

pub(crate) struct Tensor {
    pub(crate) spec: TensorSpec,
    pub(crate) data: Vec<u8>,
}

impl Model {
    pub(crate) fn open(path: &Path) -> Self {
        let file = GgufFile::open(path).unwrap();
        let tensor = |info: &skippy_stage::gguf::TensorInfo| Tensor {
            spec: TensorSpec { name: info.name.clone(), shape: info.shape.clone(), ty: info.ty },
            data: file.tensor_bytes(info).to_vec(),
        };
        Self { metadata: file.gguf().metadata.clone(), tensors: file.gguf().tensors.iter().map(tensor).collect() }
    }

    /// Tensors whose name ends so; there is one at least.
    pub(crate) fn ending(&mut self, end: &str) -> Vec<&mut Tensor> {
        let found: Vec<_> = self.tensors.iter_mut().filter(|tensor| tensor.spec.name.ends_with(end)).collect();
        assert!(!found.is_empty(), "no tensor `*{end}`");
        found
    }

    /// Adds a tensor of zeros.
    pub(crate) fn add(&mut self, name: &str, shape: &[u64], ty: GgmlType) {
        let mut tensor = Tensor { spec: TensorSpec { name: name.into(), shape: shape.to_vec(), ty }, data: Vec::new() };
        tensor.become_zeros();
        self.tensors.push(tensor);
    }

    pub(crate) fn remove(&mut self, end: &str) {
        self.ending(end);
        self.tensors.retain(|tensor| !tensor.spec.name.ends_with(end));
    }

    pub(crate) fn package(&self) -> TestPackage {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edited.gguf");
        let specs: Vec<TensorSpec> = self.tensors.iter().map(|tensor| tensor.spec.clone()).collect();
        let out = BufWriter::new(File::create(&path).unwrap());
        let mut writer = GgufWriter::new(out, &self.metadata, &specs, 32).unwrap();
        self.tensors.iter().for_each(|tensor| writer.write_tensor(&tensor.data).unwrap());
        writer.finish().unwrap();
        package_of(&path)
    }
}

impl Tensor {
    /// Zeros, as many as shape and type ask for.
    pub(crate) fn become_zeros(&mut self) {
        self.data = vec![0; self.spec.ty.tensor_bytes(&self.spec.shape).unwrap() as usize];
    }

    /// Random bytes in another type.
    pub(crate) fn become_noise(&mut self, ty: GgmlType, random: &mut Bytes) {
        self.spec.ty = ty;
        self.become_zeros();
        self.data.iter_mut().for_each(|byte| *byte = random.next());
    }
}

/// Random bytes, the same ones for each seed (xorshift64).
pub(crate) struct Bytes(u64);

impl Bytes {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u8 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as u8
    }

    /// Token ids below `n_vocab`.
    pub(crate) fn ids(&mut self, n: usize, n_vocab: i32) -> Vec<i32> {
        (0..n).map(|_| (i32::from(self.next()) * 256 + i32::from(self.next())) % n_vocab).collect()
    }
}
