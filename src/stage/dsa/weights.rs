//! The weights of a stage, in place in the mapped fragments.

use super::{DsaStageError, dims::Dims};
use crate::{
    ggml::{self, GgmlError, Leaf, Memory},
    gguf::GgufFile,
    package::{
        StageFiles,
        glm_dsa::{Config, TensorRule, Usage},
    },
    policy::Role,
};
use std::sync::Arc;

/// One transformer layer.
pub(super) struct Layer {
    pub(super) attn_norm: Leaf,
    pub(super) q_a: Leaf,
    pub(super) q_a_norm: Leaf,
    pub(super) q_b: Leaf,
    pub(super) kv_a: Leaf,
    pub(super) kv_a_norm: Leaf,
    pub(super) k_b: Leaf,
    pub(super) v_b: Leaf,
    pub(super) out: Leaf,
    pub(super) ffn_norm: Leaf,
    /// On full layers.
    pub(super) indexer: Option<Indexer>,
    pub(super) ffn: Ffn,
}

/// The lightning indexer of a full layer.
pub(super) struct Indexer {
    pub(super) q_b: Leaf,
    pub(super) k: Leaf,
    pub(super) k_norm: Leaf,
    pub(super) k_bias: Leaf,
    pub(super) weights: Leaf,
}

/// Gate, up and down projection.
pub(super) struct Glu {
    pub(super) gate: Leaf,
    pub(super) up: Leaf,
    pub(super) down: Leaf,
}

/// The second half of a layer.
pub(super) enum Ffn {
    /// A leading dense layer.
    Dense(Glu),
    /// Routed experts, and one that sees every row.
    Experts { router: Leaf, bias: Option<Leaf>, routed: Glu, shared: Option<Glu> },
}

impl Layer {
    /// Bytes that one row reads: of the routed experts only those it uses.
    fn bytes_for_a_row(&self, dims: &Dims) -> usize {
        let attention = [&self.q_a, &self.q_b, &self.kv_a, &self.k_b, &self.v_b, &self.out];
        let mut bytes: usize = attention.iter().map(|leaf| leaf.n_bytes()).sum();
        if let Some(indexer) = &self.indexer {
            bytes += indexer.q_b.n_bytes() + indexer.k.n_bytes() + indexer.weights.n_bytes();
        }
        bytes
            + match &self.ffn {
                Ffn::Dense(glu) => glu.n_bytes(),
                Ffn::Experts { router, routed, shared, .. } => {
                    let used = routed.n_bytes() / dims.experts.max(1) as usize * dims.experts_used as usize;
                    router.n_bytes() + used + shared.as_ref().map_or(0, Glu::n_bytes)
                }
            }
    }
}

impl Glu {
    fn n_bytes(&self) -> usize {
        self.gate.n_bytes() + self.up.n_bytes() + self.down.n_bytes()
    }
}

/// Norm and head of the output boundary.
pub(super) struct Head {
    pub(super) norm: Leaf,
    pub(super) weight: Leaf,
}

/// The MTP block: a layer with its own way in and, optionally, out.
pub(super) struct Mtp {
    pub(super) layer: Layer,
    pub(super) embed: Leaf,
    pub(super) project: Leaf,
    pub(super) embed_norm: Leaf,
    pub(super) hidden_norm: Leaf,
    pub(super) head_norm: Leaf,
    pub(super) head: Leaf,
}

/// Everything a stage computes with.
pub(super) struct Weights {
    /// Embedding table, of a stage that owns the input.
    pub(super) embed: Option<Leaf>,
    /// Trunk layers with their index in the model.
    pub(super) layers: Vec<(u32, Layer)>,
    /// Of a stage that owns the output.
    pub(super) head: Option<Head>,
    /// Of a stage that owns the output, if the package has the block.
    pub(super) mtp: Option<Mtp>,
}

/// Weights that a thread must have to read for one row before it is worth having: below, threads wait longer for each
/// other than they work (measured on the bundled model, whose rows read 3.4 MiB).
const BYTES_PER_THREAD: usize = 2 << 20;

/// A mapped fragment.
struct Fragment {
    file: Arc<GgufFile>,
    memory: Memory,
}

impl Fragment {
    fn new(file: GgufFile) -> Result<Self, DsaStageError> {
        let file = Arc::new(file);
        let memory = Memory::read_only(file.clone())?;
        Ok(Self { file, memory })
    }

    fn find(&self, name: &str) -> Result<Option<Leaf>, DsaStageError> {
        let gguf = self.file.gguf();
        let Some(tensor) = gguf.tensor(name) else { return Ok(None) };
        let in_file = |source: GgmlError| DsaStageError::Tensor {
            file: self.file.path().display().to_string(),
            tensor: name.to_owned(),
            source,
        };
        let offset = usize::try_from(gguf.data_start + tensor.offset);
        let offset = offset.map_err(|_| in_file(GgmlError::Alloc("an address")))?;
        self.memory.leaf(tensor.ty, &tensor.shape, offset).map(Some).map_err(in_file)
    }

    fn get(&self, name: &str) -> Result<Leaf, DsaStageError> {
        self.find(name)?.ok_or_else(|| DsaStageError::MissingTensor {
            file: self.file.path().display().to_string(),
            tensor: name.to_owned(),
        })
    }

    /// The contract allows every type that a file can have; this CPU may not multiply all of them.
    fn check_types(&self, rules: &[TensorRule]) -> Result<(), DsaStageError> {
        for rule in rules.iter().filter(|rule| rule.usage == Usage::Matrix || rule.usage == Usage::Router) {
            if let Some(tensor) = self.file.gguf().tensor(&rule.name)
                && !ggml::is_matrix_type(tensor.ty)
            {
                let (tensor, ty) = (rule.name.clone(), tensor.ty.name());
                return Err(DsaStageError::Type { file: self.file.path().display().to_string(), tensor, ty });
            }
        }
        Ok(())
    }
}

impl Weights {
    /// Threads worth having for a few rows through the trunk, and through the draft head.
    pub(super) fn useful_threads(&self, dims: &Dims) -> (u32, u32) {
        let threads = |bytes: usize| u32::try_from(bytes.div_ceil(BYTES_PER_THREAD)).unwrap_or(u32::MAX);
        let head = self.head.as_ref().map_or(0, |head| head.weight.n_bytes());
        let trunk: usize = self.layers.iter().map(|(_, layer)| layer.bytes_for_a_row(dims)).sum();
        let draft = self
            .mtp
            .as_ref()
            .map_or(0, |mtp| mtp.layer.bytes_for_a_row(dims) + mtp.project.n_bytes() + mtp.head.n_bytes());
        (threads(trunk + head), threads(draft))
    }

    /// Takes over the fragments of `files`, held against `config` first.
    pub(super) fn load(files: StageFiles, config: &Config) -> Result<Self, DsaStageError> {
        let (owns_input, owns_output) = (files.owns_input(), files.owns_output());
        config.check_stage(&files)?;
        let embeddings = files.embeddings.map(Fragment::new).transpose()?;
        let output = files.output.map(Fragment::new).transpose()?;
        let table = || match &embeddings {
            Some(fragment) => fragment.get("token_embd.weight"),
            None => Err(DsaStageError::NoEmbeddings),
        };
        let head = match (&output, owns_output) {
            (Some(output), true) => {
                let weight = output.find("output.weight")?.map_or_else(table, Ok)?;
                Some(Head { norm: output.get("output_norm.weight")?, weight })
            }
            (None, true) => return Err(DsaStageError::NoOutput),
            (_, false) => None,
        };
        let mut layers = Vec::with_capacity(files.layers.len());
        let mut mtp = None;
        for (index, file) in files.layers {
            let fragment = Fragment::new(file)?;
            fragment.check_types(&config.layer_tensors(index))?;
            let layer = load_layer(&fragment, config, index)?;
            match (index < config.trunk_layers, &head) {
                (true, _) => layers.push((index, layer)),
                (false, Some(head)) => mtp = Some(load_mtp(&fragment, index, layer, head, &table)?),
                // An MTP block of a stage that does not own the output cannot occur: it comes last.
                (false, None) => {}
            }
        }
        let embed = if owns_input { Some(table()?) } else { None };
        Ok(Self { embed, layers, head, mtp })
    }
}

fn load_layer(fragment: &Fragment, config: &Config, index: u32) -> Result<Layer, DsaStageError> {
    let get = |suffix: &str| fragment.get(&format!("blk.{index}.{suffix}"));
    let find = |suffix: &str| fragment.find(&format!("blk.{index}.{suffix}"));
    let glu = |suffix: &str| -> Result<Glu, DsaStageError> {
        let (gate, up, down) = ("ffn_gate", "ffn_up", "ffn_down");
        let one = |name: &str| get(&format!("{name}{suffix}.weight"));
        Ok(Glu { gate: one(gate)?, up: one(up)?, down: one(down)? })
    };
    let full = config.roles.get(index as usize) == Some(&Role::Full);
    let indexer = match find("indexer.attn_q_b.weight")? {
        Some(q_b) if full => Some(Indexer {
            q_b,
            k: get("indexer.attn_k.weight")?,
            k_norm: get("indexer.k_norm.weight")?,
            k_bias: get("indexer.k_norm.bias")?,
            weights: get("indexer.proj.weight")?,
        }),
        _ => None,
    };
    let ffn = match index < config.dense_lead {
        true => Ffn::Dense(glu("")?),
        false => Ffn::Experts {
            router: get("ffn_gate_inp.weight")?,
            bias: find("exp_probs_b.bias")?,
            routed: glu("_exps")?,
            shared: if config.n_expert_shared > 0 { Some(glu("_shexp")?) } else { None },
        },
    };
    Ok(Layer {
        attn_norm: get("attn_norm.weight")?,
        q_a: get("attn_q_a.weight")?,
        q_a_norm: get("attn_q_a_norm.weight")?,
        q_b: get("attn_q_b.weight")?,
        kv_a: get("attn_kv_a_mqa.weight")?,
        kv_a_norm: get("attn_kv_a_norm.weight")?,
        k_b: get("attn_k_b.weight")?,
        v_b: get("attn_v_b.weight")?,
        out: get("attn_output.weight")?,
        ffn_norm: get("ffn_norm.weight")?,
        indexer,
        ffn,
    })
}

fn load_mtp(
    fragment: &Fragment,
    index: u32,
    layer: Layer,
    head: &Head,
    table: &dyn Fn() -> Result<Leaf, DsaStageError>,
) -> Result<Mtp, DsaStageError> {
    let get = |suffix: &str| fragment.get(&format!("blk.{index}.nextn.{suffix}.weight"));
    let find = |suffix: &str| fragment.find(&format!("blk.{index}.nextn.{suffix}.weight"));
    Ok(Mtp {
        layer,
        embed: find("embed_tokens")?.map_or_else(table, Ok)?,
        project: get("eh_proj")?,
        embed_norm: get("enorm")?,
        hidden_norm: get("hnorm")?,
        head_norm: find("shared_head_norm")?.unwrap_or_else(|| head.norm.clone()),
        head: find("shared_head_head")?.unwrap_or_else(|| head.weight.clone()),
    })
}
