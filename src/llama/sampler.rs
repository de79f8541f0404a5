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
    draw: Option<Draw>,
    /// Tokens of the text so far. A draw depends on the seed and on its place in the text, not on the draws before it, so
    /// that an answer can be taken up anywhere.
    place: u64,
    /// The last row after the penalties; kept to be reused.
    row: Vec<f32>,
}

impl Choice {
    pub(super) fn new(text: &LlamaText, params: &SamplingParams) -> Result<Self, TextError> {
        let draws = params.temperature > 0.0;
        let draw = draws.then(|| Draw::new(text.n_vocab(), params)).transpose()?;
        Ok(Self { text: text.clone(), penalties: Penalties::new(params), draw, place: 0, row: Vec::new() })
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
            Some(draw) => draw.token(logits, self.place),
            None => argmax(logits).and_then(|id| i32::try_from(id).ok()).unwrap_or(-1),
        }
    }

    fn accept(&mut self, token: i32) {
        let bytes = if self.penalties.wants_bytes() { self.text.piece(token, true) } else { Vec::new() };
        self.penalties.accept(token, &bytes);
        self.place += 1;
    }
}

/// A draw from what is left of a row.
struct Draw {
    /// top-k -> typical -> top-p -> min-p.
    cuts: Chain,
    params: SamplingParams,
    scratch: Vec<sys::llama_token_data>,
}

impl Draw {
    fn new(n_vocab: u32, params: &SamplingParams) -> Result<Self, TextError> {
        let blank = sys::llama_token_data { id: 0, logit: 0.0, p: 0.0 };
        let cuts = Chain::new()?;
        if params.top_k > 0 {
            // SAFETY: plain numbers, here and below.
            cuts.add(unsafe { sys::llama_sampler_init_top_k(params.top_k) })?;
        }
        if params.typical_p < 1.0 {
            // SAFETY: as above.
            cuts.add(unsafe { sys::llama_sampler_init_min_p(NEGLIGIBLE, 1) })?;
            // SAFETY: as above.
            cuts.add(unsafe { sys::llama_sampler_init_typical(params.typical_p, 1) })?;
        }
        if params.top_p < 1.0 {
            // SAFETY: as above.
            cuts.add(unsafe { sys::llama_sampler_init_top_p(params.top_p, 1) })?;
        }
        if params.min_p > 0.0 {
            // SAFETY: as above.
            cuts.add(unsafe { sys::llama_sampler_init_min_p(params.min_p, 1) })?;
        }
        let params = SamplingParams { logit_bias: Vec::new(), dry_sequence_breakers: Vec::new(), ..params.clone() };
        Ok(Self { cuts, params, scratch: vec![blank; n_vocab as usize] })
    }

    /// The token at `place` drawn from `logits` `[n_vocab]`; -1 when there is none to draw from.
    fn token(&mut self, logits: &[f32], place: u64) -> i32 {
        let n = self.scratch.len().min(logits.len());
        let (Ok(n_vocab), Ok(last)) = (i32::try_from(n), self.random(place)) else { return -1 };
        // SAFETY: both chains are alive and both buffers hold at least `n_vocab` elements; an exception comes back as a
        // negative status.
        let token = unsafe {
            ffi::skippy_sample(
                self.cuts.0.as_ptr(),
                last.0.as_ptr(),
                logits.as_ptr(),
                n_vocab,
                self.scratch.as_mut_ptr(),
                std::ptr::null_mut(),
                0,
            )
        };
        token.max(-1)
    }

    /// What needs random numbers, for one token: XTC -> temperature -> draw. Made anew each time, a few microseconds, since
    /// these samplers take their seed when they are made.
    fn random(&self, place: u64) -> Result<Chain, TextError> {
        let seed = mix(self.params.seed.unwrap_or(0) ^ mix(place));
        let chain = Chain::new()?;
        if self.params.xtc_probability > 0.0 {
            // Random numbers of its own: those of the draw would tell what is to be drawn.
            let (probability, threshold) = (self.params.xtc_probability, self.params.xtc_threshold);
            // SAFETY: plain numbers, here and below.
            chain.add(unsafe { sys::llama_sampler_init_xtc(probability, threshold, 1, fold_seed(mix(seed))) })?;
        }
        // SAFETY: as above.
        chain.add(unsafe { sys::llama_sampler_init_temp(self.params.temperature) })?;
        // SAFETY: as above.
        chain.add(unsafe { sys::llama_sampler_init_dist(fold_seed(seed)) })?;
        Ok(chain)
    }
}

/// Samplers in a row.
struct Chain(NonNull<sys::llama_sampler>);

// SAFETY: a chain owns all it points to and is used by one thread at a time (`&mut self`).
unsafe impl Send for Chain {}

impl Chain {
    fn new() -> Result<Self, TextError> {
        // SAFETY: returns an owned chain or null.
        let ptr = unsafe { sys::llama_sampler_chain_init(sys::llama_sampler_chain_params { no_perf: true }) };
        NonNull::new(ptr).map(Self).ok_or_else(|| TextError::Sampler("out of memory".into()))
    }

    fn add(&self, sampler: *mut sys::llama_sampler) -> Result<(), TextError> {
        if sampler.is_null() {
            return Err(TextError::Sampler("out of memory".into()));
        }
        // SAFETY: both are alive; the chain takes the sampler over.
        unsafe { sys::llama_sampler_chain_add(self.0.as_ptr(), sampler) };
        Ok(())
    }
}

/// Spreads 64 bits (the finalizer of SplitMix64).
fn mix(seed: u64) -> u64 {
    let seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let seed = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let seed = (seed ^ (seed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    seed ^ (seed >> 31)
}

/// 64 bits of seed in llama.cpp's 32, without its value for "random".
fn fold_seed(seed: u64) -> u32 {
    let folded = (seed ^ (seed >> 32)) as u32;
    if folded == ffi::SKIPPY_RANDOM_SEED { 0 } else { folded }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once, together with the samplers it took over.
        unsafe { sys::llama_sampler_free(self.0.as_ptr()) };
    }
}
