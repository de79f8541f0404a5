//! Safe wrappers over the public C API of the pinned, unmodified llama.cpp.
//!
//! All `unsafe` that touches llama.cpp is here. A wrapper checks what llama.cpp would abort on before it calls, calls
//! through `kernels/guard.cpp` where an exception may escape, and turns status codes and log lines into [`LlamaError`].
#![allow(unsafe_code)]

pub mod baseline;
mod capture;
mod context;
mod embedding;
mod log;
mod model;
mod sampler;
mod text;
mod threadpool;

pub use context::{Context, ContextOptions, DecodeInput, KvType};
pub use embedding::dequantise_row;
pub use model::{Model, ModelOptions};
pub use text::LlamaText;
pub use threadpool::Threadpool;

use crate::kernels::cpu::{self, CpuError};
use std::sync::OnceLock;

/// Why a llama.cpp call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LlamaError {
    /// ggml has no code that this CPU can run.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// Compute threads could not be started.
    #[error("cannot start {0} compute threads")]
    Threads(u32),
    /// The model could not be loaded.
    #[error("llama.cpp could not load the model: {0}")]
    Load(String),
    /// The context (KV cache, compute buffers) could not be made.
    #[error("llama.cpp could not create a context: {0}")]
    Context(String),
    /// No KV room for the batch; nothing was changed.
    #[error("llama.cpp found no kv slot for the batch")]
    KvFull,
    /// The batch was refused; nothing was changed.
    #[error("llama.cpp refused the batch: {0}")]
    Batch(String),
    /// The computation failed; the KV cache may hold part of the batch.
    #[error("llama.cpp failed to compute: {0}")]
    Compute(String),
    /// Text could not be turned into tokens.
    #[error("llama.cpp could not tokenize the text: {0}")]
    Tokenize(String),
    /// Part of a sequence could not be removed or copied.
    #[error("llama.cpp cannot edit part of sequence {seq}: {what}")]
    Memory {
        /// The sequence.
        seq: u32,
        /// What was tried.
        what: &'static str,
    },
    /// Rows that were taken out could not be put back.
    #[error("llama.cpp could not restore sequence {seq}: {errors}")]
    State {
        /// The sequence.
        seq: u32,
        /// llama.cpp's own words.
        errors: String,
    },
}

/// Prepares the library; cheap after the first call.
fn init() -> Result<(), CpuError> {
    static INIT: OnceLock<Result<(), CpuError>> = OnceLock::new();
    let init = || {
        log::install();
        cpu::load()?;
        // SAFETY: called once, before any other llama.cpp call of this process.
        unsafe { llama_cpp_sys_2::llama_backend_init() };
        Ok(())
    };
    INIT.get_or_init(init).clone()
}

/// The llama.cpp and ggml versions that are linked in, for logs and `skippy_build_info`.
pub fn version() -> String {
    // SAFETY: both return a pointer to a static, terminated string.
    unsafe {
        let llama = std::ffi::CStr::from_ptr(llama_cpp_sys_2::llama_version());
        let ggml = std::ffi::CStr::from_ptr(llama_cpp_sys_2::ggml_version());
        format!("llama.cpp {} ggml {}", llama.to_string_lossy(), ggml.to_string_lossy())
    }
}

/// Gives memory that loading used and freed (parsed headers, read buffers) back to the system. glibc keeps it otherwise,
/// and a stage would be charged for it as long as it lives.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes a number; may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
