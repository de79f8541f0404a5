//! Where a model may be cut for the `llama` engine, family by family.
//!
//! llama.cpp builds its graph for a whole model. A stage is a smaller model with its layers renumbered from 0, so a
//! cut is exact only if the family's graph does not depend on the absolute layer number, or depends on it in a way
//! that the cut respects. Each row here is certified by the parity suite (`tests/it/parity.rs`): logits of the split
//! model equal those of the whole one bit for bit. `vendor/PIN.toml` repeats the table for the pinned llama.cpp.

use crate::gguf::{Array, Metadata};

/// Where a family may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutRule {
    /// Between any two layers.
    Every,
    /// At multiples of a period, since layers alternate kinds with that period (sliding window and global).
    MultipleOf(u32),
    /// Before layers that own an indexer: a layer that shares the top-k list of an earlier one cannot come first.
    FullIndexerLayers,
}

/// What llama.cpp does to an embedding row before the first layer when it looks the row up itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingScale {
    /// Nothing.
    One,
    /// Multiplies by the square root of the hidden width.
    SqrtWidth,
}

/// One certified family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// `general.architecture` of its GGUF files.
    pub arch: &'static str,
    /// Where it may be cut.
    pub cuts: CutRule,
    /// How its first stage turns token ids into hidden rows.
    pub embedding: EmbeddingScale,
}

const FAMILIES: &[Family] = &[
    Family { arch: "llama", cuts: CutRule::Every, embedding: EmbeddingScale::One },
    Family { arch: "qwen2", cuts: CutRule::Every, embedding: EmbeddingScale::One },
    Family { arch: "qwen3", cuts: CutRule::Every, embedding: EmbeddingScale::One },
    Family { arch: "qwen3moe", cuts: CutRule::Every, embedding: EmbeddingScale::One },
    Family { arch: "gemma3", cuts: CutRule::MultipleOf(6), embedding: EmbeddingScale::SqrtWidth },
    Family { arch: "glm-dsa", cuts: CutRule::FullIndexerLayers, embedding: EmbeddingScale::One },
];

/// Why a model may not be cut where someone asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CutError {
    /// The family has a rule and the cut breaks it.
    #[error("`{arch}` cannot be cut at layer {cut}: allowed {allowed}")]
    NotAllowed {
        /// Architecture.
        arch: String,
        /// First layer of the second stage.
        cut: u32,
        /// The cuts that are allowed, for people.
        allowed: String,
    },
    /// No parity run has certified any cut of this family.
    #[error(
        "`{arch}` cannot be cut at layer {cut}: no cut of this family is certified; pass --allow-uncertified-cuts to try, and compare the output"
    )]
    Uncertified {
        /// Architecture.
        arch: String,
        /// First layer of the second stage.
        cut: u32,
    },
    /// The cut is not between two layers.
    #[error("cut at layer {cut} is outside the model: cuts lie between 1 and {last}")]
    Outside {
        /// First layer of the second stage.
        cut: u32,
        /// The last possible cut.
        last: u32,
    },
}

/// The certified families, as architecture and rule in words.
pub fn certified() -> impl Iterator<Item = (&'static str, String)> {
    FAMILIES.iter().map(|family| (family.arch, family.cuts.to_string()))
}

/// The family of `arch`, if it is certified.
pub fn family(arch: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.arch == arch)
}

impl std::fmt::Display for CutRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Every => f.write_str("every layer"),
            Self::MultipleOf(period) => write!(f, "multiples of {period}"),
            Self::FullIndexerLayers => f.write_str("full-indexer layers"),
        }
    }
}

/// Checks that a model with this metadata and `layer_count` layers may be cut before layer `cut`.
///
/// With `allow_uncertified`, unknown families pass; a known rule is never waived, since breaking it is known to give
/// wrong output.
///
/// # Errors
/// [`CutError`], naming the family and the allowed cuts.
pub fn check_cut(metadata: &Metadata, layer_count: u32, cut: u32, allow_uncertified: bool) -> Result<(), CutError> {
    let last = layer_count.saturating_sub(1);
    if cut == 0 || cut > last {
        return Err(CutError::Outside { cut, last });
    }
    let arch = metadata.arch().unwrap_or("unknown");
    let Some(family) = family(arch) else {
        return if allow_uncertified { Ok(()) } else { Err(CutError::Uncertified { arch: arch.into(), cut }) };
    };
    let allowed = |cut: u32| match family.cuts {
        CutRule::Every => cut <= last_trunk_cut(metadata, layer_count),
        CutRule::MultipleOf(period) => cut.is_multiple_of(period),
        CutRule::FullIndexerLayers => {
            cut <= last_trunk_cut(metadata, layer_count) && is_full_indexer_layer(metadata, layer_count, cut)
        }
    };
    if allowed(cut) {
        return Ok(());
    }
    let cuts: Vec<String> = (1..=last).filter(|cut| allowed(*cut)).map(|cut| cut.to_string()).collect();
    let allowed = match cuts.is_empty() {
        true => format!("{} (none in this model)", family.cuts),
        false => format!("{} ({})", family.cuts, cuts.join(", ")),
    };
    Err(CutError::NotAllowed { arch: arch.into(), cut, allowed })
}

/// Checks that a model may be cut before layer `cut` by an engine that needs no rule besides: between any two trunk layers.
///
/// # Errors
/// [`CutError::Outside`].
pub fn check_trunk_cut(metadata: &Metadata, layer_count: u32, cut: u32) -> Result<(), CutError> {
    let last = last_trunk_cut(metadata, layer_count);
    if cut == 0 || cut > last { Err(CutError::Outside { cut, last }) } else { Ok(()) }
}

/// A final stage needs at least one trunk layer besides the MTP blocks, which come last.
fn last_trunk_cut(metadata: &Metadata, layer_count: u32) -> u32 {
    trunk_layers(metadata, layer_count).saturating_sub(1)
}

/// Layers without the MTP blocks.
pub fn trunk_layers(metadata: &Metadata, layer_count: u32) -> u32 {
    let nextn = metadata.arch_uint("nextn_predict_layers").unwrap_or(0);
    layer_count.saturating_sub(u32::try_from(nextn).unwrap_or(u32::MAX))
}

/// Context length from which llama.cpp assumes the GLM-5.2 pattern when a file does not list its indexer types.
const GLM_5_2_CONTEXT: u64 = 1_048_576;

/// Whether layer `layer` of a GLM-DSA model computes its own top-k list.
///
/// `<arch>.attention.indexer.types` says so for each trunk layer. Without it: every layer below a context of 2^20,
/// else the GLM-5.2 pattern (layers 0, 1, 2 and then every fourth).
pub fn is_full_indexer_layer(metadata: &Metadata, layer_count: u32, layer: u32) -> bool {
    if layer >= trunk_layers(metadata, layer_count) {
        return true;
    }
    let index = layer as usize;
    match metadata.array(&metadata.arch_key("attention.indexer.types")) {
        Some(Array::Bool(types)) => types.get(index).copied().unwrap_or(false),
        Some(Array::U32(types)) => types.get(index).is_some_and(|t| *t != 0),
        Some(Array::I32(types)) => types.get(index).is_some_and(|t| *t != 0),
        Some(_) => false,
        None if metadata.arch_uint("context_length").unwrap_or(0) < GLM_5_2_CONTEXT => true,
        None => layer < 3 || (layer - 2).is_multiple_of(4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Value;

    fn metadata(arch: &str) -> Metadata {
        let mut metadata = Metadata::default();
        metadata.set("general.architecture", Value::Str(arch.into()));
        metadata
    }

    #[test]
    fn llama_is_cut_anywhere_inside() {
        let llama = metadata("llama");
        for cut in 1..30 {
            assert_eq!(check_cut(&llama, 30, cut, false), Ok(()));
        }
        assert_eq!(check_cut(&llama, 30, 0, true), Err(CutError::Outside { cut: 0, last: 29 }));
        assert_eq!(check_cut(&llama, 30, 30, true), Err(CutError::Outside { cut: 30, last: 29 }));
    }

    #[test]
    fn gemma3_is_cut_at_its_window_period_only() {
        let gemma = metadata("gemma3");
        for cut in 1..18 {
            assert_eq!(check_cut(&gemma, 18, cut, true).is_ok(), cut % 6 == 0, "cut {cut}");
        }
        let message = check_cut(&gemma, 18, 7, false).unwrap_err().to_string();
        assert_eq!(message, "`gemma3` cannot be cut at layer 7: allowed multiples of 6 (6, 12)");
    }

    #[test]
    fn glm_dsa_is_cut_before_full_layers_of_the_trunk() {
        let mut glm = metadata("glm-dsa");
        glm.set("glm-dsa.nextn_predict_layers", Value::U32(1));
        glm.set(
            "glm-dsa.attention.indexer.types",
            Value::Array(Array::Bool(vec![true, true, false, false, true, false])),
        );
        let allowed: Vec<u32> = (1..7).filter(|cut| check_cut(&glm, 7, *cut, true).is_ok()).collect();
        assert_eq!(allowed, [1, 4], "6 would leave a stage with the MTP block alone");
    }

    #[test]
    fn glm_5_2_pattern_applies_without_types_at_a_million_tokens() {
        let mut glm = metadata("glm-dsa");
        assert!((0..78).all(|layer| is_full_indexer_layer(&glm, 78, layer)));
        glm.set("glm-dsa.context_length", Value::U32(1_048_576));
        let full: Vec<u32> = (0..16).filter(|layer| is_full_indexer_layer(&glm, 78, *layer)).collect();
        assert_eq!(full, [0, 1, 2, 6, 10, 14]);
    }

    #[test]
    fn an_unknown_family_needs_the_operators_word() {
        let other = metadata("mamba9");
        assert!(matches!(check_cut(&other, 8, 4, false), Err(CutError::Uncertified { .. })));
        assert_eq!(check_cut(&other, 8, 4, true), Ok(()));
    }
}
