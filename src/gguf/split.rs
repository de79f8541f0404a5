//! File names of split models: `<prefix>-00001-of-00003.gguf`.

use std::fmt;

/// The name of a shard, taken apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardName {
    /// What the names of all shards start with.
    pub prefix: String,
    /// Shard number from 1.
    pub no: u32,
    /// Number of shards, at least `no`.
    pub count: u32,
}

impl ShardName {
    /// Takes a file name apart; `None` when it is not the name of a shard.
    pub fn parse(file_name: &str) -> Option<Self> {
        let stem = file_name.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, no) = rest.rsplit_once('-')?;
        let (no, count) = (five_digits(no)?, five_digits(count)?);
        (!prefix.is_empty() && (1..=count).contains(&no)).then(|| Self { prefix: prefix.to_owned(), no, count })
    }

    /// The name of another shard of the same model.
    pub fn with_no(&self, no: u32) -> Self {
        Self { no, ..self.clone() }
    }

    /// The end of the name of shard `no` (from 1) of `count`.
    pub fn suffix(no: u64, count: u64) -> String {
        format!("-{no:05}-of-{count:05}.gguf")
    }
}

impl fmt::Display for ShardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.prefix, Self::suffix(self.no.into(), self.count.into()))
    }
}

fn five_digits(digits: &str) -> Option<u32> {
    (digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let name = ShardName::parse("GLM-5.2-Q4-of-K-00002-of-00010.gguf").unwrap();
        assert_eq!((name.prefix.as_str(), name.no, name.count), ("GLM-5.2-Q4-of-K", 2, 10));
        assert_eq!(name.to_string(), "GLM-5.2-Q4-of-K-00002-of-00010.gguf");
        assert_eq!(name.with_no(1).to_string(), "GLM-5.2-Q4-of-K-00001-of-00010.gguf");
    }

    #[test]
    fn other_names_are_not_shards() {
        for name in [
            "model.gguf",
            "m-1-of-2.gguf",
            "m-00003-of-00002.gguf",
            "m-00000-of-00002.gguf",
            "-00001-of-00002.gguf",
            "m-00001-of-00002.bin",
            "m-+0001-of-00002.gguf",
            "m-00001-of-00002.gguf.part",
        ] {
            assert_eq!(ShardName::parse(name), None, "{name}");
        }
    }
}
