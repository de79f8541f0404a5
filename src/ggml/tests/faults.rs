//! Whatever ggml would end the process for is an error of `Computer::run`.

use super::*;

/// Tensors to make mistakes with.
struct Kit<'g> {
    /// `[8, 4]` f32.
    x: Tensor<'g>,
    /// `[4]` i32.
    ids: Tensor<'g>,
    /// `[8, 6]` f32, `[32, 4]` q8_0, `[8, 3, 2]` f32: leaves.
    weight: Tensor<'g>,
    blocks: Tensor<'g>,
    experts: Tensor<'g>,
    /// `[4, 4]` i32, `[8, 4]` of bytes that are no numbers.
    integers: Tensor<'g>,
    bytes: Tensor<'g>,
    /// f16 `[8, 4]`.
    mask: Tensor<'g>,
}

fn leaves() -> Vec<Leaf> {
    let memory = Memory::zeroed(4096).unwrap();
    let one = |ty, shape: &[u64]| memory.leaf(ty, shape, 0).unwrap();
    vec![
        one(GgmlType::F32, &[8, 6]),
        one(GgmlType::Q8_0, &[32, 4]),
        one(GgmlType::F32, &[8, 3, 2]),
        one(GgmlType::I32, &[4, 4]),
        one(GgmlType::I8, &[8, 4]),
    ]
}

fn run(make: impl for<'g> FnOnce(&Graph<'g>, &Kit<'g>) -> Tensor<'g>) -> Result<(), GgmlError> {
    let mut arena = Arena::new(64);
    let leaves = leaves();
    let g = arena.graph(0).unwrap();
    let kit = Kit {
        x: g.input_f32(&random(1, 32), [8, 4]),
        ids: g.input_i32(&[0, 1, 0, 1], [4, 1]),
        weight: g.leaf(&leaves[0]),
        blocks: g.leaf(&leaves[1]),
        experts: g.leaf(&leaves[2]),
        integers: g.leaf(&leaves[3]),
        bytes: g.leaf(&leaves[4]),
        mask: g.input_mask(|_, _| true, 8, 4),
    };
    let made = make(&g, &kit);
    g.output(made);
    computer(1).run(&g).map(|_| ())
}

macro_rules! refused {
    ($($op:literal: [$($make:expr),+ $(,)?];)+) => {
        $({
            let mut at = 0;
            $({
                at += 1;
                match run($make) {
                    Err(GgmlError::Shape { op: $op, .. }) => {}
                    other => panic!("`{}`, mistake {at}: {other:?}", $op),
                }
            })+
        })+
    };
}

const ROPE: Rope = Rope {
    n_dims: 4,
    half_split: false,
    n_ctx_orig: 64,
    freq_base: 10_000.0,
    freq_scale: 1.0,
    ext_factor: 0.0,
    attn_factor: 1.0,
    beta_fast: 32.0,
    beta_slow: 1.0,
};

fn transposed<'g>(g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
    g.permute(x, [1, 0, 2, 3])
}

/// Two experts for each of the four rows of `x`.
fn ids<'g>(g: &Graph<'g>) -> Tensor<'g> {
    g.input_i32(&[0, 1, 0, 1, 0, 1, 0, 1], [2, 4])
}

/// The second half for rows of three elements, with two experts.
fn outer<'g>(
    g: &Graph<'g>,
    inner: [i64; 2],
    ids: [i64; 2],
    down: Tensor<'g>,
    shared: Option<Tensor<'g>>,
) -> Tensor<'g> {
    let numbers = |shape: [i64; 2]| g.input_f32(&vec![0.0; (shape[0] * shape[1]) as usize], shape);
    let ids = g.input_i32(&vec![0; (ids[0] * ids[1]) as usize], ids);
    g.experts_outer((numbers(inner), ids, numbers([2, 3]), numbers([3, 3])), down, shared, (1.0, 0.0))
}

#[test]
fn mistakes_in_products() {
    refused! {
        "mul_mat": [
            |g, k| g.mul_mat(k.blocks, k.x),
            |g, k| g.mul_mat(k.x, k.ids),
            |g, k| g.mul_mat(transposed(g, k.weight), g.input_f32(&[0.0; 6], [6, 1])),
            |g, k| g.mul_mat(k.weight, transposed(g, g.input_f32(&[0.0; 16], [2, 8]))),
            |g, k| g.mul_mat(k.experts, k.x),
            |g, k| g.mul_mat(k.integers, g.input_f32(&[0.0; 4], [4, 1])),
            |g, k| g.mul_mat(k.bytes, k.x),
        ];
        "mul_mat_rows": [
            |g, k| g.mul_mat_rows(k.blocks, k.x),
            |g, k| g.mul_mat_rows(k.experts, k.x),
            |g, k| g.mul_mat_rows(transposed(g, k.weight), g.input_f32(&[0.0; 6], [6, 1])),
            |g, k| g.mul_mat_rows(k.weight, transposed(g, g.input_f32(&[0.0; 16], [2, 8]))),
            |g, k| g.mul_mat_rows(k.integers, g.input_f32(&[0.0; 4], [4, 1])),
            |g, k| g.mul_mat_rows(k.bytes, k.x),
            |g, k| g.mul_mat_rows(k.weight, k.mask),
        ];
        "mul_mat_id": [
            |g, k| g.mul_mat_id(k.experts, k.weight, k.ids),
            |g, k| g.mul_mat_id(k.experts, g.reshape(k.x, [8, 1, 4, 1]), k.x),
            |g, k| g.mul_mat_id(k.experts, g.reshape(k.x, [8, 1, 4, 1]), g.input_i32(&[0; 6], [2, 3])),
            |g, k| g.mul_mat_id(k.experts, g.reshape(k.x, [8, 4, 1, 1]), g.input_i32(&[0; 6], [6, 1])),
            |g, k| g.mul_mat_id(transposed(g, k.experts), g.input_f32(&[0.0; 3], [3, 1]), g.input_i32(&[0], [1, 1])),
            |g, k| g.mul_mat_id(k.bytes, g.reshape(k.x, [8, 1, 4, 1]), g.input_i32(&[0; 4], [1, 4])),
        ];
        "route": [
            |g, k| g.route(k.ids, None, 1),
            |g, k| g.route(k.x, None, 9),
            |g, k| g.route(k.x, Some(k.ids), 2),
            |g, k| g.route(transposed(g, k.x), None, 2),
        ];
        "experts_inner": [
            |g, k| g.experts_inner(k.x, g.input_i32(&[0; 6], [2, 3]), [k.experts, k.experts], None),
            |g, k| g.experts_inner(k.x, k.x, [k.experts, k.experts], None),
            |g, k| g.experts_inner(k.x, ids(g), [k.experts, k.weight], None),
            |g, k| g.experts_inner(k.x, ids(g), [k.blocks, k.blocks], None),
            |g, k| g.experts_inner(k.x, ids(g), [k.bytes, k.bytes], None),
            |g, k| g.experts_inner(k.x, ids(g), [k.experts, k.experts], Some([k.weight, k.x])),
            |g, k| g.experts_inner(k.x, ids(g), [k.experts, k.experts], Some([k.experts, k.experts])),
            |g, k| g.experts_inner(k.mask, ids(g), [k.experts, k.experts], None),
        ];
        "glu": [
            |g, k| g.glu(k.x, k.weight, k.x),
            |g, k| g.glu(k.x, k.experts, k.experts),
            |g, k| g.glu(k.x, k.blocks, k.blocks),
            |g, k| g.glu(k.x, k.bytes, k.bytes),
            |g, k| g.glu(k.mask, k.weight, k.weight),
            |g, k| g.glu(transposed(g, k.x), k.weight, k.weight),
        ];
        "experts_outer": [
            |g, k| outer(g, [16, 4], [2, 4], k.experts, None),
            |g, k| outer(g, [16, 3], [2, 4], k.experts, None),
            |g, k| outer(g, [15, 3], [2, 3], k.experts, None),
            |g, k| outer(g, [16, 3], [3, 3], k.experts, None),
            |g, k| outer(g, [16, 3], [2, 3], k.weight, None),
            |g, k| outer(g, [16, 3], [2, 3], k.bytes, None),
            |g, k| outer(g, [16, 3], [2, 3], k.experts, Some(k.weight)),
            |g, k| outer(g, [16, 3], [2, 3], k.experts, Some(k.experts)),
        ];
        "flash_attention": [
            |g, k| g.flash_attention(k.weight, k.blocks, k.blocks, None, 1.0),
            |g, k| g.flash_attention(k.x, k.weight, k.x, None, 1.0),
            |g, k| g.flash_attention(k.x, k.x, k.mask, None, 1.0),
            |g, k| g.flash_attention(k.x, k.weight, k.weight, Some(k.mask), 1.0),
            |g, k| g.flash_attention(k.x, k.bytes, k.bytes, None, 1.0),
            |g, k| g.flash_attention(k.x, k.x, k.x, Some(k.x), 1.0),
        ];
    }
}

#[test]
fn mistakes_in_element_wise_operations() {
    refused! {
        "add": [
            |g, k| g.add(k.x, k.weight),
            |g, k| g.add(k.x, k.ids),
            |g, k| g.add(k.ids, k.ids),
            |g, k| g.add(transposed(g, k.x), transposed(g, k.x)),
        ];
        "mul": [|g, k| g.mul(k.x, k.weight), |g, k| g.mul(transposed(g, k.x), transposed(g, k.x))];
        "div": [|g, k| g.div(k.x, k.weight), |g, k| g.div(transposed(g, k.x), transposed(g, k.x))];
        "scale": [|g, k| g.scale(k.ids, 1.0), |g, k| g.scale(transposed(g, k.x), 1.0)];
        "clamp": [|g, k| g.at_least(k.ids, 0.0), |g, k| g.at_least(g.columns(k.x, 0, 4), 0.0)];
        "sigmoid": [|g, k| g.sigmoid(k.ids), |g, k| g.sigmoid(transposed(g, k.x))];
        "swiglu": [
            |g, k| g.swiglu(k.x, k.weight),
            |g, k| g.swiglu(transposed(g, k.x), transposed(g, k.x)),
            |g, k| g.swiglu(k.ids, k.ids),
        ];
        "rms_norm": [|g, k| g.rms_norm(k.ids, k.x, 1e-6), |g, k| g.rms_norm(transposed(g, k.x), k.x, 1e-6)];
        "norm": [|g, k| g.layer_norm(transposed(g, k.x), k.x, k.x, 1e-6)];
        "softmax": [
            |g, k| g.softmax(k.ids, None, 1.0),
            |g, k| g.softmax(transposed(g, k.x), None, 1.0),
            |g, k| g.softmax(k.weight, Some(k.mask), 1.0),
            |g, k| g.softmax(k.x, Some(k.ids), 1.0),
        ];
        "sum_rows": [|g, k| g.sum_rows(k.ids), |g, k| g.sum_rows(transposed(g, k.x))];
        "rope": [
            |g, k| g.rope(k.x, k.ids, &ROPE),
            |g, k| g.rope(g.reshape(k.x, [8, 1, 4, 1]), k.x, &ROPE),
            |g, k| g.rope(g.reshape(k.x, [8, 1, 4, 1]), k.ids, &Rope { n_dims: 3, ..ROPE }),
            |g, k| g.rope(g.reshape(k.x, [8, 1, 4, 1]), k.ids, &Rope { n_dims: 10, ..ROPE }),
            |g, k| g.rope(g.reshape(k.x, [8, 1, 4, 1]), k.ids, &Rope { n_dims: 0, ..ROPE }),
            |g, k| g.rope(g.reshape(k.x, [8, 1, 4, 1]), k.ids, &Rope { n_dims: -2, ..ROPE }),
        ];
    }
}

#[test]
fn mistakes_in_moves() {
    const FAR: i64 = 1 << 62;
    refused! {
        "get_rows": [
            |g, k| g.get_rows(k.x, k.x),
            |g, k| g.get_rows(k.experts, k.ids),
            |g, k| g.get_rows(k.bytes, k.ids),
            |g, k| g.get_rows(k.integers, k.ids),
            |g, k| g.get_rows(transposed(g, k.x), k.ids),
        ];
        "reshape": [
            |g, k| g.reshape(k.x, [8, 5, 1, 1]),
            |g, k| g.reshape(transposed(g, k.x), [32, 1, 1, 1]),
            |g, k| g.reshape(k.x, [-8, -4, 1, 1]),
            |g, k| g.reshape(k.x, [FAR, FAR, 4, 1]),
            |g, k| g.reshape(k.x, [0, 0, 0, 0]),
        ];
        "view": [
            |g, k| g.view(k.x, [8, 5, 1], [32, 160], 0),
            |g, k| g.view(k.x, [8, 4, 1], [32, 128], 4),
            |g, k| g.view(k.x, [8, 2, 1], [usize::MAX, 0], 0),
            |g, k| g.view(k.x, [FAR, 1, 1], [0, 0], 0),
            |g, k| g.view(k.x, [1, FAR, FAR], [0, 0], 0),
            |g, k| g.view(k.x, [1, 1 << 40, 1], [0, 0], 0),
            |g, k| g.view(k.x, [0, 1, 1], [32, 32], 0),
            |g, k| g.view(k.blocks, [16, 1, 1], [34, 34], 0),
            |g, k| g.rows(k.x, 3, 2),
            |g, k| g.rows(k.x, -1, 1),
            |g, k| g.rows(k.x, 0, FAR),
            |g, k| g.slices(k.experts, 1, 2),
            |g, k| g.slices(k.experts, i64::MIN, 1),
            |g, k| g.columns(k.x, 4, 5),
        ];
        "columns": [|g, k| g.columns(k.x, -1, 1), |g, k| g.columns(k.blocks, 16, 16)];
        "prefix": [|g, k| g.prefix(k.x, 9), |g, k| g.prefix(k.x, 0), |g, k| g.prefix(k.blocks, 16)];
        "permute": [
            |g, k| g.permute(k.x, [0, 0, 1, 2]),
            |g, k| g.permute(k.x, [0, 1, 2, 4]),
            |g, k| transposed(g, k.blocks),
        ];
        "concat": [
            |g, k| g.concat(k.x, k.weight, 0),
            |g, k| g.concat(k.x, k.x, 4),
            |g, k| g.concat(k.x, k.mask, 0),
            |g, k| g.concat(k.blocks, k.blocks, 1),
        ];
        "store": [
            |g, k| { g.store(k.x, k.weight); k.x },
            |g, k| { g.store(transposed(g, k.x), transposed(g, k.x)); k.x },
            |g, k| { g.store(k.x, k.bytes); k.x },
        ];
        "input": [
            |g, _| g.input_f32(&[0.0; 4], [2, 3]),
            |g, _| g.input_f32(&[], [0, 3]),
            |g, _| g.input_i32(&[1, 2], [-1, -2]),
            |g, _| g.input_i32(&[1], [FAR, FAR]),
        ];
    }
}

#[test]
fn mistakes_in_operations_of_our_own() {
    const FAR: i64 = 1 << 62;
    fn query<'g>(g: &Graph<'g>, k: &Kit<'g>) -> Tensor<'g> {
        g.reshape(k.x, [8, 2, 2, 1])
    }
    fn weights<'g>(g: &Graph<'g>) -> Tensor<'g> {
        g.input_f32(&[0.0; 4], [2, 2])
    }
    fn seen<'g>(g: &Graph<'g>) -> Tensor<'g> {
        g.input_i32(&[1; 2], [2, 1])
    }
    refused! {
        "index_select": [
            |g, k| g.index_select(query(g, k), k.blocks, weights(g), seen(g), 2),
            |g, k| g.index_select(query(g, k), k.weight, g.input_f32(&[0.0; 6], [3, 2]), seen(g), 2),
            |g, k| g.index_select(query(g, k), k.weight, k.ids, seen(g), 2),
            |g, k| g.index_select(query(g, k), k.experts, weights(g), seen(g), 2),
            |g, k| g.index_select(query(g, k), k.bytes, weights(g), seen(g), 2),
            |g, k| g.index_select(query(g, k), transposed(g, g.input_f32(&[0.0; 32], [4, 8])), weights(g), seen(g), 2),
            |g, k| g.index_select(transposed(g, query(g, k)), k.weight, g.input_f32(&[0.0; 16], [8, 2]), seen(g), 2),
            |g, k| g.index_select(query(g, k), k.weight, weights(g), g.input_i32(&[1; 3], [3, 1]), 2),
            |g, k| g.index_select(query(g, k), k.weight, weights(g), g.input_f32(&[1.0; 2], [2, 1]), 2),
            |g, k| g.index_select(query(g, k), k.weight, weights(g), seen(g), 0),
            |g, k| g.index_select(query(g, k), k.weight, weights(g), seen(g), -1),
            |g, k| g.index_select(query(g, k), k.weight, weights(g), seen(g), FAR),
        ];
        "list_mask": [
            |g, k| g.list_mask(k.x, 8),
            |g, k| g.list_mask(k.ids, 0),
            |g, k| g.list_mask(k.ids, FAR),
            |g, k| g.list_mask(transposed(g, k.integers), 8),
        ];
        "attend_listed": [
            |g, k| g.attend_listed(query(g, k), k.blocks, g.input_i32(&[0; 4], [2, 2]), 8, 1.0),
            |g, k| g.attend_listed(query(g, k), k.weight, g.input_i32(&[0; 6], [2, 3]), 8, 1.0),
            |g, k| g.attend_listed(query(g, k), k.weight, g.input_i32(&[0; 4], [2, 2]), 9, 1.0),
            |g, k| g.attend_listed(query(g, k), k.weight, g.input_i32(&[0; 4], [2, 2]), 0, 1.0),
            |g, k| g.attend_listed(query(g, k), k.weight, g.input_f32(&[0.0; 4], [2, 2]), 8, 1.0),
            |g, k| g.attend_listed(query(g, k), k.bytes, g.input_i32(&[0; 4], [2, 2]), 8, 1.0),
            |g, k| g.attend_listed(query(g, k), k.experts, g.input_i32(&[0; 4], [2, 2]), 8, 1.0),
        ];
    }
}

/// What follows a fault is not computed with, however much it is; the first fault is the one that is told.
#[test]
fn the_first_fault_is_kept() {
    let error = run(|g, k| {
        let wrong = g.mul_mat(k.blocks, k.x);
        let also = g.add(wrong, k.weight);
        for _ in 0..1000 {
            g.input_f32(&[1.0], [2, 1]);
        }
        g.concat(also, g.input_mask(|_, _| true, 1, 1), 7)
    });
    assert!(matches!(&error, Err(GgmlError::Shape { op: "mul_mat", .. })), "{error:?}");
    let text = error.unwrap_err().to_string();
    assert_eq!(text, "graph: `mul_mat` cannot take [32, 4, 1, 1] q8_0, [8, 4, 1, 1] f32");
}

#[test]
fn a_graph_of_too_many_nodes() {
    for room in [0, 1, 3, 50] {
        let mut arena = Arena::new(room);
        let g = arena.graph(0).unwrap();
        let mut x = g.input_f32(&[1.0], [1, 1]);
        for _ in 1..room {
            x = g.scale(x, 2.0);
        }
        assert_eq!(g.len(), room);
        assert_eq!(g.is_empty(), room == 0);
        for _ in 0..100 {
            x = g.add(x, g.input_f32(&[1.0], [1, 1]));
        }
        g.output(x);
        assert_eq!(computer(1).run(&g).err(), Some(GgmlError::TooManyNodes(room)));
    }
    // With room there is no fault, also when every source is a leaf of its own.
    let mut arena = Arena::new(0);
    arena.reserve(1);
    let leaves: Vec<Leaf> = [8, 8].map(|n| leaf(GgmlType::F32, &[8, n], &vec![0.0; 8 * n as usize])).into();
    let lists = Memory::zeroed(64).unwrap().leaf(GgmlType::I32, &[2, 1], 0).unwrap();
    let query = leaf(GgmlType::F32, &[8, 1], &[0.0; 8]);
    let g = arena.graph(0).unwrap();
    let out = g.attend_listed(g.leaf(&query), g.leaf(&leaves[0]), g.leaf(&lists), 8, 1.0);
    g.output(out);
    assert!(computer(2).run(&g).is_ok());
}

/// Results that no memory can hold are an error each time, and the next graph runs.
#[test]
fn out_of_memory_is_an_error_and_no_more() {
    let mut computer = computer(1);
    for _ in 0..3 {
        let mut arena = Arena::new(4);
        let g = arena.graph(0).unwrap();
        let mask = g.list_mask(g.input_i32(&[0], [1, 1]), 1 << 50);
        g.output(mask);
        assert_eq!(computer.run(&g).err(), Some(GgmlError::Alloc("intermediate results")));
    }
    let mut arena = Arena::new(4);
    let g = arena.graph(0).unwrap();
    let sum = g.sum_rows(g.input_f32(&[1.0, 2.0], [2, 1]));
    g.output(sum);
    assert_eq!(computer.run(&g).unwrap().f32(sum).unwrap(), [3.0]);
    assert!(computer.buffer_bytes() > 0);
}
