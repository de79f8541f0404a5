//! llama.cpp's samplers, chained for one request.

use crate::{
    kernels::ffi,
    llama::LlamaText,
    text::{Penalties, Sampler, SamplingParams, TextError, TextModel, argmax},
};
use llama_cpp_sys_2 as sys;
use std::ptr::NonNull;

/// Probability below which a token is dropped in front of `typical_p`, relative to the most likely one: llama.cpp takes
/// the logarithm of each, and that of 0 would spoil all.
const NEGLIGIBLE: f32 = 1e-20;

/// How one request chooses: penalties first, then a draw or the largest logit.
pub(super) struct Choice {
    text: LlamaText,
    penalties: Penalties,
    /// `None` at temperature 0.
    draw: Option<Chain>,
    /// The last row after the penalties; kept to be reused.
    row: Vec<f32>,
}

impl Choice {
    pub(super) fn new(text: &LlamaText, params: &SamplingParams) -> Result<Self, TextError> {
        let draws = params.temperature > 0.0;
        let draw = draws.then(|| Chain::new(text.n_vocab(), params)).transpose()?;
        Ok(Self { text: text.clone(), penalties: Penalties::new(params), draw, row: Vec::new() })
    }
}

impl Sampler for Choice {
    fn sample(&mut self, logits: &[f32]) -> i32 {
        let logits = if self.penalties.is_empty() {
            logits
        } else {
            self.row.clear();
            self.row.extend_from_slice(logits);
            self.penalties.apply(&mut self.row);
            &self.row
        };
        match &mut self.draw {
            Some(chain) => chain.draw(logits),
            None => argmax(logits).and_then(|id| i32::try_from(id).ok()).unwrap_or(-1),
        }
    }

    fn accept(&mut self, token: i32) {
        let bytes = if self.penalties.wants_bytes() { self.text.piece(token, true) } else { Vec::new() };
        self.penalties.accept(token, &bytes);
    }
}

/// A sampler chain and the candidate array it works in.
struct Chain {
    ptr: NonNull<sys::llama_sampler>,
    scratch: Vec<sys::llama_token_data>,
}

// SAFETY: a chain owns all it points to and is used by one thread at a time (`&mut self`).
unsafe impl Send for Chain {}

impl Chain {
    /// top-k -> typical -> top-p -> min-p -> XTC -> temperature -> draw.
    fn new(n_vocab: u32, params: &SamplingParams) -> Result<Self, TextError> {
        let blank = sys::llama_token_data { id: 0, logit: 0.0, p: 0.0 };
        // SAFETY: returns an owned chain or null.
        let ptr = unsafe { sys::llama_sampler_chain_init(sys::llama_sampler_chain_params { no_perf: true }) };
        let ptr = NonNull::new(ptr).ok_or_else(|| TextError::Sampler("out of memory".into()))?;
        let chain = Self { ptr, scratch: vec![blank; n_vocab as usize] };
        let seed = params.seed.unwrap_or(0);

        if params.top_k > 0 {
            // SAFETY: plain numbers, here and below.
            chain.add(unsafe { sys::llama_sampler_init_top_k(params.top_k) })?;
        }
        if params.typical_p < 1.0 {
            // SAFETY: as above.
            chain.add(unsafe { sys::llama_sampler_init_min_p(NEGLIGIBLE, 1) })?;
            // SAFETY: as above.
            chain.add(unsafe { sys::llama_sampler_init_typical(params.typical_p, 1) })?;
        }
        if params.top_p < 1.0 {
            // SAFETY: as above.
            chain.add(unsafe { sys::llama_sampler_init_top_p(params.top_p, 1) })?;
        }
        if params.min_p > 0.0 {
            // SAFETY: as above.
            chain.add(unsafe { sys::llama_sampler_init_min_p(params.min_p, 1) })?;
        }
        if params.xtc_probability > 0.0 {
            // Random numbers of its own: those of the draw would tell what is to be drawn.
            let seed = fold_seed(seed ^ 0x9E37_79B9_7F4A_7C15);
            let (probability, threshold) = (params.xtc_probability, params.xtc_threshold);
            // SAFETY: as above.
            chain.add(unsafe { sys::llama_sampler_init_xtc(probability, threshold, 1, seed) })?;
        }
        // SAFETY: as above.
        chain.add(unsafe { sys::llama_sampler_init_temp(params.temperature) })?;
        // SAFETY: as above.
        chain.add(unsafe { sys::llama_sampler_init_dist(fold_seed(seed)) })?;
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

    /// A token drawn from `logits` `[n_vocab]`; -1 when there is none to draw from.
    fn draw(&mut self, logits: &[f32]) -> i32 {
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
}

/// 64 bits of seed in llama.cpp's 32, without its value for "random".
fn fold_seed(seed: u64) -> u32 {
    let folded = (seed ^ (seed >> 32)) as u32;
    if folded == ffi::SKIPPY_RANDOM_SEED { 0 } else { folded }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once, together with the samplers it took over.
        unsafe { sys::llama_sampler_free(self.ptr.as_ptr()) };
    }
}
