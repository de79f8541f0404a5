//! `mul_mat_rows` has, column by column, the bits of ggml's product with that column alone, but for the
//! types that have kernels of their own: those of the kernel with that column alone.

use super::*;

const K: u64 = 512;
/// Odd, since kernels take rows in pairs.
const M: u64 = 7;
const BATCHES: u64 = 3;

/// Columns `[K, n, BATCHES]` as the heads of queries lie: the batches of a column are neighbours.
fn columns<'g>(g: &Graph<'g>, data: &[f32], k: i64, n: i64) -> Tensor<'g> {
    let x = g.input_f32(data, [k, n * BATCHES as i64]);
    g.permute(g.reshape(x, [k, BATCHES as i64, n, 1]), [0, 2, 1, 3])
}

fn check(ty: GgmlType, k: u64) {
    check_counts(ty, k, M, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

/// Products of `m` rows of length `k` with so many columns.
fn check_counts(ty: GgmlType, k: u64, m: u64, counts: &[usize]) {
    let weight = leaf(ty, &[k, m, BATCHES], &random(u64::from(ty.id()), (k * m * BATCHES) as usize));
    let leaves = [weight];
    let most = counts.iter().max().unwrap();
    let data = random(7, k as usize * most * BATCHES as usize);
    let column = (k * BATCHES) as usize;
    let single: Vec<Vec<f32>> = data
        .chunks(column)
        .map(|data| {
            // A column of Q8_0 is rounded to more bits here than ggml has; sums of Q4_K have another order.
            let own = [GgmlType::Q8_0, GgmlType::Q4_K].contains(&ty);
            f32s(1, &leaves, |g, w| {
                let (w, x) = (g.leaf(&w[0]), columns(g, data, k as i64, 1));
                if own { g.mul_mat_rows(w, x) } else { g.mul_mat(w, x) }
            })
            .unwrap()
        })
        .collect();
    for n in counts.iter().copied() {
        let threads: &[u32] = if n == 5 { &[1, 2, 3] } else { &[1] };
        for threads in threads.iter().copied() {
            let x = &data[..n * column];
            let got = f32s(threads, &leaves, |g, w| g.mul_mat_rows(g.leaf(&w[0]), columns(g, x, k as i64, n as i64)))
                .unwrap();
            for (batch, got) in got.chunks(m as usize * n).enumerate() {
                for (got, single) in got.chunks(m as usize).zip(&single) {
                    let expected = &single[batch * m as usize..][..m as usize];
                    assert!(expected.iter().all(|value| value.is_finite()), "{ty}");
                    assert_eq!(bits(got), bits(expected), "{ty}, {n} columns, {threads} threads, batch {batch}");
                }
            }
        }
    }
}

#[test]
fn every_matrix_type() {
    let types: Vec<GgmlType> = GgmlType::all().filter(|ty| is_matrix_type(*ty)).collect();
    for must in ["f32", "f16", "bf16", "q8_0", "q4_0", "q2_K", "q3_K", "q4_K", "q6_K", "iq2_xxs", "mxfp4"] {
        assert!(types.iter().any(|ty| ty.name() == must), "{must}");
    }
    for ty in types {
        check(ty, K);
    }
}

/// Widths of one block, and of no whole vector.
#[test]
fn odd_widths() {
    for (ty, widths) in [
        (GgmlType::F32, &[1, 3, 31, 40, 100][..]),
        (GgmlType::F16, &[1, 3, 31, 40, 100]),
        (GgmlType::BF16, &[1, 3, 31, 40, 100]),
        (GgmlType::Q8_0, &[32, 96]),
        (GgmlType::Q4_0, &[32, 96]),
        (GgmlType::Q4_K, &[256]),
    ] {
        for width in widths {
            check(ty, *width);
        }
    }
}

/// As many columns as the drafts of several sequences have, and few rows.
#[test]
fn many_columns_and_single_rows() {
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::Q8_0, GgmlType::Q4_0] {
        for rows in [1, 2, 3, 64] {
            check_counts(ty, 96, rows, &[1, 5, 16, 17, 36]);
        }
    }
}

/// Products in double precision.
#[test]
fn values_are_those_of_the_matrix() {
    for (ty, tolerance) in [(GgmlType::F32, 1e-4), (GgmlType::Q8_0, if wide_q8_0() { 1e-3 } else { 5e-2 })] {
        let (values, x) = (random(1, 96 * 13), random(2, 96 * 5));
        let weight = leaf(ty, &[96, 13], &values);
        let got = f32s(2, &[weight], |g, w| g.mul_mat_rows(g.leaf(&w[0]), g.input_f32(&x, [96, 5]))).unwrap();
        let values = rounded(ty, 96, &values);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let expected = x.chunks(96).flat_map(|column| values.chunks(96).map(move |row| dot(row, column)));
        for (got, expected) in got.iter().zip(expected) {
            assert!((f64::from(*got) - expected).abs() < tolerance, "{ty}: {got} for {expected}");
        }
    }
}

/// Weights and columns at the ends of their ranges do not overflow, and a column of zeros is one.
#[test]
fn extremes_of_q8_0() {
    if !wide_q8_0() {
        return;
    }
    let values: Vec<f32> = (0..64 * 9).map(|i| if i % 3 == 0 { -1.0 } else { 1.0 }).collect();
    let leaves = [leaf(GgmlType::Q8_0, &[64, 9], &values)];
    let x: Vec<f32> = (0..64).map(|i| if i % 3 == 0 { -3e30 } else { 3e30 }).chain([0.0; 64]).collect();
    let got = f32s(1, &leaves, |g, w| g.mul_mat_rows(g.leaf(&w[0]), g.input_f32(&x, [64, 2]))).unwrap();
    assert!((got[0] / (64.0 * 3e30) - 1.0).abs() < 1e-3, "{}", got[0]);
    assert_eq!(got[9..], [0.0; 9]);
}

/// What is no number stays none, and only in its own column.
#[test]
fn no_numbers_in_q8_0() {
    if !wide_q8_0() {
        return;
    }
    let leaves = [leaf(GgmlType::Q8_0, &[64, 9], &random(1, 64 * 9))];
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = random(2, 64 * 3);
        x[64 + 5] = bad;
        let got = f32s(1, &leaves, |g, w| g.mul_mat_rows(g.leaf(&w[0]), g.input_f32(&x, [64, 3]))).unwrap();
        let finite: Vec<bool> = got.iter().map(|value| value.is_finite()).collect();
        let expected: Vec<bool> = (0..27).map(|i| !(9..18).contains(&i)).collect();
        assert_eq!(finite, expected, "{bad}");
    }
}
