//! What llama.cpp asserts on, and so ends the process for, held against a package before llama.cpp sees it.
//!
//! Shapes and missing tensors are not here: for those llama.cpp throws, and we report its words. The list is that of the
//! pinned version; a bump goes through it again (`vendor/README.md`).

use crate::{
    gguf::{Array, Metadata, Value},
    package::StageFiles,
    stage::families::{is_full_indexer_layer, trunk_layers},
};

/// A value or tensor that llama.cpp would not survive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{what}` is {got}, expected {expected}")]
pub struct CheckError {
    /// Metadata key or tensor name.
    pub what: String,
    /// What the package has.
    pub got: String,
    /// What llama.cpp demands.
    pub expected: String,
}

/// llama.cpp's limit of layers.
const MAX_LAYERS: u64 = 512;
/// llama.cpp's limit of experts.
const MAX_EXPERTS: u64 = 1024;

/// Checks a stage.
///
/// # Errors
/// The first thing that llama.cpp would abort on.
pub(super) fn check(files: &StageFiles) -> Result<(), CheckError> {
    let keys = Keys { metadata: &files.metadata.gguf().metadata };
    keys.vocabulary()?;
    keys.layers(files.layer_count)?;
    keys.experts()?;
    keys.heads()?;
    if keys.metadata.arch() == Some("glm-dsa") {
        keys.glm_dsa()?;
        indexers(files)?;
    }
    Ok(())
}

struct Keys<'a> {
    metadata: &'a Metadata,
}

impl Keys<'_> {
    fn fault<T>(&self, suffix: &str, got: impl ToString, expected: impl Into<String>) -> Result<T, CheckError> {
        let what = self.metadata.arch_key(suffix);
        Err(CheckError { what, got: got.to_string(), expected: expected.into() })
    }

    /// The numbers of a key that holds one for all layers or one for each; empty when it is absent or something else.
    fn numbers(&self, suffix: &str) -> Vec<u64> {
        match self.metadata.get(&self.metadata.arch_key(suffix)) {
            Some(Value::Array(Array::U32(values))) => values.iter().map(|n| u64::from(*n)).collect(),
            Some(Value::Array(Array::I32(values))) => values.iter().map(|n| u64::try_from(*n).unwrap_or(0)).collect(),
            Some(value) => value.as_uint().into_iter().collect(),
            None => Vec::new(),
        }
    }

    fn number(&self, suffix: &str) -> Option<u64> {
        self.metadata.arch_uint(suffix)
    }

    fn required(&self, suffix: &str) -> Result<u64, CheckError> {
        match self.number(suffix) {
            Some(0) => self.fault(suffix, 0, "a positive number"),
            Some(n) => Ok(n),
            None => self.fault(suffix, "missing", "a positive number"),
        }
    }

    fn vocabulary(&self) -> Result<(), CheckError> {
        for key in ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
            match self.metadata.get(key) {
                None | Some(Value::Array(Array::Str(_))) => {}
                Some(_) => {
                    let (got, expected) = ("something else".into(), "an array of strings".into());
                    return Err(CheckError { what: key.into(), got, expected });
                }
            }
        }
        Ok(())
    }

    fn layers(&self, layer_count: u32) -> Result<(), CheckError> {
        let count = self.required("block_count")?;
        if count > MAX_LAYERS {
            return self.fault("block_count", count, format!("at most {MAX_LAYERS}"));
        }
        match self.number("nextn_predict_layers") {
            Some(nextn) if nextn >= u64::from(layer_count) => {
                self.fault("nextn_predict_layers", nextn, format!("fewer than the {layer_count} layers"))
            }
            _ => Ok(()),
        }
    }

    fn experts(&self) -> Result<(), CheckError> {
        let count = self.number("expert_count").unwrap_or(0);
        let used = self.numbers("expert_used_count").into_iter().max().unwrap_or(0);
        let groups = self.number("expert_group_count").unwrap_or(0);
        let groups_used = self.number("expert_group_used_count").unwrap_or(0);
        if count > MAX_EXPERTS {
            return self.fault("expert_count", count, format!("at most {MAX_EXPERTS}"));
        }
        if used > count || (used == 0) != (count == 0) {
            let expected = if count == 0 { "0 without experts".into() } else { format!("1 to the {count} experts") };
            return self.fault("expert_used_count", used, expected);
        }
        if groups > 0 && groups >= count {
            return self.fault("expert_group_count", groups, format!("fewer than the {count} experts"));
        }
        if groups > 1 && !count.is_multiple_of(groups) {
            return self.fault("expert_group_count", groups, format!("a divisor of the {count} experts"));
        }
        if groups > 1 && !(1..groups).contains(&groups_used) {
            return self.fault("expert_group_used_count", groups_used, format!("1 to {}", groups - 1));
        }
        Ok(())
    }

    fn heads(&self) -> Result<(), CheckError> {
        let (heads, kv_heads) = (self.numbers("attention.head_count"), self.numbers("attention.head_count_kv"));
        let certified = crate::stage::families::family(self.metadata.arch().unwrap_or_default()).is_some();
        // Families with layers that do not attend say so with zeros; the certified ones have none.
        if certified && (heads.is_empty() || heads.contains(&0)) {
            return self.fault("attention.head_count", "missing or 0", "a positive number");
        }
        if certified && kv_heads.contains(&0) {
            return self.fault("attention.head_count_kv", 0, "a positive number");
        }
        let pairs = heads.iter().zip(kv_heads.iter().chain(std::iter::repeat(kv_heads.last().unwrap_or(&1))));
        if let Some((heads, kv)) = pairs.into_iter().find(|(heads, kv)| **kv > 0 && !heads.is_multiple_of(**kv)) {
            return self.fault("attention.head_count_kv", kv, format!("a divisor of the {heads} heads"));
        }
        self.rotary(heads.first().copied())
    }

    /// Grouped-query families: keys, values and rotary embedding must have the width of a head.
    fn rotary(&self, heads: Option<u64>) -> Result<(), CheckError> {
        if !matches!(self.metadata.arch(), Some("llama" | "qwen2" | "qwen3" | "qwen3moe")) {
            return Ok(());
        }
        let width = self.required("embedding_length")?;
        let head = width.checked_div(heads.unwrap_or(0)).unwrap_or(0);
        let key = self.number("attention.key_length").unwrap_or(head);
        for suffix in ["attention.value_length", "rope.dimension_count"] {
            match self.number(suffix) {
                Some(n) if n != key => return self.fault(suffix, n, format!("{key}, the width of a head")),
                _ => {}
            }
        }
        match key > 0 && key.is_multiple_of(2) {
            true => Ok(()),
            false => self.fault("attention.key_length", key, "a positive even number"),
        }
    }

    fn glm_dsa(&self) -> Result<(), CheckError> {
        for suffix in [
            "attention.head_count_kv",
            "attention.key_length",
            "attention.value_length",
            "attention.key_length_mla",
            "attention.value_length_mla",
            "attention.q_lora_rank",
            "attention.kv_lora_rank",
            "expert_count",
            "expert_used_count",
            "rope.dimension_count",
            "attention.indexer.head_count",
            "attention.indexer.top_k",
        ] {
            self.required(suffix)?;
        }
        let (rope, key) = (self.required("rope.dimension_count")?, self.required("attention.key_length_mla")?);
        let indexer = self.required("attention.indexer.key_length")?;
        // The Hadamard transform of indexer rows works in blocks of a power of two, from 64 on.
        if indexer < 64 || !indexer.is_power_of_two() || rope > indexer {
            let expected = format!("64 times a power of two, and at least the {rope} rotary dimensions");
            return self.fault("attention.indexer.key_length", indexer, expected);
        }
        match rope < key {
            true => Ok(()),
            false => self.fault("attention.key_length_mla", key, format!("more than the {rope} rotary dimensions")),
        }
    }
}

const INDEXER_TENSORS: [&str; 5] = [
    "indexer.attn_k.weight",
    "indexer.attn_q_b.weight",
    "indexer.k_norm.weight",
    "indexer.k_norm.bias",
    "indexer.proj.weight",
];

/// Every layer that computes a top-k list has the tensors for it, and the first layer of the stage is one.
fn indexers(files: &StageFiles) -> Result<(), CheckError> {
    let metadata = &files.metadata.gguf().metadata;
    let types = metadata.arch_key("attention.indexer.types");
    let trunk = trunk_layers(metadata, files.layer_count);
    if let Some(array) = metadata.array(&types)
        && array.len() != trunk as usize
    {
        let (got, expected) = (format!("{} entries", array.len()), format!("one for each of the {trunk} trunk layers"));
        return Err(CheckError { what: types, got, expected });
    }
    let full = |layer| is_full_indexer_layer(metadata, files.layer_count, layer);
    if !full(files.range.start()) {
        let what = format!("{types}[{}]", files.range.start());
        return Err(CheckError {
            what,
            got: "shared".into(),
            expected: "full: it is the first layer of the stage".into(),
        });
    }
    for (layer, file) in files.layers.iter().filter(|(layer, _)| full(*layer) && *layer < trunk) {
        for tensor in INDEXER_TENSORS {
            let what = format!("blk.{layer}.{tensor}");
            if file.gguf().tensor(&what).is_none() {
                return Err(CheckError {
                    what,
                    got: "missing".into(),
                    expected: "a tensor of a full indexer layer".into(),
                });
            }
        }
    }
    Ok(())
}
