//! Plain functions over one row of logits `[n_vocab]`.

use std::cmp::Ordering;

/// Values compared side by side; wide enough for the compiler to use vector registers.
const WIDTH: usize = 16;

/// Index of the largest logit, the lowest one of equals. `None` for an empty row or one that holds a NaN: the
/// engine is broken then, and any choice would hide it.
pub fn argmax(logits: &[f32]) -> Option<usize> {
    let mut best = [f32::NEG_INFINITY; WIDTH];
    let mut nan = [false; WIDTH];
    let chunks = logits.chunks_exact(WIDTH);
    let tail = chunks.remainder();
    for chunk in chunks {
        for ((best, nan), &value) in best.iter_mut().zip(&mut nan).zip(chunk) {
            *best = if value > *best { value } else { *best };
            *nan |= value.is_nan();
        }
    }
    let largest = best.iter().chain(tail).fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
    if nan.contains(&true) || tail.iter().any(|value| value.is_nan()) {
        return None;
    }
    logits.iter().position(|&value| value == largest)
}

/// Whether the row holds a NaN.
pub fn has_nan(logits: &[f32]) -> bool {
    logits.chunks(WIDTH).any(|chunk| chunk.iter().fold(false, |nan, value| nan | value.is_nan()))
}

/// The normalizer of one row: turns single logits into natural-log probabilities without a pass over the row each.
#[derive(Clone, Copy, Debug)]
pub struct LogSoftmax {
    log_sum: f64,
}

impl LogSoftmax {
    /// Sums `exp(logit)` over the row, in f64 and relative to the largest logit.
    pub fn new(logits: &[f32]) -> Self {
        let largest = logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        if !largest.is_finite() {
            return Self { log_sum: f64::from(largest) };
        }
        let largest = f64::from(largest);
        let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
        Self { log_sum: largest + sum.ln() }
    }

    /// The log-probability of a token with this logit; at most 0, and never below [`f32::MIN`], so that it stays a
    /// JSON number for a token with logit minus infinity.
    pub fn log_prob(&self, logit: f32) -> f32 {
        let log_prob = (f64::from(logit) - self.log_sum).clamp(f64::from(f32::MIN), 0.0);
        if log_prob.is_nan() { f32::MIN } else { log_prob as f32 }
    }
}

/// The `n` largest logits as `(token, logit)`, largest first, the lower token id first among equals.
pub fn top_n(logits: &[f32], n: usize) -> Vec<(i32, f32)> {
    let mut top: Vec<(i32, f32)> = Vec::with_capacity(n.min(logits.len()) + 1);
    if n == 0 {
        return top;
    }
    for (token, &logit) in (0..).zip(logits) {
        if top.len() == n && top.last().is_some_and(|&(_, least)| !outranks(logit, least)) {
            continue;
        }
        // Earlier ids stay in front of equals: insert behind everything that the new logit does not outrank.
        let place = top.partition_point(|&(_, kept)| !outranks(logit, kept));
        top.insert(place, (token, logit));
        top.truncate(n);
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
            prop_assert!((sum - 1.0).abs() < 1e-4, "{}", sum);
        }
    }
}
