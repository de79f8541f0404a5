//! Random blocks of ggml's types: valid by construction, with a given standard deviation and a mean of 0, without
//! quantising anything.

use crate::gguf::GgmlType;
use half::f16;

/// Random numbers that stay the same on every machine and in every version: splitmix64.
pub(crate) struct Random(u64);

impl Random {
    /// Numbers for one tensor.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        // FNV-1a of the name, so that no two tensors are alike.
        let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        Self(hash ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in -1..1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn bytes<const N: usize>(&mut self, out: &mut Vec<u8>) {
        let start = out.len();
        while out.len() < start + N {
            out.extend_from_slice(&self.next().to_le_bytes());
        }
        out.truncate(start + N);
    }
}

/// How to make blocks of one type.
pub(crate) struct Blocks {
    kind: Kind,
    /// Half the range of plain numbers; the scale of a block.
    scale: f32,
}

enum Kind {
    F32,
    F16,
    Q8_0,
    Q4K,
    Q3K,
    Q2K,
}

// Root mean squares of what the scale of a block is multiplied by: the numbers of that many bits, and the scales within a
// block, uniform over the values that are used.
const RMS_I8: f32 = 73.9;
const RMS_Q4: f32 = 4.61 * 48.4;
const RMS_Q3: f32 = 2.345 * 18.47;
const RMS_Q2: f32 = 1.118 * 11.73;

impl Blocks {
    /// Blocks whose values have this standard deviation; nothing for other types.
    pub(crate) fn new(ty: GgmlType, deviation: f32) -> Option<Self> {
        let (kind, unit) = match ty {
            GgmlType::F32 => (Kind::F32, 1.0 / 3f32.sqrt()),
            GgmlType::F16 => (Kind::F16, 1.0 / 3f32.sqrt()),
            GgmlType::Q8_0 => (Kind::Q8_0, RMS_I8),
            GgmlType::Q4_K => (Kind::Q4K, RMS_Q4),
            GgmlType::Q3_K => (Kind::Q3K, RMS_Q3),
            GgmlType::Q2_K => (Kind::Q2K, RMS_Q2),
            _ => return None,
        };
        Some(Self { kind, scale: deviation / unit })
    }

    /// Appends one block.
    pub(crate) fn push(&self, random: &mut Random, out: &mut Vec<u8>) {
        let half = |scale: f32| f16::from_f32(scale).to_le_bytes();
        match self.kind {
            Kind::F32 => out.extend_from_slice(&(random.unit() * self.scale).to_le_bytes()),
            Kind::F16 => out.extend_from_slice(&half(random.unit() * self.scale)),
            Kind::Q8_0 => {
                out.extend_from_slice(&half(self.scale));
                random.bytes::<32>(out);
            }
            Kind::Q4K => {
                // Numbers of 0 to 15 less the same multiple of their mean: each scale of the block is its minimum too.
                out.extend_from_slice(&half(self.scale));
                out.extend_from_slice(&half(self.scale * 7.5));
                out.extend_from_slice(&six_bit_pairs(random.next()));
                random.bytes::<128>(out);
            }
            Kind::Q3K => {
                // Scales have a sign, so that the mean is 0 although the numbers go from -4 to 3.
                random.bytes::<{ 32 + 64 + 12 }>(out);
                out.extend_from_slice(&half(self.scale));
            }
            Kind::Q2K => {
                let bits = random.next();
                let scale = |index: u32| 8 + (bits >> (3 * index)) as u8 % 8;
                out.extend((0..16).map(|index| scale(index) * 0x11));
                random.bytes::<64>(out);
                out.extend_from_slice(&half(self.scale));
                out.extend_from_slice(&half(self.scale * 1.5));
            }
        }
    }
}

/// Eight scales of 32 to 63 and the same numbers as minima, packed as q4_K packs six bits.
fn six_bit_pairs(bits: u64) -> [u8; 12] {
    let value = |index: usize| 32 + (bits >> (5 * index)) as u8 % 32;
    let mut packed = [0; 12];
    for low in 0..4 {
        let (first, second) = (value(low), value(low + 4));
        // The two high bits of the second four lie above the first four.
        packed[low] = first | ((second >> 4) << 6);
        packed[low + 4] = packed[low];
        packed[low + 8] = (second & 15) * 0x11;
    }
    packed
}

/// ggml's own reading of the blocks.
#[cfg(all(test, feature = "engine"))]
mod tests {
    use super::*;
    use crate::{
        ggml::{Arena, Computer, Memory},
        llama::Threadpool,
    };
    use std::sync::Arc;

    #[test]
    fn every_type_decodes_to_its_deviation_and_a_mean_of_zero() {
        const WIDTH: u64 = 16384;
        for ty in [GgmlType::F32, GgmlType::F16, GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::Q3_K, GgmlType::Q2_K] {
            for deviation in [1.0, 1.0 / 64.0, 1.0 / 128.0] {
                let (blocks, mut random) = (Blocks::new(ty, deviation).unwrap(), Random::new(3, ty.name()));
                let mut bytes = Vec::new();
                (0..4 * WIDTH / ty.block_len()).for_each(|_| blocks.push(&mut random, &mut bytes));
                assert_eq!(bytes.len() as u64, ty.tensor_bytes(&[WIDTH, 4]).unwrap(), "{ty}");
                let mut leaf = Memory::zeroed(bytes.len()).unwrap().leaf(ty, &[WIDTH, 4], 0).unwrap();
                leaf.write(0, &bytes).unwrap();
                let (mut arena, pool) = (Arena::new(64), Arc::new(Threadpool::new(1).unwrap()));
                let (mut computer, g) = (Computer::new(pool).unwrap(), arena.graph(0).unwrap());
                let rows = g.get_rows(g.leaf(&leaf), g.input_i32(&[0, 1, 2, 3], [4, 1]));
                g.output(rows);
                let done = computer.run(&g).unwrap();
                let values = done.f32(rows).unwrap();
                let n = values.len() as f32;
                let mean = values.iter().sum::<f32>() / n;
                let off = (values.iter().map(|x| x * x).sum::<f32>() / n).sqrt() / deviation;
                assert!(values.iter().all(|x| x.is_finite()), "{ty}");
                assert!((0.97..1.03).contains(&off) && mean.abs() < 0.03 * deviation, "{ty}: {off}, mean {mean}");
            }
        }
    }
}
