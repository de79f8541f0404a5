//! The C++ in `kernels/`, as bindgen reads its header. Called from [`crate::llama`] alone.

/// Guarded calls and the stream over memory segments; see `kernels/skippy_kernels.h`.
#[allow(unsafe_code, missing_docs, non_camel_case_types, unreachable_pub, unused_imports, clippy::all)]
pub(crate) mod ffi {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}
