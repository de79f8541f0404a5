//! Cuts GGUF models into layer packages, and checks, describes and plans them.

use std::process::ExitCode;

fn main() -> ExitCode {
    skippy_stage::cli::package::main()
}
