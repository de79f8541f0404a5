//! Which `skippy_abi_version` this runtime loads (spec, Compatibility).

use semver::Version;

/// The ABI that our writer states.
pub const ABI_VERSION: Version = Version::new(1, 0, 0);

/// The ABI versions that the runtime accepts, in words.
pub const ACCEPTED: &str = "a version compatible with 0.1 or 1 (`^0.1` or `^1`)";

/// Whether fragments written under `version` can be loaded.
pub fn is_compatible(version: &Version) -> bool {
    // A pre-release comes before the ABI it announces and promises nothing.
    version.pre.is_empty() && (version.major == 1 || (version.major == 0 && version.minor == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_semver_calls_compatible() {
        for (text, expected) in [
            ("0.1.0", true),
            ("0.1.99", true),
            ("1.0.0", true),
            ("1.2.3", true),
            ("1.2.3+build.7", true),
            ("0.0.9", false),
            ("0.2.0", false),
            ("2.0.0", false),
            ("1.0.0-rc.1", false),
        ] {
            assert_eq!(is_compatible(&Version::parse(text).unwrap()), expected, "{text}");
        }
        assert!(is_compatible(&ABI_VERSION));
    }
}
