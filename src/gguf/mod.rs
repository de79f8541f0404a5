//! GGUF files: a checked reader and a writer.
//!
//! A GGUF file is foreign input. [`Gguf::parse`] believes no count, length, offset or shape before it has been held
//! against the bytes that are really there, so a [`Gguf`] in hand means: every tensor lies inside the file, every row is
//! whole blocks, no name appears twice. It refuses whatever ggml's own loader refuses, and says why.
//!
//! * [`GgufFile`] maps one file, [`Source`] all shards of a model.
//! * [`encode_header`] and [`GgufWriter`] write version 3.
//!
//! All numbers in a file are little-endian; tensor shapes are in ggml's order, the row length `ne0` first.

mod cursor;
mod error;
mod file;
mod header;
mod metadata;
mod reader;
mod rules;
mod source;
mod split;
mod types;
mod value;
mod writer;

pub use error::GgufError;
pub use file::GgufFile;
pub use header::{Header, TensorSpec, encode_header};
pub use metadata::Metadata;
pub use reader::{Gguf, TensorInfo};
pub use rules::{
    DEFAULT_ALIGNMENT, MAX_ALIGNMENT, MAX_ARRAY_LEN, MAX_DIMS, MAX_KEY_BYTES, MAX_STRING_BYTES, MAX_TENSOR_NAME_BYTES,
};
pub use source::Source;
pub use split::ShardName;
pub use types::GgmlType;
pub use value::{Array, GgufString, Value, ValueType};
pub use writer::GgufWriter;

#[cfg(test)]
mod tests;
