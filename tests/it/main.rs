//! Integration tests: one binary, one module per subject.

mod pin;

#[cfg(feature = "engine")]
mod greedy;
#[cfg(feature = "engine")]
mod llama_stage;
#[cfg(feature = "engine")]
mod parity;
#[cfg(feature = "engine")]
mod support;
