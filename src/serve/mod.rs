//! Requests in, tokens out: admission, continuous batching, streaming and cancellation.
//!
//! One named OS thread per engine owns the [`StageEngine`](crate::stage::StageEngine) and every KV cache behind it.
//! Request handlers hold a [`ServeHandle`]; they hand in a [`GenerateRequest`] and receive [`Event`]s over a channel
//! whose sending side never waits. Dropping the receiver cancels the request, queued or running.
//!
//! Each step the thread composes a batch anew: every decoding lane puts in one row, and the rows left go to the
//! prompts being read, evenly. A request is admitted, first come first served, when a lane is free and the KV rows it
//! can need at most are not promised to others; so no request can overflow a neighbour.

mod batch;
mod error;
mod handle;
mod job;
mod lane;
mod observe;
mod output;
mod request;
mod scheduler;
mod shared;
#[doc(hidden)]
pub mod testing;

pub use self::{
    error::{ErrorClass, ServeError},
    handle::{Loaded, ModelCard, ServeHandle, ServeOptions, Starter, spawn},
    request::{Event, FinishReason, GenerateRequest, Timings, TokenOut, Usage},
    shared::{Phase, Status, Totals},
};

#[cfg(test)]
mod tests;
