//! Operations against references in double precision, and every wrong shape as an error.

mod attend;
mod experts;
mod faults;
mod index;
mod leaves;
mod packed;
mod rows;
mod select;

use super::*;
use crate::llama::Threadpool;
use std::sync::Arc;

/// More threads than these wait for each other on small machines; work is cut for as many as a test asks for.
const MOST_THREADS: u32 = 3;

fn computer(threads: u32) -> Computer {
    Computer::new(Arc::new(Threadpool::new(threads.min(MOST_THREADS)).unwrap())).unwrap()
}

/// Evaluates what `build` makes of `leaves` and reads it as f32.
fn f32s(
    threads: u32,
    leaves: &[Leaf],
    build: impl for<'g> FnOnce(&Graph<'g>, &'g [Leaf]) -> Tensor<'g>,
) -> Result<Vec<f32>, GgmlError> {
    let mut arena = Arena::new(64).for_threads(threads);
    let g = arena.graph(0).unwrap();
    let tensor = build(&g, leaves);
    g.output(tensor);
    computer(threads).run(&g)?.f32(tensor).map(<[f32]>::to_vec)
}

/// The same as i32.
fn i32s(
    threads: u32,
    leaves: &[Leaf],
    build: impl for<'g> FnOnce(&Graph<'g>, &'g [Leaf]) -> Tensor<'g>,
) -> Result<Vec<i32>, GgmlError> {
    let mut arena = Arena::new(64).for_threads(threads);
    let g = arena.graph(0).unwrap();
    let tensor = build(&g, leaves);
    g.output(tensor);
    computer(threads).run(&g)?.i32(tensor).map(<[i32]>::to_vec)
}

/// Whether the variant in use multiplies Q8_0 with columns of 16 bits. The others take ggml's dot product, whose columns have 8
/// bits and scales in halves: no room for 1e30, and what is no number is lost.
fn wide_q8_0() -> bool {
    use crate::kernels::{Isa, isa};
    matches!(isa(), Isa::Avx2 | Isa::Avx512)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Numbers in -1..1, the same ones for each seed (xorshift64).
fn random(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Memory that starts where ggml wants it.
struct Bytes(memmap2::Mmap);

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn bytes(data: &[u8]) -> Arc<Bytes> {
    let mut map = memmap2::MmapMut::map_anon(data.len().max(1)).unwrap();
    map[..data.len()].copy_from_slice(data);
    Arc::new(Bytes(map.make_read_only().unwrap()))
}

/// `values` in rows of `shape[0]`, as `ty`; for types of three bits and less something random.
fn leaf(ty: GgmlType, shape: &[u64], values: &[f32]) -> Leaf {
    let (rows, row) = (values.len() as i64 / shape[0] as i64, shape[0] as i64);
    let mut data = vec![0u8; ty.tensor_bytes(shape).unwrap() as usize];
    if ty.name().starts_with("iq") && !ty.name().starts_with("iq4") {
        // Quantising takes these types seconds. Any bytes are numbers to them, if the scale of each block is one.
        data.iter_mut().zip(values.iter().cycle()).for_each(|(byte, value)| *byte = (value * 1e4) as i32 as u8);
        for block in data.chunks_mut(ty.block_bytes() as usize) {
            match ty {
                // In pieces: a nibble of each of the last four numbers.
                GgmlType::IQ1_M => [0, 0, 0xc0, 0x20].iter().zip(0..).for_each(|(high, i)| {
                    let byte = &mut block[49 + 2 * i];
                    *byte = *byte & 0xf | high;
                }),
                _ => block[..2].copy_from_slice(&half::f16::from_f32(0.0625).to_le_bytes()),
            }
        }
        return Memory::read_only(bytes(&data)).unwrap().leaf(ty, shape, 0).unwrap();
    }
    // SAFETY: source and destination are as long as ggml expects for these rows.
    let written = unsafe {
        let to = data.as_mut_ptr().cast();
        sys::ggml_quantize_chunk(type_id(ty), values.as_ptr(), to, 0, rows, row, std::ptr::null())
    };
    assert_eq!(written, data.len(), "{ty}");
    Memory::read_only(bytes(&data)).unwrap().leaf(ty, shape, 0).unwrap()
}

/// What `values` become as `ty`.
fn rounded(ty: GgmlType, row: u64, values: &[f32]) -> Vec<f32> {
    let n = values.len() as u64 / row;
    let leaf = leaf(ty, &[row, n], values);
    let all: Vec<i32> = (0..n as i32).collect();
    f32s(1, &[leaf], |g, leaves| g.get_rows(g.leaf(&leaves[0]), g.input_i32(&all, [all.len() as i64, 1]))).unwrap()
}

#[test]
fn an_intermediate_result_cannot_be_read() {
    let mut arena = Arena::new(8);
    let g = arena.graph(0).unwrap();
    let x = g.input_f32(&[1.0, 2.0], [2, 1]);
    let (middle, sum) = (g.sigmoid(x), g.sum_rows(x));
    g.keep(middle);
    g.output(sum);
    let mut computer = computer(1);
    let done = computer.run(&g).unwrap();
    assert_eq!(done.f32(sum).unwrap(), [3.0]);
    assert!(done.i32(sum).is_err(), "another type");
    assert!(done.f32(middle).unwrap_err().to_string().contains("not a readable output"));
}
