//! Reader and writer together: what is written is read, what is damaged is refused.

mod faults;
mod properties;
mod splits;

use super::*;

fn spec(name: &str, shape: &[u64], ty: GgmlType) -> TensorSpec {
    TensorSpec { name: name.into(), shape: shape.into(), ty }
}

/// A file whose tensors hold the bytes 0, 1, 2, ...
fn file_of(metadata: &Metadata, tensors: &[TensorSpec], alignment: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = GgufWriter::new(&mut bytes, metadata, tensors, alignment).unwrap();
    for tensor in tensors {
        let size = tensor.ty.tensor_bytes(&tensor.shape).unwrap();
        writer.write_tensor(&(0..size).map(|i| i as u8).collect::<Vec<_>>()).unwrap();
    }
    let size = writer.finish().unwrap();
    assert_eq!(size, bytes.len() as u64);
    bytes
}

/// One value of each type.
fn metadata_of_every_type() -> Metadata {
    [
        ("general.architecture", Value::from("glm")),
        ("u8", 1u8.into()),
        ("i8", (-1i8).into()),
        ("u16", 2u16.into()),
        ("i16", (-2i16).into()),
        ("u32", 3u32.into()),
        ("i32", (-3i32).into()),
        ("f32", 0.5f32.into()),
        ("bool", true.into()),
        ("not utf-8", GgufString::from(vec![0xff, 0]).into()),
        ("strings", Array::from(vec![GgufString::from("a"), "".into(), "ü".into()]).into()),
        ("bools", Array::from(vec![true, false]).into()),
        ("none", Array::from(Vec::<u64>::new()).into()),
        ("u64", u64::MAX.into()),
        ("i64", i64::MIN.into()),
        ("f64", f64::INFINITY.into()),
    ]
    .into_iter()
    .collect()
}

fn three_tensors() -> [TensorSpec; 3] {
    [spec("a", &[3, 2], GgmlType::F32), spec("b", &[64, 1, 2], GgmlType::Q4_0), spec("c", &[1], GgmlType::I8)]
}

#[test]
fn what_is_written_is_read() {
    let meta = metadata_of_every_type();
    let bytes = file_of(&meta, &three_tensors(), 32);
    let gguf = Gguf::parse(&bytes).unwrap();
    assert_eq!((gguf.version, gguf.alignment, &gguf.metadata), (3, 32, &meta));
    let places: Vec<_> = gguf.tensors.iter().map(|t| (t.name.as_str(), &t.shape[..], t.offset, t.n_bytes)).collect();
    assert_eq!(places, [("a", &[3, 2][..], 0, 24), ("b", &[64, 1, 2], 32, 72), ("c", &[1], 128, 1)]);
    assert_eq!(gguf.data_start % 32, 0);
    assert_eq!(gguf.data_start + 160, bytes.len() as u64, "the last tensor is padded too");
    assert!(gguf.tensor("d").is_none());
}

#[test]
fn version_2_reads_like_version_3() {
    let mut bytes = file_of(&metadata_of_every_type(), &three_tensors(), 32);
    let three = Gguf::parse(&bytes).unwrap();
    bytes[4] = 2;
    assert_eq!(Gguf::parse(&bytes).unwrap(), Gguf { version: 2, ..three });
}

#[test]
fn header_encodes_to_the_bytes_of_the_specification() {
    let meta: Metadata = [("k", Array::from(vec![7u16]))].into_iter().map(|(k, v)| (k, Value::from(v))).collect();
    let header = encode_header(&meta, &[spec("t", &[2], GgmlType::F16)], 32).unwrap();
    let mut expected = b"GGUF\x03\0\0\0".to_vec();
    expected.extend(b"\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"); // 1 tensor, 1 key
    expected.extend(b"\x01\0\0\0\0\0\0\0k\x09\0\0\0\x02\0\0\0\x01\0\0\0\0\0\0\0\x07\0"); // k: array of 1 u16
    expected.extend(b"\x01\0\0\0\0\0\0\0t\x01\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0"); // t: [2] f16 at 0
    expected.resize(96, 0);
    assert_eq!(header.bytes, expected);
    assert_eq!((header.offsets, header.sizes, header.data_len), (vec![0], vec![4], 32));
}

#[test]
fn alignment_is_written_when_it_is_not_the_default_and_kept_true_when_it_is_there() {
    let mut meta: Metadata = [("a", 1u8)].into_iter().collect();
    let tensors = [spec("x", &[1], GgmlType::I8), spec("y", &[1], GgmlType::I8)];
    let gguf = Gguf::parse(&file_of(&meta, &tensors, 256)).unwrap();
    assert_eq!((gguf.alignment, gguf.metadata.uint("general.alignment")), (256, Some(256)));
    assert_eq!(gguf.tensors[1].offset, 256);

    meta.set("general.alignment", 64u32);
    let gguf = Gguf::parse(&file_of(&meta, &tensors, 32)).unwrap();
    assert_eq!((gguf.alignment, gguf.metadata.uint("general.alignment")), (32, Some(32)));
}

#[test]
fn metadata_alone_is_a_file() {
    let bytes = file_of(&metadata_of_every_type(), &[], 32);
    let gguf = Gguf::parse(&bytes).unwrap();
    assert_eq!((gguf.tensors.len(), gguf.data_start), (0, bytes.len() as u64));
    let empty = file_of(&Metadata::default(), &[], 32);
    assert_eq!(Gguf::parse(&empty[..24]).unwrap().data_start, 24, "padding may be missing");
}

#[test]
fn a_prefix_with_the_whole_header_is_enough() {
    let bytes = file_of(&metadata_of_every_type(), &three_tensors(), 32);
    let whole = Gguf::parse(&bytes).unwrap();
    let prefix = &bytes[..whole.data_start as usize];
    assert_eq!(Gguf::parse_with_len(prefix, bytes.len() as u64).unwrap(), whole);
    assert!(matches!(Gguf::parse(prefix), Err(GgufError::Outside { .. })));
}

#[test]
fn writer_takes_tensors_in_pieces() {
    let whole = file_of(&Metadata::default(), &three_tensors(), 64);
    let mut pieces = Vec::new();
    let mut writer = GgufWriter::new(&mut pieces, &Metadata::default(), &three_tensors(), 64).unwrap();
    for size in [24u8, 72, 1] {
        let data: Vec<u8> = (0..size).collect();
        data.chunks(7).for_each(|chunk| writer.tensor_chunk(chunk).unwrap());
    }
    writer.finish().unwrap();
    assert_eq!(pieces, whole);
}

#[test]
fn writer_refuses_wrong_sizes_and_unfinished_files() {
    let new = || GgufWriter::new(Vec::new(), &Metadata::default(), &three_tensors(), 32).unwrap();
    let mut writer = new();
    assert!(matches!(writer.write_tensor(&[0; 23]), Err(GgufError::TensorSize { got: 23, expected: 24, .. })));
    assert!(matches!(writer.write_tensor(&[0; 25]), Err(GgufError::TensorSize { got: 25, expected: 24, .. })));
    writer.tensor_chunk(&[0; 20]).unwrap();
    assert!(matches!(writer.tensor_chunk(&[0; 5]), Err(GgufError::TensorSize { got: 25, expected: 24, .. })));
    assert!(writer.write_tensor(&[0; 4]).is_err(), "a tensor is half written");
    let error = writer.finish().unwrap_err();
    assert_eq!(error.to_string(), "0 of 3 tensors are written; tensor `a` is missing");

    let mut writer = new();
    for size in [24, 72, 1] {
        writer.write_tensor(&vec![0; size]).unwrap();
    }
    assert!(matches!(writer.tensor_chunk(&[0]), Err(GgufError::NoMoreTensors { count: 3 })));
    writer.finish().unwrap();
}

#[test]
fn writer_refuses_what_the_reader_would_refuse() {
    let none = Metadata::default();
    let refused = |tensors: &[TensorSpec]| encode_header(&none, tensors, 32).unwrap_err();
    let f32 = |name: &str, shape: &[u64]| spec(name, shape, GgmlType::F32);
    assert!(matches!(refused(&[f32("x", &[1]), f32("x", &[2])]), GgufError::DuplicateTensor { .. }));
    assert!(matches!(refused(&[f32(&"n".repeat(64), &[1])]), GgufError::TensorName { .. }));
    assert!(matches!(refused(&[f32("", &[1])]), GgufError::TensorName { .. }));
    assert!(matches!(refused(&[f32("x", &[])]), GgufError::Dims { got: 0, .. }));
    assert!(matches!(refused(&[f32("x", &[1; 5])]), GgufError::Dims { got: 5, .. }));
    assert!(matches!(refused(&[f32("x", &[1, 0])]), GgufError::Shape { .. }));
    assert!(matches!(refused(&[f32("x", &[1 << 62])]), GgufError::Shape { .. }));
    assert!(matches!(refused(&[spec("x", &[33], GgmlType::Q8_0)]), GgufError::Row { ne0: 33, .. }));
    let huge = |name: &str| spec(name, &[1 << 62], GgmlType::I8);
    assert!(matches!(refused(&["a", "b", "c", "d"].map(huge)), GgufError::Shape { .. }));
    for alignment in [0, 4, 24, MAX_ALIGNMENT * 2] {
        assert!(matches!(encode_header(&none, &[], alignment), Err(GgufError::Alignment { .. })), "{alignment}");
    }
    for key in ["".to_owned(), "a\0b".into(), "k".repeat(65_536)] {
        let meta: Metadata = [(key, 1u8)].into_iter().collect();
        assert!(matches!(encode_header(&meta, &[], 32), Err(GgufError::KeyName { index: 0, .. })));
    }
}

#[test]
fn fuzz_seeds_are_read_or_refused_as_their_names_say() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/gguf");
    let mut sound = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let result = Gguf::parse(&std::fs::read(&path).unwrap());
        let ok = path.file_name().unwrap().to_string_lossy().starts_with("ok-");
        assert_eq!(result.is_ok(), ok, "{}: {result:?}", path.display());
        sound += usize::from(ok);
    }
    assert!(sound > 0);
}
