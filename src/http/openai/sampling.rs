//! How tokens are chosen: values within their ranges, or a 400 that names the field.

use super::{fields::MAX_LOGIT_BIAS, params::Params, values::LogitBias};
use crate::{http::error::ApiError, text::SamplingParams};

/// The sampling of a request to a model that has token ids `0..n_vocab`. Takes the lists out of `params`.
///
/// # Errors
/// The first field at fault.
pub(super) fn sampling(params: &mut Params, n_vocab: u32) -> Result<SamplingParams, ApiError> {
    let off = SamplingParams::default();
    let sampling = SamplingParams {
        temperature: number("temperature", params.temperature, 0.0, 2.0)?.unwrap_or(1.0),
        top_p: above_zero("top_p", number("top_p", params.top_p, 0.0, 1.0)?)?.unwrap_or(1.0),
        top_k: top_k(params.top_k)?,
        min_p: number("min_p", params.min_p, 0.0, 1.0)?.unwrap_or(0.0),
        typical_p: above_zero("typical_p", number("typical_p", params.typical_p, 0.0, 1.0)?)?.unwrap_or(1.0),
        seed: params.seed.map(i64::cast_unsigned),
        repetition_penalty: number("repetition_penalty", params.repetition_penalty, 0.01, 100.0)?.unwrap_or(1.0),
        presence_penalty: number("presence_penalty", params.presence_penalty, -2.0, 2.0)?.unwrap_or(0.0),
        frequency_penalty: number("frequency_penalty", params.frequency_penalty, -2.0, 2.0)?.unwrap_or(0.0),
        logit_bias: logit_bias(params.logit_bias.take(), n_vocab)?,
        dry_multiplier: number("dry_multiplier", params.dry_multiplier, 0.0, 100.0)?.unwrap_or(off.dry_multiplier),
        dry_base: number("dry_base", params.dry_base, 1.0, 100.0)?.unwrap_or(off.dry_base),
        dry_allowed_length: whole("dry_allowed_length", params.dry_allowed_length)?.unwrap_or(off.dry_allowed_length),
        dry_penalty_last_n: whole("dry_penalty_last_n", params.dry_penalty_last_n)?.unwrap_or(off.dry_penalty_last_n),
        dry_sequence_breakers: params.dry_sequence_breakers.take().unwrap_or(off.dry_sequence_breakers),
        xtc_probability: number("xtc_probability", params.xtc_probability, 0.0, 1.0)?.unwrap_or(off.xtc_probability),
        xtc_threshold: number("xtc_threshold", params.xtc_threshold, 0.0, 1.0)?.unwrap_or(off.xtc_threshold),
    };
    // The ranges that the samplers themselves set.
    sampling.validate(n_vocab).map_err(|error| ApiError::invalid(error.param, error.to_string()))?;
    Ok(sampling)
}

fn number(name: &'static str, value: Option<f64>, low: f64, high: f64) -> Result<Option<f32>, ApiError> {
    match value {
        Some(value) if !(low..=high).contains(&value) => {
            Err(ApiError::invalid(name, format!("`{name}` must be between {low} and {high}, got {value}")))
        }
        _ => Ok(value.map(|value| value as f32)),
    }
}

fn whole(name: &'static str, value: Option<i64>) -> Result<Option<i32>, ApiError> {
    let checked = |value: i64| {
        i32::try_from(value).map_err(|_| ApiError::invalid(name, format!("`{name}` is out of range, got {value}")))
    };
    value.map(checked).transpose()
}

fn above_zero(name: &'static str, value: Option<f32>) -> Result<Option<f32>, ApiError> {
    match value {
        Some(value) if value <= 0.0 => Err(ApiError::invalid(name, format!("`{name}` must be above 0"))),
        _ => Ok(value),
    }
}

fn top_k(value: Option<i64>) -> Result<i32, ApiError> {
    match value {
        None | Some(-1) => Ok(0),
        Some(k) => i32::try_from(k).ok().filter(|k| *k >= 0).ok_or_else(|| {
            ApiError::invalid("top_k", format!("`top_k` must be -1 or between 0 and {}, got {k}", i32::MAX))
        }),
    }
}

fn logit_bias(biases: Option<LogitBias>, n_vocab: u32) -> Result<Vec<(i32, f32)>, ApiError> {
    let biases = biases.map(|biases| biases.0).unwrap_or_default();
    let refuse = |message: String| ApiError::invalid("logit_bias", message);
    if biases.len() > MAX_LOGIT_BIAS {
        return Err(refuse(format!(
            "`logit_bias` has {} entries, at most {} are possible",
            biases.len(),
            MAX_LOGIT_BIAS
        )));
    }
    let checked = |(token, bias): (i64, f64)| {
        let id = i32::try_from(token).ok().filter(|_| (0..i64::from(n_vocab)).contains(&token));
        let id =
            id.ok_or_else(|| refuse(format!("`logit_bias` names token {token}, the vocabulary has ids 0..{n_vocab}")))?;
        if !(-100.0..=100.0).contains(&bias) {
            return Err(refuse(format!("`logit_bias` of token {token} must be between -100 and 100, got {bias}")));
        }
        Ok((id, bias as f32))
    };
    biases.into_iter().map(checked).collect()
}
