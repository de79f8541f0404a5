//! Values into the block formats of ggml, for measurements.

use super::{GgmlError, type_id, written_from_f32};
use crate::gguf::GgmlType;
use llama_cpp_sys_2 as sys;

/// Rows of `width` values as `ty`, one after the other.
///
/// # Errors
/// When the type needs more than the values (an importance matrix), or rows are no whole blocks.
pub fn quantize(ty: GgmlType, width: usize, values: &[f32]) -> Result<Vec<u8>, GgmlError> {
    let shape = [width as u64, (values.len() / width.max(1)) as u64];
    let fault = |what: &str| GgmlError::Leaf { shape: shape.to_vec(), ty: ty.name(), what: what.to_owned() };
    let bytes = ty.tensor_bytes(&shape).ok_or_else(|| fault("rows are no whole blocks"))?;
    // SAFETY: a plain number.
    let from_values = written_from_f32(type_id(ty)) && !unsafe { sys::ggml_quantize_requires_imatrix(type_id(ty)) };
    if !from_values || width == 0 || !values.len().is_multiple_of(width) {
        return Err(fault("it cannot be made of these values alone"));
    }
    let mut data = vec![0u8; bytes as usize];
    // SAFETY: source and destination are as long as ggml expects for these rows, and the type needs no importance matrix.
    let written = unsafe {
        let to = data.as_mut_ptr().cast();
        let (rows, width) = (shape[1] as i64, width as i64);
        sys::ggml_quantize_chunk(type_id(ty), values.as_ptr(), to, 0, rows, width, std::ptr::null())
    };
    if written == data.len() { Ok(data) } else { Err(fault("ggml wrote another number of bytes")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_their_size_and_what_cannot_be_made_is_refused() {
        let values: Vec<f32> = (0..512).map(|i| (i % 7) as f32 - 3.0).collect();
        for ty in [GgmlType::Q2_K, GgmlType::Q3_K, GgmlType::Q4_K, GgmlType::F16, GgmlType::F32] {
            let data = quantize(ty, 256, &values).unwrap();
            assert_eq!(data.len() as u64, ty.tensor_bytes(&[256, 2]).unwrap());
            assert!(data.iter().any(|byte| *byte != 0));
        }
        for (ty, width, n) in [(GgmlType::IQ1_S, 256, 512), (GgmlType::Q4_K, 128, 512), (GgmlType::Q4_K, 256, 300)] {
            assert!(quantize(ty, width, &values[..n]).is_err(), "{ty} {width} {n}");
        }
        assert!(quantize(GgmlType::F32, 0, &values).is_err());
    }
}
