//! A non-empty, half-open range of layers.

use std::{fmt, str::FromStr};

/// Layers `start..end`, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerRange {
    start: u32,
    end: u32,
}

/// Why a layer range is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayerRangeError {
    /// `start >= end`.
    #[error("layer range {start}..{end} is empty or reversed: start must be below end")]
    Empty {
        /// First layer asked for.
        start: u32,
        /// One past the last layer asked for.
        end: u32,
    },
    /// `end` exceeds the model's layers.
    #[error("layer range {start}..{end} is outside the model: it has layers 0..{layer_count}")]
    OutOfRange {
        /// First layer asked for.
        start: u32,
        /// One past the last layer asked for.
        end: u32,
        /// Layers of the model.
        layer_count: u32,
    },
    /// Not `A..B`.
    #[error("layer range `{0}` is not of the form A..B with two layer numbers")]
    Syntax(String),
}

impl LayerRange {
    /// Layers `start..end`.
    ///
    /// # Errors
    /// When the range is empty or reversed.
    pub fn new(start: u32, end: u32) -> Result<Self, LayerRangeError> {
        if start < end { Ok(Self { start, end }) } else { Err(LayerRangeError::Empty { start, end }) }
    }

    /// First layer.
    pub fn start(self) -> u32 {
        self.start
    }

    /// One past the last layer.
    pub fn end(self) -> u32 {
        self.end
    }

    /// Number of layers, at least 1.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> u32 {
        self.end - self.start
    }

    /// The layer numbers, in order.
    pub fn iter(self) -> std::ops::Range<u32> {
        self.start..self.end
    }

    /// Whether `layer` is inside.
    pub fn contains(self, layer: u32) -> bool {
        self.iter().contains(&layer)
    }

    /// The range itself, when it lies within `0..layer_count`.
    ///
    /// # Errors
    /// When it ends beyond `layer_count`.
    pub fn within(self, layer_count: u32) -> Result<Self, LayerRangeError> {
        if self.end <= layer_count {
            Ok(self)
        } else {
            Err(LayerRangeError::OutOfRange { start: self.start, end: self.end, layer_count })
        }
    }
}

impl fmt::Display for LayerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl FromStr for LayerRange {
    type Err = LayerRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let syntax = || LayerRangeError::Syntax(text.chars().take(64).collect());
        let (start, end) = text.split_once("..").ok_or_else(syntax)?;
        let number = |digits: &str| digits.trim().parse::<u32>().map_err(|_| syntax());
        Self::new(number(start)?, number(end)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints() {
        let range: LayerRange = "3..7".parse().unwrap();
        assert_eq!((range.start(), range.end(), range.len()), (3, 7, 4));
        assert_eq!(range.to_string(), "3..7");
        assert!(range.contains(6) && !range.contains(7));
    }

    #[test]
    fn refuses_what_is_not_a_range() {
        assert_eq!("7..7".parse::<LayerRange>(), Err(LayerRangeError::Empty { start: 7, end: 7 }));
        assert_eq!("9..2".parse::<LayerRange>(), Err(LayerRangeError::Empty { start: 9, end: 2 }));
        for text in ["", "3", "3..", "..3", "-1..3", "a..b", "1..=3", "1..99999999999"] {
            assert!(matches!(text.parse::<LayerRange>(), Err(LayerRangeError::Syntax(_))), "{text}");
        }
        assert!(LayerRange::new(0, 31).unwrap().within(30).is_err());
        assert!(LayerRange::new(0, 30).unwrap().within(30).is_ok());
    }
}
