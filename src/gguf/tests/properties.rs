//! Properties over arbitrary files.

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;

fn value() -> impl Strategy<Value = Value> {
    let string = || vec(any::<u8>(), 0..12).prop_map(GgufString::from);
    let scalar = prop_oneof![
        any::<u8>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        any::<u16>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f32>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        string().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
    ];
    let array = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::from),
        vec(any::<i8>(), 0..9).prop_map(Array::from),
        vec(any::<u16>(), 0..9).prop_map(Array::from),
        vec(any::<i16>(), 0..9).prop_map(Array::from),
        vec(any::<u32>(), 0..9).prop_map(Array::from),
        vec(any::<i32>(), 0..9).prop_map(Array::from),
        vec(any::<f32>(), 0..9).prop_map(Array::from),
        vec(any::<bool>(), 0..9).prop_map(Array::from),
        vec(string(), 0..9).prop_map(Array::from),
        vec(any::<u64>(), 0..9).prop_map(Array::from),
        vec(any::<i64>(), 0..9).prop_map(Array::from),
        vec(any::<f64>(), 0..9).prop_map(Array::from),
    ];
    prop_oneof![scalar, array.prop_map(Value::from)]
}

fn metadata() -> impl Strategy<Value = Metadata> {
    vec(("[a-zä_]{1,6}(\\.[a-z]{1,4})?", value()), 0..8).prop_map(|entries| entries.into_iter().collect())
}

fn tensors() -> impl Strategy<Value = Vec<TensorSpec>> {
    let ty = select(GgmlType::all().collect::<Vec<_>>());
    let one = (ty, 1u64..3, vec(1u64..4, 0..4)).prop_map(|(ty, blocks, rows)| {
        let shape = std::iter::once(blocks * ty.block_len()).chain(rows).collect();
        TensorSpec { name: String::new(), shape, ty }
    });
    vec(one, 0..6).prop_map(|mut tensors| {
        for (index, tensor) in tensors.iter_mut().enumerate() {
            tensor.name = format!("blk.{index}.weight");
        }
        tensors
    })
}

fn alignment() -> impl Strategy<Value = u64> {
    select(vec![8, 16, 32, 64, 4096])
}

/// Whatever parses keeps the promises of the types, and encodes back to the same places.
fn assert_sound(bytes: &[u8], gguf: &Gguf) {
    for tensor in &gguf.tensors {
        let end = gguf.data_start.checked_add(tensor.offset).and_then(|at| at.checked_add(tensor.n_bytes));
        assert!(end.unwrap() <= bytes.len() as u64);
        assert_eq!(tensor.offset % gguf.alignment, 0);
        assert_eq!(tensor.ty.tensor_bytes(&tensor.shape), Some(tensor.n_bytes));
    }
    let specs: Vec<_> = gguf.tensors.iter().map(|t| spec(&t.name, &t.shape, t.ty)).collect();
    let header = encode_header(&gguf.metadata, &specs, gguf.alignment).unwrap();
    assert_eq!(header.offsets, gguf.tensors.iter().map(|t| t.offset).collect::<Vec<_>>());
    let again = Gguf::parse_with_len(&header.bytes, u64::MAX).unwrap();
    assert_eq!(again.tensors, gguf.tensors);
    // Bytes rather than values: a NaN equals nothing.
    assert_eq!(encode_header(&again.metadata, &specs, again.alignment).unwrap(), header);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_file_written_is_read_the_same(meta in metadata(), tensors in tensors(), alignment in alignment()) {
        let bytes = file_of(&meta, &tensors, alignment);
        let gguf = Gguf::parse(&bytes).unwrap();
        let mut expected = meta;
        if alignment != DEFAULT_ALIGNMENT {
            expected.set("general.alignment", alignment as u32);
        }
        prop_assert_eq!(&gguf.metadata, &expected);
        prop_assert_eq!(gguf.alignment, alignment);
        let specs: Vec<_> = gguf.tensors.iter().map(|t| spec(&t.name, &t.shape, t.ty)).collect();
        prop_assert_eq!(specs, tensors);
        for tensor in &gguf.tensors {
            let at = (gguf.data_start + tensor.offset) as usize;
            let data = &bytes[at..at + tensor.n_bytes as usize];
            prop_assert!(data.iter().enumerate().all(|(i, &byte)| byte == i as u8));
        }
        assert_sound(&bytes, &gguf);
    }

    #[test]
    fn a_damaged_file_never_panics(
        meta in metadata(),
        tensors in tensors(),
        damage in vec((any::<prop::sample::Index>(), prop_oneof![any::<u8>(), select(vec![0, 1, 0x7f, 0x80, 0xff])]), 1..9),
    ) {
        let mut bytes = file_of(&meta, &tensors, 8);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(gguf) = Gguf::parse(&bytes) {
            assert_sound(&bytes, &gguf);
        }
    }

    #[test]
    fn any_bytes_after_a_true_start_never_panic(tensors in 0u64..4, keys in 0u64..4, rest in vec(any::<u8>(), 0..200)) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(keys.to_le_bytes());
        bytes.extend(rest);
        if let Ok(gguf) = Gguf::parse(&bytes) {
            assert_sound(&bytes, &gguf);
        }
    }
}

#[test]
fn nan_keeps_its_bits() {
    let bits = 0x7fc0_1234;
    let meta: Metadata = [("nan", f32::from_bits(bits))].into_iter().collect();
    match Gguf::parse(&file_of(&meta, &[], 32)).unwrap().metadata.get("nan") {
        Some(Value::F32(nan)) => assert_eq!(nan.to_bits(), bits),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_truncation_is_refused() {
    let bytes = file_of(&metadata_of_every_type(), &three_tensors(), 32);
    let gguf = Gguf::parse(&bytes).unwrap();
    let last = gguf.tensors.last().unwrap();
    let needed = (gguf.data_start + last.offset + last.n_bytes) as usize;
    for len in 0..needed {
        assert!(Gguf::parse(&bytes[..len]).is_err(), "cut to {len} of {needed} bytes");
    }
    for len in needed..bytes.len() {
        assert!(Gguf::parse(&bytes[..len]).is_ok(), "only padding is cut at {len}");
    }
}
