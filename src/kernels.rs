//! Safe faces of the C++ in `kernels/` that needs no llama.cpp object; the rest is called from [`crate::llama`].
#![allow(unsafe_code)]

/// What bindgen read from `kernels/skippy_kernels.h`.
#[allow(missing_docs, non_camel_case_types, unreachable_pub, unused_imports, clippy::all)]
pub(crate) mod ffi {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// Index of the largest element, the lowest index on ties; `None` for an empty row or one that holds a NaN.
pub fn argmax(row: &[f32]) -> Option<usize> {
    // SAFETY: the pointer and length are those of a live slice, which the kernel only reads.
    let index = unsafe { ffi::skippy_argmax(row.as_ptr(), row.len()) };
    usize::try_from(index).ok()
}

/// `ln(sum(exp(row)))`, accumulated in double precision: the normaliser of a log-softmax.
///
/// NaN when an element is NaN, minus infinity for an empty row.
pub fn log_sum_exp(row: &[f32]) -> f64 {
    // SAFETY: as in `argmax`.
    unsafe { ffi::skippy_log_sum_exp(row.as_ptr(), row.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive_argmax(row: &[f32]) -> Option<usize> {
        if row.iter().any(|x| x.is_nan()) {
            return None;
        }
        (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best })
    }

    proptest! {
        #[test]
        fn argmax_equals_the_plain_loop(row in prop::collection::vec(prop_oneof![
            8 => -4.0f32..4.0, 4 => prop::sample::select(vec![1.0f32, 1.5]), 1 => Just(f32::NEG_INFINITY),
        ], 0..200)) {
            prop_assert_eq!(argmax(&row), naive_argmax(&row));
        }

        #[test]
        fn argmax_notices_a_nan_anywhere(len in 1usize..100, at in 0usize..100) {
            let mut row = vec![0.5f32; len];
            row[at % len] = f32::NAN;
            prop_assert_eq!(argmax(&row), None);
            prop_assert!(log_sum_exp(&row).is_nan());
        }

        #[test]
        fn log_sum_exp_equals_the_plain_sum(row in prop::collection::vec(-30.0f32..30.0, 1..300)) {
            let plain = row.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
            prop_assert!((log_sum_exp(&row) - plain).abs() < 1e-6);
        }
    }

    #[test]
    fn edges() {
        assert_eq!(argmax(&[]), None);
        assert_eq!(argmax(&[f32::NEG_INFINITY; 40]), Some(0));
        assert_eq!(log_sum_exp(&[]), f64::NEG_INFINITY);
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY; 3]), f64::NEG_INFINITY);
        // No overflow far above where exp() ends.
        assert!((log_sum_exp(&[1e4, 1e4]) - (1e4 + 2f64.ln())).abs() < 1e-9);
    }
}
