//! Random rows for a cache, and the saved states that both engines read them from.
//!
//! Neither engine documents its states. So one row is computed and saved, its bytes are taken apart by what is known of the
//! form, and whatever does not fit is refused.

use crate::{
    gguf::GgmlType,
    package::{
        LayerRange,
        glm_dsa::Config,
        synth::{Blocks, Random},
    },
    policy::Role,
};
use half::f16;

/// Size of an f16.
const HALF: usize = 2;

/// Rows of a range of layers, f16, with the deviation of 1 that norms give latent and keys.
pub(super) struct CachedRows {
    /// Of each layer `[latent + rotated key]`.
    rows: Vec<Part>,
    /// Of each full layer, the indexer's.
    keys: Vec<Part>,
    full: Vec<bool>,
}

/// Rows of one tensor.
struct Part {
    width: usize,
    bytes: Vec<u8>,
}

impl CachedRows {
    /// `n` rows of `layers`.
    pub(super) fn random(config: &Config, layers: LayerRange, n: u32, seed: u64) -> Self {
        let part = |name: &str, layer: u32, width: u32| {
            let mut random = Random::new(seed, &format!("{name} {layer}"));
            let mut bytes = Vec::with_capacity(n as usize * width as usize * HALF);
            if let Some(blocks) = Blocks::new(GgmlType::F16, 1.0) {
                (0..n as usize * width as usize).for_each(|_| blocks.push(&mut random, &mut bytes));
            }
            Part { width: width as usize, bytes }
        };
        let full = |layer: &u32| config.role(*layer) == Some(Role::Full);
        Self {
            rows: layers.iter().map(|layer| part("row", layer, config.kv_row())).collect(),
            keys: layers.iter().filter(full).map(|layer| part("key", layer, config.indexer_dim)).collect(),
            full: layers.iter().map(|layer| full(&layer)).collect(),
        }
    }

    /// A state of the `dsa` engine with the first `n` rows. `one` is its state of one row.
    pub(super) fn dsa_state(&self, one: &[u8], n: u32) -> Option<Vec<u8>> {
        let mut state = Extended { one, out: Vec::new() };
        state.replace(1, n)?;
        // Whether a draft head has followed.
        state.expect(0)?;
        let mut keys = self.keys.iter();
        for (rows, full) in self.rows.iter().zip(&self.full) {
            state.rows(rows, rows.bytes(n)?)?;
            if *full {
                let keys = keys.next()?;
                state.rows(keys, keys.bytes(n)?)?;
            }
        }
        state.end()
    }

    /// A state of the `llama` engine with the first `n` rows. `one` is its state of one row.
    ///
    /// It counts rows, then has llama.cpp's own state: two caches one after the other, each with its streams, cells and
    /// layers. Indexer keys are multiplied with a Hadamard matrix there, queries too.
    pub(super) fn llama_state(&self, one: &[u8], n: u32) -> Option<Vec<u8>> {
        let mut state = Extended { one, out: Vec::new() };
        state.replace(1, n)?;
        state.replace(1, n)?;
        // A magic number; the sequence.
        state.keep(8)?;
        state.cache(&self.rows, n, |part| part.bytes(n).map(<[u8]>::to_vec))?;
        state.cache(&self.keys, n, |part| {
            let mut bytes = part.bytes(n)?.to_vec();
            bytes.chunks_exact_mut(part.width * HALF).for_each(hadamard);
            Some(bytes)
        })?;
        state.end()
    }
}

impl Part {
    fn bytes(&self, n: u32) -> Option<&[u8]> {
        self.bytes.get(..n as usize * self.width * HALF)
    }
}

/// A state of one row that is copied with more rows.
struct Extended<'a> {
    one: &'a [u8],
    out: Vec<u8>,
}

impl Extended<'_> {
    fn take(&mut self, n: usize) -> Option<&[u8]> {
        let (taken, rest) = self.one.split_at_checked(n)?;
        self.one = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(*self.take(4)?.first_chunk()?))
    }

    fn keep(&mut self, n: usize) -> Option<()> {
        let (taken, rest) = self.one.split_at_checked(n)?;
        self.out.extend_from_slice(taken);
        self.one = rest;
        Some(())
    }

    /// A number that must be what it is.
    fn expect(&mut self, number: u32) -> Option<()> {
        self.replace(number, number)
    }

    fn replace(&mut self, number: u32, with: u32) -> Option<()> {
        if self.number()? != number {
            return None;
        }
        self.out.extend_from_slice(&with.to_le_bytes());
        Some(())
    }

    /// Rows in the place of one.
    fn rows(&mut self, part: &Part, bytes: &[u8]) -> Option<()> {
        self.take(part.width * HALF)?;
        self.out.extend_from_slice(bytes);
        Some(())
    }

    /// One of llama.cpp's caches, without values: those are part of the keys.
    fn cache(&mut self, parts: &[Part], n: u32, bytes: impl Fn(&Part) -> Option<Vec<u8>>) -> Option<()> {
        self.expect(1)?;
        self.replace(1, n)?;
        // Each cell has its position, and one sequence.
        if [self.number()?, self.number()?, self.number()?] != [0, 1, 0] {
            return None;
        }
        for pos in 0..n {
            self.out.extend([pos, 1, 0].into_iter().flat_map(u32::to_le_bytes));
        }
        // Whether values are transposed.
        self.keep(4)?;
        self.expect(u32::try_from(parts.len()).ok()?)?;
        // Rotations of keys and values.
        self.keep(8)?;
        for part in parts {
            self.expect(GgmlType::F16.id())?;
            self.expect(u32::try_from(part.width * HALF).ok()?)?;
            self.expect(0)?;
            self.rows(part, &bytes(part)?)?;
        }
        Some(())
    }

    fn end(self) -> Option<Vec<u8>> {
        self.one.is_empty().then_some(self.out)
    }
}

/// Multiplies a row of halves with the Hadamard matrix of its width, scaled to keep lengths.
fn hadamard(row: &mut [u8]) {
    let (halves, _) = row.as_chunks_mut::<HALF>();
    let mut values: Vec<f32> = halves.iter().map(|half| f16::from_le_bytes(*half).to_f32()).collect();
    let mut step = 1;
    while step < values.len() {
        for pair in values.chunks_exact_mut(2 * step) {
            let (low, high) = pair.split_at_mut(step);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        step *= 2;
    }
    let scale = 1.0 / (values.len() as f32).sqrt();
    for (half, value) in halves.iter_mut().zip(values) {
        *half = f16::from_f32(value * scale).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transform_is_its_own_inverse_and_keeps_lengths() {
        let row: Vec<u8> = (0..64).flat_map(|i| f16::from_f32((i * i % 17) as f32).to_le_bytes()).collect();
        let values = |row: &[u8]| -> Vec<f32> {
            row.as_chunks::<2>().0.iter().map(|half| f16::from_le_bytes(*half).to_f32()).collect()
        };
        let mut turned = row.clone();
        hadamard(&mut turned);
        let length = |values: &[f32]| values.iter().map(|x| x * x).sum::<f32>();
        assert!((length(&values(&turned)) / length(&values(&row)) - 1.0).abs() < 1e-3);
        assert!(
            (values(&turned)[0] - values(&row).iter().sum::<f32>() / 8.0).abs() < 0.1,
            "the first column is all ones"
        );
        hadamard(&mut turned);
        assert!(values(&row).iter().zip(values(&turned)).all(|(a, b)| (a - b).abs() < 0.05));
    }

    #[test]
    fn a_state_of_another_form_is_refused() {
        let part = |width, n: u8| Part { width, bytes: (0..width as u8 * 2 * n).collect() };
        let cached = CachedRows { rows: vec![part(3, 4), part(3, 4)], keys: vec![part(2, 4)], full: vec![true, false] };
        let one: Vec<u8> = [1u32, 0].into_iter().flat_map(u32::to_le_bytes).chain([0; 16]).collect();
        let state = cached.dsa_state(&one, 2).unwrap();
        assert_eq!(state.len(), 8 + 2 * 16);
        assert_eq!(state[8..24], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3]);
        assert_eq!(cached.dsa_state(&one[..23], 2), None, "too short");
        assert_eq!(cached.dsa_state(&[one.clone(), vec![0]].concat(), 2), None, "too long");
        assert_eq!(cached.dsa_state(&one, 5), None, "more rows than there are");
        assert_eq!(cached.llama_state(&one, 2), None);
    }
}
