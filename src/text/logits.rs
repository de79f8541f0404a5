//! Plain functions over one row of logits `[n_vocab]`.

use std::{array::from_fn, cmp::Ordering};

/// Values compared side by side; wide enough for the compiler to use vector registers.
const WIDTH: usize = 16;

/// Index of the largest logit, the lowest one of equals. `None` for an empty row or one that holds a NaN: the
/// engine is broken then, and any choice would hide it.
pub fn argmax(logits: &[f32]) -> Option<usize> {
    if has_nan(logits) {
        return None;
    }
    let largest = largest(logits);
    // First the chunk, without leaving it early, then the place in it: the loops stay free of branches.
    let holds = |chunk: &[f32]| chunk.iter().fold(false, |found, &logit| found | (logit == largest));
    let (i, chunk) = logits.chunks(4 * WIDTH).enumerate().find(|(_, chunk)| holds(chunk))?;
    Some(i * 4 * WIDTH + chunk.iter().position(|&logit| logit == largest)?)
}

/// Whether the row holds a NaN.
pub fn has_nan(logits: &[f32]) -> bool {
    // Without its sign bit a NaN is the only value with more bits than infinity, and integers have a fast maximum.
    let magnitude = |logit: f32| (logit.to_bits() & 0x7fff_ffff) as i32;
    let (chunks, tail) = logits.as_chunks::<WIDTH>();
    let most = chunks.iter().fold([0; WIDTH], |most, chunk| from_fn(|i| magnitude(chunk[i]).max(most[i])));
    let all = most.into_iter().chain(tail.iter().map(|&logit| magnitude(logit)));
    all.max().is_some_and(|most| most > magnitude(f32::INFINITY))
}

/// The largest logit; minus infinity for an empty row. NaN is passed over.
fn largest(logits: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, tail) = logits.as_chunks::<WIDTH>();
    let start = [f32::NEG_INFINITY; WIDTH];
    let best = chunks.iter().fold(start, |best, chunk| from_fn(|i| larger(best[i], chunk[i])));
    best.iter().chain(tail).fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

/// The normalizer of one row: turns single logits into natural-log probabilities without a pass over the row each.
#[derive(Clone, Copy, Debug)]
pub struct LogSoftmax {
    log_sum: f64,
}

impl LogSoftmax {
    /// Sums `exp(logit)` over the row relative to the largest logit: single terms in f32, their sum in f64.
    pub fn new(logits: &[f32]) -> Self {
        let largest = largest(logits);
        if !largest.is_finite() {
            return Self { log_sum: f64::from(largest) };
        }
        let term = |logit: f32| f64::from(exp_of_negative(logit - largest));
        let (chunks, tail) = logits.as_chunks::<WIDTH>();
        let sums = chunks.iter().fold([0.0; WIDTH], |sums, chunk| from_fn(|i| sums[i] + term(chunk[i])));
        let sum: f64 = sums.into_iter().chain(tail.iter().map(|&logit| term(logit))).sum();
        Self { log_sum: f64::from(largest) + sum.ln() }
    }

    /// The log-probability of a token with this logit; at most 0, and never below [`f32::MIN`], so that it stays a
    /// JSON number for a token with logit minus infinity.
    pub fn log_prob(&self, logit: f32) -> f32 {
        let log_prob = (f64::from(logit) - self.log_sum).clamp(f64::from(f32::MIN), 0.0);
        if log_prob.is_nan() { f32::MIN } else { log_prob as f32 }
    }
}

/// `exp(x)` for `x <= 0`, to about 1e-7 of the value; below -87 it is 2e-38. The library's `exp` keeps the compiler
/// from using vector registers, and a row has as many terms as the vocabulary has tokens.
fn exp_of_negative(x: f32) -> f32 {
    // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts, the first exact in a few bits.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.max(-87.0);
    let n = (x * std::f32::consts::LOG2_E).round_ties_even();
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    // Taylor series to the seventh power: the next term is below 6e-9.
    let terms = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let power = terms.iter().fold(0.0f32, |sum, &term| sum.mul_add(r, term));
    power * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// The `n` largest logits as `(token, logit)`, largest first, the lower token id first among equals.
pub fn top_n(logits: &[f32], n: usize) -> Vec<(i32, f32)> {
    let mut top: Vec<(i32, f32)> = Vec::with_capacity(n.min(logits.len()) + 1);
    if n == 0 {
        return top;
    }
    // Once full, the least logit kept: most of a row is not above it.
    let mut least = f32::NAN;
    for (token, &logit) in (0..).zip(logits) {
        if logit <= least {
            continue;
        }
        // Earlier ids stay in front of equals: insert behind everything that the new logit does not outrank.
        let place = top.partition_point(|&(_, kept)| !outranks(logit, kept));
        top.insert(place, (token, logit));
        top.truncate(n);
        if top.len() == n {
            least = top[n - 1].1;
        }
    }
    top
}

/// Whether `a` ranks strictly before `b`; NaN ranks last.
fn outranks(a: f32, b: f32) -> bool {
    match a.partial_cmp(&b) {
        Some(order) => order == Ordering::Greater,
        None => !a.is_nan() && b.is_nan(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn argmax_takes_the_first_of_equals_and_refuses_nan() {
        assert_eq!(argmax(&[]), None);
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), Some(1));
        assert_eq!(argmax(&[f32::NEG_INFINITY; 40]), Some(0));
        assert_eq!(argmax(&[0.0, -0.0]), Some(0));
        for place in [0, 15, 16, 39] {
            let mut row = [0.0; 40];
            row[place] = f32::NAN;
            assert_eq!(argmax(&row), None);
            assert!(has_nan(&row));
            row[place] = 1.0;
            assert_eq!(argmax(&row), Some(place));
            assert!(!has_nan(&row));
        }
    }

    #[test]
    fn log_probs_of_a_known_row() {
        let row = [0.0, (3.0_f32).ln(), f32::NEG_INFINITY];
        let norm = LogSoftmax::new(&row);
        assert!((norm.log_prob(row[0]) - 0.25_f32.ln()).abs() < 1e-6);
        assert!((norm.log_prob(row[1]) - 0.75_f32.ln()).abs() < 1e-6);
        assert_eq!(norm.log_prob(row[2]), f32::MIN);
        assert_eq!(LogSoftmax::new(&[5.0]).log_prob(5.0), 0.0);
        assert!(LogSoftmax::new(&[]).log_prob(0.0).is_finite());
        assert!(LogSoftmax::new(&[f32::INFINITY, 0.0]).log_prob(0.0).is_finite());
    }

    #[test]
    fn exponentials_of_a_row_are_accurate() {
        for i in 0..=87_000 {
            let x = -i as f32 / 1000.0;
            let (fast, exact) = (f64::from(exp_of_negative(x)), f64::from(x).exp());
            assert!((fast - exact).abs() <= 2.5e-7 * exact, "exp({x}) = {exact}, got {fast}");
        }
        assert_eq!(exp_of_negative(0.0), 1.0);
        assert!(exp_of_negative(f32::NEG_INFINITY) < 1e-37);
    }

    proptest! {
        #[test]
        fn argmax_agrees_with_the_naive_scan(row in prop::collection::vec(-4i8..4, 1..80)) {
            let row: Vec<f32> = row.into_iter().map(f32::from).collect();
            let mut best = 0;
            for (i, &value) in row.iter().enumerate() {
                if value > row[best] {
                    best = i;
                }
            }
            prop_assert_eq!(argmax(&row), Some(best));
        }

        #[test]
        fn top_n_agrees_with_a_stable_sort(row in prop::collection::vec(-4i8..4, 0..60), n in 0usize..12) {
            let row: Vec<f32> = row.into_iter().map(f32::from).collect();
            let mut sorted: Vec<(i32, f32)> = (0..).zip(row.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
            sorted.truncate(n);
            prop_assert_eq!(top_n(&row, n), sorted);
        }

        #[test]
        fn probabilities_sum_to_one(row in prop::collection::vec(-30.0f32..30.0, 1..200)) {
            let norm = LogSoftmax::new(&row);
            let sum: f64 = row.iter().map(|&logit| f64::from(norm.log_prob(logit)).exp()).sum();
            prop_assert!((sum - 1.0).abs() < 1e-5, "{}", sum);
            let exact = row.iter().map(|&logit| f64::from(logit).exp()).sum::<f64>().ln();
            prop_assert!((norm.log_sum - exact).abs() < 1e-6, "{} {}", norm.log_sum, exact);
        }
    }
}
