//! Whether two results are the same result.

/// Largest difference of a value, relative to the largest value: what half-precision rows may cost. Both sides attend to the
/// same rows, so ties of the selection are no excuse.
pub(super) const VALUES: f64 = 2e-3;

/// The same for ggml's flash attention, which sums the values of a few rows in halves: 2048 roundings of up to 2^-12 of a sum
/// that is larger than its end, in no particular direction. 6e-3 is usual, 1.5e-2 has been measured (2 tokens, 4096 rows);
/// more than this is another result.
pub(super) const UPSTREAM: f64 = 5e-2;

/// How far a selected row's score may lie below the k-th largest, or an unselected one's above it, relative to the largest
/// score: two orders of summing 4096 products.
pub(super) const SELECTION: f64 = 1e-4;

/// Largest difference relative to the largest expected value; infinite when a value is no number, or one is missing.
pub(super) fn difference(got: &[f32], expected: &[f32]) -> f64 {
    if got.len() != expected.len() || got.is_empty() {
        return f64::INFINITY;
    }
    let largest = expected.iter().fold(f64::MIN_POSITIVE, |max, value| max.max(f64::from(value.abs())));
    let mut worst = 0.0f64;
    for (got, expected) in got.iter().zip(expected) {
        let distance = f64::from((got - expected).abs());
        if !distance.is_finite() {
            return f64::INFINITY;
        }
        worst = worst.max(distance);
    }
    worst / largest
}

/// What is wrong with a list, beyond its scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ListError {
    #[error("{got} entries for {tokens} rows of {top_k}")]
    Length { got: usize, tokens: usize, top_k: usize },
    #[error("row {row}: entry {entry} is not above the one before it, or not visible")]
    Entry { row: usize, entry: i32 },
    #[error("row {row}: {got} rows selected, expected {expected}")]
    Count { row: usize, got: usize, expected: usize },
}

/// How wrong the `lists` `[top_k, tokens]` are: the largest distance of a score from the k-th largest on the wrong side of it,
/// relative to the largest score. `scores` `[n_kv, tokens]`, -inf where not visible. Rows that tie within rounding may stand for
/// each other; every list must ascend and be as long as it can be.
///
/// # Errors
/// When a list is no selection at all.
pub(super) fn selection_error(scores: &[f32], n_kv: usize, lists: &[i32], top_k: usize) -> Result<f64, ListError> {
    let tokens = scores.len() / n_kv.max(1);
    if lists.len() != tokens * top_k {
        return Err(ListError::Length { got: lists.len(), tokens, top_k });
    }
    let rows = scores.chunks(n_kv.max(1)).zip(lists.chunks(top_k.max(1)));
    rows.enumerate().try_fold(0.0f64, |worst, (row, (scores, list))| Ok(worst.max(row_error(row, scores, list)?)))
}

fn row_error(row: usize, scores: &[f32], list: &[i32]) -> Result<f64, ListError> {
    let visible = scores.iter().filter(|score| **score > f32::NEG_INFINITY).count();
    let expected = visible.min(list.len());
    let named = list.iter().take_while(|entry| **entry != -1).count();
    if named != expected || list[named..].iter().any(|entry| *entry != -1) {
        return Err(ListError::Count { row, got: named, expected });
    }
    let mut chosen = vec![false; scores.len()];
    let mut before = -1;
    for entry in &list[..named] {
        let score = usize::try_from(*entry).ok().and_then(|at| scores.get(at));
        if *entry <= before || score.is_none_or(|score| *score == f32::NEG_INFINITY) {
            return Err(ListError::Entry { row, entry: *entry });
        }
        chosen[*entry as usize] = true;
        before = *entry;
    }
    let mut sorted: Vec<f32> = scores.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let Some(kth) = expected.checked_sub(1).map(|at| f64::from(sorted[at])) else { return Ok(0.0) };
    let largest = scores.iter().filter(|score| score.is_finite());
    let largest = largest.fold(f64::MIN_POSITIVE, |max, score| max.max(f64::from(score.abs())));
    let wrong_side = scores.iter().zip(&chosen).map(|(score, chosen)| match chosen {
        true => kth - f64::from(*score),
        false => f64::from(*score) - kth,
    });
    Ok(wrong_side.fold(0.0, f64::max) / largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIDDEN: f32 = f32::NEG_INFINITY;

    #[test]
    fn differences_are_relative_and_no_number_is_equal_to_nothing() {
        assert_eq!(difference(&[1.0, 4.0], &[1.0, 4.0]), 0.0);
        assert_eq!(difference(&[1.0, 3.0], &[1.0, 4.0]), 0.25);
        for broken in [&[1.0, f32::NAN][..], &[f32::INFINITY, 4.0], &[1.0], &[]] {
            assert_eq!(difference(broken, &[1.0, 4.0]), f64::INFINITY);
        }
        assert!(difference(&[1.0, 4.3], &[1.0, 4.0]) > UPSTREAM);
    }

    #[test]
    fn rows_that_tie_may_stand_for_each_other() {
        let scores = [3.0, 2.0, 2.0, 1.0, HIDDEN];
        for (list, expected) in [([0, 1], 0.0), ([0, 2], 0.0), ([0, 3], 1.0 / 3.0), ([1, 2], 1.0 / 3.0)] {
            assert_eq!(selection_error(&scores, 5, &list, 2), Ok(expected), "{list:?}");
        }
        // The best one left out, though all that are named reach the k-th.
        assert!(selection_error(&[3.0, 1.0, 1.0], 3, &[1, 2], 2).unwrap() > SELECTION);
    }

    #[test]
    fn what_is_no_selection_is_refused() {
        let scores = [3.0, 2.0, HIDDEN, 3.0, 2.0, 1.0];
        assert_eq!(selection_error(&scores, 3, &[0, 1, 0, 1], 2), Ok(0.0));
        for (lists, error) in [
            (&[0, 1, 0][..], ListError::Length { got: 3, tokens: 2, top_k: 2 }),
            (&[1, 0, 0, 1], ListError::Entry { row: 0, entry: 0 }),
            (&[0, 0, 0, 1], ListError::Entry { row: 0, entry: 0 }),
            (&[0, 2, 0, 1], ListError::Entry { row: 0, entry: 2 }),
            (&[0, 1, 0, 3], ListError::Entry { row: 1, entry: 3 }),
            (&[0, 1, 0, -1], ListError::Count { row: 1, got: 1, expected: 2 }),
            (&[-1, 1, 0, 1], ListError::Count { row: 0, got: 0, expected: 2 }),
        ] {
            assert_eq!(selection_error(&scores, 3, lists, 2), Err(error));
        }
        assert_eq!(selection_error(&[1.0, HIDDEN], 2, &[0, -1], 2), Ok(0.0));
    }
}
