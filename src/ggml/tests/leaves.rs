//! Leaves: what lies outside its memory, or where ggml cannot read it, is refused.

use super::*;

fn refused(memory: &Memory, ty: GgmlType, shape: &[u64], offset: usize) -> String {
    memory.leaf(ty, shape, offset).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn a_leaf_lies_inside_its_memory() {
    let memory = Memory::zeroed(256).unwrap();
    assert!(!memory.is_empty() && memory.len() == 256);
    for (shape, offset) in [(&[64u64][..], 0), (&[4, 4], 192), (&[1, 1, 1, 1], 252), (&[8, 2, 2, 2], 0)] {
        assert!(memory.leaf(GgmlType::F32, shape, offset).is_ok(), "{shape:?} at {offset}");
    }
    for (shape, offset, what) in [
        (&[65u64][..], 0, "260 bytes at 0 of 256"),
        (&[64], 4, "256 bytes at 4 of 256"),
        (&[1], 256, "4 bytes at 256 of 256"),
        (&[1], usize::MAX - 3, "of 256"),
        (&[u64::MAX], 0, "a dimension is 0 or huge"),
        (&[1 << 61], 0, "no size"),
        (&[1 << 40, 1 << 40], 0, "no size"),
        (&[4, 0], 0, "a dimension is 0 or huge"),
        (&[], 0, "expected 1 to 4 dimensions"),
        (&[1, 1, 1, 1, 1], 0, "expected 1 to 4 dimensions"),
    ] {
        let error = refused(&memory, GgmlType::F32, shape, offset);
        assert!(error.contains(what), "{shape:?} at {offset}: {error}");
    }
    assert!(refused(&memory, GgmlType::Q8_0, &[31], 0).contains("no size"), "half a block");
    assert!(memory.leaf(GgmlType::Q8_0, &[32, 7], 4).is_ok());
}

#[test]
fn a_leaf_is_aligned() {
    let memory = Memory::zeroed(256).unwrap();
    for offset in [1, 2, 3, 5, 7] {
        let error = refused(&memory, GgmlType::F32, &[4], offset);
        assert!(error.contains("not a multiple of 4"), "{error}");
    }
    struct Shifted(Arc<Bytes>);
    impl AsRef<[u8]> for Shifted {
        fn as_ref(&self) -> &[u8] {
            &self.0.as_ref().as_ref()[4..]
        }
    }
    let shifted = Memory::read_only(Arc::new(Shifted(bytes(&[0; 64]))));
    let Err(error) = shifted else { panic!("memory at an odd address") };
    assert!(error.to_string().contains("not a multiple of 32"), "{error}");
}

#[test]
fn bytes_move_inside_a_writable_leaf_only() {
    let memory = Memory::zeroed(64).unwrap();
    let mut cache = memory.leaf(GgmlType::F32, &[4, 2], 0).unwrap();
    f32s(1, std::slice::from_ref(&cache), |g, leaves| {
        let to = g.rows(g.leaf(&leaves[0]), 0, 1);
        g.store(g.input_f32(&[1.0, 2.0, 3.0, 4.0], [4, 1]), to);
        g.sum_rows(g.leaf(&leaves[0]))
    })
    .unwrap();
    cache.copy_within(0, 16, 16).unwrap();
    let sums = f32s(1, std::slice::from_ref(&cache), |g, leaves| g.sum_rows(g.leaf(&leaves[0]))).unwrap();
    assert_eq!(sums, [10.0, 10.0]);
    for (from, to, len) in [(0, 17, 16), (17, 0, 16), (0, 0, 33), (usize::MAX, 0, 2), (0, usize::MAX, 2)] {
        assert!(cache.copy_within(from, to, len).is_err(), "{len} bytes from {from} to {to}");
    }
    let mut fixed = leaf(GgmlType::F32, &[4], &[0.0; 4]);
    assert!(fixed.copy_within(0, 4, 4).is_err(), "a mapped file");
}

/// A leaf keeps its memory: the owner may go first.
#[test]
fn memory_lives_as_long_as_its_leaves() {
    let leaf = leaf(GgmlType::F32, &[3], &[1.0, 2.0, 3.0]);
    assert_eq!(f32s(1, &[leaf], |g, leaves| g.sum_rows(g.leaf(&leaves[0]))).unwrap(), [6.0]);
}
