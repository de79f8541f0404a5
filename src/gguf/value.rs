//! Typed values of metadata keys.

use std::{fmt, ops::Range};

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(GgufString),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// Its type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::Str(_) => ValueType::Str,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The number, when it is an integer of any type and not negative.
    pub fn as_uint(&self) -> Option<u64> {
        match *self {
            Self::U8(n) => Some(n.into()),
            Self::U16(n) => Some(n.into()),
            Self::U32(n) => Some(n.into()),
            Self::U64(n) => Some(n),
            Self::I8(n) => n.try_into().ok(),
            Self::I16(n) => n.try_into().ok(),
            Self::I32(n) => n.try_into().ok(),
            Self::I64(n) => n.try_into().ok(),
            _ => None,
        }
    }

    /// The number, when it is a floating-point one.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Self::F32(x) => Some(x.into()),
            Self::F64(x) => Some(x),
            _ => None,
        }
    }

    /// The truth value, when it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(b) => Some(b),
            _ => None,
        }
    }

    /// The text, when it is a string in UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => text.as_str().ok(),
            _ => None,
        }
    }

    /// The array, when it is one.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }
}

/// The value of an array key. GGUF would allow arrays of arrays; ggml does not read them and neither does this.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Str(Vec<GgufString>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Runs `$body` with `$items` bound to the vector of whichever variant `$array` is.
macro_rules! with_items {
    ($array:expr, $items:ident => $body:expr) => {
        match $array {
            Array::U8($items) => $body,
            Array::I8($items) => $body,
            Array::U16($items) => $body,
            Array::I16($items) => $body,
            Array::U32($items) => $body,
            Array::I32($items) => $body,
            Array::F32($items) => $body,
            Array::Bool($items) => $body,
            Array::Str($items) => $body,
            Array::U64($items) => $body,
            Array::I64($items) => $body,
            Array::F64($items) => $body,
        }
    };
}
pub(super) use with_items;

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        with_items!(self, items => items.len())
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The type of its elements.
    pub fn element_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::Str(_) => ValueType::Str,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The elements of `range` that exist, as an array of the same type.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let end = range.end.min(self.len());
        let range = range.start.min(end)..end;
        match self {
            Self::U8(items) => Self::U8(items[range].to_vec()),
            Self::I8(items) => Self::I8(items[range].to_vec()),
            Self::U16(items) => Self::U16(items[range].to_vec()),
            Self::I16(items) => Self::I16(items[range].to_vec()),
            Self::U32(items) => Self::U32(items[range].to_vec()),
            Self::I32(items) => Self::I32(items[range].to_vec()),
            Self::F32(items) => Self::F32(items[range].to_vec()),
            Self::Bool(items) => Self::Bool(items[range].to_vec()),
            Self::Str(items) => Self::Str(items[range].to_vec()),
            Self::U64(items) => Self::U64(items[range].to_vec()),
            Self::I64(items) => Self::I64(items[range].to_vec()),
            Self::F64(items) => Self::F64(items[range].to_vec()),
        }
    }

    /// Element `at`, as a value of its own.
    pub fn value(&self, at: usize) -> Option<Value> {
        with_items!(self, items => items.get(at).cloned().map(Value::from))
    }

    /// The strings, when it is an array of strings.
    pub fn strings(&self) -> Option<&[GgufString]> {
        match self {
            Self::Str(items) => Some(items),
            _ => None,
        }
    }
}

/// A type of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Str = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [(Self, &'static str); 13] = [
        (Self::U8, "u8"),
        (Self::I8, "i8"),
        (Self::U16, "u16"),
        (Self::I16, "i16"),
        (Self::U32, "u32"),
        (Self::I32, "i32"),
        (Self::F32, "f32"),
        (Self::Bool, "bool"),
        (Self::Str, "string"),
        (Self::Array, "array"),
        (Self::U64, "u64"),
        (Self::I64, "i64"),
        (Self::F64, "f64"),
    ];

    /// The type with this id in a GGUF file.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).map(|row| row.0)
    }

    /// The id in a GGUF file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// A short name for messages.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// A string of a GGUF file: usually, but not surely, UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GgufString(Vec<u8>);

impl GgufString {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text.
    ///
    /// # Errors
    /// When the bytes are not UTF-8.
    pub fn as_str(&self) -> Result<&str, std::str::Utf8Error> {
        std::str::from_utf8(&self.0)
    }
}

impl fmt::Debug for GgufString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl From<&str> for GgufString {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for GgufString {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl From<Vec<u8>> for GgufString {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

macro_rules! impl_from {
    ($($item:ty => $variant:ident),*) => {$(
        impl From<$item> for Value {
            fn from(item: $item) -> Self {
                Self::$variant(item)
            }
        }
        impl From<Vec<$item>> for Array {
            fn from(items: Vec<$item>) -> Self {
                Self::$variant(items)
            }
        }
    )*};
}
impl_from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, bool => Bool,
           GgufString => Str, u64 => U64, i64 => I64, f64 => F64);

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Str(text.into())
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Self::Array(array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_stay_inside() {
        let array = Array::from(vec![1u32, 2, 3, 4]);
        assert_eq!(array.slice(1..3), Array::U32(vec![2, 3]));
        assert_eq!(array.slice(3..99), Array::U32(vec![4]));
        assert!(array.slice(9..99).is_empty());
        assert_eq!((array.value(3), array.value(4)), (Some(Value::U32(4)), None));
    }

    #[test]
    fn value_type_ids_round_trip() {
        for id in 0..13 {
            let ty = ValueType::from_id(id).unwrap();
            assert_eq!(ty.id(), id);
            assert!(!ty.name().is_empty());
        }
        assert_eq!(ValueType::from_id(13), None);
    }
}
