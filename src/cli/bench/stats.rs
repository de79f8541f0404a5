//! Medians and spread of repeated measurements, and ratios between two that were taken in turns.

use serde::Serialize;
use std::time::Duration;

/// What repeated runs of one thing took.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Smallest value.
    pub min: f64,
    /// Middle value.
    pub median: f64,
    /// Largest value.
    pub max: f64,
    /// Number of runs.
    pub runs: usize,
}

impl Sample {
    /// Sums up `values`, which must not be empty.
    pub fn new(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            1 => values[middle],
            _ => f64::midpoint(values[middle - 1], values[middle]),
        };
        Some(Self { min, median, max, runs: values.len() })
    }

    /// Durations, in milliseconds.
    pub fn millis(values: &[Duration]) -> Option<Self> {
        Self::new(values.iter().map(|d| d.as_secs_f64() * 1e3).collect())
    }
}

/// The median of `a[i] / b[i]`: runs taken in turns see the same machine, so their ratio is steadier than each.
pub fn paired_ratio(a: &[Duration], b: &[Duration]) -> Option<Sample> {
    Sample::new(a.iter().zip(b).map(|(a, b)| a.as_secs_f64() / b.as_secs_f64()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_no_values() {
        let median = |values: &[f64]| Sample::new(values.to_vec()).map(|s| s.median);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        let ms = |values: &[u64]| values.iter().map(|v| Duration::from_millis(*v)).collect::<Vec<_>>();
        let ratio = paired_ratio(&ms(&[10, 40, 30]), &ms(&[10, 20, 30])).unwrap();
        assert_eq!((ratio.min, ratio.median, ratio.max), (1.0, 1.0, 2.0));
    }
}
