//! Layer packages: one manifest plus one GGUF fragment per transformer layer.

mod range;

pub use range::{LayerRange, LayerRangeError};
