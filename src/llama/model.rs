//! A loaded model: weights and vocabulary, immutable and shared between threads.

use super::{LlamaError, init, log};
use crate::kernels::ffi;
use llama_cpp_sys_2 as sys;
use std::ptr::NonNull;

/// How a model is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelOptions {
    /// Only the vocabulary; the segments may end after the GGUF header.
    pub vocab_only: bool,
    /// Layers to put on a GPU; `None` leaves the choice to llama.cpp (all, when there is one).
    pub gpu_layers: Option<u32>,
}

/// A model in memory. Freed on drop.
pub struct Model {
    ptr: NonNull<sys::llama_model>,
}

// SAFETY: after loading, llama.cpp only reads a model; its vocabulary functions are documented as thread-safe.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl Model {
    /// Loads the GGUF that the concatenation of `segments` forms. Weights are copied into buffers of the backend, so
    /// the segments may go once this returns.
    ///
    /// # Errors
    /// [`LlamaError::Load`] with llama.cpp's own words.
    pub fn load(segments: &[&[u8]], options: &ModelOptions) -> Result<Self, LlamaError> {
        init()?;
        let file = SegmentsFile::open(segments)?;
        // SAFETY: returns a plain struct.
        let mut params = unsafe { sys::llama_model_default_params() };
        params.load_mode = sys::LLAMA_LOAD_MODE_NONE;
        params.vocab_only = options.vocab_only;
        // The draft head belongs to the `dsa` engine; here its weights would only take memory.
        params.load_mtp = false;
        if let Some(layers) = options.gpu_layers {
            params.n_gpu_layers = i32::try_from(layers).unwrap_or(i32::MAX);
        }
        // SAFETY: `file` is an open stream over `segments`, both alive for the call; the loader catches its exceptions.
        let (ptr, errors) = log::with_errors(|| unsafe { sys::llama_model_load_from_file_ptr(file.0.cast(), params) });
        NonNull::new(ptr).map(|ptr| Self { ptr }).ok_or(LlamaError::Load(errors))
    }

    /// Width of a hidden row.
    pub fn n_embd(&self) -> usize {
        // SAFETY: the model is alive.
        usize::try_from(unsafe { sys::llama_model_n_embd(self.ptr.as_ptr()) }).unwrap_or(0)
    }

    /// Width of an input row. Larger than [`Model::n_embd`] in families that carry more than one hidden state.
    pub fn n_embd_inp(&self) -> usize {
        // SAFETY: the model is alive.
        usize::try_from(unsafe { sys::llama_model_n_embd_inp(self.ptr.as_ptr()) }).unwrap_or(0)
    }

    /// Tokens of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        // SAFETY: the vocabulary lives in the model.
        usize::try_from(unsafe { sys::llama_vocab_n_tokens(self.vocab()) }).unwrap_or(0)
    }

    /// Whether rows of a batch depend on a recurrent state rather than on a KV cache alone.
    pub fn is_recurrent_or_hybrid(&self) -> bool {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_is_recurrent(self.ptr.as_ptr()) || sys::llama_model_is_hybrid(self.ptr.as_ptr()) }
    }

    /// Whether some layers see only the latest rows.
    pub fn has_sliding_window(&self) -> bool {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_swa(self.ptr.as_ptr()) > 0 }
    }

    /// Whether the model can be decoded token by token with a KV cache (no encoder, no diffusion).
    pub fn is_decoder_only(&self) -> bool {
        // SAFETY: the model is alive.
        unsafe {
            sys::llama_model_has_decoder(self.ptr.as_ptr())
                && !sys::llama_model_has_encoder(self.ptr.as_ptr())
                && !sys::llama_model_is_diffusion(self.ptr.as_ptr())
        }
    }

    pub(super) fn as_ptr(&self) -> *mut sys::llama_model {
        self.ptr.as_ptr()
    }

    pub(super) fn vocab(&self) -> *const sys::llama_vocab {
        // SAFETY: the model is alive, and so is the vocabulary inside it.
        unsafe { sys::llama_model_get_vocab(self.ptr.as_ptr()) }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the pointer came from the loader and is freed once; contexts hold an `Arc<Model>`, so none is left.
        unsafe { sys::llama_model_free(self.ptr.as_ptr()) };
    }
}

/// A `FILE*` over borrowed segments, closed on drop.
struct SegmentsFile(*mut libc::FILE);

impl SegmentsFile {
    fn open(segments: &[&[u8]]) -> Result<Self, LlamaError> {
        let table: Vec<ffi::skippy_segment> =
            segments.iter().map(|s| ffi::skippy_segment { data: s.as_ptr().cast(), len: s.len() }).collect();
        // SAFETY: the table and the bytes it points to are alive; the function copies the table.
        let file = unsafe { ffi::skippy_segments_open(table.as_ptr(), table.len()) };
        if file.is_null() {
            let why = std::io::Error::last_os_error();
            return Err(LlamaError::Load(format!("cannot open a stream over the fragments: {why}")));
        }
        Ok(Self(file))
    }
}

impl Drop for SegmentsFile {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed once; llama.cpp does not close a stream it was given.
        unsafe { libc::fclose(self.0) };
    }
}
