//! Safe wrappers of ggml's public C API: leaves (weights and caches) over foreign memory, graphs, CPU evaluation.
//!
//! ggml ends the process on a failed assertion, so every operation here checks shapes and types first. A graph keeps the
//! first fault and refuses to compute; the code that builds it stays free of error handling at every node.
//!
//! CPU only: `kernels/` supplies operations that ggml does not have, and weights stay where the package is mapped.
#![allow(unsafe_code)]

mod compute;
mod custom;
mod graph;
mod leaf;
mod ops;
#[cfg(test)]
mod tests;
mod upstream;

pub use compute::Computer;
pub use graph::{Arena, Graph, Tensor};
pub use leaf::{Leaf, Memory};
pub use ops::Rope;

use crate::gguf::GgmlType;
use llama_cpp_sys_2 as sys;

/// Why ggml was not called, or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgmlError {
    /// Shapes or types that ggml would abort on.
    #[error("graph: `{op}` cannot take {what}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Shapes and types.
        what: String,
    },
    /// A graph of more nodes than its arena holds.
    #[error("graph: more than {0} nodes")]
    TooManyNodes(usize),
    /// Out of memory.
    #[error("ggml could not allocate {0}")]
    Alloc(&'static str),
    /// Evaluation failed.
    #[error("ggml could not evaluate the graph: {0}")]
    Compute(String),
    /// A leaf outside its memory, or misaligned.
    #[error("tensor of shape {shape:?} and type {ty}: {what}")]
    Leaf {
        /// Its shape.
        shape: Vec<u64>,
        /// Its type.
        ty: &'static str,
        /// What is wrong.
        what: String,
    },
}

/// The type in ggml's numbering. The table of [`GgmlType`] is that of the pinned library.
pub(crate) fn type_id(ty: GgmlType) -> sys::ggml_type {
    ty.id() as sys::ggml_type
}

/// Whether the CPU can multiply a matrix of this type with f32 columns, and read its rows as f32.
pub fn is_matrix_type(ty: GgmlType) -> bool {
    // SAFETY: ids of the table are types of the linked ggml; both entries are static.
    unsafe {
        let cpu = sys::ggml_get_type_traits_cpu(type_id(ty));
        let general = sys::ggml_get_type_traits(type_id(ty));
        let dot = cpu.as_ref().is_some_and(|traits| traits.vec_dot.is_some());
        let float = ty == GgmlType::F32 || general.as_ref().is_some_and(|traits| traits.to_float.is_some());
        dot && float
    }
}
