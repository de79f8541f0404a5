//! Integration tests: one binary, one module per subject.

// A test that cannot go on has failed.
#![allow(clippy::unwrap_used)]

mod package_cli;
mod pin;

#[cfg(feature = "engine")]
mod bundled;
#[cfg(feature = "engine")]
mod dsa_faults;
#[cfg(feature = "engine")]
mod dsa_llama;
#[cfg(feature = "engine")]
mod dsa_mutations;
#[cfg(feature = "engine")]
mod dsa_noise;
#[cfg(feature = "engine")]
mod dsa_parity;
#[cfg(feature = "engine")]
mod dsa_policy;
#[cfg(feature = "engine")]
mod dsa_switches;
#[cfg(feature = "engine")]
mod grammar;
#[cfg(feature = "engine")]
mod greedy;
#[cfg(feature = "engine")]
mod llama_stage;
#[cfg(feature = "engine")]
mod parity;
#[cfg(feature = "engine")]
mod phase_e;
#[cfg(feature = "engine")]
mod pieces;
#[cfg(feature = "engine")]
mod prefixes;
#[cfg(feature = "engine")]
mod sampling;
#[cfg(feature = "engine")]
mod serve_cli;
#[cfg(feature = "engine")]
mod support;
#[cfg(feature = "engine")]
mod synth;
