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
mod quantize;
#[cfg(test)]
mod tests;
mod upstream;

pub use compute::{Computer, Evaluated};
pub use graph::{Arena, Graph, Tensor};
pub use leaf::{Leaf, Memory};
pub use ops::Rope;
pub use quantize::quantize;

use crate::{
    gguf::GgmlType,
    kernels::{cpu, ffi},
};
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
    /// A variant of the kernels was asked for that cannot run.
    #[error(transparent)]
    Kernels(#[from] crate::kernels::KernelsError),
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
    multiplies(type_id(ty)) && reads_as_f32(type_id(ty))
}

/// What the CPU can do with rows of this type. `ty` is a type of the linked ggml.
fn on_the_cpu(ty: sys::ggml_type) -> Option<&'static sys::ggml_type_traits_cpu> {
    cpu::load().ok()?;
    // SAFETY: null or a static entry.
    unsafe { ffi::skippy_cpu_type_traits(ty).as_ref() }
}

/// Whether the CPU has a dot product of rows of this type. `ty` is a type of the linked ggml.
fn multiplies(ty: sys::ggml_type) -> bool {
    on_the_cpu(ty).is_some_and(|traits| traits.vec_dot.is_some())
}

/// Whether rows of this type can be turned into f32. `ty` is a type of the linked ggml.
fn reads_as_f32(ty: sys::ggml_type) -> bool {
    // SAFETY: the entry is static.
    let traits = unsafe { sys::ggml_get_type_traits(ty).as_ref() };
    ty == sys::GGML_TYPE_F32 || traits.is_some_and(|traits| traits.to_float.is_some())
}

/// Whether f32 rows can be turned into this type. `ty` is a type of the linked ggml.
fn written_from_f32(ty: sys::ggml_type) -> bool {
    ty == sys::GGML_TYPE_F32 || on_the_cpu(ty).is_some_and(|traits| traits.from_float.is_some())
}

/// Elements of a tensor of these sizes, if all are above 0 and the product is a number that ggml can count with.
fn elements(shape: &[i64]) -> Option<i64> {
    // Any type has at most 8 bytes an element.
    const MOST: i64 = i64::MAX >> 4;
    shape.iter().try_fold(1i64, |n, size| n.checked_mul(*size).filter(|n| *size > 0 && *n <= MOST))
}
