//! Crafted files, one fault each. A name that starts with a project and a number is the public report of that fault.

use super::*;

/// A file in the making, with every number free to be wrong.
struct Crafted(Vec<u8>);

impl Crafted {
    fn new(tensor_count: u64, kv_count: u64) -> Self {
        Self::with_version(3, tensor_count, kv_count)
    }

    fn with_version(version: u32, tensor_count: u64, kv_count: u64) -> Self {
        Self(b"GGUF".to_vec()).raw(version.to_le_bytes()).raw(tensor_count.to_le_bytes()).raw(kv_count.to_le_bytes())
    }

    fn raw(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.0.extend_from_slice(bytes.as_ref());
        self
    }

    fn string(self, text: impl AsRef<[u8]>) -> Self {
        self.raw((text.as_ref().len() as u64).to_le_bytes()).raw(text)
    }

    /// A key with the id of its type and the bytes of its value.
    fn key(self, key: &str, ty: u32, value: impl AsRef<[u8]>) -> Self {
        self.string(key).raw(ty.to_le_bytes()).raw(value)
    }

    fn array(self, key: &str, element_type: u32, len: u64, items: impl AsRef<[u8]>) -> Self {
        self.key(key, 9, element_type.to_le_bytes()).raw(len.to_le_bytes()).raw(items)
    }

    fn tensor(self, name: &str, shape: &[u64], ty: u32, offset: u64) -> Self {
        let head = self.string(name).raw((shape.len() as u32).to_le_bytes());
        let dims = shape.iter().fold(head, |file, dim| file.raw(dim.to_le_bytes()));
        dims.raw(ty.to_le_bytes()).raw(offset.to_le_bytes())
    }

    /// Pads to 32 and appends `n` bytes of tensor data.
    fn data(mut self, n: usize) -> Self {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + n, 0xa5);
        self
    }

    fn error(&self) -> GgufError {
        Gguf::parse(&self.0).unwrap_err()
    }

    fn message(&self) -> String {
        self.error().to_string()
    }
}

const U8: u32 = 0;
const U32: u32 = 4;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;
const F32: u32 = 0;
const Q4_K: u32 = 12;

fn one_tensor(shape: &[u64], ty: u32, offset: u64) -> Crafted {
    Crafted::new(1, 0).tensor("w", shape, ty, offset)
}

#[test]
fn a_crafted_file_without_fault_is_read() {
    let file = Crafted::new(2, 1).key("k", U8, [5]).tensor("w", &[2], F32, 0).tensor("v", &[1], F32, 32).data(36);
    let gguf = Gguf::parse(&file.0).unwrap();
    assert_eq!((gguf.metadata.uint("k"), gguf.tensors.len()), (Some(5), 2));
}

#[test]
fn other_formats_are_named() {
    let cases: [(&[u8], &str); 14] = [
        (b"", "an empty file"),
        (b"GG", "the first bytes of an unfinished download"),
        (b"<!DOCTYPE html><html>", "an HTML page"),
        (b"\n<html lang=\"en\">", "an HTML page"),
        (b"<?xml version=\"1.0\"?><Error>", "an XML document"),
        (b"{\"error\":\"Repository not found\"}", "JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer"),
        (b"\x58\x02\0\0\0\0\0\0{\"__metadata__\":{}}", "a safetensors file"),
        (b"PK\x03\x04\x14\0", "a zip archive or PyTorch checkpoint"),
        (b"\x1f\x8b\x08\0", "a compressed file"),
        (b"tjgg\x03\0\0\0", "a llama.cpp model from before GGUF"),
        (&[0; 100], "zeros of an unfinished download"),
        (b"Entry not found", "a text file"),
        (b"\x7fELF\x02\x01\x01", "an unknown binary file"),
    ];
    for (bytes, looks_like) in cases {
        let message = Gguf::parse(bytes).unwrap_err().to_string();
        assert!(message.ends_with(&format!(": this looks like {looks_like}, not a GGUF file")), "{message}");
    }
    let page = Gguf::parse(b"<!DOCTYPE html>").unwrap_err().to_string();
    assert_eq!(page, "starts with `<!DO`: this looks like an HTML page, not a GGUF file");
}

#[test]
fn other_versions_and_byte_order_are_named() {
    let message = Crafted::with_version(3u32.swap_bytes(), 0, 0).message();
    assert!(message.starts_with("this is a big-endian GGUF file (version reads as 0x03000000)"), "{message}");
    for version in [0, 1, 4, 0x0002_0003] {
        let error = Crafted::with_version(version, 0, 0).error();
        assert!(matches!(error, GgufError::Version { got } if got == version), "{error}");
    }
}

#[test]
fn llama_cpp_26978_alignment_zero() {
    let file = Crafted::new(0, 1).key("general.alignment", U32, 0u32.to_le_bytes());
    assert_eq!(file.message(), "alignment is 0, expected a power of two from 8 to 1048576");
}

#[test]
fn llama_cpp_26978_alignment_not_a_power_of_two_or_out_of_bounds() {
    for alignment in [1u32, 3, 4, 24, 33, 1 << 21, 1 << 31, u32::MAX] {
        let error = Crafted::new(0, 1).key("general.alignment", U32, alignment.to_le_bytes()).error();
        assert!(matches!(error, GgufError::Alignment { got } if got == u64::from(alignment)), "{error}");
    }
}

#[test]
fn llama_cpp_pr_18674_alignment_of_the_wrong_type() {
    let u64_max = Crafted::new(0, 1).key("general.alignment", U64, u64::MAX.to_le_bytes());
    assert_eq!(u64_max.message(), "metadata key `general.alignment` has type u64, expected u32");
    let string = Crafted::new(0, 1).key("general.alignment", STRING, []).string("32");
    assert_eq!(string.message(), "metadata key `general.alignment` has type string, expected u32");
    let array = Crafted::new(0, 1).array("general.alignment", U32, 1, 32u32.to_le_bytes());
    assert_eq!(array.message(), "metadata key `general.alignment` has type array, expected u32");
}

#[test]
fn llama_cpp_pr_26318_sizes_that_wrap_when_padded_or_summed() {
    const I8: u32 = 24;
    let largest = one_tensor(&[i64::MAX as u64], I8, 0).data(64);
    assert!(matches!(largest.error(), GgufError::Outside { .. }));
    // With a file that seems to hold everything, the fourth quarter of 2^64 ends at 0.
    let names = ["a", "b", "c", "d"];
    let file =
        names.iter().zip(0u64..).fold(Crafted::new(4, 0), |f, (name, i)| f.tensor(name, &[1 << 62], I8, i << 62));
    let error = Gguf::parse_with_len(&file.data(64).0, u64::MAX).unwrap_err();
    assert!(matches!(&error, GgufError::Outside { tensor, need: u64::MAX, .. } if tensor == "d"), "{error}");
}

#[test]
fn shapes_whose_product_wraps() {
    for shape in [&[1 << 32, 1 << 32][..], &[1 << 63], &[u64::MAX, u64::MAX, u64::MAX, u64::MAX], &[1 << 62, 1, 1, 4]] {
        let error = one_tensor(shape, F32, 0).data(64).error();
        assert!(matches!(error, GgufError::Shape { problem: "its size does not fit into 63 bits", .. }), "{error}");
    }
}

#[test]
fn imp_532_kv_count_2_pow_60() {
    let file = Crafted::new(0, 1 << 60).raw([0; 30]);
    assert_eq!(
        file.message(),
        "header field `kv_count` is 1152921504606846976, but the 30 bytes left can hold at most 2"
    );
    // Where the count fits the bytes left, memory is taken only as keys come: see `justified_capacity`.
    let zeros = Crafted::new(0, 1000).raw([0; 14_000]);
    assert!(matches!(zeros.error(), GgufError::KeyName { index: 0, problem: "is empty", .. }));
}

#[test]
fn imp_532_tensor_count_2_pow_60() {
    let error = Crafted::new(1 << 60, 0).raw([0; 100]).error();
    assert!(matches!(error, GgufError::Count { got, have: 100, most: 3, .. } if got == 1 << 60), "{error}");
}

#[test]
fn imp_532_unknown_array_type() {
    let file = Crafted::new(0, 1).array("tokens", 77, 1 << 40, [0; 64]);
    assert_eq!(file.message(), "metadata key `tokens` is an array of unknown element type 77, expected 0..=12");
}

#[test]
fn imp_532_string_past_the_end() {
    let value = Crafted::new(0, 1).key("name", STRING, 1000u64.to_le_bytes()).raw("short");
    assert_eq!(
        value.message(),
        "the file ends inside the value of metadata key `name`: need 1000 bytes at offset 48, have 5"
    );
    let key = Crafted::new(0, 1).raw(u64::MAX.to_le_bytes()).raw("abcdefgh");
    assert!(matches!(key.error(), GgufError::Truncated { need: u64::MAX, have: 8, .. }));
    let name = Crafted::new(1, 0).raw((1u64 << 63).to_le_bytes()).raw([0; 40]);
    assert!(matches!(name.error(), GgufError::Truncated { have: 40, .. }));
}

#[test]
fn imp_532_offset_overflow() {
    let error = one_tensor(&[32], F32, u64::MAX - 31).data(128).error();
    assert!(matches!(error, GgufError::Outside { need: u64::MAX, .. }), "{error}");
}

#[test]
fn imp_532_tensor_past_the_end() {
    let error = one_tensor(&[33], F32, 0).data(128).error();
    assert!(matches!(error, GgufError::Outside { need: 196, have: 192, .. }), "{error}");
}

#[test]
fn array_lengths_that_the_file_cannot_hold() {
    for (element_type, bytes_each) in [(U8, 1u64), (U32, 4), (BOOL, 1), (STRING, 8), (U64, 8)] {
        let error = Crafted::new(0, 1).array("a", element_type, 1 << 60, [0; 64]).error();
        assert!(matches!(error, GgufError::Count { most, .. } if most == 64 / bytes_each), "{error}");
    }
}

#[test]
fn gguf_tools_25_n_dims() {
    for n_dims in [0, 5, 8, 9, u32::MAX] {
        let file = Crafted::new(1, 0).string("w").raw(n_dims.to_le_bytes()).raw([0; 200]);
        assert_eq!(file.message(), format!("tensor `w` has {n_dims} dimensions, expected 1 to 4"));
    }
}

#[test]
fn mlx_4136_tensor_offset_beyond_the_file() {
    let file = one_tensor(&[8], F32, 1 << 40).data(32);
    let have = file.0.len();
    assert_eq!(
        file.message(),
        format!(
            "tensor `w` needs {} bytes of file, have {have}: the file is truncated or the offset is wrong",
            (1u64 << 40) + 64 + 32
        )
    );
}

#[test]
fn aprender_pr_2011_truncated_tensor_is_no_zeros() {
    let file = one_tensor(&[8], F32, 0).data(31);
    assert!(matches!(file.error(), GgufError::Outside { need: 96, have: 95, .. }));
}

#[test]
fn llama_cpp_6490_duplicate_key() {
    let file = Crafted::new(0, 2).key("general.name", U8, [1]).key("general.name", U8, [2]);
    assert_eq!(file.message(), "metadata key `general.name` appears twice");
}

#[test]
fn llama_cpp_6836_duplicate_tensor() {
    let file = Crafted::new(2, 0).tensor("w", &[8], F32, 0).tensor("w", &[8], F32, 32).data(64);
    assert_eq!(file.message(), "tensor `w` appears twice");
}

#[test]
fn llama_cpp_pr_10100_tensor_name_of_63_and_64_bytes() {
    let named = |len| Crafted::new(1, 0).tensor(&"n".repeat(len), &[8], F32, 0).data(32);
    assert!(Gguf::parse(&named(63).0).is_ok());
    let message = named(64).message();
    assert!(message.starts_with("name of tensor 0 `nnn"), "{message}");
    assert!(message.ends_with("` is 64 bytes long, expected at most 63"), "{message}");
    // Bytes count, not characters.
    assert!(matches!(Crafted::new(1, 0).tensor(&"ü".repeat(32), &[8], F32, 0).error(), GgufError::TensorName { .. }));
}

#[test]
fn larql_pr_18_ne0_is_the_row_length() {
    let right = one_tensor(&[256, 3], Q4_K, 0).data(3 * 144);
    assert_eq!(Gguf::parse(&right.0).unwrap().tensors[0].shape, [256, 3]);
    let swapped = one_tensor(&[3, 256], Q4_K, 0).data(3 * 144);
    assert_eq!(swapped.message(), "tensor `w` of type q4_K has rows of 3 elements, not a multiple of its block of 256");
}

#[test]
fn zero_dimensions_are_refused() {
    for shape in [&[0][..], &[8, 0], &[0, 0, 0, 0], &[8, 1, 1, 0]] {
        let error = one_tensor(shape, F32, 0).data(32).error();
        assert!(matches!(error, GgufError::Shape { problem: "no dimension may be 0", .. }), "{error}");
    }
}

#[test]
fn unknown_and_removed_tensor_types_are_refused() {
    for ty in [4, 5, 31, 36, 43, 255, u32::MAX] {
        let message = one_tensor(&[256], ty, 0).data(4096).message();
        assert_eq!(message, format!("tensor `w` has unknown or removed ggml type {ty}"));
    }
}

#[test]
fn tensors_lie_back_to_back() {
    let two = |second| Crafted::new(2, 0).tensor("w", &[9], F32, 0).tensor("v", &[8], F32, second).data(256);
    assert!(Gguf::parse(&two(64).0).is_ok());
    let overlap = "tensor `v` is at offset 32, expected 64: tensors must follow one another without overlap or gap";
    assert_eq!(two(32).message(), overlap);
    assert!(matches!(two(96).error(), GgufError::Offset { got: 96, expected: 64, .. }), "a gap");
    assert!(matches!(two(0).error(), GgufError::Offset { got: 0, .. }), "the same data twice");
    let message = two(36).message();
    assert_eq!(message, "tensor `v` is at offset 36, not a multiple of the alignment 32");
    assert!(matches!(one_tensor(&[8], F32, 32).data(256).error(), GgufError::Offset { expected: 0, .. }));
}

#[test]
fn unknown_value_types_are_refused() {
    for ty in [13, 255, u32::MAX] {
        let message = Crafted::new(0, 1).key("k", ty, [0; 64]).message();
        assert_eq!(message, format!("metadata key `k` has unknown value type {ty}, expected 0..=12"));
    }
}

#[test]
fn nested_arrays_are_refused() {
    let message = Crafted::new(0, 1).array("k", ARRAY, 1, [0; 64]).message();
    assert_eq!(message, "metadata key `k` is an array of arrays, which is not supported");
}

#[test]
fn bools_are_zero_or_one() {
    for byte in [2, 0x80, 0xff] {
        let message = Crafted::new(0, 1).key("k", BOOL, [byte]).message();
        assert_eq!(message, format!("the value of metadata key `k` has bool byte {byte}, expected 0 or 1"));
        assert!(matches!(Crafted::new(0, 1).array("k", BOOL, 2, [1, byte]).error(), GgufError::Bool { .. }));
    }
}

#[test]
fn keys_are_bounded_text() {
    let with = |key: &[u8]| Crafted::new(0, 1).string(key).raw(U8.to_le_bytes()).raw([1; 32]).0;
    assert!(Gguf::parse(&with(&[b'k'; 65_535])).is_ok());
    for (key, problem) in [
        (&[b'k'; 65_536][..], "is longer than 65535 bytes"),
        (b"", "is empty"),
        (b"general\xff", "is not UTF-8"),
        (b"general.name\0.x", "holds a NUL"),
    ] {
        let error = Gguf::parse(&with(key)).unwrap_err();
        assert!(matches!(error, GgufError::KeyName { index: 0, problem: p, .. } if p == problem), "{error}");
    }
}

#[test]
fn tensor_names_are_text() {
    for name in [&b""[..], b"w\xff", b"w\0x"] {
        let error = Crafted::new(1, 0).string(name).raw([0; 64]).error();
        assert!(matches!(error, GgufError::TensorName { index: 0, .. }), "{error}");
    }
}

#[test]
fn foreign_text_is_escaped_and_cut_in_messages() {
    let key = format!("\u{1b}[31m\n{}", "x".repeat(5000));
    let message = Crafted::new(0, 1).key(&key, 99, []).message();
    assert!(message.len() < 200 && !message.contains(['\u{1b}', '\n']), "{message}");
    assert!(message.contains("…"), "{message}");
    // Found by fuzzing: the checks of shapes quoted the name as it came.
    for shape in [&[0][..], &[1 << 63], &[3]] {
        let message = Crafted::new(1, 0).tensor("\u{1}w", shape, Q4_K, 0).data(4096).message();
        assert!(message.starts_with("tensor `\\u{1}w`"), "{message}");
    }
}
