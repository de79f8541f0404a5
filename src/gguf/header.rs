//! From metadata and a list of tensors to the bytes before the tensor data.

use std::collections::HashSet;

use super::{
    Array, GgmlType, GgufError, Metadata, Value,
    cursor::{Wire, write_string},
    error::shown,
    reader::MAGIC,
    rules::{self, DEFAULT_ALIGNMENT, MAX_ARRAY_LEN, MAX_STRING_BYTES, align_up},
    value::with_items,
};

const VERSION: u32 = 3;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name, at most 63 bytes.
    pub name: String,
    /// 1 to 4 dimensions in ggml's order: row length first.
    pub shape: Vec<u64>,
    /// Its type.
    pub ty: GgmlType,
}

/// The encoded start of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Everything before the tensor data, from the magic to the padding.
    pub bytes: Vec<u8>,
    /// Offset of each tensor's data from the end of `bytes`, aligned.
    pub offsets: Vec<u64>,
    /// Bytes of each tensor's data, without padding.
    pub sizes: Vec<u64>,
    /// Bytes of all tensor data, the padding of the last tensor included.
    pub data_len: u64,
}

/// Encodes the header of a version 3 file whose tensors follow one another in the order given.
///
/// `general.alignment` is set to `alignment` when the metadata has that key or `alignment` is not 32.
///
/// # Errors
/// When the result would be refused by [`Gguf::parse`](super::Gguf::parse): names, shapes, duplicates, alignment.
pub fn encode_header(metadata: &Metadata, tensors: &[TensorSpec], alignment: u64) -> Result<Header, GgufError> {
    let alignment = rules::check_alignment(alignment)?;
    // Both are at most 2^20.
    let metadata = metadata.with_alignment(alignment as u32, DEFAULT_ALIGNMENT as u32);

    let mut bytes = Vec::new();
    bytes.extend_from_slice(MAGIC);
    VERSION.write(&mut bytes);
    (tensors.len() as u64).write(&mut bytes);
    (metadata.len() as u64).write(&mut bytes);
    for (index, (key, value)) in metadata.iter().enumerate() {
        rules::check_key(key.as_bytes(), index as u64)?;
        write_string(key.as_bytes(), &mut bytes);
        value.value_type().id().write(&mut bytes);
        write_value(key, value, &mut bytes)?;
    }

    let (mut offsets, mut sizes) = (Vec::with_capacity(tensors.len()), Vec::with_capacity(tensors.len()));
    let (mut end, mut seen) = (0u64, HashSet::with_capacity(tensors.len()));
    for (index, tensor) in tensors.iter().enumerate() {
        let name = rules::check_tensor_name(tensor.name.as_bytes(), index as u64)?;
        if !seen.insert(name) {
            return Err(GgufError::DuplicateTensor { tensor: shown(name.as_bytes()) });
        }
        let size = rules::check_shape(name, &tensor.shape, tensor.ty)?;
        write_tensor(tensor, end, &mut bytes);
        offsets.push(end);
        sizes.push(size);
        end = end.checked_add(size).and_then(|end| align_up(end, alignment)).ok_or_else(|| GgufError::Shape {
            tensor: shown(name.as_bytes()),
            shape: tensor.shape.clone(),
            problem: "all tensors together do not fit into 64 bits",
        })?;
    }
    // Not beyond what a vector holds, far below u64::MAX.
    let padded = align_up(bytes.len() as u64, alignment).unwrap_or(u64::MAX) as usize;
    bytes.resize(padded, 0);
    Ok(Header { bytes, offsets, sizes, data_len: end })
}

fn write_value(key: &str, value: &Value, out: &mut Vec<u8>) -> Result<(), GgufError> {
    match value {
        Value::U8(n) => n.write(out),
        Value::I8(n) => n.write(out),
        Value::U16(n) => n.write(out),
        Value::I16(n) => n.write(out),
        Value::U32(n) => n.write(out),
        Value::I32(n) => n.write(out),
        Value::F32(n) => n.write(out),
        Value::Bool(n) => n.write(out),
        Value::Str(text) => {
            check_limit(key, "string length", text.as_bytes().len(), MAX_STRING_BYTES)?;
            text.write(out);
        }
        Value::Array(array) => write_array(key, array, out)?,
        Value::U64(n) => n.write(out),
        Value::I64(n) => n.write(out),
        Value::F64(n) => n.write(out),
    }
    Ok(())
}

fn write_array(key: &str, array: &Array, out: &mut Vec<u8>) -> Result<(), GgufError> {
    check_limit(key, "array length", array.len(), MAX_ARRAY_LEN)?;
    for text in array.strings().unwrap_or_default() {
        check_limit(key, "string length", text.as_bytes().len(), MAX_STRING_BYTES)?;
    }
    array.element_type().id().write(out);
    (array.len() as u64).write(out);
    with_items!(array, items => items.iter().for_each(|item| item.write(out)));
    Ok(())
}

fn write_tensor(tensor: &TensorSpec, offset: u64, out: &mut Vec<u8>) {
    write_string(tensor.name.as_bytes(), out);
    // At most 4 by `check_shape`.
    (tensor.shape.len() as u32).write(out);
    tensor.shape.iter().for_each(|dim| dim.write(out));
    tensor.ty.id().write(out);
    offset.write(out);
}

fn check_limit(key: &str, what: &str, got: usize, most: u64) -> Result<(), GgufError> {
    let got = got as u64;
    if got <= most {
        return Ok(());
    }
    Err(GgufError::Limit { what: format!("{what} of metadata key `{}`", shown(key.as_bytes())), got, most })
}
