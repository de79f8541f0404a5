//! llama.cpp's samplers, chained for one request.

use crate::{
    kernels::ffi,
    text::{Sampler, SamplingParams, TextError},
};
use llama_cpp_sys_2 as sys;
use std::ptr::NonNull;

/// A sampler chain and the candidate array it works in.
pub(super) struct Chain {
    ptr: NonNull<sys::llama_sampler>,
    scratch: Vec<sys::llama_token_data>,
}

// SAFETY: a chain owns all it points to and is used by one thread at a time (`&mut self`).
unsafe impl Send for Chain {}

impl Chain {
    /// bias -> penalties -> top-k -> top-p -> min-p -> temperature -> draw; or bias -> penalties -> greedy at
    /// temperature 0.
    pub(super) fn new(n_vocab: u32, params: &SamplingParams) -> Result<Self, TextError> {
        let n_vocab = i32::try_from(n_vocab).map_err(|e| TextError::Sampler(e.to_string()))?;
        let blank = sys::llama_token_data { id: 0, logit: 0.0, p: 0.0 };
        // SAFETY: returns an owned chain or null.
        let ptr = unsafe { sys::llama_sampler_chain_init(sys::llama_sampler_chain_params { no_perf: true }) };
        let ptr = NonNull::new(ptr).ok_or_else(|| TextError::Sampler("out of memory".into()))?;
        let chain = Self { ptr, scratch: vec![blank; n_vocab as usize] };

        if !params.logit_bias.is_empty() {
            let bias: Vec<_> =
                params.logit_bias.iter().map(|&(token, bias)| sys::llama_logit_bias { token, bias }).collect();
            let n_bias = i32::try_from(bias.len()).map_err(|e| TextError::Sampler(e.to_string()))?;
            // SAFETY: the table is copied during the call.
            chain.add(unsafe { sys::llama_sampler_init_logit_bias(n_vocab, n_bias, bias.as_ptr()) })?;
        }
        if params.presence_penalty != 0.0 || params.frequency_penalty != 0.0 {
            let (frequency, presence, last) = (params.frequency_penalty, params.presence_penalty, PENALTY_WINDOW);
            // SAFETY: plain numbers.
            chain.add(unsafe { sys::llama_sampler_init_penalties(n_vocab, last, 1.0, frequency, presence) })?;
        }
        if params.temperature == 0.0 {
            // SAFETY: takes nothing.
            chain.add(unsafe { sys::llama_sampler_init_greedy() })?;
            return Ok(chain);
        }
        if params.top_k > 0 {
            // SAFETY: plain numbers, here and below.
            chain.add(unsafe { sys::llama_sampler_init_top_k(params.top_k) })?;
        }
        if params.top_p < 1.0 {
            // SAFETY: as above.
            chain.add(unsafe { sys::llama_sampler_init_top_p(params.top_p, 1) })?;
        }
        if params.min_p > 0.0 {
            // SAFETY: as above.
            chain.add(unsafe { sys::llama_sampler_init_min_p(params.min_p, 1) })?;
        }
        // SAFETY: as above.
        chain.add(unsafe { sys::llama_sampler_init_temp(params.temperature) })?;
        // SAFETY: as above.
        chain.add(unsafe { sys::llama_sampler_init_dist(fold_seed(params.seed.unwrap_or(0))) })?;
        Ok(chain)
    }

    fn add(&self, sampler: *mut sys::llama_sampler) -> Result<(), TextError> {
        if sampler.is_null() {
            return Err(TextError::Sampler("out of memory".into()));
        }
        // SAFETY: both are alive; the chain takes the sampler over.
        unsafe { sys::llama_sampler_chain_add(self.ptr.as_ptr(), sampler) };
        Ok(())
    }
}

/// Tokens that penalties look back over. llama.cpp keeps a ring of this many ids for each sampler.
const PENALTY_WINDOW: i32 = 1 << 16;

/// 64 bits of seed in llama.cpp's 32, without its value for "random".
fn fold_seed(seed: u64) -> u32 {
    let folded = (seed ^ (seed >> 32)) as u32;
    if folded == ffi::SKIPPY_RANDOM_SEED { 0 } else { folded }
}

impl Sampler for Chain {
    fn sample(&mut self, logits: &[f32]) -> i32 {
        let n = self.scratch.len().min(logits.len());
        let Ok(n_vocab) = i32::try_from(n) else { return -1 };
        // SAFETY: both buffers hold at least `n_vocab` elements; an exception comes back as a negative status.
        let token = unsafe {
            ffi::skippy_sample(
                self.ptr.as_ptr(),
                logits.as_ptr(),
                n_vocab,
                self.scratch.as_mut_ptr(),
                std::ptr::null_mut(),
                0,
            )
        };
        token.max(-1)
    }

    fn accept(&mut self, token: i32) {
        // SAFETY: the chain is alive; samplers only store or compare the id.
        unsafe { sys::llama_sampler_accept(self.ptr.as_ptr(), token) };
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once, together with the samplers it took over.
        unsafe { sys::llama_sampler_free(self.ptr.as_ptr()) };
    }
}
