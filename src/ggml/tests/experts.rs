//! Routing, and the two halves of experts, against double precision.

use super::*;

const EXPERTS: usize = 5;
const USED: usize = 2;
/// Width of a row, and inner widths of an expert and of the shared one.
const K: usize = 64;
const F: usize = 96;
const S: usize = 32;

/// `[K, n]` rows, `[EXPERTS, n]` logits, `[K, n]` residuals.
struct Rows {
    x: Vec<f32>,
    logits: Vec<f32>,
    residual: Vec<f32>,
}

impl Rows {
    fn new(n: usize) -> Self {
        Self { x: random(1, K * n), logits: random(2, EXPERTS * n), residual: random(3, K * n) }
    }

    fn n(&self) -> usize {
        self.x.len() / K
    }

    fn one(&self, row: usize) -> Self {
        let part = |data: &[f32], width: usize| data[row * width..][..width].to_vec();
        Self { x: part(&self.x, K), logits: part(&self.logits, EXPERTS), residual: part(&self.residual, K) }
    }
}

/// Gate, up and down, first of the experts, then of the shared one.
fn weights(ty: GgmlType) -> (Vec<Leaf>, Vec<Vec<f64>>) {
    let shapes = [[K, F, EXPERTS], [K, F, EXPERTS], [F, K, EXPERTS], [K, S, 1], [K, S, 1], [S, K, 1]];
    let one = |([width, rows, count], seed): ([usize; 3], u64)| {
        let values = random(seed, width * rows * count);
        let as_numbers = rounded(ty, width as u64, &values).into_iter().map(f64::from).collect();
        (leaf(ty, &[width as u64, rows as u64, count as u64], &values), as_numbers)
    };
    shapes.into_iter().zip(10..).map(one).unzip()
}

fn run(threads: u32, leaves: &[Leaf], rows: &Rows, shared: bool, least: f32) -> Vec<f32> {
    let n = rows.n() as i64;
    f32s(threads, leaves, |g, w| {
        let w: Vec<_> = w.iter().map(|leaf| g.leaf(leaf)).collect();
        let logits = g.input_f32(&rows.logits, [EXPERTS as i64, n]);
        let ids = g.route(logits, None, USED as i64);
        let x = g.input_f32(&rows.x, [K as i64, n]);
        let inner = g.experts_inner(x, ids, [w[0], w[1]], shared.then_some([w[3], w[4]]));
        let residual = g.input_f32(&rows.residual, [K as i64, n]);
        g.experts_outer((inner, ids, logits, residual), w[2], shared.then_some(w[5]), (2.5, least))
    })
    .unwrap()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn expected(weights: &[Vec<f64>], row: &Rows, shared: bool, least: f32) -> Vec<f64> {
    let product = |matrix: &[f64], x: &[f64]| -> Vec<f64> {
        matrix.chunks(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
    };
    let x: Vec<f64> = row.x.iter().map(|x| f64::from(*x)).collect();
    let glu = |[gate, up, down]: [&[f64]; 3]| {
        let (gate, up) = (product(gate, &x), product(up, &x));
        product(down, &gate.iter().zip(&up).map(|(g, u)| g * sigmoid(*g) * u).collect::<Vec<_>>())
    };
    let mut order: Vec<usize> = (0..EXPERTS).collect();
    order.sort_by(|a, b| row.logits[*b].total_cmp(&row.logits[*a]));
    let score = |expert: usize| sigmoid(f64::from(row.logits[expert]));
    let sum: f64 = order[..USED].iter().map(|expert| score(*expert)).sum();
    let divisor = if least > 0.0 { sum.max(f64::from(least)) } else { 1.0 };
    let mut out: Vec<f64> = row.residual.iter().map(|x| f64::from(*x)).collect();
    let size = K * F;
    for expert in &order[..USED] {
        let part = |at: usize| &weights[at][expert * size..][..size];
        let weight = score(*expert) / divisor * 2.5;
        out.iter_mut().zip(glu([part(0), part(1), part(2)])).for_each(|(out, value)| *out += weight * value);
    }
    if shared {
        let shared = glu([&weights[3], &weights[4], &weights[5]]);
        out.iter_mut().zip(shared).for_each(|(out, value)| *out += value);
    }
    out
}

#[test]
fn values_are_those_of_the_experts() {
    // Of the largest value; types that are multiplied with rounded columns are further off.
    let q8_0 = if wide_q8_0() { 1e-4 } else { 3e-2 };
    for (ty, tolerance) in [(GgmlType::F32, 1e-6), (GgmlType::Q8_0, q8_0), (GgmlType::Q4_0, 3e-2)] {
        let (leaves, weights) = weights(ty);
        let rows = Rows::new(3);
        for (shared, least) in [(true, 1e-5), (false, 1e-5), (true, 0.0), (true, 100.0)] {
            let got = run(1, &leaves, &rows, shared, least);
            for (at, got) in got.chunks(K).enumerate() {
                let expected = expected(&weights, &rows.one(at), shared, least);
                let largest = expected.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
                for (got, expected) in got.iter().zip(expected) {
                    let off = (f64::from(*got) - expected).abs() / largest;
                    assert!(off < tolerance, "{ty}, row {at}: {got} for {expected}");
                }
            }
        }
    }
}

#[test]
fn rows_do_not_depend_on_their_neighbours_or_on_threads() {
    for ty in [GgmlType::F32, GgmlType::Q8_0, GgmlType::Q4_0] {
        let (leaves, _) = weights(ty);
        let all = Rows::new(7);
        let alone: Vec<f32> = (0..7).flat_map(|row| run(1, &leaves, &all.one(row), true, 1e-5)).collect();
        for threads in [1, 2, 3] {
            assert_eq!(bits(&run(threads, &leaves, &all, true, 1e-5)), bits(&alone), "{ty}, {threads} threads");
        }
    }
}

/// More rows than are taken at a time.
#[test]
fn gate_and_up_are_one_operation_for_any_number_of_rows() {
    const MANY: usize = 37;
    let q8_0 = if wide_q8_0() { 1e-4 } else { 3e-2 };
    for (ty, tolerance) in [(GgmlType::F32, 1e-6), (GgmlType::Q8_0, q8_0), (GgmlType::Q4_0, 3e-2)] {
        let (leaves, weights) = weights(ty);
        let x = random(7, K * MANY);
        let run = |threads, x: &[f32]| {
            f32s(threads, &leaves, |g, w| {
                g.glu(g.input_f32(x, [K as i64, (x.len() / K) as i64]), g.leaf(&w[3]), g.leaf(&w[4]))
            })
            .unwrap()
        };
        let got = run(3, &x);
        let product = |at: usize, row: usize, m: usize| -> f64 {
            let (weights, x) = (&weights[at][m * K..][..K], &x[row * K..][..K]);
            weights.iter().zip(x).map(|(a, b)| a * f64::from(*b)).sum()
        };
        let largest = got.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
        for (i, got) in got.iter().enumerate() {
            let (gate, up) = (product(3, i / S, i % S), product(4, i / S, i % S));
            let off = (f64::from(*got) - gate * sigmoid(gate) * up).abs() / f64::from(largest);
            assert!(off < tolerance, "{ty}, row {}: off by {off}", i / S);
        }
        let alone: Vec<f32> = x.chunks(K).flat_map(|row| run(1, row)).collect();
        assert_eq!(bits(&got), bits(&alone), "{ty}");
    }
}

#[test]
fn routes() {
    let route = |logits: &[f32], bias: Option<&[f32]>, used: i64| {
        let e = logits.len() as i64;
        i32s(2, &[], |g, _| {
            let bias = bias.map(|bias| g.reshape(g.input_f32(bias, [e, 1]), [e, 1, 1, 1]));
            g.route(g.input_f32(logits, [e, 1]), bias, used)
        })
        .unwrap()
    };
    assert_eq!(route(&[0.1, 0.4, -3.0, 0.3], None, 2), [1, 3]);
    assert_eq!(route(&[0.1, 0.4, -3.0, 0.3], Some(&[0.0, 0.0, 5.0, 0.0]), 2), [1, 2]);
    assert_eq!(route(&[1.0, 2.0, 2.0, 2.0], None, 2), [1, 2], "ties to the lowest");
    assert_eq!(route(&[1.0, 2.0], None, 2), [0, 1]);
    // Broken weights give what is no number: some experts are chosen all the same.
    for used in 1..=4 {
        let mut ids = route(&[f32::NAN, f32::NEG_INFINITY, f32::NAN, f32::INFINITY], None, used);
        ids.dedup();
        assert!(ids.len() == used as usize && ids.iter().all(|id| (0..4).contains(id)), "{ids:?}");
    }
}
