//! Rotary position encoding, with YaRN when the metadata asks for it.

use super::{Arch, ContractError, keys::Keys};
use crate::gguf::Value;

/// How positions are encoded. Attention rotates consecutive pairs; the indexer as [`Rope::indexer`] says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f32,
    /// How frequencies are stretched beyond the trained context.
    pub scaling: Scaling,
    /// Which elements of an indexer head are rotated together.
    pub indexer: IndexerRope,
}

/// Stretching of frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// None.
    None,
    /// YaRN.
    Yarn(Yarn),
}

/// YaRN's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// By how much the context is stretched, at least 1.
    pub factor: f32,
    /// The context before stretching, tokens.
    pub original_context: u32,
    /// Weight of extrapolation against interpolation, 0 to 1.
    pub ext_factor: f32,
    /// Rotations within the original context above which a frequency is left as it is.
    pub beta_fast: f32,
    /// Rotations within the original context below which a frequency is stretched fully.
    pub beta_slow: f32,
    /// The model's `mscale_all_dim`; 0 when it states none.
    pub log_multiplier: f32,
    /// Factor of the rotated values, on top of YaRN's own.
    pub attn_factor: f32,
}

/// Which elements of an indexer head are rotated together. The rotated part comes first in the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexerRope {
    /// Consecutive pairs.
    Interleaved,
    /// Element i with element i + half of the rotated part.
    HalfSplit,
}

impl Rope {
    /// What positions are multiplied by where frequencies are stretched fully (ggml's `freq_scale`).
    pub fn freq_scale(&self) -> f32 {
        self.yarn().map_or(1.0, |yarn| 1.0 / yarn.factor)
    }

    /// ggml's `ext_factor`.
    pub fn ext_factor(&self) -> f32 {
        self.yarn().map_or(0.0, |yarn| yarn.ext_factor)
    }

    /// ggml's `attn_factor`: the magnitude of rotated values, less the `1 + 0.1 ln(factor)` that ggml applies itself when
    /// `ext_factor` is not 0.
    pub fn attn_factor(&self) -> f32 {
        let Some(yarn) = self.yarn() else { return 1.0 };
        if yarn.ext_factor == 0.0 { yarn.attn_factor } else { yarn.attn_factor / yarn.magnitude(yarn.log_multiplier) }
    }

    /// What attention scores are multiplied by besides `1 / sqrt(head)`: the square of YaRN's magnitude over all
    /// dimensions.
    pub fn score_factor(&self) -> f32 {
        let Some(yarn) = self.yarn() else { return 1.0 };
        let rotated = self.attn_factor() * yarn.magnitude(1.0);
        let all = rotated * yarn.magnitude(yarn.log_multiplier);
        all * all
    }

    fn yarn(&self) -> Option<&Yarn> {
        match &self.scaling {
            Scaling::None => None,
            Scaling::Yarn(yarn) => Some(yarn),
        }
    }

    pub(super) fn read(keys: &Keys<'_>, arch: Arch, context_length: u32) -> Result<Self, ContractError> {
        let indexer = match arch {
            Arch::GlmDsa => IndexerRope::Interleaved,
            Arch::DeepSeek32 => IndexerRope::HalfSplit,
        };
        let theta = keys.positive("rope.freq_base", "")?;
        Ok(Self { theta, scaling: scaling(keys, context_length)?, indexer })
    }
}

impl Yarn {
    /// The magnitude that goes with the stretching; `multiplier` is 1 or the model's own.
    fn magnitude(&self, multiplier: f32) -> f32 {
        1.0 + 0.1 * multiplier * self.factor.ln()
    }
}

const TYPE: &str = "rope.scaling.type";
const FACTOR: &str = "rope.scaling.factor";

fn scaling(keys: &Keys<'_>, context_length: u32) -> Result<Scaling, ContractError> {
    let kind = match keys.get(TYPE) {
        None => "none",
        Some(value) => value.as_str().ok_or_else(|| keys.wrong(TYPE, value, "\"none\" or \"yarn\""))?,
    };
    match kind {
        "yarn" => Ok(Scaling::Yarn(yarn(keys, context_length)?)),
        "none" => {
            // llama.cpp reads a factor without a type as linear scaling, which these models do not have.
            let unscaled = |suffix| match keys.optional_positive(suffix)? {
                Some(x) if x != 1.0 => {
                    Err(keys.wrong(suffix, &Value::F32(x), "1 without `rope.scaling.type` = \"yarn\""))
                }
                _ => Ok(()),
            };
            if keys.get(TYPE).is_none() {
                unscaled(FACTOR)?;
                unscaled("rope.scale_linear")?;
            }
            unscaled("rope.scaling.attn_factor")?;
            Ok(Scaling::None)
        }
        _ => {
            let value = Value::Str(kind.into());
            Err(keys.wrong(TYPE, &value, "\"none\" or \"yarn\", the scalings that this engine computes"))
        }
    }
}

fn yarn(keys: &Keys<'_>, context_length: u32) -> Result<Yarn, ContractError> {
    // Wide bounds: products of these must stay finite.
    const MOST: f32 = 1e6;
    let factor_words = "a number of 1 to 1000000";
    let positive = |suffix, default| {
        let x = keys.optional_float(suffix, |x| x > 0.0 && x <= MOST, "a number above 0, at most 1000000")?;
        Ok(x.unwrap_or(default))
    };
    let factor = keys.optional_float(FACTOR, |x| (1.0..=MOST).contains(&x), factor_words)?;
    let original = keys.optional_number("rope.scaling.original_context_length", 1..=1 << 30)?;
    let ext =
        keys.optional_float("rope.scaling.yarn_ext_factor", |x| (0.0..=1.0).contains(&x), "a number of 0 to 1")?;
    let log = "rope.scaling.yarn_log_multiplier";
    let log_multiplier = keys.optional_float(log, |x| (0.0..=100.0).contains(&x), "a number of 0 to 100")?;
    Ok(Yarn {
        factor: factor.ok_or_else(|| keys.missing(FACTOR, factor_words))?,
        original_context: original.unwrap_or(context_length),
        ext_factor: ext.unwrap_or(1.0),
        beta_fast: positive("rope.scaling.yarn_beta_fast", 32.0)?,
        beta_slow: positive("rope.scaling.yarn_beta_slow", 1.0)?,
        // Converters store a tenth of `mscale_all_dim`.
        log_multiplier: log_multiplier.unwrap_or(0.0) * 10.0,
        attn_factor: positive("rope.scaling.attn_factor", 1.0)?,
    })
}
