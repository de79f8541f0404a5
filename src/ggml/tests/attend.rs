//! `attend_listed` against softmax in double precision.

use super::*;

#[derive(Clone, Copy, Debug)]
struct Case {
    ty: GgmlType,
    width: usize,
    v_dim: usize,
    heads: usize,
    n_kv: usize,
    scale: f32,
}

fn run(threads: u32, case: &Case, query: &[f32], cache: &[Leaf], lists: &[i32], k: i64) -> Vec<f32> {
    let (w, h, t) = (case.width as i64, case.heads as i64, lists.len() as i64 / k);
    f32s(threads, cache, |g, cache| {
        let query = g.reshape(g.input_f32(query, [w, h * t]), [w, h, t, 1]);
        g.attend_listed(query, g.leaf(&cache[0]), g.input_i32(lists, [k, t]), case.v_dim as i64, case.scale)
    })
    .unwrap()
}

fn expected(case: &Case, query: &[f32], rows: &[f32], list: &[i32]) -> Vec<f64> {
    let named: Vec<&[f32]> = list
        .iter()
        .filter(|at| **at >= 0 && (**at as usize) < case.n_kv)
        .map(|at| &rows[*at as usize * case.width..][..case.width])
        .collect();
    let dot = |row: &[f32]| query.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let scores: Vec<f64> = named.iter().map(|row| f64::from(case.scale) * dot(row)).collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let value = |i: usize| weights.iter().zip(&named).map(|(w, row)| w * f64::from(row[i])).sum::<f64>();
    (0..case.v_dim).map(|i| if named.is_empty() { 0.0 } else { value(i) / sum }).collect()
}

fn check(case: &Case, lists: &[i32], k: usize) {
    let tokens = lists.len() / k;
    let query = random(5, case.width * case.heads * tokens);
    let rows = random(6, case.width * case.n_kv);
    let cache = [leaf(case.ty, &[case.width as u64, case.n_kv as u64], &rows)];
    let got = run(1, case, &query, &cache, lists, k as i64);
    for threads in [2, 3] {
        let other = run(threads, case, &query, &cache, lists, k as i64);
        assert_eq!(bits(&other), bits(&got), "{threads} threads: {case:?}");
    }
    // Each token has the bits that it has alone.
    let per_token = case.width * case.heads;
    let alone = query
        .chunks(per_token)
        .zip(lists.chunks(k))
        .flat_map(|(query, list)| run(2, case, query, &cache, list, k as i64));
    assert_eq!(bits(&alone.collect::<Vec<_>>()), bits(&got), "{case:?}");
    let rows = rounded(case.ty, case.width as u64, &rows);
    for (at, (got, query)) in got.chunks(case.v_dim).zip(query.chunks(case.width)).enumerate() {
        let list = &lists[at / case.heads * k..][..k];
        for (got, expected) in got.iter().zip(expected(case, query, &rows, list)) {
            // A score of 576 products in f32 is off by some 1e-6, and so is its weight.
            assert!((f64::from(*got) - expected).abs() < 1e-5, "{case:?}: {got} is not {expected}");
        }
    }
}

const CASE: Case = Case { ty: GgmlType::F32, width: 48, v_dim: 32, heads: 4, n_kv: 100, scale: 0.3 };

#[test]
fn every_cache_type_and_shape() {
    let lists: Vec<i32> = (0..3).flat_map(|t| (0..40).map(move |i| i * 2 + t)).collect();
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::Q8_0] {
        for (width, v_dim) in [(32, 32), (96, 32), (96, 5), (576, 512)] {
            for heads in [1, 3, 33, 64] {
                check(&Case { ty, width, v_dim, heads, ..CASE }, &lists, 40);
            }
        }
    }
}

#[test]
fn widths_that_fill_no_vector() {
    let lists: Vec<i32> = (0..20).collect();
    for ty in [GgmlType::F32, GgmlType::F16] {
        for (width, v_dim) in [(1, 1), (7, 3), (8, 8), (9, 7), (17, 17), (31, 1), (33, 9), (48, 40)] {
            for heads in [1, 2] {
                check(&Case { ty, width, v_dim, heads, ..CASE }, &lists, 20);
            }
        }
    }
}

#[test]
fn lists_of_every_kind() {
    check(&CASE, &[99], 1);
    check(&CASE, &[0, 99, 5], 1);
    // Places without a row, in front, between and behind; none at all; outside the cache; named twice.
    check(&CASE, &[-1, 4, -1, 7, -1, -1], 6);
    check(&CASE, &[-1; 5], 5);
    check(&CASE, &[100, i32::MAX, i32::MIN, 3], 4);
    check(&CASE, &[8, 8, 8, 2], 4);
    // Around the size of a tile.
    for k in [15, 16, 17, 47, 48, 49, 96, 100] {
        let mut list: Vec<i32> = (0..k as i32).collect();
        check(&CASE, &list, k);
        // Whole tiles, then places without a row.
        list.extend([-1; 50]);
        check(&CASE, &list, k + 50);
    }
}

#[test]
fn steep_scores_do_not_overflow() {
    let list: Vec<i32> = (0..50).collect();
    for scale in [1e-6, 30.0, 1000.0] {
        let case = Case { scale, ..CASE };
        let query = random(5, 48 * 4);
        let rows = random(6, 48 * 100);
        let cache = [leaf(GgmlType::F32, &[48, 100], &rows)];
        let got = run(1, &case, &query, &cache, &list, 50);
        for (got, query) in got.chunks(32).zip(query.chunks(48)) {
            for (got, expected) in got.iter().zip(expected(&case, query, &rows, &list)) {
                // A steep softmax turns the rounding of a score into one of the weights.
                assert!((f64::from(*got) - expected).abs() < 1e-6 * f64::from(scale).max(3.0), "{scale}");
            }
        }
    }
}
