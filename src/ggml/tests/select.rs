//! The selection of `index_select` against a sort, and `list_mask`.

use super::*;
use proptest::prelude::*;

/// Selects by scores that the indexer makes of keys: the positive part by one head, the negative by another. A key has one
/// element for each row, of which the row's query picks its own.
fn select(threads: u32, scores: &[f32], n_kv: usize, visible: &[i32], k: i64) -> Vec<i32> {
    let rows = visible.len();
    let keys: Vec<f32> = (0..n_kv).flat_map(|at| (0..rows).map(move |row| scores[row * n_kv + at])).collect();
    let unit = |row: usize, sign: f32| (0..rows).map(move |at| if at == row { sign } else { 0.0 });
    let query: Vec<f32> = (0..rows).flat_map(|row| unit(row, 1.0).chain(unit(row, -1.0))).collect();
    let weights: Vec<f32> = (0..rows).flat_map(|_| [1.0, -1.0]).collect();
    selected(threads, [&query, &keys, &weights], n_kv, visible, k)
}

fn selected(threads: u32, [query, keys, weights]: [&[f32]; 3], n_kv: usize, visible: &[i32], k: i64) -> Vec<i32> {
    let (rows, dim) = (visible.len() as i64, (keys.len() / n_kv) as i64);
    i32s(threads, &[], |g, _| {
        let query = g.reshape(g.input_f32(query, [dim, 2 * rows]), [dim, 2, rows, 1]);
        let (keys, weights) = (g.input_f32(keys, [dim, n_kv as i64]), g.input_f32(weights, [2, rows]));
        g.index_select(query, keys, weights, g.input_i32(visible, [rows, 1]), k)
    })
    .unwrap()
}

/// The same by sorting: the largest first, ties to the lowest position, then ascending.
fn sorted(scores: &[f32], visible: i32, k: usize) -> Vec<i32> {
    let mut order: Vec<usize> = (0..scores.len().min(visible.max(0) as usize)).collect();
    order.sort_by(|a, b| scores[*b].partial_cmp(&scores[*a]).unwrap().then(a.cmp(b)));
    order.truncate(k);
    order.sort_unstable();
    let mut list: Vec<i32> = order.into_iter().map(|at| at as i32).collect();
    list.resize(k, -1);
    list
}

fn check(scores: &[f32], n_kv: usize, visible: &[i32], k: usize) {
    check_with(&[1, 3], scores, n_kv, visible, k);
}

fn check_with(threads: &[u32], scores: &[f32], n_kv: usize, visible: &[i32], k: usize) {
    let rows = scores.chunks(n_kv).zip(visible);
    let expected: Vec<i32> = rows.flat_map(|(row, visible)| sorted(row, *visible, k)).collect();
    for threads in threads.iter().copied() {
        let got = select(threads, scores, n_kv, visible, k as i64);
        assert_eq!(got, expected, "{threads} threads, top {k} of {n_kv}, {visible:?} visible");
    }
}

#[test]
fn edges() {
    let scores = random(1, 100);
    for k in [1, 2, 99, 100, 101, 300] {
        check(&scores, 100, &[100], k);
        for visible in [-1, 0, 1, k as i32 - 1, k as i32, k as i32 + 1, 1000] {
            check(&scores, 100, &[visible], k);
        }
    }
    let extremes =
        [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, f32::MIN_POSITIVE, -f32::MIN_POSITIVE, 1e-45, -1e-45];
    for k in 1..8 {
        check(&extremes, 8, &[8], k);
    }
}

#[test]
fn ties_go_to_the_lowest_position() {
    check(&[0.0; 50], 50, &[50], 7);
    assert_eq!(select(1, &[1.0, 2.0, 1.0, 2.0, 1.0, 2.0], 6, &[6], 4), [0, 1, 3, 5]);
    // Both zeros are one value, as the indexer's ReLU leaves them.
    assert_eq!(select(1, &[-0.0, 0.0, -0.0, 0.0], 4, &[4], 2), [0, 1]);
    assert_eq!(select(1, &[-1.0, -0.0, 0.0, -0.0, 1.0], 5, &[5], 3), [1, 2, 4]);
}

#[test]
fn equal_digits_are_told_apart_in_the_last_one() {
    // They differ in the last bits only, which the last pass of the radix search looks at.
    let scores: Vec<f32> = (0..3000u32).map(|i| f32::from_bits(0x3f80_0000 + i * 7919 % 3000)).collect();
    for k in [1, 17, 1024, 2999] {
        check(&scores, 3000, &[3000], k);
    }
}

/// NaN scores, which broken weights give, still make lists of distinct positions.
#[test]
fn nan_scores_make_sound_lists() {
    let (n_kv, keys) = (5000, random(3, 5000));
    for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)] {
        // One head's scores are no numbers at all; or only those of the keys that its product is infinite for.
        let mut holes = keys.clone();
        holes.iter_mut().step_by(3).for_each(|key| *key = f32::INFINITY);
        for (query, keys, weights) in [([1.0, -1.0], &keys, [nan, 1.0]), ([1.0, 1.0], &holes, [1.0, -1.0])] {
            for k in [1, 16, 100, 1999] {
                let list = selected(2, [&query, keys, &weights], n_kv, &[n_kv as i32], k);
                let last = list[k as usize - 1];
                assert!(list.windows(2).all(|pair| pair[0] < pair[1]) && list[0] >= 0 && last < n_kv as i32);
            }
        }
    }
}

/// Rising scores push out what came before at every key; many keys and threads cut the work into parts.
#[test]
fn rising_and_falling_scores() {
    let rising: Vec<f32> = (0..9000).map(|i| i as f32 / 2.0 - 100.0).collect();
    let falling: Vec<f32> = rising.iter().rev().copied().collect();
    for scores in [rising, falling] {
        for k in [1, 100, 2048] {
            check_with(&[1, 2, 7], &scores, 9000, &[9000], k);
            check_with(&[1, 2, 7], &scores, 9000, &[8999], k);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_sort_selects_the_same(
        rows in 1usize..4,
        n_kv in 1usize..300,
        k in 1usize..80,
        levels in 1u32..40,
        seed in any::<u64>(),
        visible in prop::collection::vec(-2i32..310, 4),
    ) {
        // Few levels make many ties.
        let scores: Vec<f32> = random(seed, rows * n_kv).iter().map(|x| (x * levels as f32).trunc()).collect();
        check_with(&[1], &scores, n_kv, &visible[..rows], k);
    }
}

#[test]
fn a_mask_shows_what_the_list_names() {
    // Entries outside are no positions.
    let lists = [0, 3, 9, -1, 10, 5, i32::MAX, i32::MIN, -1, -1, -1, 2];
    let (n_kv, rows) = (10, 3);
    for threads in [1, 2, 3] {
        let weights = f32s(threads, &[], |g, _| {
            let mask = g.list_mask(g.input_i32(&lists, [4, rows]), n_kv);
            g.softmax(g.input_f32(&[0.0; 30], [n_kv, rows]), Some(mask), 1.0)
        })
        .unwrap();
        let shown: Vec<Vec<usize>> =
            weights.chunks(10).map(|row| (0..10).filter(|at| row[*at] > 0.0).collect()).collect();
        assert_eq!(shown, [vec![0, 3, 9], vec![5], vec![2]]);
    }
}
