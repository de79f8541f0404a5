//! Evaluation on the CPU.

use super::{GgmlError, Graph, Tensor};
use crate::{
    kernels::{self, ffi},
    llama::Threadpool,
};
use llama_cpp_sys_2 as sys;
use std::{
    ffi::{CStr, c_char},
    marker::PhantomData,
    ptr::NonNull,
    sync::Arc,
};

/// Runs graphs, one at a time, and owns the memory of their intermediate results.
pub struct Computer {
    backend: NonNull<sys::ggml_backend>,
    /// One for each kind of graph, by [`Graph::kind`].
    allocators: Vec<NonNull<sys::ggml_gallocr>>,
    pool: Arc<Threadpool>,
}

// SAFETY: nothing of it is bound to a thread; `&mut self` keeps evaluations apart.
unsafe impl Send for Computer {}

impl Computer {
    /// Uses `pool`. Computers and contexts that share a pool must run one after the other.
    ///
    /// # Errors
    /// When ggml is out of memory, or the environment asks for kernels that cannot run here.
    pub fn new(pool: Arc<Threadpool>) -> Result<Self, GgmlError> {
        kernels::choose()?;
        // SAFETY: an owned backend or null; the pool outlives it (it is dropped after `drop`).
        let backend = unsafe { ffi::skippy_cpu_backend(pool.as_ptr()) };
        let backend = NonNull::new(backend).ok_or(GgmlError::Alloc("a backend"))?;
        Ok(Self { backend, allocators: Vec::new(), pool })
    }

    /// The allocator of a kind of graph. ggml lays memory out anew whenever a graph differs from the one before: kinds that
    /// alternate must not share one.
    fn allocator(&mut self, kind: usize) -> Result<NonNull<sys::ggml_gallocr>, GgmlError> {
        while self.allocators.len() <= kind {
            // SAFETY: takes a static buffer type; an owned allocator or null.
            let allocator = unsafe { sys::ggml_gallocr_new(sys::ggml_backend_cpu_buffer_type()) };
            self.allocators.push(NonNull::new(allocator).ok_or(GgmlError::Alloc("an allocator"))?);
        }
        Ok(self.allocators[kind])
    }

    /// Evaluates `graph`.
    ///
    /// # Errors
    /// The first fault of its construction; when memory runs out; when ggml reports a failure.
    pub fn run<'a>(&'a mut self, graph: &'a Graph<'_>) -> Result<Evaluated<'a>, GgmlError> {
        if let Some(fault) = graph.fault.borrow().clone() {
            return Err(fault);
        }
        let allocator = self.allocator(graph.kind)?;
        let (backend, nodes) = (self.backend.as_ptr(), graph.graph.as_ptr());
        // SAFETY: the graph is whole (no fault) and stays borrowed; the allocator places every tensor without data.
        if !unsafe { sys::ggml_gallocr_alloc_graph(allocator.as_ptr(), nodes) } {
            self.free_allocators();
            return Err(GgmlError::Alloc("intermediate results"));
        }
        for (tensor, data) in graph.inputs.borrow().iter() {
            // SAFETY: an input is allocated unless the graph does not use it; its size is that of the data (checked when it
            // was made).
            unsafe {
                let tensor = tensor.as_ref();
                if !tensor.data.is_null() {
                    std::ptr::copy_nonoverlapping(data.as_ptr(), tensor.data.cast(), data.len());
                }
            }
        }
        let threads = graph.threads.get().min(self.pool.n_threads());
        // SAFETY: the backend is a CPU backend, and its pool has that many threads.
        unsafe { ffi::skippy_cpu_set_threads(backend, i32::try_from(threads).unwrap_or(1)) };
        let mut error = [0 as c_char; 256];
        // SAFETY: all tensors have data; custom operations read only their sources and values that `graph` owns.
        let status = unsafe { ffi::skippy_graph_compute(backend, nodes, error.as_mut_ptr(), error.len()) };
        if status != sys::GGML_STATUS_SUCCESS {
            // SAFETY: the guard terminates the text.
            let text = unsafe { CStr::from_ptr(error.as_ptr()) }.to_string_lossy();
            return Err(GgmlError::Compute(format!("status {status} {text}")));
        }
        Ok(Evaluated { _computer: PhantomData })
    }

    /// After a failure: an allocator has then given up its buffer, and would place the next graph of the same shape in it.
    /// The others' memory may be what is missing.
    fn free_allocators(&mut self) {
        for allocator in self.allocators.drain(..) {
            // SAFETY: made by `allocator`, freed once; results of earlier evaluations are not borrowed any more.
            unsafe { sys::ggml_gallocr_free(allocator.as_ptr()) };
        }
    }

    /// Bytes of intermediate results, each kind of graph at its largest so far.
    pub fn buffer_bytes(&self) -> usize {
        // SAFETY: an allocator has one buffer.
        self.allocators
            .iter()
            .map(|allocator| unsafe { sys::ggml_gallocr_get_buffer_size(allocator.as_ptr(), 0) })
            .sum()
    }
}

impl Drop for Computer {
    fn drop(&mut self) {
        self.free_allocators();
        // SAFETY: made by `new`, freed once.
        unsafe { sys::ggml_backend_free(self.backend.as_ptr()) };
    }
}

/// Results of an evaluation, until the next one.
pub struct Evaluated<'a> {
    _computer: PhantomData<&'a ()>,
}

impl<'a> Evaluated<'a> {
    /// An f32 output, dense.
    ///
    /// # Errors
    /// When the tensor is not a contiguous f32 output that was evaluated.
    pub fn f32(&self, tensor: Tensor<'a>) -> Result<&'a [f32], GgmlError> {
        // SAFETY: `slice` checks type and presence.
        unsafe { self.slice(tensor, sys::GGML_TYPE_F32) }
    }

    /// An i32 output, dense.
    ///
    /// # Errors
    /// As [`Evaluated::f32`].
    pub fn i32(&self, tensor: Tensor<'a>) -> Result<&'a [i32], GgmlError> {
        // SAFETY: `slice` checks type and presence.
        unsafe { self.slice(tensor, sys::GGML_TYPE_I32) }
    }

    /// # Safety
    /// `T` must be the element type that `ty` names.
    unsafe fn slice<T>(&self, tensor: Tensor<'a>, ty: sys::ggml_type) -> Result<&'a [T], GgmlError> {
        // SAFETY: the tensor's context is borrowed for 'a.
        let raw = unsafe { tensor.ptr.as_ref() };
        let output = raw.flags & sys::GGML_TENSOR_FLAG_OUTPUT as i32 != 0;
        if raw.type_ != ty || raw.data.is_null() || !output || !tensor.is_contiguous() {
            return Err(GgmlError::Compute(format!("{} is not a readable output", tensor.describe())));
        }
        // SAFETY: an output keeps its memory until the next evaluation, which `&'a mut Computer` excludes.
        Ok(unsafe { std::slice::from_raw_parts(raw.data.cast(), tensor.n_elements() as usize) })
    }
}
