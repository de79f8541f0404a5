//! One pool of compute threads for all contexts of an engine.

use super::{LlamaError, init};
use crate::kernels::ffi;
use llama_cpp_sys_2 as sys;
use std::ptr::NonNull;

/// Compute threads that outlive a forward pass. Without one, ggml starts and joins its threads for every pass.
///
/// Contexts that share a pool must run one after the other, as the stages of a chain in one process do.
pub struct Threadpool {
    ptr: NonNull<sys::ggml_threadpool>,
    n_threads: u32,
}

// SAFETY: ggml's pool has no thread affinity towards its owner; contexts hold it through an `Arc` and the engine thread
// alone runs them.
unsafe impl Send for Threadpool {}
// SAFETY: no method below touches the pool after construction.
unsafe impl Sync for Threadpool {}

impl Threadpool {
    /// Starts `n_threads - 1` threads (the caller's is the last one).
    ///
    /// # Errors
    /// [`LlamaError::Threads`] when ggml cannot, [`LlamaError::Cpu`] when there is no ggml to do it.
    pub fn new(n_threads: u32) -> Result<Self, LlamaError> {
        init()?;
        let n_threads = n_threads.clamp(1, ffi::SKIPPY_MAX_THREADS);
        // SAFETY: `params` is a valid struct for both calls.
        let ptr = unsafe {
            let mut params = sys::ggml_threadpool_params_default(i32::try_from(n_threads).unwrap_or(1));
            ffi::skippy_cpu_threads(&mut params)
        };
        NonNull::new(ptr).map(|ptr| Self { ptr, n_threads }).ok_or(LlamaError::Threads(n_threads))
    }

    /// Threads in the pool, the caller's counted.
    pub fn n_threads(&self) -> u32 {
        self.n_threads
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::ggml_threadpool {
        self.ptr.as_ptr()
    }
}

impl Drop for Threadpool {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once; contexts that used it are gone, since each holds an `Arc`.
        unsafe { ffi::skippy_cpu_threads_free(self.ptr.as_ptr()) };
    }
}
