//! What shared metadata says about the model: the one source for its width, layers and tokenizer.

use serde::Serialize;

use super::{
    error::{ArtifactError, ArtifactFault},
    fragment::Entry,
    manifest::fields::shown,
};
use crate::gguf::Metadata;

/// Facts about the whole model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelFacts {
    /// `general.architecture`
    pub arch: String,
    /// `general.name`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Width of a hidden row: `<arch>.embedding_length`.
    pub n_embd: u64,
    /// Layers, MTP blocks counted: `<arch>.block_count`.
    pub block_count: u32,
    /// MTP blocks, the last ones: `<arch>.nextn_predict_layers`.
    pub mtp_layers: u32,
    /// Tokens the model was trained for: `<arch>.context_length`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u64>,
    /// `tokenizer.ggml.model`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// Entries of `tokenizer.ggml.tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_vocab: Option<u64>,
    /// Whether `tokenizer.chat_template` is there.
    pub chat_template: bool,
}

impl ModelFacts {
    /// Reads the facts and checks that the model has as many layers as the manifest says.
    pub(super) fn read(metadata: &Metadata, layer_count: u32, entry: &Entry<'_>) -> Result<Self, ArtifactError> {
        let fault = |key: String, got: String, expected: &str| {
            // Keys of the architecture carry its foreign name.
            let key = shown(&key);
            entry.error(ArtifactFault::Metadata { key, got, expected: expected.into() })
        };
        let nothing = || "nothing".to_string();
        let arch = metadata.arch();
        let arch =
            arch.ok_or_else(|| fault("general.architecture".into(), nothing(), "the name of an architecture"))?;
        let got = |suffix: &str| metadata.arch_uint(suffix).map_or_else(nothing, |value| value.to_string());
        let n_embd = metadata.arch_uint("embedding_length").filter(|n| (1..=1 << 24).contains(n));
        let n_embd = n_embd.ok_or_else(|| {
            fault(metadata.arch_key("embedding_length"), got("embedding_length"), "the width of a hidden row, above 0")
        })?;
        if metadata.arch_uint("block_count") != Some(u64::from(layer_count)) {
            let expected = format!("{layer_count}, the `layer_count` of the manifest");
            return Err(fault(metadata.arch_key("block_count"), got("block_count"), &expected));
        }
        let mtp_layers = metadata.arch_uint("nextn_predict_layers").unwrap_or(0);
        let mtp_layers = u32::try_from(mtp_layers).ok().filter(|n| *n < layer_count).ok_or_else(|| {
            let key = metadata.arch_key("nextn_predict_layers");
            fault(key, mtp_layers.to_string(), &format!("fewer than the {layer_count} layers of the model"))
        })?;
        Ok(Self {
            arch: arch.into(),
            name: metadata.str("general.name").map(Into::into),
            n_embd,
            block_count: layer_count,
            mtp_layers,
            context_length: metadata.arch_uint("context_length"),
            tokenizer: metadata.str("tokenizer.ggml.model").map(Into::into),
            n_vocab: metadata.array("tokenizer.ggml.tokens").map(|tokens| tokens.len() as u64),
            chat_template: metadata.str("tokenizer.chat_template").is_some_and(|template| !template.is_empty()),
        })
    }

    /// Whether `layer` is an MTP block.
    pub fn is_mtp(&self, layer: u32) -> bool {
        layer < self.block_count && layer >= self.block_count - self.mtp_layers
    }
}
