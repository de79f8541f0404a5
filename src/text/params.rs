//! What a request may say about sampling, and which values are refused.

/// Sampling parameters of one request; [`Default`] is OpenAI's.
///
/// Order of effect: `logit_bias`, then presence and frequency penalties (over all tokens so far, prompt included),
/// then `top_k`, `top_p`, `min_p`, then `temperature`, then the draw.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 means greedy; 1 leaves the distribution as it is.
    pub temperature: f32,
    /// Keeps the smallest set of most likely tokens whose probability reaches this, `0..=1`; 1 is off.
    pub top_p: f32,
    /// Keeps this many most likely tokens; 0 is off.
    pub top_k: i32,
    /// Keeps tokens at least this fraction as likely as the most likely one, `0..=1`; 0 is off.
    pub min_p: f32,
    /// Seed of the draw; `None` means a fresh random one for each request.
    pub seed: Option<u64>,
    /// Subtracted from the logit of every token that occurs in the text so far, `-2..=2`.
    pub presence_penalty: f32,
    /// Subtracted once for each occurrence in the text so far, `-2..=2`.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens, `-100..=100`.
    pub logit_bias: Vec<(i32, f32)>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
        }
    }
}

/// A sampling parameter outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{param}` {message}")]
pub struct ParamError {
    /// The request field.
    pub param: &'static str,
    /// What it must be and what it is.
    pub message: String,
}

impl SamplingParams {
    /// Greedy decoding with nothing that changes the logits.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether the choice is simply the largest raw logit: temperature 0, no bias, no penalties.
    pub fn is_plain_greedy(&self) -> bool {
        self.temperature == 0.0
            && self.presence_penalty == 0.0
            && self.frequency_penalty == 0.0
            && self.logit_bias.is_empty()
    }

    /// Checks every value against its range, and the ids of `logit_bias` against `0..n_vocab`.
    ///
    /// # Errors
    /// The first value out of range, by field name.
    pub fn validate(&self, n_vocab: u32) -> Result<(), ParamError> {
        within("temperature", self.temperature, 0.0, f32::MAX)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        if self.top_k < 0 {
            return Err(ParamError {
                param: "top_k",
                message: format!("must be 0 (off) or a positive number, got {}", self.top_k),
            });
        }
        for &(token, bias) in &self.logit_bias {
            if u32::try_from(token).map_or(true, |id| id >= n_vocab) {
                return Err(ParamError {
                    param: "logit_bias",
                    message: format!("names token {token}, the vocabulary has ids 0..{n_vocab}"),
                });
            }
            within("logit_bias", bias, -100.0, 100.0)?;
        }
        Ok(())
    }
}

/// Refuses NaN along with everything outside `low..=high`.
fn within(param: &'static str, value: f32, low: f32, high: f32) -> Result<(), ParamError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let message = if high == f32::MAX {
        format!("must be a finite number of at least {low}, got {value}")
    } else {
        format!("must be between {low} and {high}, got {value}")
    };
    Err(ParamError { param, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_not_greedy() {
        assert_eq!(SamplingParams::default().validate(1), Ok(()));
        assert!(!SamplingParams::default().is_plain_greedy());
        assert!(SamplingParams::greedy().is_plain_greedy());
        let biased = SamplingParams { logit_bias: vec![(0, 1.0)], ..SamplingParams::greedy() };
        assert!(!biased.is_plain_greedy());
    }

    #[test]
    fn refuses_each_value_out_of_range_by_name() {
        let ok = SamplingParams::default;
        let cases = [
            ("temperature", SamplingParams { temperature: -0.1, ..ok() }),
            ("temperature", SamplingParams { temperature: f32::NAN, ..ok() }),
            ("temperature", SamplingParams { temperature: f32::INFINITY, ..ok() }),
            ("top_p", SamplingParams { top_p: 1.01, ..ok() }),
            ("top_p", SamplingParams { top_p: f32::NAN, ..ok() }),
            ("top_k", SamplingParams { top_k: -1, ..ok() }),
            ("min_p", SamplingParams { min_p: -0.5, ..ok() }),
            ("presence_penalty", SamplingParams { presence_penalty: 2.5, ..ok() }),
            ("frequency_penalty", SamplingParams { frequency_penalty: -2.5, ..ok() }),
            ("logit_bias", SamplingParams { logit_bias: vec![(10, 0.0)], ..ok() }),
            ("logit_bias", SamplingParams { logit_bias: vec![(-1, 0.0)], ..ok() }),
            ("logit_bias", SamplingParams { logit_bias: vec![(3, 100.5)], ..ok() }),
        ];
        for (param, params) in cases {
            assert_eq!(params.validate(10).map_err(|e| e.param), Err(param), "{params:?}");
        }
        let high = SamplingParams { temperature: 1e6, logit_bias: vec![(9, -100.0)], ..ok() };
        assert_eq!(high.validate(10), Ok(()));
    }
}
