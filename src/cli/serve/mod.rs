//! `skippy-stage serve`.

pub mod config;
