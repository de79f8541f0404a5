//! Products with many rows, packed once, against double precision and against the kernels for few rows.

use super::*;
use crate::kernels::{Isa, isa};

/// Whether the variant in use has these products at all.
fn packs() -> bool {
    matches!(isa(), Isa::Avx2 | Isa::Avx512)
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |largest, value| value.abs().max(largest))
}

const TYPES: [GgmlType; 5] = [GgmlType::Q2_K, GgmlType::Q3_K, GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::Q6_K];

#[test]
fn products_of_many_rows() {
    TYPES.into_iter().for_each(products);
}

fn products(ty: GgmlType) {
    let (k, m, most) = (512usize, 19usize, 70usize);
    let values = random(1, k * m);
    let weight = [leaf(ty, &[k as u64, m as u64], &values)];
    let x = random(2, k * most);
    let run = |threads, rows: std::ops::Range<usize>| {
        let n = rows.len() as i64;
        let part = &x[rows.start * k..rows.end * k];
        f32s(threads, &weight, |g, w| g.mul_mat_many(g.leaf(&w[0]), g.input_f32(part, [k as i64, n]))).unwrap()
    };
    let numbers = rounded(ty, k as u64, &values);
    let all = run(1, 0..most);
    for (row, got) in all.chunks(m).enumerate() {
        let product = |w: &[f32]| w.iter().zip(&x[row * k..]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let expected: Vec<f64> = numbers.chunks(k).map(product).collect();
        let size = largest(&expected);
        for (got, expected) in got.iter().zip(&expected) {
            // Columns are rounded to 8 bits, here as in ggml.
            let off = (f64::from(*got) - expected).abs() / size;
            assert!(off < 0.02, "{ty:?}, row {row}: {got} is not {expected}");
        }
    }
    for threads in [2, 3] {
        assert_eq!(bits(&run(threads, 0..most)), bits(&all), "{ty:?}, {threads} threads");
    }
    if packs() {
        for rows in [0..1, 3..5, 60..63, 5..22] {
            assert_eq!(bits(&run(2, rows.clone())), bits(&all[rows.start * m..rows.end * m]), "{ty:?}, {rows:?} alone");
        }
    }
}

#[test]
fn experts_of_many_rows() {
    let [q2, q3, q4, q5, q6] = TYPES;
    experts([q4; 6]);
    experts([q2, q2, q3, q4, q4, q6]);
    experts([q5; 6]);
}

/// Weights of these types: gate, up, down, and those of the shared expert.
fn experts(types: [GgmlType; 6]) {
    let (experts, used, k, f, s) = (5i64, 2i64, 256i64, 512i64, 256i64);
    let shapes = [[k, f, experts], [k, f, experts], [f, k, experts], [k, s, 1], [k, s, 1], [s, k, 1]];
    let weights: Vec<Leaf> = shapes
        .iter()
        .zip(types)
        .zip(10..)
        .map(|((shape, ty), seed)| {
            let values: Vec<f32> =
                random(seed, shape.iter().product::<i64>() as usize).iter().map(|x| x * 0.1).collect();
            leaf(ty, &shape.map(|n| n as u64), &values)
        })
        .collect();
    let run = |threads, n: usize, shared: bool, least: f32, many: bool| {
        let (x, logits, residual) =
            (random(1, n * k as usize), random(2, n * experts as usize), random(3, n * k as usize));
        let rows = n as i64;
        let mut had = true;
        let values = f32s(threads, &weights, |g, w| {
            let w: Vec<_> = w.iter().map(|leaf| g.leaf(leaf)).collect();
            let (x, residual) = (g.input_f32(&x, [k, rows]), g.input_f32(&residual, [k, rows]));
            let logits = g.input_f32(&logits, [experts, rows]);
            let ids = g.route(logits, None, used);
            if many {
                let shared = shared.then_some([w[3], w[4], w[5]]);
                let out = g.experts_many((x, ids, logits, residual), [w[0], w[1], w[2]], shared, (2.5, least));
                had = out.is_some();
                return out.unwrap_or(residual);
            }
            let inner = g.experts_inner(x, ids, [w[0], w[1]], shared.then_some([w[3], w[4]]));
            g.experts_outer((inner, ids, logits, residual), w[2], shared.then_some(w[5]), (2.5, least))
        });
        had.then(|| values.unwrap())
    };
    for (n, shared, least) in [(1, true, 1e-5), (7, false, 1e-5), (65, true, 0.0), (16, true, 100.0)] {
        let Some(many) = run(1, n, shared, least, true) else {
            assert!(!packs(), "this variant has kernels for many rows");
            continue;
        };
        // The same products, added up in another order: now and then an inner value is rounded to the next of its 8 bits.
        let few = run(1, n, shared, least, false).unwrap();
        let size = few.iter().fold(0.0f32, |size, value| size.max(value.abs()));
        for (many, few) in many.iter().zip(&few) {
            assert!((many - few).abs() <= 1e-3 * size, "{types:?}, {n} rows: {many} and {few} of {size}");
        }
        for threads in [2, 3] {
            assert_eq!(
                bits(&run(threads, n, shared, least, true).unwrap()),
                bits(&many),
                "{n} rows, {threads} threads"
            );
        }
    }
}

/// Other types, and rows that are no whole blocks, are not taken.
#[test]
fn other_types_are_left_to_ggml() {
    let weights: Vec<Leaf> = [[64, 96, 5], [64, 96, 5], [96, 64, 5]]
        .iter()
        .map(|shape| leaf(GgmlType::Q8_0, shape, &random(1, shape.iter().product::<u64>() as usize)))
        .collect();
    let mut taken = true;
    let got = f32s(1, &weights, |g, w| {
        let w: Vec<_> = w.iter().map(|leaf| g.leaf(leaf)).collect();
        let (x, logits) = (g.input_f32(&[0.5; 64], [64, 1]), g.input_f32(&random(2, 5), [5, 1]));
        let ids = g.route(logits, None, 2);
        taken = g.experts_many((x, ids, logits, x), [w[0], w[1], w[2]], None, (1.0, 0.0)).is_some();
        x
    });
    assert!(got.is_ok() && !taken);
}
