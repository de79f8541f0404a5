//! Small random models to cut up.

use std::{fs::File, io::BufWriter, path::Path};

use skippy_stage::gguf::{GgmlType, GgufWriter, Metadata, TensorSpec, Value};

/// A model of the llama kind.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) arch: &'static str,
    pub(super) layers: u32,
    pub(super) n_embd: u64,
    pub(super) tied: bool,
    /// The last layer is an MTP block.
    pub(super) mtp: bool,
    /// `rope_freqs.weight` is there.
    pub(super) rotary_factors: bool,
    pub(super) alignment: u64,
    pub(super) seed: u64,
    /// Changes the metadata at the end.
    pub(super) edit: fn(&mut Metadata),
    /// Changes the tensors at the end.
    pub(super) edit_tensors: fn(&mut Vec<TensorSpec>),
}

impl Default for Model {
    fn default() -> Self {
        Self {
            arch: "llama",
            layers: 4,
            n_embd: 64,
            tied: false,
            mtp: false,
            rotary_factors: false,
            alignment: 32,
            seed: 1,
            edit: |_| (),
            edit_tensors: |_| (),
        }
    }
}

pub(super) fn tensor(name: impl Into<String>, shape: &[u64], ty: GgmlType) -> TensorSpec {
    TensorSpec { name: name.into(), shape: shape.into(), ty }
}

impl Model {
    pub(super) fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::default();
        metadata.set("general.architecture", self.arch);
        metadata.set("general.name", "Tiny");
        metadata.set(format!("{}.block_count", self.arch), Value::U32(self.layers));
        metadata.set(format!("{}.embedding_length", self.arch), Value::U32(self.n_embd as u32));
        metadata.set(format!("{}.context_length", self.arch), Value::U32(256));
        metadata.set(format!("{}.rope.freq_base", self.arch), Value::F32(1e4));
        if self.mtp {
            metadata.set(format!("{}.nextn_predict_layers", self.arch), Value::U32(1));
        }
        metadata.set("tokenizer.ggml.model", "gpt2");
        (self.edit)(&mut metadata);
        metadata
    }

    /// Tensors of several types and odd sizes, so that padding is needed, and not in the order of the layers.
    pub(super) fn tensors(&self) -> Vec<TensorSpec> {
        let mut tensors = vec![tensor("output_norm.weight", &[self.n_embd], GgmlType::F32)];
        if self.rotary_factors {
            tensors.push(tensor("rope_freqs.weight", &[3], GgmlType::F32));
        }
        if !self.tied {
            tensors.push(tensor("output.weight", &[self.n_embd, 11], GgmlType::Q8_0));
        }
        for layer in (0..self.layers).rev() {
            let name = |suffix: &str| format!("blk.{layer}.{suffix}.weight");
            tensors.push(tensor(name("attn_norm"), &[self.n_embd], GgmlType::F32));
            tensors.push(tensor(name("attn_q"), &[self.n_embd, self.n_embd], GgmlType::Q4_0));
            tensors.push(tensor(name("ffn_up"), &[self.n_embd, 9], GgmlType::F16));
            tensors.push(tensor(format!("blk.{layer}.attn_q.bias"), &[7], GgmlType::F32));
            if self.mtp && layer + 1 == self.layers {
                tensors.push(tensor(name("nextn.eh_proj"), &[2 * self.n_embd, self.n_embd], GgmlType::F16));
                tensors.push(tensor(name("nextn.enorm"), &[self.n_embd], GgmlType::F32));
                tensors.push(tensor(name("nextn.hnorm"), &[self.n_embd], GgmlType::F32));
            }
        }
        tensors.push(tensor("token_embd.weight", &[self.n_embd, 11], GgmlType::F16));
        (self.edit_tensors)(&mut tensors);
        tensors
    }

    /// Writes the model to one file.
    pub(super) fn write(&self, path: &Path) {
        write_gguf(path, &self.metadata(), &self.tensors(), self.alignment, self.seed);
    }

    /// Writes the model as `<prefix>-NNNNN-of-NNNNN.gguf`.
    pub(super) fn write_shards(&self, dir: &Path, prefix: &str, count: usize) {
        let tensors = self.tensors();
        for no in 0..count {
            let mut metadata = if no == 0 { self.metadata() } else { Metadata::default() };
            metadata.set("general.architecture", self.arch);
            metadata.set("split.no", Value::U16(no as u16));
            metadata.set("split.count", Value::U16(count as u16));
            metadata.set("split.tensors.count", Value::I32(tensors.len() as i32));
            let share: Vec<TensorSpec> = tensors.iter().skip(no).step_by(count).cloned().collect();
            let path = dir.join(format!("{prefix}-{:05}-of-{count:05}.gguf", no + 1));
            write_gguf(&path, &metadata, &share, self.alignment, self.seed);
        }
    }
}

/// Writes a file with random tensor data.
pub(super) fn write_gguf(path: &Path, metadata: &Metadata, tensors: &[TensorSpec], alignment: u64, seed: u64) {
    let out = BufWriter::new(File::create(path).unwrap());
    let mut writer = GgufWriter::new(out, metadata, tensors, alignment).unwrap();
    for tensor in tensors {
        let bytes = tensor.ty.tensor_bytes(&tensor.shape).unwrap() as usize;
        writer.write_tensor(&random(bytes, seed ^ tensor.name.len() as u64)).unwrap();
    }
    writer.finish().unwrap();
}

/// xorshift64*.
fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}
