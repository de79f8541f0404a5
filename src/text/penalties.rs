//! What changes logits before a token is chosen: bias, penalties on tokens that have occurred, and DRY.
//!
//! Each looks at the tokens it is about and not at the whole row, so the cost goes with the text, not with the vocabulary.
//! DRY needs no table of the vocabulary either: whether a text that ends repetitions has been completed is seen from the
//! bytes of the tokens that come by.

use std::collections::{HashMap, HashSet};

use crate::text::{MAX_DRY_WINDOW, SamplingParams};

/// A DRY penalty at most: far beyond any logit, and finite.
const MAX_DRY_PENALTY: f64 = 1e6;

/// Bias and penalties of one request, and what they need to know of its text.
#[derive(Debug)]
pub struct Penalties {
    bias: Vec<(i32, f32)>,
    repetition: f32,
    presence: f32,
    frequency: f32,
    /// How often each token has occurred; stays empty where no penalty asks.
    counts: Option<HashMap<i32, u32>>,
    dry: Option<Dry>,
}

impl Penalties {
    /// Those of `params`, before any text.
    pub fn new(params: &SamplingParams) -> Self {
        Self {
            bias: params.logit_bias.clone(),
            repetition: params.repetition_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            counts: params.has_penalties().then(HashMap::new),
            dry: params.has_dry().then(|| Dry::new(params)),
        }
    }

    /// Whether [`apply`](Self::apply) does nothing.
    pub fn is_empty(&self) -> bool {
        self.bias.is_empty() && self.counts.is_none() && self.dry.is_none()
    }

    /// Whether [`accept`](Self::accept) looks at the bytes of tokens.
    pub fn wants_bytes(&self) -> bool {
        self.dry.is_some()
    }

    /// `token`, which stands for `bytes`, is now part of the text.
    pub fn accept(&mut self, token: i32, bytes: &[u8]) {
        if let Some(counts) = &mut self.counts {
            *counts.entry(token).or_default() += 1;
        }
        if let Some(dry) = &mut self.dry {
            dry.accept(token, bytes);
        }
    }

    /// Changes the row `[n_vocab]`. Finite logits stay finite, minus infinity stays what it is.
    pub fn apply(&mut self, logits: &mut [f32]) {
        let mut change = |token: i32, change: &dyn Fn(f32) -> f32| {
            if let Some(logit) = usize::try_from(token).ok().and_then(|id| logits.get_mut(id)) {
                *logit = change(*logit);
            }
        };
        for &(token, bias) in &self.bias {
            change(token, &|logit| logit + bias);
        }
        for (&token, &count) in self.counts.iter().flatten() {
            let minus = self.presence + self.frequency * count as f32;
            let scaled = |logit: f32| if logit > 0.0 { logit / self.repetition } else { logit * self.repetition };
            change(token, &|logit| scaled(logit) - minus);
        }
        if let Some(dry) = &mut self.dry {
            for (token, penalty) in dry.penalties() {
                change(token, &|logit| logit - penalty);
            }
        }
    }
}

/// Don't Repeat Yourself: penalizes the tokens that would go on with a repetition of what was said before.
#[derive(Debug)]
struct Dry {
    multiplier: f64,
    base: f64,
    allowed: usize,
    window: usize,
    breakers: Vec<Vec<u8>>,
    /// The text, as far as the window reaches (and a while longer).
    history: Vec<i32>,
    /// Tokens behind the last completed breaker: a repetition reaches no further back.
    since_break: usize,
    /// Tokens that hold a whole breaker; never penalized.
    breaking: HashSet<i32>,
    /// The last bytes, in which the beginning of a breaker may stand.
    tail: Vec<u8>,
}

impl Dry {
    fn new(params: &SamplingParams) -> Self {
        let whole = |number: i32| usize::try_from(number).ok();
        Self {
            multiplier: f64::from(params.dry_multiplier),
            base: f64::from(params.dry_base),
            allowed: whole(params.dry_allowed_length).unwrap_or(0),
            window: whole(params.dry_penalty_last_n.min(MAX_DRY_WINDOW)).unwrap_or(MAX_DRY_WINDOW as usize),
            breakers: params.dry_sequence_breakers.iter().map(|text| text.as_bytes().to_vec()).collect(),
            history: Vec::new(),
            since_break: 0,
            breaking: HashSet::new(),
            tail: Vec::new(),
        }
    }

    fn accept(&mut self, token: i32, bytes: &[u8]) {
        if self.history.len() >= 2 * self.window.max(64) {
            self.history.drain(..self.history.len() - self.window);
        }
        self.history.push(token);
        self.since_break += 1;
        let before = self.tail.len();
        self.tail.extend_from_slice(bytes);
        if self.breakers.iter().any(|breaker| ends_behind(&self.tail, before, breaker)) {
            self.since_break = 0;
        }
        if self.breakers.iter().any(|breaker| ends_behind(bytes, 0, breaker)) {
            self.breaking.insert(token);
        }
        let longest = self.breakers.iter().map(Vec::len).max().unwrap_or(0);
        self.tail.drain(..self.tail.len().saturating_sub(longest.saturating_sub(1)));
    }

    /// Tokens to penalize, and by how much.
    fn penalties(&mut self) -> impl Iterator<Item = (i32, f32)> {
        let start = self.history.len().saturating_sub(self.window);
        let limit = self.since_break;
        let mut longest: HashMap<i32, usize> = HashMap::new();
        for (token, repeated) in repetitions(&self.history[start..]) {
            let repeated = repeated.min(limit);
            if repeated >= self.allowed && !self.breaking.contains(&token) {
                let most = longest.entry(token).or_default();
                *most = repeated.max(*most);
            }
        }
        let (multiplier, base, allowed) = (self.multiplier, self.base, self.allowed);
        longest.into_iter().map(move |(token, repeated)| {
            let penalty = multiplier * base.powf((repeated - allowed) as f64);
            (token, penalty.min(MAX_DRY_PENALTY) as f32)
        })
    }
}

/// Whether `breaker` stands in `text` such that its last byte is at `from` or later.
fn ends_behind(text: &[u8], from: usize, breaker: &[u8]) -> bool {
    let start = (from + 1).saturating_sub(breaker.len());
    text.get(start..).is_some_and(|text| text.windows(breaker.len()).any(|window| window == breaker))
}

/// For every token but the first: the token, and how many tokens in front of it are also those at the end of the text.
fn repetitions(text: &[i32]) -> impl Iterator<Item = (i32, usize)> + '_ {
    // The Z function of the text read backwards: at `k`, how far it equals its own beginning.
    let n = text.len();
    let at = move |i: usize| text[n - 1 - i];
    let mut z = vec![0; n];
    let (mut left, mut right) = (0, 0);
    for k in 1..n {
        let mut length = if k < right { z[k - left].min(right - k) } else { 0 };
        while k + length < n && at(length) == at(k + length) {
            length += 1;
        }
        if k + length > right {
            (left, right) = (k, k + length);
        }
        z[k] = length;
    }
    (1..n).map(move |k| (at(k - 1), z[k]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is left of a row of zeros (and of ones, twos for tokens 1, 2) after the text `bytes`, a token a byte.
    fn row(params: &SamplingParams, text: &[u8]) -> Vec<f32> {
        let mut penalties = Penalties::new(params);
        text.iter().for_each(|&byte| penalties.accept(i32::from(byte), &[byte]));
        let mut row = vec![1.0; 128];
        penalties.apply(&mut row);
        row
    }

    fn dry() -> SamplingParams {
        SamplingParams { dry_multiplier: 1.0, dry_base: 2.0, ..SamplingParams::default() }
    }

    /// Tokens that lost something, with what.
    fn lost(row: &[f32]) -> Vec<(char, f32)> {
        let lost = (0u8..).zip(row).filter(|(_, logit)| **logit != 1.0);
        lost.map(|(token, logit)| (char::from(token), 1.0 - logit)).collect()
    }

    #[test]
    fn penalties_weigh_occurrences() {
        let off = SamplingParams::default;
        assert!(Penalties::new(&off()).is_empty() && !Penalties::new(&dry()).is_empty());
        let presence = SamplingParams { presence_penalty: 0.5, ..off() };
        assert_eq!(lost(&row(&presence, b"aab")), [('a', 0.5), ('b', 0.5)]);
        let frequency = SamplingParams { frequency_penalty: 0.5, ..off() };
        assert_eq!(lost(&row(&frequency, b"aab")), [('a', 1.0), ('b', 0.5)]);
        let repetition = SamplingParams { repetition_penalty: 2.0, ..off() };
        assert_eq!(lost(&row(&repetition, b"aab")), [('a', 0.5), ('b', 0.5)]);
        // First the bias, then the penalty: a negative logit is multiplied.
        let biased = SamplingParams { logit_bias: vec![(97, -3.0), (500, 1.0), (-1, 1.0)], ..repetition };
        assert_eq!(row(&biased, b"a")[97], -4.0);
    }

    #[test]
    fn dry_penalizes_what_goes_on_with_a_repetition() {
        // "ab" stands at the end and was followed by "c"; before that "zab" by "q".
        assert_eq!(lost(&row(&dry(), b"abc.ab")), [('c', 1.0)]);
        assert_eq!(lost(&row(&dry(), b"zabq.abc.zab")), [('c', 1.0), ('q', 2.0)]);
        assert_eq!(lost(&row(&dry(), b"ab.cb")), []);
        let longer = SamplingParams { dry_allowed_length: 3, ..dry() };
        assert_eq!(lost(&row(&longer, b"zabq.abc.zab")), [('q', 1.0)]);
        let near = SamplingParams { dry_penalty_last_n: 7, ..dry() };
        assert_eq!(lost(&row(&near, b"zabq.abc.zab")), [('c', 1.0)]);
        // A run of one token repeats itself.
        assert_eq!(lost(&row(&dry(), b"aaaa")), [('a', 2.0)]);
        let strong = SamplingParams { dry_multiplier: 100.0, dry_base: 100.0, ..dry() };
        assert!(row(&strong, &[b'a'; 3000])[97].is_finite());
    }

    #[test]
    fn a_sequence_breaker_ends_a_repetition() {
        // Behind the ":" one token only is left to repeat.
        assert_eq!(lost(&row(&dry(), b"x:ac.x:a")), []);
        assert_eq!(lost(&row(&dry(), b"x:abc.x:ab")), [('c', 1.0)]);
        // Never penalized itself.
        assert_eq!(lost(&row(&dry(), b"ab:ab")), []);
        let none = SamplingParams { dry_sequence_breakers: Vec::new(), ..dry() };
        assert_eq!(lost(&row(&none, b"ab:ab")), [(':', 1.0)]);
        // Over several tokens, and in the middle of one.
        let breaker = |text: &str| SamplingParams { dry_sequence_breakers: vec![text.into()], ..dry() };
        assert_eq!(lost(&row(&breaker("ENDS"), b"ENDSac.ENDSa")), []);
        assert_eq!(lost(&row(&breaker("ENDX"), b"ENDSac.ENDSa")), [('c', 8.0)]);
        let mut penalties = Penalties::new(&breaker("\n"));
        for (token, bytes) in [(1, "so"), (2, ".\n\n"), (3, "x"), (4, "y"), (1, "so"), (2, ".\n\n"), (3, "x")] {
            penalties.accept(token, bytes.as_bytes());
        }
        let mut row = vec![1.0; 8];
        penalties.apply(&mut row);
        assert_eq!(row, [1.0; 8]);
    }

    proptest! {
        #[test]
        fn repetitions_agree_with_the_naive_search(text in prop::collection::vec(0i32..3, 0..40)) {
            let found: Vec<_> = repetitions(&text).collect();
            let common = |i: usize| (0..i).take_while(|&k| text[i - 1 - k] == text[text.len() - 1 - k]).count();
            let naive: Vec<_> = (1..text.len()).rev().map(|i| (text[i], common(i))).collect();
            prop_assert_eq!(found, naive);
        }

        #[test]
        fn no_penalty_makes_a_logit_that_is_no_number(
            text in prop::collection::vec(0i32..4, 0..80),
            multiplier in 0.0f32..=100.0,
            base in 1.0f32..=100.0,
            repetition in 0.01f32..=100.0,
        ) {
            let params = SamplingParams {
                dry_multiplier: multiplier,
                dry_base: base,
                dry_allowed_length: 0,
                repetition_penalty: repetition,
                ..SamplingParams::default()
            };
            let mut penalties = Penalties::new(&params);
            text.iter().for_each(|&token| penalties.accept(token, b"a"));
            let mut row = vec![-1e4, 1e4, 0.0, f32::NEG_INFINITY];
            penalties.apply(&mut row);
            prop_assert!(row[..3].iter().all(|logit| logit.is_finite()) && row[3] == f32::NEG_INFINITY, "{:?}", row);
        }
    }
}
