//! Tensors over memory that ggml does not own: mapped weights, KV caches, constants.

use super::{GgmlError, type_id};
use crate::gguf::GgmlType;
use llama_cpp_sys_2 as sys;
use std::{any::Any, ptr::NonNull, sync::Arc};

/// Alignment that ggml's CPU buffers ask for.
const ALIGN: usize = 32;
/// Alignment of single tensors: that of f32. ggml's kernels load vectors unaligned.
const MIN_ALIGN: usize = 4;

/// A stretch of memory that leaves point into. Whatever owns the bytes lives as long as any leaf.
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
}

struct Shared {
    buffer: NonNull<sys::ggml_backend_buffer>,
    base: *mut u8,
    len: usize,
    writable: bool,
    /// Keeps the bytes alive; dropped after the buffer.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the buffer is a description of plain memory; ggml does not touch it outside evaluation, which `Computer` runs on
// one thread at a time.
unsafe impl Send for Shared {}
// SAFETY: as above; methods of `Memory` do not change it.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: made by `wrap`, freed once. A buffer from a pointer does not free the memory itself.
        unsafe { sys::ggml_backend_buffer_free(self.buffer.as_ptr()) };
    }
}

impl Memory {
    /// Bytes that are only read: a mapped fragment.
    ///
    /// # Errors
    /// When the base is not aligned to 32 bytes, or ggml is out of memory.
    pub fn read_only<O>(owner: Arc<O>) -> Result<Self, GgmlError>
    where
        O: AsRef<[u8]> + Send + Sync + 'static,
    {
        let bytes = (*owner).as_ref();
        let (base, len) = (bytes.as_ptr().cast_mut(), bytes.len());
        Self::wrap(base, len, false, Box::new(owner))
    }

    /// Fresh zeros: a cache. The system hands out pages as they are touched.
    ///
    /// # Errors
    /// When the system or ggml is out of memory.
    pub fn zeroed(len: usize) -> Result<Self, GgmlError> {
        let mut map = memmap2::MmapMut::map_anon(len.max(1)).map_err(|_| GgmlError::Alloc("a cache"))?;
        let base = map.as_mut_ptr();
        Self::wrap(base, len, true, Box::new(map))
    }

    fn wrap(base: *mut u8, len: usize, writable: bool, owner: Box<dyn Any + Send + Sync>) -> Result<Self, GgmlError> {
        if !base.addr().is_multiple_of(ALIGN) {
            let what = format!("its memory starts at an address that is not a multiple of {ALIGN}");
            return Err(GgmlError::Leaf { shape: vec![len as u64], ty: "i8", what });
        }
        // SAFETY: `base` is valid for `len` bytes while `owner` lives, and is aligned; the buffer is only a description.
        let buffer = unsafe { sys::ggml_backend_cpu_buffer_from_ptr(base.cast(), len) };
        let buffer = NonNull::new(buffer).ok_or(GgmlError::Alloc("a buffer"))?;
        Ok(Self { shared: Arc::new(Shared { buffer, base, len, writable, _owner: owner }) })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.shared.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.shared.len == 0
    }

    /// A tensor at byte `offset`.
    ///
    /// # Errors
    /// When it does not lie inside the memory, or ggml could not use its type or address.
    pub fn leaf(&self, ty: GgmlType, shape: &[u64], offset: usize) -> Result<Leaf, GgmlError> {
        let fault = |what: String| GgmlError::Leaf { shape: shape.to_vec(), ty: ty.name(), what };
        let mut dims = [1i64; 4];
        if shape.is_empty() || shape.len() > 4 {
            return Err(fault("expected 1 to 4 dimensions".into()));
        }
        for (dim, size) in dims.iter_mut().zip(shape) {
            *dim =
                i64::try_from(*size).ok().filter(|n| *n > 0).ok_or_else(|| fault("a dimension is 0 or huge".into()))?;
        }
        let bytes = ty.tensor_bytes(shape).and_then(|n| usize::try_from(n).ok());
        let bytes = bytes.ok_or_else(|| fault("it has no size".into()))?;
        match offset.checked_add(bytes) {
            Some(end) if end <= self.shared.len => {}
            _ => return Err(fault(format!("{bytes} bytes at {offset} of {}", self.shared.len))),
        }
        if !offset.is_multiple_of(MIN_ALIGN) {
            return Err(fault(format!("its data starts at byte {offset}, not a multiple of {MIN_ALIGN}")));
        }
        // SAFETY: plain numbers; no data is allocated. The tensor and its context are freed with the leaf.
        let (context, tensor) = unsafe {
            let size = sys::ggml_tensor_overhead() + 64;
            let params = sys::ggml_init_params { mem_size: size, mem_buffer: std::ptr::null_mut(), no_alloc: true };
            let context = NonNull::new(sys::ggml_init(params)).ok_or(GgmlError::Alloc("a tensor"))?;
            (context, sys::ggml_new_tensor(context.as_ptr(), type_id(ty), 4, dims.as_ptr()))
        };
        let inner = LeafInner { context, memory: self.clone(), offset, bytes };
        let tensor = NonNull::new(tensor).ok_or(GgmlError::Alloc("a tensor"))?;
        // SAFETY: the range lies inside the buffer (checked above) and the tensor has no data yet.
        let status = unsafe {
            let address = self.shared.base.add(offset);
            sys::ggml_backend_tensor_alloc(self.shared.buffer.as_ptr(), tensor.as_ptr(), address.cast())
        };
        if status != sys::GGML_STATUS_SUCCESS {
            return Err(GgmlError::Alloc("a tensor"));
        }
        Ok(Leaf { tensor, inner: Arc::new(inner) })
    }
}

struct LeafInner {
    context: NonNull<sys::ggml_context>,
    memory: Memory,
    offset: usize,
    bytes: usize,
}

// SAFETY: see `Shared`; the context holds one tensor header that nobody writes after construction.
unsafe impl Send for LeafInner {}
// SAFETY: as above.
unsafe impl Sync for LeafInner {}

impl Drop for LeafInner {
    fn drop(&mut self) {
        // SAFETY: made by `Memory::leaf`, freed once.
        unsafe { sys::ggml_free(self.context.as_ptr()) };
    }
}

/// A tensor with data of its own; graphs use it through [`Graph::leaf`](super::Graph::leaf).
#[derive(Clone)]
pub struct Leaf {
    tensor: NonNull<sys::ggml_tensor>,
    inner: Arc<LeafInner>,
}

// SAFETY: see `LeafInner`.
unsafe impl Send for Leaf {}
// SAFETY: as above.
unsafe impl Sync for Leaf {}

impl Leaf {
    pub(super) fn as_ptr(&self) -> *mut sys::ggml_tensor {
        self.tensor.as_ptr()
    }

    /// Its bytes.
    pub fn n_bytes(&self) -> usize {
        self.inner.bytes
    }

    /// Copies `len` bytes inside the leaf, from one place to another. For caches, between evaluations.
    ///
    /// # Errors
    /// When a range lies outside, or the memory is read-only.
    pub fn copy_within(&mut self, from: usize, to: usize, len: usize) -> Result<(), GgmlError> {
        let (from, to) = (self.place(from, len, false)?, self.place(to, len, true)?);
        // SAFETY: both ranges lie inside the leaf, which lies inside writable memory; `copy` allows overlap. `&mut self`
        // and the one-thread rule of evaluation exclude concurrent use.
        unsafe { std::ptr::copy(from, to, len) };
        Ok(())
    }

    /// Appends `len` bytes from `at` on to `to`. For caches, between evaluations.
    ///
    /// # Errors
    /// When they lie outside.
    pub fn read(&self, at: usize, len: usize, to: &mut Vec<u8>) -> Result<(), GgmlError> {
        let from = self.place(at, len, false)?;
        to.reserve(len);
        // SAFETY: `len` bytes are readable at `from` and reserved behind the end of `to`, which then has them all. The
        // one-thread rule of evaluation excludes that they change meanwhile.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr().add(to.len()), len);
            to.set_len(to.len() + len);
        }
        Ok(())
    }

    /// Overwrites the bytes from `at` on. For caches, between evaluations.
    ///
    /// # Errors
    /// When they lie outside, or the memory is read-only.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), GgmlError> {
        let to = self.place(at, bytes.len(), true)?;
        // SAFETY: the range lies inside the leaf, which lies inside writable memory that `bytes` is no part of: nobody
        // hands out slices of it. `&mut self` and the one-thread rule of evaluation exclude concurrent use.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// The address of `len` bytes from `at` on.
    fn place(&self, at: usize, len: usize, write: bool) -> Result<*mut u8, GgmlError> {
        let shared = &self.inner.memory.shared;
        let inside = at.checked_add(len).is_some_and(|end| end <= self.inner.bytes);
        if !inside || (write && !shared.writable) {
            let what = if write { "writable bytes" } else { "bytes" };
            return Err(GgmlError::Compute(format!("no {len} {what} at {at} of a tensor of {}", self.inner.bytes)));
        }
        // SAFETY: the leaf lies inside the memory, and the offset inside the leaf.
        Ok(unsafe { shared.base.add(self.inner.offset + at) })
    }
}
