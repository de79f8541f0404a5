//! The vocabulary of a loaded model.

use super::{Model, context::c_text, sampler::Choice};
use crate::{
    kernels::ffi,
    text::{Sampler, SamplingParams, TextError, TextModel},
};
use llama_cpp_sys_2 as sys;
use std::{ffi::c_char, sync::Arc};

/// Longest piece that one token may stand for; longer ones are treated as empty.
const MAX_PIECE: usize = 1 << 16;

/// [`TextModel`] over llama.cpp's tokenizer and samplers.
#[derive(Clone)]
pub struct LlamaText {
    model: Arc<Model>,
}

impl LlamaText {
    /// The vocabulary of `model`.
    pub fn new(model: Arc<Model>) -> Self {
        Self { model }
    }

    fn contains(&self, token: i32) -> bool {
        usize::try_from(token).is_ok_and(|id| id < self.model.n_vocab())
    }
}

impl TextModel for LlamaText {
    fn n_vocab(&self) -> u32 {
        u32::try_from(self.model.n_vocab()).unwrap_or(u32::MAX)
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<i32>, TextError> {
        let too_long = || TextError::Tokenize(format!("{} bytes are too many", text.len()));
        let text_len = i32::try_from(text.len()).map_err(|_| too_long())?;
        // Two more than bytes: no token is shorter than one byte, and BOS and EOS may be added.
        let mut tokens = vec![0i32; text.len() + 2];
        loop {
            let mut error = [0 as c_char; 256];
            // SAFETY: pointers and lengths are those of live buffers; the vocabulary lives in the model.
            let n = unsafe {
                ffi::skippy_tokenize(
                    self.model.vocab(),
                    text.as_ptr().cast(),
                    text_len,
                    tokens.as_mut_ptr(),
                    i32::try_from(tokens.len()).map_err(|_| too_long())?,
                    add_special,
                    parse_special,
                    error.as_mut_ptr(),
                    error.len(),
                )
            };
            match n {
                ffi::SKIPPY_EXCEPTION => {
                    let why = c_text(&error);
                    return Err(if why.is_empty() { too_long() } else { TextError::Tokenize(why) });
                }
                n if n < 0 && n.unsigned_abs() as usize > tokens.len() => {
                    tokens.resize(n.unsigned_abs() as usize, 0);
                }
                n => {
                    tokens.truncate(usize::try_from(n).unwrap_or(0));
                    return Ok(tokens);
                }
            }
        }
    }

    fn piece(&self, token: i32, render_special: bool) -> Vec<u8> {
        if !self.contains(token) {
            return Vec::new();
        }
        let mut bytes = vec![0u8; 32];
        loop {
            // SAFETY: the token is inside the vocabulary, the buffer is writable for its length.
            let n = unsafe {
                ffi::skippy_token_to_piece(
                    self.model.vocab(),
                    token,
                    bytes.as_mut_ptr().cast(),
                    i32::try_from(bytes.len()).unwrap_or(0),
                    render_special,
                    std::ptr::null_mut(),
                    0,
                )
            };
            match usize::try_from(n) {
                Ok(n) => {
                    bytes.truncate(n);
                    return bytes;
                }
                // Minus the bytes needed.
                Err(_) if (bytes.len()..=MAX_PIECE).contains(&(n.unsigned_abs() as usize)) => {
                    bytes.resize(n.unsigned_abs() as usize + 1, 0);
                }
                Err(_) => return Vec::new(),
            }
        }
    }

    fn is_eog(&self, token: i32) -> bool {
        // SAFETY: the token is inside the vocabulary, which lives in the model.
        self.contains(token) && unsafe { sys::llama_vocab_is_eog(self.model.vocab(), token) }
    }

    fn bos(&self) -> Option<i32> {
        // SAFETY: the vocabulary lives in the model.
        let bos = unsafe { sys::llama_vocab_bos(self.model.vocab()) };
        self.contains(bos).then_some(bos)
    }

    fn sampler(&self, params: &SamplingParams) -> Result<Box<dyn Sampler>, TextError> {
        Ok(Box::new(Choice::new(self, params)?))
    }
}
