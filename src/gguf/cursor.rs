//! A reader over bytes that cannot run past their end.

use std::fmt;

use super::{
    GgufError, GgufString,
    error::shown,
    rules::{MAX_ARRAY_LEN, MAX_STRING_BYTES},
};

/// The part of a file being read, for messages.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// A field of the fixed header.
    Header(&'static str),
    /// The name of the key at this position.
    KeyName(u64),
    /// The value of a key.
    Key(&'a str),
    /// The name of the tensor at this position.
    TensorName(u64),
    /// A field of a tensor.
    Tensor(&'a str, &'static str),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(field) => write!(f, "header field `{field}`"),
            Self::KeyName(index) => write!(f, "the name of metadata key {index}"),
            Self::Key(key) => write!(f, "the value of metadata key `{}`", shown(key.as_bytes())),
            Self::TensorName(index) => write!(f, "the name of tensor {index}"),
            Self::Tensor(name, field) => write!(f, "the {field} of tensor `{}`", shown(name.as_bytes())),
        }
    }
}

/// A position in `bytes` that only moves forward.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.at as u64
    }

    /// Bytes left.
    pub(super) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `n` bytes.
    pub(super) fn take(&mut self, n: u64, place: Place<'_>) -> Result<&'a [u8], GgufError> {
        let end = usize::try_from(n).ok().and_then(|n| self.at.checked_add(n));
        match end.and_then(|end| self.bytes.get(self.at..end)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(GgufError::Truncated {
                what: place.to_string(),
                at: self.position(),
                need: n,
                have: self.remaining(),
            }),
        }
    }

    /// The next value.
    pub(super) fn read<T: Wire>(&mut self, place: Place<'_>) -> Result<T, GgufError> {
        T::read(self, place)
    }

    /// The next string, borrowed.
    pub(super) fn string(&mut self, place: Place<'_>) -> Result<&'a [u8], GgufError> {
        let len = self.read::<u64>(place)?;
        if len > MAX_STRING_BYTES && len <= self.remaining() {
            let what = format!("string length in {place}");
            return Err(GgufError::Limit { what, got: len, most: MAX_STRING_BYTES });
        }
        self.take(len, place)
    }

    /// The next `len` values.
    pub(super) fn array<T: Wire>(&mut self, len: u64, place: Place<'_>) -> Result<Vec<T>, GgufError> {
        self.check_count(len, T::MIN_BYTES, || format!("array length in {place}"))?;
        if len > MAX_ARRAY_LEN {
            return Err(GgufError::Limit { what: format!("array length in {place}"), got: len, most: MAX_ARRAY_LEN });
        }
        let mut items = Vec::with_capacity(justified_capacity::<T>(len, self.remaining()));
        for _ in 0..len {
            items.push(self.read(place)?);
        }
        Ok(items)
    }

    /// Refuses a count of things of at least `min_bytes` each that the bytes left cannot hold.
    pub(super) fn check_count(&self, got: u64, min_bytes: u64, what: impl FnOnce() -> String) -> Result<(), GgufError> {
        let (have, most) = (self.remaining(), self.remaining() / min_bytes);
        if got <= most { Ok(()) } else { Err(GgufError::Count { what: what(), got, have, most }) }
    }
}

/// How many `T` to make room for when `count` are announced and `remaining` bytes are left: never more memory than
/// the bytes left, and not much before anything was read. The vector grows as the promise is kept.
pub(super) fn justified_capacity<T>(count: u64, remaining: u64) -> usize {
    const AT_FIRST: u64 = 1 << 20;
    let room = remaining.min(AT_FIRST) / size_of::<T>().max(1) as u64;
    // At most 2^20, so the cast loses nothing.
    count.min(room) as usize
}

/// A value with a fixed meaning in the bytes of a GGUF file.
pub(super) trait Wire: Sized {
    /// The fewest bytes one takes.
    const MIN_BYTES: u64;

    fn read(cursor: &mut Cursor<'_>, place: Place<'_>) -> Result<Self, GgufError>;

    fn write(&self, out: &mut Vec<u8>);
}

macro_rules! impl_wire {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            const MIN_BYTES: u64 = size_of::<$number>() as u64;

            fn read(cursor: &mut Cursor<'_>, place: Place<'_>) -> Result<Self, GgufError> {
                let mut bytes = [0; size_of::<$number>()];
                bytes.copy_from_slice(cursor.take(Self::MIN_BYTES, place)?);
                Ok(Self::from_le_bytes(bytes))
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
impl_wire!(u8, i8, u16, i16, u32, i32, f32, u64, i64, f64);

impl Wire for bool {
    const MIN_BYTES: u64 = 1;

    fn read(cursor: &mut Cursor<'_>, place: Place<'_>) -> Result<Self, GgufError> {
        match cursor.read::<u8>(place)? {
            0 => Ok(false),
            1 => Ok(true),
            got => Err(GgufError::Bool { what: place.to_string(), got }),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Wire for GgufString {
    const MIN_BYTES: u64 = 8;

    fn read(cursor: &mut Cursor<'_>, place: Place<'_>) -> Result<Self, GgufError> {
        cursor.string(place).map(|bytes| bytes.to_vec().into())
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_string(self.as_bytes(), out);
    }
}

/// A length and the bytes.
pub(super) fn write_string(bytes: &[u8], out: &mut Vec<u8>) {
    (bytes.len() as u64).write(out);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place<'_> = Place::Header("test");

    #[test]
    fn takes_to_the_end_and_not_beyond() {
        let mut cursor = Cursor::new(&[1, 2, 3, 4, 5]);
        assert_eq!(cursor.read::<u32>(PLACE).unwrap(), 0x0403_0201);
        assert!(matches!(cursor.read::<u16>(PLACE), Err(GgufError::Truncated { at: 4, need: 2, have: 1, .. })));
        assert_eq!(cursor.take(1, PLACE).unwrap(), [5]);
        assert_eq!(cursor.take(0, PLACE).unwrap(), [0u8; 0]);
        assert!(cursor.take(u64::MAX, PLACE).is_err());
    }

    #[test]
    fn capacity_is_bounded_by_what_is_left_and_by_a_first_helping() {
        assert_eq!(justified_capacity::<u8>(10, 100), 10);
        assert_eq!(justified_capacity::<u64>(u64::MAX, 80), 10);
        assert_eq!(justified_capacity::<GgufString>(u64::MAX, 23), 0);
        assert!(justified_capacity::<u64>(u64::MAX, u64::MAX) * 8 <= 1 << 20);
        assert!(justified_capacity::<(String, super::super::Value)>(1 << 60, u64::MAX) <= 1 << 20);
    }
}
