//! llama.cpp used the plain way: a file, a context, `llama_decode` in a loop.
//!
//! What our own serving is measured and checked against, in the same process: `skippy-stage bench` takes its ratios
//! and the parity suite its token ids from here. Nothing of it is on the serving path.

use super::{LlamaError, init, log};
use crate::text;
use llama_cpp_sys_2 as sys;
use std::{
    ffi::CString,
    path::Path,
    ptr::NonNull,
    time::{Duration, Instant},
};

/// How the plain loop is set up.
#[derive(Clone, Copy, Debug)]
pub struct BaselineOptions {
    /// KV rows for all sequences together; each has its share.
    pub n_ctx: u32,
    /// Rows of one `llama_decode` at most.
    pub n_batch: u32,
    /// Sequences.
    pub n_seq_max: u32,
    /// Compute threads.
    pub n_threads: u32,
    /// 32-bit KV cache and no flash attention, for comparisons that must not round.
    pub exact: bool,
    /// Flash attention, which is llama.cpp's own choice.
    pub flash_attention: bool,
}

/// A model and a context made by llama.cpp's own loader from an ordinary GGUF file.
pub struct Baseline {
    model: NonNull<sys::llama_model>,
    context: NonNull<sys::llama_context>,
    n_vocab: usize,
    n_batch: usize,
}

/// Greedy output of [`Baseline::generate`].
#[derive(Clone, Debug)]
pub struct Generated {
    /// Token ids for each prompt.
    pub tokens: Vec<Vec<i32>>,
    /// Wall time of the decode loop alone, without the prompts.
    pub decode: Duration,
}

impl Baseline {
    /// Loads `path` without memory mapping, as a stage loads its fragments.
    ///
    /// # Errors
    /// With llama.cpp's own words.
    pub fn load(path: &Path, options: &BaselineOptions) -> Result<Self, LlamaError> {
        init()?;
        let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| LlamaError::Load(e.to_string()))?;
        // SAFETY: `name` is terminated and alive for the call; the loader catches its exceptions.
        let (model, errors) = log::with_errors(|| unsafe {
            let mut params = sys::llama_model_default_params();
            params.load_mode = sys::LLAMA_LOAD_MODE_NONE;
            sys::llama_model_load_from_file(name.as_ptr(), params)
        });
        let model = NonNull::new(model).ok_or(LlamaError::Load(errors))?;
        // SAFETY: the model is alive.
        let (context, errors) = log::with_errors(|| unsafe {
            let mut params = sys::llama_context_default_params();
            params.n_ctx = options.n_ctx;
            params.n_batch = options.n_batch;
            params.n_ubatch = options.n_batch;
            params.n_seq_max = options.n_seq_max;
            params.n_threads = i32::try_from(options.n_threads).unwrap_or(1);
            params.n_threads_batch = params.n_threads;
            if options.exact {
                params.type_k = sys::GGML_TYPE_F32;
                params.type_v = sys::GGML_TYPE_F32;
            }
            if options.exact || !options.flash_attention {
                params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_DISABLED;
            }
            sys::llama_init_from_model(model.as_ptr(), params)
        });
        let Some(context) = NonNull::new(context) else {
            // SAFETY: nothing refers to the model any more.
            unsafe { sys::llama_model_free(model.as_ptr()) };
            return Err(LlamaError::Context(errors));
        };
        // SAFETY: the vocabulary lives in the model.
        let n_vocab = unsafe { sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(model.as_ptr())) };
        Ok(Self { model, context, n_vocab: n_vocab.max(0) as usize, n_batch: options.n_batch as usize })
    }

    /// Logits `[tokens.len(), n_vocab]` of a prompt read in one batch into an empty sequence 0.
    ///
    /// # Errors
    /// When llama.cpp fails.
    pub fn logits(&mut self, tokens: &[i32]) -> Result<Vec<f32>, LlamaError> {
        self.clear();
        let rows: Vec<PlainRow> = tokens.iter().zip(0..).map(|(id, pos)| PlainRow::new(*id, pos, 0, true)).collect();
        self.decode(&rows)?;
        Ok((0..rows.len()).flat_map(|row| self.row(row).to_vec()).collect())
    }

    /// Reads every prompt into its own sequence, then decodes all of them together, `n_tokens` greedy tokens each. Does
    /// not stop at an end-of-generation token.
    ///
    /// # Errors
    /// When llama.cpp fails, or a row of logits holds a NaN.
    pub fn generate(&mut self, prompts: &[Vec<i32>], n_tokens: usize) -> Result<Generated, LlamaError> {
        self.clear();
        let mut next = Vec::with_capacity(prompts.len());
        for (prompt, seq) in prompts.iter().zip(0..) {
            let last = prompt.len().saturating_sub(1);
            for (chunk, index) in prompt.chunks(self.n_batch).zip(0..) {
                let start = index * self.n_batch;
                let rows: Vec<PlainRow> = chunk
                    .iter()
                    .enumerate()
                    .map(|(i, id)| PlainRow::new(*id, (start + i) as i32, seq, start + i == last))
                    .collect();
                self.decode(&rows)?;
                if start + chunk.len() == prompt.len() {
                    next.push(self.greedy(chunk.len() - 1)?);
                }
            }
        }
        let mut tokens: Vec<Vec<i32>> = next.iter().map(|id| vec![*id]).collect();
        let start = Instant::now();
        let mut rows = Vec::with_capacity(prompts.len());
        for step in 1..n_tokens {
            rows.clear();
            for (seq, (id, prompt)) in next.iter().zip(prompts).enumerate() {
                rows.push(PlainRow::new(*id, (prompt.len() + step - 1) as i32, seq as i32, true));
            }
            self.decode(&rows)?;
            for (seq, out) in tokens.iter_mut().enumerate() {
                next[seq] = self.greedy(seq)?;
                out.push(next[seq]);
            }
        }
        Ok(Generated { tokens, decode: start.elapsed() })
    }

    fn clear(&mut self) {
        // SAFETY: the context is alive.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.context.as_ptr()), true) };
    }

    fn greedy(&self, row: usize) -> Result<i32, LlamaError> {
        let best = text::argmax(self.row(row)).ok_or_else(|| LlamaError::Compute("nan in the logits".into()))?;
        Ok(best as i32)
    }

    fn row(&self, row: usize) -> &[f32] {
        // SAFETY: llama.cpp returns null or `n_vocab` floats that live until the next call on the context.
        unsafe {
            let data = sys::llama_get_logits_ith(self.context.as_ptr(), row as i32);
            if data.is_null() { &[] } else { std::slice::from_raw_parts(data, self.n_vocab) }
        }
    }

    fn decode(&mut self, rows: &[PlainRow]) -> Result<(), LlamaError> {
        // SAFETY: the batch is filled within the size it was made for, and freed after the call.
        let (status, errors) = log::with_errors(|| unsafe {
            let mut batch = sys::llama_batch_init(rows.len() as i32, 0, 1);
            batch.n_tokens = rows.len() as i32;
            for (i, row) in rows.iter().enumerate() {
                *batch.token.add(i) = row.id;
                *batch.pos.add(i) = row.pos;
                *batch.n_seq_id.add(i) = 1;
                **batch.seq_id.add(i) = row.seq;
                *batch.logits.add(i) = i8::from(row.output);
            }
            let status = sys::llama_decode(self.context.as_ptr(), batch);
            sys::llama_batch_free(batch);
            status
        });
        if status == 0 { Ok(()) } else { Err(LlamaError::Compute(format!("status {status}: {errors}"))) }
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        // SAFETY: made by `load`, freed once, the context before its model.
        unsafe {
            sys::llama_free(self.context.as_ptr());
            sys::llama_model_free(self.model.as_ptr());
        }
    }
}

struct PlainRow {
    id: i32,
    pos: i32,
    seq: i32,
    output: bool,
}

impl PlainRow {
    fn new(id: i32, pos: i32, seq: i32, output: bool) -> Self {
        Self { id, pos, seq, output }
    }
}
