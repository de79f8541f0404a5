//! Which artifact of a layer package owns a tensor.
//!
//! The spec gives every source tensor to exactly one artifact (layer-package-repos, "Repository Layout"):
//!
//! | tensor | artifact |
//! |---|---|
//! | `blk.N.*` | layer N |
//! | token, position and type embeddings, their norm, per-layer inputs: read before the first layer | embeddings |
//! | `rope_freqs*`, `rope_factors_long*`, `rope_factors_short*` | metadata |
//! | final norm, head and everything else outside a block | output |
//!
//! The rotary factors are the one hard case: llama.cpp reads them once and uses them in *every* layer, and loads the
//! model without complaint (and with wrong attention) when they are absent. "Layer Selection" gives a middle stage
//! nothing but `shared.metadata` and its layers, and says that this suffices; so the factors, a few hundred bytes,
//! live in `shared/metadata.gguf`, which holds no tensors otherwise. Packages of other writers may keep them in
//! another shared artifact; [`needed_by_every_stage`] is how the reader recognises them there.

use std::fmt;

/// One artifact of a package, by what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// `shared/metadata.gguf`: all key-values, the tokenizer, and what [`needed_by_every_stage`] names.
    Metadata,
    /// `shared/embeddings.gguf`: tensors of the input boundary.
    Embeddings,
    /// `layers/layer-NNNNN.gguf`: the tensors of one block.
    Layer(u32),
    /// `shared/output.gguf`: tensors of the output boundary.
    Output,
}

impl Role {
    /// The path inside the package that the spec recommends.
    pub fn path(self) -> String {
        match self {
            Self::Metadata => "shared/metadata.gguf".into(),
            Self::Embeddings => "shared/embeddings.gguf".into(),
            Self::Layer(index) => format!("layers/layer-{index:05}.gguf"),
            Self::Output => "shared/output.gguf".into(),
        }
    }

    /// The value of the key `skippy.artifact` in the fragment.
    pub fn label(self) -> &'static str {
        match self {
            Self::Metadata => "metadata",
            Self::Embeddings => "embeddings",
            Self::Layer(_) => "layer",
            Self::Output => "output",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layer(index) => write!(f, "layer {index}"),
            shared => f.write_str(shared.label()),
        }
    }
}

/// Why a tensor has no place in a layer package.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClassifyError {
    /// `blk.` without a block number behind it.
    #[error("tensor `{0}` starts with `blk.` but no block number follows: expected `blk.<number>.<name>`")]
    BlockNumber(String),
    /// A block of an encoder-decoder model, which a chain of layer ranges cannot serve.
    #[error(
        "tensor `{0}` belongs to an encoder-decoder model, expected a decoder-only one: its blocks cannot be cut into \
         layer ranges"
    )]
    EncoderDecoder(String),
}

/// The artifact that owns `tensor` in a model of architecture `arch` (`general.architecture`).
///
/// # Errors
/// When the name is a malformed block name or belongs to an encoder-decoder model.
pub fn classify(arch: &str, tensor: &str) -> Result<Role, ClassifyError> {
    if let Some(rest) = tensor.strip_prefix("blk.") {
        return block_number(rest).map(Role::Layer).ok_or_else(|| ClassifyError::BlockNumber(tensor.into()));
    }
    if tensor.starts_with("enc.blk.") || tensor.starts_with("dec.blk.") {
        return Err(ClassifyError::EncoderDecoder(tensor.into()));
    }
    Ok(if needed_by_every_stage(tensor) {
        Role::Metadata
    } else if is_input_boundary(arch, tensor) {
        Role::Embeddings
    } else {
        Role::Output
    })
}

/// Whether every stage needs `tensor`, whatever layers it owns: the rotary factors that all layers share.
pub fn needed_by_every_stage(tensor: &str) -> bool {
    matches!(stem(tensor), "rope_freqs" | "rope_factors_long" | "rope_factors_short")
}

/// Whether `tensor` is read before the first layer.
fn is_input_boundary(arch: &str, tensor: &str) -> bool {
    // LFM2 converters named the final norm `token_embd_norm`; elsewhere that is the norm behind the embedding.
    if stem(tensor) == "token_embd_norm" {
        return !arch.starts_with("lfm2");
    }
    matches!(
        stem(tensor),
        "token_embd"
            | "position_embd"
            | "token_types"
            | "per_layer_token_embd"
            | "per_layer_model_proj"
            | "per_layer_proj_norm"
            | "altup_proj"
            | "masked_embd_centroids"
            | "masked_embd_ordering"
            | "conv1d"
    ) || tensor.starts_with("token_embd")
}

/// The name up to its first dot.
fn stem(tensor: &str) -> &str {
    tensor.split('.').next().unwrap_or(tensor)
}

/// The number in `<number>.<name>`, in plain decimal.
fn block_number(rest: &str) -> Option<u32> {
    let (digits, name) = rest.split_once('.')?;
    let canonical = digits == "0" || !digits.starts_with('0');
    let plain = canonical && digits.bytes().all(|byte| byte.is_ascii_digit());
    if plain && !name.is_empty() { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_tensor_has_one_artifact() {
        let cases = [
            ("token_embd.weight", Role::Embeddings),
            ("token_embd.scale", Role::Embeddings),
            ("token_embd_norm.weight", Role::Embeddings),
            ("position_embd.weight", Role::Embeddings),
            ("token_types.weight", Role::Embeddings),
            ("per_layer_token_embd.weight", Role::Embeddings),
            ("per_layer_model_proj.weight", Role::Embeddings),
            ("altup_proj.weight", Role::Embeddings),
            ("altup_unembd_proj.weight", Role::Output),
            ("output_norm.weight", Role::Output),
            ("output.weight", Role::Output),
            ("output_hc_fn.weight", Role::Output),
            ("cls.output.weight", Role::Output),
            ("nextn.pre_projection.weight", Role::Output),
            ("a_name_nobody_knows", Role::Output),
            ("blk.0.attn_q.weight", Role::Layer(0)),
            ("blk.78.nextn.eh_proj.weight", Role::Layer(78)),
            ("rope_freqs.weight", Role::Metadata),
            ("rope_factors_long.weight", Role::Metadata),
            ("rope_factors_short.weight", Role::Metadata),
        ];
        for (tensor, role) in cases {
            assert_eq!(classify("llama", tensor), Ok(role), "{tensor}");
        }
    }

    #[test]
    fn the_final_norm_of_lfm2_goes_to_the_output() {
        assert_eq!(classify("lfm2", "token_embd_norm.weight"), Ok(Role::Output));
        assert_eq!(classify("lfm2moe", "token_embd_norm.weight"), Ok(Role::Output));
        assert_eq!(classify("lfm2", "token_embd.weight"), Ok(Role::Embeddings));
    }

    #[test]
    fn malformed_block_names_are_refused() {
        for tensor in ["blk.", "blk.1", "blk.x.attn", "blk.-1.attn", "blk.01.attn", "blk.1.", "blk.99999999999.attn"] {
            assert_eq!(classify("llama", tensor), Err(ClassifyError::BlockNumber(tensor.into())));
        }
        assert!(matches!(classify("t5", "enc.blk.0.attn_q.weight"), Err(ClassifyError::EncoderDecoder(_))));
    }

    #[test]
    fn paths_follow_the_recommended_layout() {
        let paths = [Role::Metadata, Role::Embeddings, Role::Layer(7), Role::Output].map(Role::path);
        let expected =
            ["shared/metadata.gguf", "shared/embeddings.gguf", "layers/layer-00007.gguf", "shared/output.gguf"];
        assert_eq!(paths, expected);
        assert_eq!(Role::Layer(7).to_string(), "layer 7");
    }
}
