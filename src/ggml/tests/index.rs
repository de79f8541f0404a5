//! `index` against the indexer's formula in double precision.

use super::*;

struct Case {
    ty: GgmlType,
    heads: usize,
    dim: usize,
    n_kv: usize,
    tokens: usize,
}

fn check(case: &Case) {
    let Case { ty, heads, dim, n_kv, tokens } = *case;
    let (query, keys) = (random(1, dim * heads * tokens), random(2, dim * n_kv));
    let weights = random(3, heads * tokens);
    let leaves = [leaf(ty, &[dim as u64, n_kv as u64], &keys)];
    let run = |threads| {
        f32s(threads, &leaves, |g, leaves| {
            let query = g.input_f32(&query, [dim as i64, (heads * tokens) as i64]);
            let query = g.reshape(query, [dim as i64, heads as i64, tokens as i64, 1]);
            g.index(query, g.leaf(&leaves[0]), g.input_f32(&weights, [heads as i64, tokens as i64]))
        })
        .unwrap()
    };
    let got = run(1);
    // Threads share out tiles of keys: one tile has nothing to share.
    for threads in [2, 3].into_iter().filter(|_| n_kv > 32 && tokens > 1) {
        assert_eq!(bits(&run(threads)), bits(&got), "{threads} threads, {ty}, {heads} heads, {n_kv} keys");
    }
    let keys = rounded(ty, dim as u64, &keys);
    for (t, got) in got.chunks(n_kv).enumerate() {
        for (got, key) in got.iter().zip(keys.chunks(dim)) {
            let (mut expected, mut magnitude) = (0.0, 0.0);
            for h in 0..heads {
                let products = query[(t * heads + h) * dim..][..dim].iter().zip(key);
                let terms = products.map(|(a, b)| f64::from(*a) * f64::from(*b));
                let (dot, size) = terms.fold((0.0, 0.0), |(dot, size), x| (dot + x, size + x.abs()));
                let weight = f64::from(weights[t * heads + h]);
                expected += weight * dot.max(0.0);
                magnitude += weight.abs() * size;
            }
            let error = (f64::from(*got) - expected).abs();
            assert!(error <= 1e-6 * magnitude, "{ty}, {heads} heads of {dim}, {n_kv} keys: {got} is not {expected}");
        }
    }
}

#[test]
fn scores_are_those_of_the_formula() {
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::Q8_0] {
        for heads in [1, 2, 3, 32] {
            for dim in [64, 128] {
                for n_kv in [1, 31, 32, 33, 1000] {
                    for tokens in [1, 5] {
                        // The largest products once, not for every number of rows.
                        if heads == 32 && n_kv == 1000 && (dim, tokens) != (128, 1) {
                            continue;
                        }
                        check(&Case { ty, heads, dim, n_kv, tokens });
                    }
                }
            }
        }
    }
}

#[test]
fn many_keys() {
    check(&Case { ty: GgmlType::F16, heads: 3, dim: 64, n_kv: 70_000, tokens: 1 });
}

/// A negative product counts nothing, whatever the weight's sign: ties at exactly 0 are what `select` has to order.
#[test]
fn nothing_but_zero_below_zero() {
    let leaves = [leaf(GgmlType::F32, &[64, 40], &[-1.0; 64 * 40])];
    let got = f32s(2, &leaves, |g, leaves| {
        let query = g.reshape(g.input_f32(&[1.0; 64 * 2], [64, 2]), [64, 2, 1, 1]);
        g.index(query, g.leaf(&leaves[0]), g.input_f32(&[3.0, -3.0], [2, 1]))
    });
    assert!(got.unwrap().iter().all(|score| *score == 0.0));
}

/// Each row has the bits that it has alone.
#[test]
fn rows_do_not_depend_on_their_neighbours() {
    let (dim, heads, n_kv) = (64, 5, 100);
    let (query, weights) = (random(1, dim * heads * 6), random(3, heads * 6));
    let leaves = [leaf(GgmlType::F16, &[dim as u64, n_kv], &random(2, dim * n_kv as usize))];
    let run = |rows: std::ops::Range<usize>| {
        let n = rows.len() as i64;
        let query = &query[rows.start * dim * heads..rows.end * dim * heads];
        let weights = &weights[rows.start * heads..rows.end * heads];
        f32s(1, &leaves, |g, leaves| {
            let query = g.input_f32(query, [dim as i64, heads as i64 * n]);
            let query = g.reshape(query, [dim as i64, heads as i64, n, 1]);
            g.index(query, g.leaf(&leaves[0]), g.input_f32(weights, [heads as i64, n]))
        })
        .unwrap()
    };
    let alone: Vec<f32> = (0..6).flat_map(|row| run(row..row + 1)).collect();
    assert_eq!(bits(&run(0..6)), bits(&alone));
}
