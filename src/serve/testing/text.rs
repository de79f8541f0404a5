//! A vocabulary of bytes, with a sampler.

use super::{BOS, EOG, FIRST_PIECE, mix};
use crate::text::{Penalties, Sampler, SamplingParams, TextError, TextModel};

/// One token per byte value, then [`BOS`], [`EOG`] and extra pieces of any bytes. Text is tokenized byte by byte;
/// the extra pieces appear only when the engine answers with them. Control tokens, which are [`BOS`], [`EOG`] and those of
/// [`FakeText::controls`], are found in text where they are written out, when asked for.
#[derive(Clone, Debug, Default)]
pub struct FakeText {
    pieces: Vec<Vec<u8>>,
    /// How many of the last pieces are control tokens.
    controls: usize,
}

impl FakeText {
    /// Bytes, [`BOS`] and [`EOG`].
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with further tokens from [`FIRST_PIECE`] on.
    pub fn with_pieces<P: Into<Vec<u8>>>(pieces: impl IntoIterator<Item = P>) -> Self {
        Self { pieces: pieces.into_iter().map(Into::into).collect(), controls: 0 }
    }

    /// The same with control tokens behind those.
    pub fn controls(mut self, texts: &[&str]) -> Self {
        self.pieces.extend(texts.iter().map(|text| text.as_bytes().to_vec()));
        self.controls += texts.len();
        self
    }

    fn is_control(&self, token: i32) -> bool {
        let first = FIRST_PIECE + (self.pieces.len() - self.controls) as i32;
        matches!(token, BOS | EOG) || (first..self.n_vocab() as i32).contains(&token)
    }

    /// The control token that `text` begins with, and its length.
    fn control_at(&self, text: &[u8]) -> Option<(i32, usize)> {
        let controls = (BOS..self.n_vocab() as i32).filter(|&token| self.is_control(token));
        let mut written = controls.map(|token| (token, self.piece(token, true)));
        written.find(|(_, piece)| text.starts_with(piece)).map(|(token, piece)| (token, piece.len()))
    }
}

impl TextModel for FakeText {
    fn n_vocab(&self) -> u32 {
        258 + self.pieces.len() as u32
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<i32>, TextError> {
        let mut tokens: Vec<i32> = add_special.then_some(BOS).into_iter().collect();
        let mut rest = text.as_bytes();
        while let [byte, behind @ ..] = rest {
            match self.control_at(rest).filter(|_| parse_special && b"<[".contains(byte)) {
                Some((token, length)) => {
                    tokens.push(token);
                    rest = &rest[length..];
                }
                None => {
                    tokens.push(i32::from(*byte));
                    rest = behind;
                }
            }
        }
        Ok(tokens)
    }

    fn piece(&self, token: i32, render_special: bool) -> Vec<u8> {
        match token {
            BOS if render_special => b"<bos>".to_vec(),
            EOG if render_special => b"<eog>".to_vec(),
            _ if self.is_control(token) && !render_special => Vec::new(),
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
        Ok(Box::new(FakeSampler {
            text: self.clone(),
            params: params.clone(),
            seed,
            place: 0,
            state: 0,
            penalties: Penalties::new(params),
            scores: Vec::new(),
        }))
    }
}

/// Bias and penalties as every sampler has them, then `top_k`, `typical_p`, `top_p`, `min_p`, XTC and temperature in
/// plain code, then a draw by the Gumbel trick.
struct FakeSampler {
    text: FakeText,
    params: SamplingParams,
    seed: u64,
    /// Tokens so far: what is drawn depends on the seed and on the place in the text.
    place: u64,
    state: u64,
    penalties: Penalties,
    /// Logits and tokens that are left, the most likely first.
    scores: Vec<(f64, i32)>,
}

impl Sampler for FakeSampler {
    fn sample(&mut self, logits: &[f32]) -> i32 {
        self.state = mix(self.seed ^ mix(self.place));
        let mut row = logits.to_vec();
        self.penalties.apply(&mut row);
        let finite = (0..).zip(row).filter(|(_, logit)| *logit != f32::NEG_INFINITY);
        self.scores = finite.map(|(token, logit)| (f64::from(logit), token)).collect();
        self.scores.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        if self.params.temperature > 0.0 {
            self.truncate();
            for i in 0..self.scores.len() {
                let gumbel = -(-self.uniform().ln()).ln();
                let score = &mut self.scores[i].0;
                *score = *score / f64::from(self.params.temperature) + gumbel;
            }
        }
        self.scores.iter().max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))).map_or(-1, |&(_, token)| token)
    }

    fn accept(&mut self, token: i32) {
        self.penalties.accept(token, &self.text.piece(token, true));
        self.place += 1;
    }
}

impl FakeSampler {
    fn uniform(&mut self) -> f64 {
        self.state = mix(self.state);
        ((self.state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn probabilities(&self) -> Vec<f64> {
        let most = self.scores.first().map_or(0.0, |(score, _)| *score);
        let weights: Vec<f64> = self.scores.iter().map(|(score, _)| (score - most).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }

    fn truncate(&mut self) {
        let Self { params: SamplingParams { top_k, typical_p, top_p, min_p, .. }, .. } = *self;
        if top_k > 0 {
            self.scores.truncate(top_k as usize);
        }
        if typical_p < 1.0 {
            let probabilities = self.probabilities();
            let surprise = |p: f64| -p.max(1e-300).ln();
            let entropy: f64 = probabilities.iter().map(|&p| p * surprise(p)).sum();
            let mut order: Vec<usize> = (0..probabilities.len()).collect();
            let distance = |i: usize| (surprise(probabilities[i]) - entropy).abs();
            order.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)));
            let kept = reaching(order.iter().map(|&i| probabilities[i]), typical_p);
            let mut kept = order[..kept].to_vec();
            kept.sort_unstable();
            self.scores = kept.into_iter().map(|i| self.scores[i]).collect();
        }
        if top_p < 1.0 {
            let kept = reaching(self.probabilities().into_iter(), top_p);
            self.scores.truncate(kept);
        }
        if min_p > 0.0 {
            let probabilities = self.probabilities();
            let least = f64::from(min_p) * probabilities.first().copied().unwrap_or(0.0);
            self.scores.truncate(probabilities.iter().take_while(|&&p| p >= least).count());
        }
        if self.params.xtc_probability > 0.0 && self.uniform() <= f64::from(self.params.xtc_probability) {
            let threshold = f64::from(self.params.xtc_threshold);
            let top = self.probabilities().iter().take_while(|&&p| p >= threshold).count();
            self.scores.drain(..top.saturating_sub(1));
        }
    }
}

/// How many of `probabilities` it takes to reach `share`; all of them when they do not.
fn reaching(probabilities: impl ExactSizeIterator<Item = f64>, share: f32) -> usize {
    let all = probabilities.len();
    let mut sum = 0.0;
    let short = probabilities.take_while(|p| {
        sum += p;
        sum < f64::from(share)
    });
    (short.count() + 1).min(all)
}
