//! Between bytes and tokens: the vocabulary seam, sampling parameters, stop strings, UTF-8 and log-probabilities.
//!
//! Everything here is pure. What needs llama.cpp (tokenizing, sampler chains) sits behind [`TextModel`] and
//! [`Sampler`].
//!
//! The order in which a sampled token turns into text is fixed: token → [`TextModel::piece`] bytes →
//! [`StopMatcher`] (over bytes, so a stop string may begin and end anywhere within tokens) → [`Utf8Stream`].

mod logits;
mod params;
mod penalties;
mod stop;
mod utf8;

pub use self::{
    logits::{LogSoftmax, argmax, has_nan, top_n},
    params::{MAX_DRY_BREAKER_BYTES, MAX_DRY_BREAKERS, MAX_DRY_WINDOW, ParamError, SamplingParams},
    penalties::Penalties,
    stop::StopMatcher,
    utf8::Utf8Stream,
};

/// Why text or tokens were not accepted by the vocabulary or its samplers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The tokenizer refused the text.
    #[error("text cannot be tokenized: {0}")]
    Tokenize(String),
    /// A sampler could not be built from the parameters.
    #[error("sampler cannot be built: {0}")]
    Sampler(String),
}

/// The vocabulary of a model: tokens to bytes and back, and the samplers that work on its logits.
///
/// Shared between request handlers and the engine thread, so every method takes `&self` and may be called from
/// several threads at once.
pub trait TextModel: Send + Sync {
    /// Number of tokens: valid ids are `0..n_vocab`.
    fn n_vocab(&self) -> u32;

    /// Token ids of `text`. `add_special` adds what the model expects around a prompt (such as BOS), once;
    /// `parse_special` reads control tokens written out in `text` as such.
    ///
    /// # Errors
    /// When the tokenizer refuses the text.
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<i32>, TextError>;

    /// The bytes that `token` stands for; not necessarily valid UTF-8 by itself. Empty for an id outside the
    /// vocabulary, and for control tokens unless `render_special`.
    fn piece(&self, token: i32, render_special: bool) -> Vec<u8>;

    /// Whether `token` ends a generation (end of text, end of turn).
    fn is_eog(&self, token: i32) -> bool;

    /// The token that opens a text, if the model has one.
    fn bos(&self) -> Option<i32>;

    /// A sampler for one request. The caller has validated `params` and filled in a seed.
    ///
    /// # Errors
    /// When the parameters cannot be turned into a sampler.
    fn sampler(&self, params: &SamplingParams) -> Result<Box<dyn Sampler>, TextError>;
}

/// Chooses tokens for one request.
pub trait Sampler: Send {
    /// The next token for `logits` `[n_vocab]`. Does not by itself count as accepting it.
    fn sample(&mut self, logits: &[f32]) -> i32;

    /// Tells the sampler that `token` is now part of the text. Called for every prompt token, in order, and then
    /// for every generated one: presence and frequency penalties weigh the whole text so far, prompt included.
    fn accept(&mut self, token: i32);
}
