//! From bytes to a checked header.

use std::collections::HashSet;

use super::{
    Array, GgmlType, GgufError, Metadata, Value, ValueType,
    cursor::{Cursor, Place, justified_capacity},
    error::shown,
    rules::{self, ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAX_DIMS, align_up},
};

pub(super) const MAGIC: &[u8; 4] = b"GGUF";

/// The header of a GGUF file: metadata and the tensor table, all checked against the size of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf {
    /// 2 or 3; they differ in nothing that a little-endian reader sees.
    pub version: u32,
    /// Alignment of tensor data: a power of two from 8 up.
    pub alignment: u64,
    /// Key-values.
    pub metadata: Metadata,
    /// Tensors in file order, each name once, data back to back.
    pub tensors: Vec<TensorInfo>,
    /// Offset in the file where tensor data starts.
    pub data_start: u64,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, at most 63 bytes.
    pub name: String,
    /// 1 to 4 dimensions in ggml's order: row length first.
    pub shape: Vec<u64>,
    /// Its type.
    pub ty: GgmlType,
    /// Offset of its data from [`Gguf::data_start`], a multiple of the alignment.
    pub offset: u64,
    /// Bytes of its data, without padding.
    pub n_bytes: u64,
}

impl Gguf {
    /// Parses a whole file.
    ///
    /// # Errors
    /// When anything about it is not as it must be; see [`GgufError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        Self::parse_with_len(bytes, bytes.len() as u64)
    }

    /// Parses a file of `file_len` bytes of which `prefix` is the start. The prefix must hold the whole header, that
    /// is all up to the tensor data.
    ///
    /// # Errors
    /// As [`Gguf::parse`]; [`GgufError::Truncated`] and [`GgufError::Count`] also when the prefix is too short.
    pub fn parse_with_len(prefix: &[u8], file_len: u64) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(prefix);
        let version = read_version(&mut cursor, prefix)?;
        let tensor_count = cursor.read::<u64>(Place::Header("tensor_count"))?;
        let kv_count = cursor.read::<u64>(Place::Header("kv_count"))?;
        let metadata = read_metadata(&mut cursor, kv_count)?;
        let alignment = read_alignment(&metadata)?;
        let tensors = read_tensors(&mut cursor, tensor_count)?;
        let data_start = check_places(&tensors, cursor.position(), alignment, file_len)?;
        Ok(Self { version, alignment, metadata, tensors, data_start })
    }

    /// The tensor of this name. Walks the list.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

fn read_version(cursor: &mut Cursor<'_>, start: &[u8]) -> Result<u32, GgufError> {
    if !start.starts_with(MAGIC) {
        let head = start.get(..4).unwrap_or(start);
        return Err(GgufError::NotGguf { head: head.escape_ascii().to_string(), looks_like: looks_like(start) });
    }
    cursor.take(MAGIC.len() as u64, Place::Header("magic"))?;
    match cursor.read::<u32>(Place::Header("version"))? {
        version @ 2..=3 => Ok(version),
        got if got != 0 && got & 0xffff == 0 => Err(GgufError::BigEndian { got }),
        got => Err(GgufError::Version { got }),
    }
}

/// What a file that is not GGUF seems to be: the usual finds after a download that went wrong.
fn looks_like(start: &[u8]) -> &'static str {
    let text = start.trim_ascii_start();
    let starts = |with: &str| text.get(..with.len()).is_some_and(|head| head.eq_ignore_ascii_case(with.as_bytes()));
    if start.is_empty() {
        "an empty file"
    } else if starts("<!doctype") || starts("<html") || starts("<!DO") {
        "an HTML page"
    } else if starts("<?xml") || starts("<") {
        "an XML document"
    } else if starts("version https://git-lfs") {
        "a Git LFS pointer"
    } else if start.get(5..9) == Some(b"\0\0\0{") {
        // A 64-bit length of the JSON that follows.
        "a safetensors file"
    } else if starts("{") || starts("[") {
        "JSON"
    } else if start.starts_with(b"PK\x03\x04") || start.starts_with(b"PK\x05\x06") {
        "a zip archive or PyTorch checkpoint"
    } else if start.starts_with(b"\x1f\x8b") || start.starts_with(b"\x28\xb5\x2f\xfd") || start.starts_with(b"\xfd7zXZ")
    {
        "a compressed file"
    } else if [b"lmgg", b"fmgg", b"tjgg", b"algg"].iter().any(|magic| start.starts_with(*magic)) {
        "a llama.cpp model from before GGUF"
    } else if MAGIC.starts_with(start) {
        "the first bytes of an unfinished download"
    } else if start.iter().take(64).all(|&byte| byte == 0) {
        "zeros of an unfinished download"
    } else if start.iter().take(64).all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) {
        "a text file"
    } else {
        "an unknown binary file"
    }
}

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<Metadata, GgufError> {
    // A key of one byte with its length, a type, a value of one byte.
    const MIN_BYTES: u64 = 8 + 1 + 4 + 1;
    cursor.check_count(count, MIN_BYTES, || "header field `kv_count`".into())?;
    let room = justified_capacity::<(String, Value)>(count, cursor.remaining());
    let (mut entries, mut seen) = (Vec::with_capacity(room), HashSet::with_capacity(room));
    for index in 0..count {
        let key = rules::check_key(cursor.string(Place::KeyName(index))?, index)?;
        if !seen.insert(key) {
            return Err(GgufError::DuplicateKey { key: shown(key.as_bytes()) });
        }
        entries.push((key.to_owned(), read_value(cursor, key)?));
    }
    Ok(Metadata::from_unique(entries))
}

fn read_value(cursor: &mut Cursor<'_>, key: &str) -> Result<Value, GgufError> {
    let place = Place::Key(key);
    let id = cursor.read::<u32>(place)?;
    let ty = ValueType::from_id(id).ok_or_else(|| GgufError::ValueType { key: shown(key.as_bytes()), got: id })?;
    Ok(match ty {
        ValueType::U8 => Value::U8(cursor.read(place)?),
        ValueType::I8 => Value::I8(cursor.read(place)?),
        ValueType::U16 => Value::U16(cursor.read(place)?),
        ValueType::I16 => Value::I16(cursor.read(place)?),
        ValueType::U32 => Value::U32(cursor.read(place)?),
        ValueType::I32 => Value::I32(cursor.read(place)?),
        ValueType::F32 => Value::F32(cursor.read(place)?),
        ValueType::Bool => Value::Bool(cursor.read(place)?),
        ValueType::Str => Value::Str(cursor.read(place)?),
        ValueType::Array => Value::Array(read_array(cursor, key)?),
        ValueType::U64 => Value::U64(cursor.read(place)?),
        ValueType::I64 => Value::I64(cursor.read(place)?),
        ValueType::F64 => Value::F64(cursor.read(place)?),
    })
}

fn read_array(cursor: &mut Cursor<'_>, key: &str) -> Result<Array, GgufError> {
    let place = Place::Key(key);
    let id = cursor.read::<u32>(place)?;
    let ty = ValueType::from_id(id).ok_or_else(|| GgufError::ArrayType { key: shown(key.as_bytes()), got: id })?;
    let len = cursor.read::<u64>(place)?;
    Ok(match ty {
        ValueType::U8 => Array::U8(cursor.array(len, place)?),
        ValueType::I8 => Array::I8(cursor.array(len, place)?),
        ValueType::U16 => Array::U16(cursor.array(len, place)?),
        ValueType::I16 => Array::I16(cursor.array(len, place)?),
        ValueType::U32 => Array::U32(cursor.array(len, place)?),
        ValueType::I32 => Array::I32(cursor.array(len, place)?),
        ValueType::F32 => Array::F32(cursor.array(len, place)?),
        ValueType::Bool => Array::Bool(cursor.array(len, place)?),
        ValueType::Str => Array::Str(cursor.array(len, place)?),
        ValueType::Array => return Err(GgufError::NestedArray { key: shown(key.as_bytes()) }),
        ValueType::U64 => Array::U64(cursor.array(len, place)?),
        ValueType::I64 => Array::I64(cursor.array(len, place)?),
        ValueType::F64 => Array::F64(cursor.array(len, place)?),
    })
}

fn read_alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::U32(alignment)) => rules::check_alignment(alignment.into()),
        Some(other) => Err(GgufError::AlignmentType { got: other.value_type().name() }),
    }
}

fn read_tensors(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<TensorInfo>, GgufError> {
    // A name of one byte with its length, one dimension, type and offset.
    const MIN_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;
    cursor.check_count(count, MIN_BYTES, || "header field `tensor_count`".into())?;
    let room = justified_capacity::<TensorInfo>(count, cursor.remaining());
    let (mut tensors, mut seen) = (Vec::with_capacity(room), HashSet::with_capacity(room));
    for index in 0..count {
        let name = rules::check_tensor_name(cursor.string(Place::TensorName(index))?, index)?;
        if !seen.insert(name) {
            return Err(GgufError::DuplicateTensor { tensor: shown(name.as_bytes()) });
        }
        tensors.push(read_tensor(cursor, name)?);
    }
    Ok(tensors)
}

fn read_tensor(cursor: &mut Cursor<'_>, name: &str) -> Result<TensorInfo, GgufError> {
    let n_dims = cursor.read::<u32>(Place::Tensor(name, "number of dimensions"))?;
    if n_dims == 0 || n_dims as usize > MAX_DIMS {
        return Err(GgufError::Dims { tensor: shown(name.as_bytes()), got: n_dims.into() });
    }
    let shape = (0..n_dims).map(|_| cursor.read(Place::Tensor(name, "shape"))).collect::<Result<Vec<u64>, _>>()?;
    let id = cursor.read::<u32>(Place::Tensor(name, "type"))?;
    let ty = GgmlType::from_id(id).ok_or_else(|| GgufError::TensorType { tensor: shown(name.as_bytes()), got: id })?;
    let offset = cursor.read(Place::Tensor(name, "offset"))?;
    let n_bytes = rules::check_shape(name, &shape, ty)?;
    Ok(TensorInfo { name: name.to_owned(), shape, ty, offset, n_bytes })
}

/// Checks that tensors lie back to back inside the file, as ggml demands, and says where their data starts.
fn check_places(tensors: &[TensorInfo], header_end: u64, alignment: u64, file_len: u64) -> Result<u64, GgufError> {
    let data_start = align_up(header_end, alignment).unwrap_or(u64::MAX);
    if tensors.is_empty() {
        // A file of metadata alone may end without padding.
        return Ok(data_start.min(file_len));
    }
    let mut expected = 0;
    for tensor in tensors {
        let name = || shown(tensor.name.as_bytes());
        let outside =
            |need: Option<u64>| GgufError::Outside { tensor: name(), need: need.unwrap_or(u64::MAX), have: file_len };
        if !tensor.offset.is_multiple_of(alignment) {
            return Err(GgufError::Misaligned { tensor: name(), got: tensor.offset, alignment });
        }
        let end = tensor.offset.checked_add(tensor.n_bytes);
        let need = end.and_then(|end| data_start.checked_add(end));
        if need.is_none_or(|need| need > file_len) {
            return Err(outside(need));
        }
        if tensor.offset != expected {
            return Err(GgufError::Offset { tensor: name(), got: tensor.offset, expected });
        }
        expected = end.and_then(|end| align_up(end, alignment)).ok_or_else(|| outside(need))?;
    }
    Ok(data_start)
}
