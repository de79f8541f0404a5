//! Command lines: flags, config file, one file per subcommand.

pub mod serve;
