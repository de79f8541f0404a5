//! What a request may say about sampling, and which values are refused.

/// Sampling parameters of one request; [`Default`] is OpenAI's.
///
/// Order of effect: `logit_bias`, then repetition, presence and frequency penalties (over all tokens so far, prompt
/// included), then DRY, then `top_k`, `typical_p`, `top_p`, `min_p`, then XTC, then `temperature`, then the draw. At
/// temperature 0 the largest logit after the penalties is taken, and what follows them has no effect.
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
    /// Keeps the tokens whose information is nearest to the expected one, up to this probability, `0..=1`; 1 is off.
    pub typical_p: f32,
    /// Seed of the draw; `None` means a fresh random one for each request.
    pub seed: Option<u64>,
    /// Divides the positive logits of tokens that occur in the text so far and multiplies the others, `0.01..=100`; 1 is
    /// off.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token that occurs in the text so far, `-2..=2`.
    pub presence_penalty: f32,
    /// Subtracted once for each occurrence in the text so far, `-2..=2`.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens, `-100..=100`.
    pub logit_bias: Vec<(i32, f32)>,
    /// DRY: a token that would go on with a repetition of `n` tokens loses
    /// `dry_multiplier * dry_base ^ (n - dry_allowed_length)` of its logit, `0..=100`; 0 is off.
    pub dry_multiplier: f32,
    /// Base of the penalty, `1..=100`.
    pub dry_base: f32,
    /// Tokens that may be repeated without a penalty, `0..=65536`.
    pub dry_allowed_length: i32,
    /// Tokens that DRY looks back over, up to 65536, which is also what -1 means; 0 is off.
    pub dry_penalty_last_n: i32,
    /// Texts that end a repetition, at most [`MAX_DRY_BREAKERS`] of 1 to [`MAX_DRY_BREAKER_BYTES`] bytes.
    pub dry_sequence_breakers: Vec<String>,
    /// XTC: with this probability, `0..=1`, all tokens of at least `xtc_threshold` go but the least likely of them.
    pub xtc_probability: f32,
    /// Probability that a token must have to count, `0..=1`; above 0.5 there are never two such tokens.
    pub xtc_threshold: f32,
}

/// Sequence breakers of one request at most.
pub const MAX_DRY_BREAKERS: usize = 16;

/// Bytes of a sequence breaker at most.
pub const MAX_DRY_BREAKER_BYTES: usize = 40;

/// Tokens that DRY looks back over at most.
pub const MAX_DRY_WINDOW: i32 = 1 << 16;

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            typical_p: 1.0,
            seed: None,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: -1,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).into(),
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
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
        self.temperature == 0.0 && !self.has_penalties() && !self.has_dry() && self.logit_bias.is_empty()
    }

    /// Whether tokens are penalized for having occurred.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether repetitions are penalized.
    pub fn has_dry(&self) -> bool {
        self.dry_multiplier != 0.0 && self.dry_penalty_last_n != 0
    }

    /// Checks every value against its range, and the ids of `logit_bias` against `0..n_vocab`.
    ///
    /// # Errors
    /// The first value out of range, by field name.
    pub fn validate(&self, n_vocab: u32) -> Result<(), ParamError> {
        within("temperature", self.temperature, 0.0, f32::MAX)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("typical_p", self.typical_p, 0.0, 1.0)?;
        within("repetition_penalty", self.repetition_penalty, 0.01, 100.0)?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        within("dry_multiplier", self.dry_multiplier, 0.0, 100.0)?;
        within("dry_base", self.dry_base, 1.0, 100.0)?;
        whole_within("dry_allowed_length", self.dry_allowed_length, 0, MAX_DRY_WINDOW)?;
        whole_within("dry_penalty_last_n", self.dry_penalty_last_n, -1, MAX_DRY_WINDOW)?;
        within("xtc_probability", self.xtc_probability, 0.0, 1.0)?;
        within("xtc_threshold", self.xtc_threshold, 0.0, 1.0)?;
        self.check_breakers()?;
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

    fn check_breakers(&self) -> Result<(), ParamError> {
        let refuse = |message| Err(ParamError { param: "dry_sequence_breakers", message });
        let breakers = &self.dry_sequence_breakers;
        if breakers.len() > MAX_DRY_BREAKERS {
            return refuse(format!("holds {} texts, at most {MAX_DRY_BREAKERS} are possible", breakers.len()));
        }
        let fits = |text: &String| (1..=MAX_DRY_BREAKER_BYTES).contains(&text.len()) && !text.contains('\0');
        match breakers.iter().position(|text| !fits(text)) {
            Some(place) => refuse(format!(
                "must hold texts of 1 to {MAX_DRY_BREAKER_BYTES} bytes without NUL, the one at place {place} is none"
            )),
            None => Ok(()),
        }
    }
}

fn whole_within(param: &'static str, value: i32, low: i32, high: i32) -> Result<(), ParamError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(ParamError { param, message: format!("must be between {low} and {high}, got {value}") })
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
        let changes: [fn(&mut SamplingParams); 6] = [
            |params| params.logit_bias = vec![(0, 1.0)],
            |params| params.repetition_penalty = 1.1,
            |params| params.presence_penalty = 0.1,
            |params| params.frequency_penalty = -0.1,
            |params| params.dry_multiplier = 0.8,
            |params| params.temperature = 0.1,
        ];
        for (i, change) in changes.into_iter().enumerate() {
            let mut params = SamplingParams::greedy();
            change(&mut params);
            assert!(!params.is_plain_greedy(), "change {i}");
        }
        let off = SamplingParams { dry_multiplier: 1.0, dry_penalty_last_n: 0, ..SamplingParams::greedy() };
        assert!(off.is_plain_greedy());
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
            ("typical_p", SamplingParams { typical_p: -0.1, ..ok() }),
            ("typical_p", SamplingParams { typical_p: 1.5, ..ok() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..ok() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: f32::NAN, ..ok() }),
            ("dry_multiplier", SamplingParams { dry_multiplier: -1.0, ..ok() }),
            ("dry_base", SamplingParams { dry_base: 0.5, ..ok() }),
            ("dry_allowed_length", SamplingParams { dry_allowed_length: -1, ..ok() }),
            ("dry_penalty_last_n", SamplingParams { dry_penalty_last_n: -2, ..ok() }),
            ("dry_penalty_last_n", SamplingParams { dry_penalty_last_n: i32::MAX, ..ok() }),
            ("dry_sequence_breakers", SamplingParams { dry_sequence_breakers: vec![String::new()], ..ok() }),
            ("dry_sequence_breakers", SamplingParams { dry_sequence_breakers: vec!["a\0".into()], ..ok() }),
            ("dry_sequence_breakers", SamplingParams { dry_sequence_breakers: vec!["a".repeat(41)], ..ok() }),
            ("dry_sequence_breakers", SamplingParams { dry_sequence_breakers: vec!["a".into(); 17], ..ok() }),
            ("xtc_probability", SamplingParams { xtc_probability: 1.1, ..ok() }),
            ("xtc_threshold", SamplingParams { xtc_threshold: -0.1, ..ok() }),
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
