//! An inference stage server with llama.cpp embedded.
//!
//! A *stage* owns a contiguous range of a model's transformer layers and loads it straight from the fragments of a
//! *layer package*. `ARCHITECTURE.md` draws the modules; arrows between them point down only.
//!
//! Without the default feature `engine` the crate holds no C++ and builds in seconds: package tools, API types,
//! scheduling and their tests remain.

pub mod build_info;
pub mod chain;
pub mod chat;
pub mod cli;
#[cfg(feature = "engine")]
pub mod ggml;
pub mod gguf;
pub mod grammar;
pub mod http;
#[cfg(feature = "engine")]
pub mod kernels;
#[cfg(feature = "engine")]
pub mod llama;
pub mod package;
pub mod pipeline;
pub mod policy;
pub mod serve;
pub mod spec;
pub mod stage;
pub mod telemetry;
pub mod text;
