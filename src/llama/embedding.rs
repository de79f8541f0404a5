//! Embedding rows straight from a mapped tensor, the way ggml's row lookup makes them.

use crate::gguf::GgmlType;
use llama_cpp_sys_2 as sys;

/// Turns one row of a tensor of type `ty` into `out.len()` floats, with the conversion that ggml itself uses in
/// `GGML_OP_GET_ROWS`, so that the result is bit-equal to a lookup inside a graph.
///
/// `None` when ggml has no conversion for the type, or `row` is not exactly the bytes of `out.len()` elements.
pub fn dequantise_row(ty: GgmlType, row: &[u8], out: &mut [f32]) -> Option<()> {
    if ty.tensor_bytes(&[out.len() as u64])? != row.len() as u64 {
        return None;
    }
    if ty == GgmlType::F32 {
        for (value, bytes) in out.iter_mut().zip(row.chunks_exact(4)) {
            *value = f32::from_le_bytes(bytes.try_into().ok()?);
        }
        return Some(());
    }
    let id = sys::ggml_type::try_from(ty.id()).ok()?;
    // SAFETY: `id` is a type of the linked ggml (the GgmlType table is that of the pin), so the entry exists.
    let traits = unsafe { sys::ggml_get_type_traits(id).as_ref() }?;
    let to_float = traits.to_float?;
    // SAFETY: `row` holds exactly the blocks of `out.len()` elements (checked above), `out` has room for them.
    unsafe { to_float(row.as_ptr().cast(), out.as_mut_ptr(), i64::try_from(out.len()).ok()?) };
    Some(())
}
