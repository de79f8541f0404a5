//! What reader and writer both demand of names, shapes and alignments.

use super::{GgmlType, GgufError, error::shown};

/// Alignment of tensor data where `general.alignment` says nothing.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// Largest alignment accepted. Real files use 32, some a page.
pub const MAX_ALIGNMENT: u64 = 1 << 20;
/// Longest key, as the GGUF specification has it.
pub const MAX_KEY_BYTES: u64 = 65_535;
/// Longest tensor name: ggml keeps names in 64 bytes, the closing NUL included.
pub const MAX_TENSOR_NAME_BYTES: u64 = 63;
/// Most dimensions of a tensor.
pub const MAX_DIMS: usize = 4;
/// Longest string, ggml's limit.
pub const MAX_STRING_BYTES: u64 = 1 << 30;
/// Most elements of an array, ggml's limit.
pub const MAX_ARRAY_LEN: u64 = 1 << 30;
/// The key that holds the alignment.
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";

/// The alignment, when it is a power of two from 8 to [`MAX_ALIGNMENT`].
pub(super) fn check_alignment(got: u64) -> Result<u64, GgufError> {
    if got.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(&got) {
        Ok(got)
    } else {
        Err(GgufError::Alignment { got })
    }
}

/// The key as text. `index` is its position in the file.
pub(super) fn check_key(bytes: &[u8], index: u64) -> Result<&str, GgufError> {
    let refuse = |problem| GgufError::KeyName { index, key: shown(bytes), problem };
    if bytes.len() as u64 > MAX_KEY_BYTES {
        return Err(refuse("is longer than 65535 bytes"));
    }
    let key = std::str::from_utf8(bytes).map_err(|_| refuse("is not UTF-8"))?;
    match key {
        "" => Err(refuse("is empty")),
        // ggml handles keys as C strings: what follows a NUL would be lost there.
        _ if key.contains('\0') => Err(refuse("holds a NUL")),
        _ => Ok(key),
    }
}

/// The tensor name as text. `index` is its position in the file.
pub(super) fn check_tensor_name(bytes: &[u8], index: u64) -> Result<&str, GgufError> {
    let refuse = |problem: String| GgufError::TensorName { index, name: shown(bytes), problem };
    if bytes.len() as u64 > MAX_TENSOR_NAME_BYTES {
        return Err(refuse(format!("is {} bytes long, expected at most {MAX_TENSOR_NAME_BYTES}", bytes.len())));
    }
    let name = std::str::from_utf8(bytes).map_err(|_| refuse("is not UTF-8".into()))?;
    match name {
        "" => Err(refuse("is empty".into())),
        _ if name.contains('\0') => Err(refuse("holds a NUL".into())),
        _ => Ok(name),
    }
}

/// Bytes of a tensor whose shape is sound.
pub(super) fn check_shape(tensor: &str, shape: &[u64], ty: GgmlType) -> Result<u64, GgufError> {
    let refuse = |problem| GgufError::Shape { tensor: shown(tensor.as_bytes()), shape: shape.to_vec(), problem };
    let ne0 = match shape.first() {
        Some(&ne0) if shape.len() <= MAX_DIMS => ne0,
        _ => return Err(GgufError::Dims { tensor: shown(tensor.as_bytes()), got: shape.len() as u64 }),
    };
    if shape.contains(&0) {
        return Err(refuse("no dimension may be 0"));
    }
    if !ne0.is_multiple_of(ty.block_len()) {
        return Err(GgufError::Row { tensor: shown(tensor.as_bytes()), ty, ne0 });
    }
    ty.tensor_bytes(shape).ok_or_else(|| refuse("its size does not fit into 63 bits"))
}

/// `n` rounded up to a multiple of `alignment`, a power of two.
pub(super) fn align_up(n: u64, alignment: u64) -> Option<u64> {
    debug_assert!(alignment.is_power_of_two());
    Some(n.checked_add(alignment - 1)? & !(alignment - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn align_up_never_wraps() {
        assert_eq!(align_up(0, 32), Some(0));
        assert_eq!(align_up(1, 32), Some(32));
        assert_eq!(align_up(64, 32), Some(64));
        assert_eq!(align_up(u64::MAX - 31, 32), Some(u64::MAX - 31));
        assert_eq!(align_up(u64::MAX - 30, 32), None);
    }
}
