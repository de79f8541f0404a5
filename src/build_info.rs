//! What was built.

/// Version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Commit of this build, when the build was told.
pub const GIT: &str = match option_env!("SKIPPY_BUILD_GIT") {
    Some(git) => git,
    None => "unknown",
};
/// The llama.cpp built in, when there is one.
pub const LLAMA: &str = match option_env!("SKIPPY_BUILD_LLAMA") {
    Some(llama) => llama,
    None => "none",
};
