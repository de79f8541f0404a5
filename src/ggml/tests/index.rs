//! The scores of `index_select` against the indexer's formula in double precision.

use super::*;

struct Case {
    ty: GgmlType,
    heads: usize,
    dim: usize,
    n_kv: usize,
    tokens: usize,
}

struct Inputs<'a> {
    query: &'a [f32],
    weights: &'a [f32],
    keys: &'a [Leaf],
    visible: &'a [i32],
}

/// Lists of `k` positions for each token.
fn lists(threads: u32, dim: usize, heads: usize, k: usize, inputs: &Inputs<'_>) -> Vec<i32> {
    let (d, h, n) = (dim as i64, heads as i64, inputs.visible.len() as i64);
    i32s(threads, inputs.keys, |g, keys| {
        let query = g.reshape(g.input_f32(inputs.query, [d, h * n]), [d, h, n, 1]);
        let (weights, visible) = (g.input_f32(inputs.weights, [h, n]), g.input_i32(inputs.visible, [n, 1]));
        g.index_select(query, g.leaf(&keys[0]), weights, visible, k as i64)
    })
    .unwrap()
}

/// What a key scores, and how large an error of the sum may be.
fn score(query: &[f32], weights: &[f32], key: &[f32]) -> (f64, f64) {
    let heads = query.chunks(key.len()).zip(weights);
    heads.fold((0.0, 0.0), |(score, error), (query, weight)| {
        let terms = query.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b));
        let (dot, size) = terms.fold((0.0, 0.0), |(dot, size), x| (dot + x, size + x.abs()));
        let weight = f64::from(*weight);
        (score + weight * f64::max(dot, 0.0), error + 1e-6 * weight.abs() * size)
    })
}

/// What is selected scores at least as much as what is not, up to rounding.
fn check(case: &Case, k: usize) {
    let Case { ty, heads, dim, n_kv, tokens } = *case;
    let (query, keys) = (random(1, dim * heads * tokens), random(2, dim * n_kv));
    let weights = random(3, heads * tokens);
    let leaves = [leaf(ty, &[dim as u64, n_kv as u64], &keys)];
    let visible: Vec<i32> = (0..tokens).map(|t| (n_kv - t.min(n_kv - 1)) as i32).collect();
    let inputs = Inputs { query: &query, weights: &weights, keys: &leaves, visible: &visible };
    let got = lists(1, dim, heads, k, &inputs);
    for threads in [3, 16] {
        assert_eq!(lists(threads, dim, heads, k, &inputs), got, "{threads} threads, {ty}, {heads} heads, {n_kv} keys");
    }
    let keys = rounded(ty, dim as u64, &keys);
    for (t, list) in got.chunks(k).enumerate() {
        let seen = visible[t] as usize;
        let named: Vec<usize> = list.iter().filter(|at| **at >= 0).map(|at| *at as usize).collect();
        assert_eq!(named.len(), k.min(seen));
        assert!(named.windows(2).all(|pair| pair[0] < pair[1]) && named.iter().all(|at| *at < seen), "{named:?}");
        let of_key = |at: usize| {
            let (query, weights) = (&query[t * heads * dim..][..heads * dim], &weights[t * heads..][..heads]);
            score(query, weights, &keys[at * dim..][..dim])
        };
        let least =
            named.iter().map(|at| of_key(*at)).map(|(score, error)| score + error).fold(f64::INFINITY, f64::min);
        for at in (0..seen).filter(|at| named.binary_search(at).is_err()) {
            let (score, error) = of_key(at);
            assert!(
                score - error <= least,
                "{ty}, {heads} heads of {dim}: key {at} of {n_kv} is missing for token {t}"
            );
        }
    }
}

#[test]
fn the_largest_scores_of_the_formula_are_selected() {
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::Q8_0] {
        for heads in [1, 2, 3, 32] {
            for dim in [64, 128] {
                for n_kv in [1, 31, 48, 49, 1000] {
                    for tokens in [1, 5] {
                        // The largest products once, not for every number of rows.
                        if heads == 32 && n_kv == 1000 && (dim, tokens) != (128, 1) {
                            continue;
                        }
                        for k in [1, 64] {
                            check(&Case { ty, heads, dim, n_kv, tokens }, k);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn many_keys() {
    check(&Case { ty: GgmlType::F16, heads: 3, dim: 64, n_kv: 70_000, tokens: 1 }, 2048);
    check(&Case { ty: GgmlType::F32, heads: 1, dim: 4, n_kv: 5000, tokens: 20 }, 64);
}

/// A negative product counts nothing, whatever the weight's sign: all tie at exactly 0, and the lowest positions win.
#[test]
fn nothing_but_zero_below_zero() {
    let keys = [leaf(GgmlType::F32, &[64, 40], &[-1.0; 64 * 40])];
    let inputs = Inputs { query: &[1.0; 64 * 2], weights: &[3.0, -3.0], keys: &keys, visible: &[40] };
    assert_eq!(lists(2, 64, 2, 5, &inputs), [0, 1, 2, 3, 4]);
}

/// Each token has the list that it has alone.
#[test]
fn tokens_do_not_depend_on_their_neighbours() {
    let (dim, heads, n_kv, k) = (64, 5, 100, 20);
    let (query, weights) = (random(1, dim * heads * 6), random(3, heads * 6));
    let keys = [leaf(GgmlType::F16, &[dim as u64, n_kv], &random(2, dim * n_kv as usize))];
    let run = |tokens: std::ops::Range<usize>| {
        let visible = vec![n_kv as i32; tokens.len()];
        let query = &query[tokens.start * dim * heads..tokens.end * dim * heads];
        let weights = &weights[tokens.start * heads..tokens.end * heads];
        lists(1, dim, heads, k, &Inputs { query, weights, keys: &keys, visible: &visible })
    };
    let alone: Vec<i32> = (0..6).flat_map(|t| run(t..t + 1)).collect();
    assert_eq!(run(0..6), alone);
}
