//! Requests in, tokens out: admission, continuous batching, streaming and cancellation.
//!
//! One named OS thread per engine owns the [`StageEngine`](crate::stage::StageEngine) and every KV cache behind it.
//! Request handlers hold a [`ServeHandle`]; they hand in a [`GenerateRequest`] and receive [`Event`]s over a channel
//! whose sending side never waits. Dropping the receiver cancels the request, queued or running.
//!
//! Each step the thread composes a batch anew: every decoding lane puts in one row, and other rows go to the prompts being
//! read, in turns, and to drafts. Prompts begin with rows of earlier requests where there are some. A request is admitted, first come first served, when a lane is free and the KV rows it
//! can need at most are not promised to others; so no request can overflow a neighbour.
//!
//! Where the engine has a draft head, a lane puts in its chosen token and a guess of the one after it. The next token is
//! chosen from the logits of the first row exactly as without speculation, with the sampler, the seed and the penalties of
//! the request. If it is the guess, the second row's logits choose another one; else that row is dropped from the cache.
//! So drafts are never a source of tokens: the text, its log-probabilities and, with a seed, every draw are what they
//! are without speculation, as far as the engine computes a row alike alone and with another one behind it.

mod batch;
mod drafting;
mod error;
mod handle;
mod job;
mod lane;
mod observe;
mod output;
mod pace;
mod paths;
mod prefix;
mod request;
mod scheduler;
mod shared;
#[doc(hidden)]
pub mod testing;

pub use self::{
    error::{ErrorClass, ServeError},
    handle::{Loaded, ModelCard, ServeHandle, ServeOptions, Starter, spawn},
    request::{Drafts, Event, FinishReason, GenerateRequest, Timings, TokenOut, Usage},
    shared::{Phase, Status, Totals},
};

#[cfg(test)]
mod tests;
