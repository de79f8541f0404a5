//! A context: KV cache, compute buffers and the forward pass of one model.

use super::{
    LlamaError, Model, Threadpool,
    capture::{self, Capture},
    log,
};
use crate::kernels::ffi;
use llama_cpp_sys_2 as sys;
use std::{ffi::c_char, ptr::NonNull, sync::Arc};

/// Element type of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// 32-bit floats: no rounding between passes.
    F32,
    /// 16-bit floats.
    F16,
    /// 8-bit blocks.
    Q8_0,
}

/// How a context is made.
#[derive(Clone, Copy, Debug)]
pub struct ContextOptions {
    /// KV rows of one sequence. llama.cpp rounds up.
    pub n_ctx_seq: u32,
    /// Rows of one forward pass at most.
    pub n_batch: u32,
    /// Sequences, at most `n_batch`.
    pub n_seq_max: u32,
    /// Rows of one pass that may ask for logits, `n_seq_max` to `n_batch`. Buffers are sized by it times the vocabulary.
    pub n_outputs_max: u32,
    /// Type of the K cache.
    pub cache_type_k: KvType,
    /// Type of the V cache.
    pub cache_type_v: KvType,
    /// Let llama.cpp use its fused attention.
    pub flash_attention: bool,
    /// End the graph after this layer and keep its output rows instead of computing logits.
    pub capture_layer: Option<u32>,
}

/// What a forward pass starts from.
#[derive(Clone, Copy, Debug)]
pub enum DecodeInput<'a> {
    /// Token ids.
    Tokens(&'a [i32]),
    /// Hidden rows `[n_rows, n_embd]`.
    Embeddings(&'a [f32]),
}

/// A context over a shared model. One thread at a time.
pub struct Context {
    ptr: NonNull<sys::llama_context>,
    // Boxed, since llama.cpp holds its address.
    capture: Option<Box<Capture>>,
    batch: BatchArrays,
    n_outputs: usize,
    n_outputs_max: usize,
    // Both outlive `ptr`: fields drop in order, after `Drop::drop`.
    model: Arc<Model>,
    _pool: Arc<Threadpool>,
}

// SAFETY: a context may move between threads as long as one uses it at a time, which `&mut self` ensures.
unsafe impl Send for Context {}

/// The per-row arrays of a `llama_batch`, reused between passes.
#[derive(Default)]
struct BatchArrays {
    one: Vec<i32>,
    seq: Vec<sys::llama_seq_id>,
    seq_ptr: Vec<*mut sys::llama_seq_id>,
}

impl Context {
    /// Makes the KV cache and compute buffers.
    ///
    /// # Errors
    /// [`LlamaError::Context`] when memory is short or the options do not fit the model.
    pub fn new(model: Arc<Model>, pool: Arc<Threadpool>, options: &ContextOptions) -> Result<Self, LlamaError> {
        // llama.cpp asserts on these.
        let (batch, seqs, outputs) = (options.n_batch, options.n_seq_max, options.n_outputs_max);
        if seqs == 0 || seqs > outputs || outputs > batch {
            return Err(LlamaError::Context(format!(
                "{seqs} sequences, {outputs} output rows and {batch} batch rows: each must be at most the next, from 1 on"
            )));
        }
        let mut capture = options.capture_layer.map(|layer| Capture::new(layer, model.n_embd()));
        // SAFETY: returns a plain struct.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = options.n_ctx_seq.saturating_mul(options.n_seq_max);
        params.n_batch = options.n_batch;
        // A batch is never cut into smaller ones, and each sequence has its own KV cells.
        params.n_ubatch = options.n_batch;
        params.kv_unified = false;
        params.n_seq_max = options.n_seq_max;
        params.n_outputs_max = options.n_outputs_max;
        params.n_threads = i32::try_from(pool.n_threads()).unwrap_or(1);
        params.n_threads_batch = params.n_threads;
        params.type_k = options.cache_type_k.id();
        params.type_v = options.cache_type_v.id();
        // Who pays for an f32 cache wants nothing rounded; llama.cpp's flash attention would turn its rows into f16.
        let exact = (options.cache_type_k, options.cache_type_v) == (KvType::F32, KvType::F32);
        if exact || !options.flash_attention {
            params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_DISABLED;
        }
        params.no_perf = true;
        if let Some(capture) = &mut capture {
            params.cb_eval = Some(capture::on_node);
            params.cb_eval_user_data = std::ptr::from_mut::<Capture>(capture).cast();
        }
        // SAFETY: the model is alive; the callback's user data is boxed and lives as long as the context.
        let (ptr, errors) = log::with_errors(|| unsafe { sys::llama_init_from_model(model.as_ptr(), params) });
        let ptr = NonNull::new(ptr).ok_or(LlamaError::Context(errors))?;
        // SAFETY: both are alive, and the pool outlives the context (field order above).
        unsafe { sys::llama_attach_threadpool(ptr.as_ptr(), pool.as_ptr(), pool.as_ptr()) };
        let n_outputs_max = options.n_outputs_max as usize;
        Ok(Self { ptr, capture, batch: BatchArrays::default(), n_outputs: 0, n_outputs_max, model, _pool: pool })
    }

    /// KV rows that one sequence really has.
    pub fn n_ctx_seq(&self) -> u32 {
        // SAFETY: the context is alive.
        unsafe { sys::llama_n_ctx_seq(self.ptr.as_ptr()) }
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Runs one batch. `pos`, `seq` and `output` hold one element per row; rows with `output != 0` get logits.
    ///
    /// # Errors
    /// [`LlamaError::KvFull`] and [`LlamaError::Batch`] change nothing; [`LlamaError::Compute`] may leave part of the
    /// batch in the cache.
    pub fn decode(
        &mut self,
        input: DecodeInput<'_>,
        pos: &mut [i32],
        seq: &[u32],
        output: &mut [i8],
    ) -> Result<(), LlamaError> {
        let n_rows = pos.len();
        let n_outputs = output.iter().filter(|wanted| **wanted != 0).count();
        self.check(input, n_rows, n_outputs, seq, output)?;
        if let Some(capture) = &mut self.capture {
            capture.reset();
        }
        self.n_outputs = n_outputs;

        let batch = self.batch.fill(input, pos, seq, output);
        let mut text = [0 as c_char; 512];
        // SAFETY: `batch` points to arrays of `n_rows` elements each that live until the call returns; tokens and
        // embeddings are only read, although the struct's pointers are not const; `text` is writable for its length.
        let (status, errors) = log::with_errors(|| unsafe {
            ffi::skippy_decode(self.ptr.as_ptr(), &batch, text.as_mut_ptr(), text.len())
        });
        match status {
            0 => self.check_capture(n_rows),
            1 => Err(LlamaError::KvFull),
            -1 => Err(LlamaError::Batch(errors)),
            ffi::SKIPPY_EXCEPTION => Err(LlamaError::Compute(c_text(&text))),
            status => Err(LlamaError::Compute(format!("status {status}: {errors}"))),
        }
    }

    fn check(
        &self,
        input: DecodeInput<'_>,
        n_rows: usize,
        n_outputs: usize,
        seq: &[u32],
        output: &[i8],
    ) -> Result<(), LlamaError> {
        // llama.cpp asserts on these, or reads past the end.
        // SAFETY: the context is alive.
        let (n_batch, n_seq_max) =
            unsafe { (sys::llama_n_batch(self.ptr.as_ptr()), sys::llama_n_seq_max(self.ptr.as_ptr())) };
        let refuse = |what: String| Err(LlamaError::Batch(what));
        if n_rows == 0 || n_rows > n_batch as usize {
            return refuse(format!("{n_rows} rows, allowed 1 to {n_batch}"));
        }
        if n_outputs > self.n_outputs_max {
            return refuse(format!("{n_outputs} rows with output, allowed {}", self.n_outputs_max));
        }
        if seq.len() != n_rows || output.len() != n_rows {
            return refuse(format!("{} sequence ids and {} output flags for {n_rows} rows", seq.len(), output.len()));
        }
        if let Some(seq) = seq.iter().find(|seq| **seq >= n_seq_max) {
            return refuse(format!("sequence {seq}, allowed 0 to {}", n_seq_max - 1));
        }
        match input {
            DecodeInput::Tokens(tokens) => {
                let n_vocab = self.model.n_vocab();
                if tokens.len() != n_rows {
                    return refuse(format!("{} tokens for {n_rows} rows", tokens.len()));
                }
                match tokens.iter().find(|id| usize::try_from(**id).map_or(true, |id| id >= n_vocab)) {
                    Some(id) => refuse(format!("token id {id}, allowed 0 to {}", n_vocab.saturating_sub(1))),
                    None => Ok(()),
                }
            }
            DecodeInput::Embeddings(rows) => {
                let width = self.model.n_embd_inp();
                match rows.len() == n_rows * width {
                    true => Ok(()),
                    false => refuse(format!("{} floats for {n_rows} rows of width {width}", rows.len())),
                }
            }
        }
    }

    fn check_capture(&self, n_rows: usize) -> Result<(), LlamaError> {
        let Some(capture) = &self.capture else { return Ok(()) };
        if let Some(fault) = &capture.fault {
            return Err(LlamaError::Compute(fault.clone()));
        }
        let got = capture.rows.len() / self.model.n_embd().max(1);
        match got == n_rows {
            true => Ok(()),
            false => Err(LlamaError::Compute(format!("the last layer gave {got} rows, expected {n_rows}"))),
        }
    }

    /// Logits `[n_outputs, n_vocab]` of the last [`Context::decode`]. Empty for a context that captures a layer.
    pub fn logits(&self) -> &[f32] {
        if self.capture.is_some() || self.n_outputs == 0 {
            return &[];
        }
        // SAFETY: the context is alive; llama.cpp keeps `n_outputs * n_vocab` floats behind this pointer until the next
        // call on the context, which needs `&mut self`.
        unsafe {
            let data = sys::llama_get_logits(self.ptr.as_ptr());
            if data.is_null() {
                return &[];
            }
            std::slice::from_raw_parts(data, self.n_outputs * self.model.n_vocab())
        }
    }

    /// Hidden rows `[n_rows, n_embd]` after the captured layer, of the last [`Context::decode`].
    pub fn hidden(&self) -> &[f32] {
        self.capture.as_ref().map_or(&[], |capture| &capture.rows)
    }

    /// Drops rows `from..` of a sequence; `from = 0` empties it.
    ///
    /// # Errors
    /// When the memory cannot forget part of a sequence.
    pub fn remove_from(&mut self, seq: u32, from: u32) -> Result<(), LlamaError> {
        // SAFETY: the context is alive; llama.cpp checks the range.
        let done = unsafe {
            let memory = sys::llama_get_memory(self.ptr.as_ptr());
            sys::llama_memory_seq_rm(memory, seq_id(seq), seq_id(from), -1)
        };
        if done { Ok(()) } else { Err(LlamaError::Memory { seq, what: "remove its end" }) }
    }

    /// Makes the rows of `from` also the rows of `to`, which must be empty. Between streams llama.cpp copies whole
    /// sequences only, and asserts on that.
    ///
    /// # Errors
    /// When a sequence does not exist.
    pub fn copy(&mut self, from: u32, to: u32) -> Result<(), LlamaError> {
        // SAFETY: the context is alive.
        let n_seq_max = unsafe { sys::llama_n_seq_max(self.ptr.as_ptr()) };
        if let Some(seq) = [from, to].into_iter().find(|seq| *seq >= n_seq_max) {
            return Err(LlamaError::Memory { seq, what: "copy it" });
        }
        // SAFETY: the context is alive, both sequences exist, -1 to -1 is the whole sequence.
        unsafe {
            let memory = sys::llama_get_memory(self.ptr.as_ptr());
            sys::llama_memory_seq_cp(memory, seq_id(from), seq_id(to), -1, -1);
        }
        Ok(())
    }

    /// Appends the rows of a sequence to `state`, in llama.cpp's form.
    ///
    /// # Errors
    /// When llama.cpp cannot write them.
    pub fn save(&mut self, seq: u32, state: &mut Vec<u8>) -> Result<(), LlamaError> {
        let failed = || LlamaError::Memory { seq, what: "save it" };
        // SAFETY: the context is alive; llama.cpp catches its own exceptions here and answers 0.
        let size = unsafe { sys::llama_state_seq_get_size(self.ptr.as_ptr(), seq_id(seq)) };
        let start = state.len();
        state.reserve_exact(size);
        // SAFETY: `size` bytes behind `start` are reserved, and llama.cpp writes into them without reading.
        let written = unsafe {
            let place = state.as_mut_ptr().add(start);
            sys::llama_state_seq_get_data(self.ptr.as_ptr(), place, size, seq_id(seq))
        };
        if size == 0 || written != size {
            return Err(failed());
        }
        // SAFETY: all of them are written.
        unsafe { state.set_len(start + size) };
        Ok(())
    }

    /// Makes what [`Context::save`] has written the content of a sequence, which must be empty.
    ///
    /// # Errors
    /// When llama.cpp refuses the bytes. Part of them may be in the sequence then.
    pub fn restore(&mut self, seq: u32, state: &[u8]) -> Result<(), LlamaError> {
        // SAFETY: the context is alive; llama.cpp reads at most `len` bytes, and catches its own exceptions here.
        let (read, errors) = log::with_errors(|| unsafe {
            sys::llama_state_seq_set_data(self.ptr.as_ptr(), state.as_ptr(), state.len(), seq_id(seq))
        });
        match read == state.len() && read > 0 {
            true => Ok(()),
            false => Err(LlamaError::State { seq, errors }),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once. Model, pool and capture are fields, so they go after this.
        unsafe { sys::llama_free(self.ptr.as_ptr()) };
    }
}

impl BatchArrays {
    fn fill(&mut self, input: DecodeInput<'_>, pos: &mut [i32], seq: &[u32], output: &mut [i8]) -> sys::llama_batch {
        self.one.clear();
        self.one.resize(seq.len(), 1);
        self.seq.clear();
        self.seq.extend(seq.iter().map(|seq| seq_id(*seq)));
        self.seq_ptr.clear();
        self.seq_ptr.extend(self.seq.iter_mut().map(std::ptr::from_mut));
        let (token, embd) = match input {
            DecodeInput::Tokens(tokens) => (tokens.as_ptr().cast_mut(), std::ptr::null_mut()),
            DecodeInput::Embeddings(rows) => (std::ptr::null_mut(), rows.as_ptr().cast_mut()),
        };
        sys::llama_batch {
            n_tokens: i32::try_from(seq.len()).unwrap_or(0),
            token,
            embd,
            pos: pos.as_mut_ptr(),
            n_seq_id: self.one.as_mut_ptr(),
            seq_id: self.seq_ptr.as_mut_ptr(),
            logits: output.as_mut_ptr(),
        }
    }
}

impl KvType {
    fn id(self) -> sys::ggml_type {
        match self {
            Self::F32 => sys::GGML_TYPE_F32,
            Self::F16 => sys::GGML_TYPE_F16,
            Self::Q8_0 => sys::GGML_TYPE_Q8_0,
        }
    }
}

fn seq_id(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

pub(super) fn c_text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|c| *c as u8).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
