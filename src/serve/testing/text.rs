//! A vocabulary of bytes, with a sampler.

use super::{BOS, EOG, FIRST_PIECE, mix};
use crate::text::{Sampler, SamplingParams, TextError, TextModel};

/// One token per byte value, then [`BOS`], [`EOG`] and extra pieces of any bytes. Text is tokenized byte by byte;
/// the extra pieces appear only when the engine answers with them.
#[derive(Clone, Debug, Default)]
pub struct FakeText {
    pieces: Vec<Vec<u8>>,
}

impl FakeText {
    /// Bytes, [`BOS`] and [`EOG`].
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with further tokens from [`FIRST_PIECE`] on.
    pub fn with_pieces<P: Into<Vec<u8>>>(pieces: impl IntoIterator<Item = P>) -> Self {
        Self { pieces: pieces.into_iter().map(Into::into).collect() }
    }
}

impl TextModel for FakeText {
    fn n_vocab(&self) -> u32 {
        258 + self.pieces.len() as u32
    }

    fn tokenize(&self, text: &str, add_special: bool, _parse_special: bool) -> Result<Vec<i32>, TextError> {
        Ok(add_special.then_some(BOS).into_iter().chain(text.bytes().map(i32::from)).collect())
    }

    fn piece(&self, token: i32, render_special: bool) -> Vec<u8> {
        match token {
            BOS if render_special => b"<bos>".to_vec(),
            EOG if render_special => b"<eog>".to_vec(),
            BOS | EOG => Vec::new(),
            _ => match u8::try_from(token) {
                Ok(byte) => vec![byte],
                Err(_) => usize::try_from(token - FIRST_PIECE)
                    .ok()
                    .and_then(|i| self.pieces.get(i).cloned())
                    .unwrap_or_default(),
            },
        }
    }

    fn is_eog(&self, token: i32) -> bool {
        token == EOG
    }

    fn bos(&self) -> Option<i32> {
        Some(BOS)
    }

    fn sampler(&self, params: &SamplingParams) -> Result<Box<dyn Sampler>, TextError> {
        let seed = params.seed.ok_or_else(|| TextError::Sampler("no seed".into()))?;
        Ok(Box::new(FakeSampler { params: params.clone(), state: seed, counts: Vec::new(), scores: Vec::new() }))
    }
}

/// Bias, penalties, `top_k`, temperature, then a draw by the Gumbel trick.
struct FakeSampler {
    params: SamplingParams,
    state: u64,
    counts: Vec<u32>,
    scores: Vec<(f64, i32)>,
}

impl Sampler for FakeSampler {
    fn sample(&mut self, logits: &[f32]) -> i32 {
        self.scores.clear();
        for (token, &logit) in (0..).zip(logits) {
            let biases = self.params.logit_bias.iter().filter(|(id, _)| *id == token);
            let bias: f32 = biases.map(|(_, bias)| bias).sum();
            let count = self.counts.get(token as usize).copied().unwrap_or(0);
            let penalty = self.params.frequency_penalty * count as f32
                + if count > 0 { self.params.presence_penalty } else { 0.0 };
            self.scores.push((f64::from(logit + bias - penalty), token));
        }
        self.scores.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        if self.params.top_k > 0 {
            self.scores.truncate(self.params.top_k as usize);
        }
        if self.params.temperature > 0.0 {
            for (score, _) in &mut self.scores {
                self.state = mix(self.state);
                let uniform = ((self.state >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
                *score = *score / f64::from(self.params.temperature) - (-uniform.ln()).ln();
            }
        }
        self.scores.iter().max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))).map_or(-1, |&(_, token)| token)
    }

    fn accept(&mut self, token: i32) {
        let Ok(token) = usize::try_from(token) else { return };
        if self.counts.len() <= token {
            self.counts.resize(token + 1, 0);
        }
        self.counts[token] += 1;
    }
}
