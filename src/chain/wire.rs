//! Hidden rows and top-k lists as bytes.

use bytes::Bytes;
use half::{f16, slice::HalfFloatSliceExt as _};

use super::codec::FrameError;

/// How hidden rows travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireDtype {
    /// As they are.
    #[default]
    F32,
    /// Rounded to half precision: half the bytes, and not the same answers.
    F16,
}

impl WireDtype {
    /// Its name in flags and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    /// Bytes of a value.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }

    /// `values` as they travel.
    pub(super) fn encode(self, values: &[f32]) -> Result<Bytes, FrameError> {
        match self {
            Self::F32 => Ok(packed(values, |value| value.to_le_bytes())),
            Self::F16 => {
                let mut halves = vec![f16::ZERO; values.len()];
                halves.convert_from_f32_slice(values);
                if let Some(place) = halves.iter().position(|half| !half.is_finite()) {
                    let got = values.get(place).copied().unwrap_or_default();
                    return Err(FrameError::new("step.hidden", got, "a value that f16 can hold; send f32 instead"));
                }
                Ok(packed(&halves, |half| half.to_le_bytes()))
            }
        }
    }

    /// Back from [`encode`](Self::encode); `bytes` is a whole number of values.
    pub(super) fn decode(self, bytes: &[u8]) -> Result<Vec<f32>, FrameError> {
        let values: Vec<f32> = match self {
            Self::F32 => bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect(),
            Self::F16 => {
                let halves: Vec<f16> = bytes.as_chunks().0.iter().map(|half| f16::from_le_bytes(*half)).collect();
                let mut values = vec![0.0; halves.len()];
                halves.convert_to_f32_slice(&mut values);
                values
            }
        };
        // Without a branch for each value, so that it costs next to nothing.
        let largest = values.iter().fold(0, |largest, value| largest.max(value.abs().to_bits()));
        if largest >= f32::INFINITY.to_bits() {
            let got = values.iter().find(|value| !value.is_finite()).copied().unwrap_or(f32::NAN);
            return Err(FrameError::new("step.hidden", got, "finite numbers"));
        }
        Ok(values)
    }
}

impl std::str::FromStr for WireDtype {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            _ => Err(format!("must be f32 or f16, got `{text}`")),
        }
    }
}

impl std::fmt::Display for WireDtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.label())
    }
}

/// Values back to back. A copy, once the compiler is through with it.
fn packed<T: Copy, const N: usize>(values: &[T], bytes_of: impl Fn(T) -> [u8; N]) -> Bytes {
    let mut bytes = vec![0; values.len() * N];
    for (slot, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
        *slot = bytes_of(*value);
    }
    bytes.into()
}

/// Positions as they travel.
pub(super) fn encode_positions(positions: &[i32]) -> Bytes {
    packed(positions, |position| position.to_le_bytes())
}

/// Back from [`encode_positions`].
pub(super) fn decode_positions(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().map(|position| i32::from_le_bytes(*position)).collect()
}
