//! "What would you do with these inputs, and why?", as people and clients ask it.

use super::{Backend, Capability, Explanation, Inputs, Path, Phase, Resolver};

/// A question, with names still to be checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Question<'a> {
    /// A [`Phase`], or `prefill`: short or long by `n_tokens`.
    pub phase: &'a str,
    /// Rows of the pass.
    pub n_tokens: u32,
    /// KV rows that the last of them sees, itself included.
    pub n_kv: u32,
    /// A [`Path`] to force as a request would.
    pub path: Option<&'a str>,
    /// A [`Backend`] other than the stage's own.
    pub backend: Option<&'a str>,
}

/// A question that has no answer. Messages name the field and never repeat what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuestionError {
    /// No such phase.
    #[error("`phase` must be one of {}, prefill", Phase::VALUES.join(", "))]
    Phase,
    /// No such path.
    #[error("`path` must be one of {}", Path::VALUES.join(", "))]
    Path,
    /// No such backend.
    #[error("`backend` must be one of {}", Backend::VALUES.join(", "))]
    Backend,
    /// A pass without rows.
    #[error("`n_tokens` must be at least 1")]
    NoTokens,
    /// Rows that do not see themselves.
    #[error("`n_kv` counts the rows of the pass too: it must be at least `n_tokens`, {n_tokens}, got {n_kv}")]
    KvBelowTokens {
        /// Rows of the pass.
        n_tokens: u32,
        /// KV rows.
        n_kv: u32,
    },
}

impl QuestionError {
    /// The field at fault.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Phase => "phase",
            Self::Path => "path",
            Self::Backend => "backend",
            Self::NoTokens => "n_tokens",
            Self::KvBelowTokens { .. } => "n_kv",
        }
    }
}

impl Resolver {
    /// Explains what would be decided.
    ///
    /// # Errors
    /// The first field that makes no sense.
    pub fn answer(&self, question: &Question<'_>) -> Result<Explanation, QuestionError> {
        let Question { phase, n_tokens, n_kv, path, backend } = *question;
        let phase = match phase {
            "prefill" => self.prefill(n_tokens),
            name => Phase::from_label(name).ok_or(QuestionError::Phase)?,
        };
        if n_tokens == 0 {
            return Err(QuestionError::NoTokens);
        }
        if n_kv < n_tokens {
            return Err(QuestionError::KvBelowTokens { n_tokens, n_kv });
        }
        let path = path.map(|name| Path::from_label(name).ok_or(QuestionError::Path)).transpose()?;
        let backend = backend.map(|name| Backend::from_label(name).ok_or(QuestionError::Backend)).transpose()?;
        let inputs = Inputs { path, ..Inputs::new(phase, n_tokens, n_kv) };
        Ok(match backend {
            Some(backend) if backend != self.capability().backend => {
                self.clone().on(Capability::of(backend)).explain(&inputs)
            }
            _ => self.explain(&inputs),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Reason;

    #[test]
    fn faults_are_named_by_field() {
        let good = Question { phase: "decode", n_tokens: 1, n_kv: 8, ..Question::default() };
        assert!(Resolver::default().answer(&good).is_ok());
        for (question, field, said) in [
            (Question { phase: "Decode", ..good }, "phase", "decode, short_prefill, long_prefill, verify, prefill"),
            (Question { n_tokens: 0, ..good }, "n_tokens", "at least 1"),
            (Question { n_tokens: 9, ..good }, "n_kv", "at least `n_tokens`, 9, got 8"),
            (Question { path: Some("auto"), ..good }, "path", "sparse-chunked"),
            (Question { backend: Some("tpu"), ..good }, "backend", "cpu, cuda, metal, vulkan"),
        ] {
            let error = Resolver::default().answer(&question).unwrap_err();
            let message = error.to_string();
            assert_eq!(error.field(), field);
            assert!(message.starts_with(&format!("`{field}`")) && message.contains(said), "{message}");
        }
    }

    #[test]
    fn prefill_is_short_or_long_by_its_tokens() {
        let ask = |n_tokens, backend| {
            let question = Question { phase: "prefill", n_tokens, n_kv: n_tokens, path: None, backend };
            Resolver::default().answer(&question).unwrap()
        };
        assert_eq!((ask(2048, None).phase, ask(2049, None).phase), (Phase::ShortPrefill, Phase::LongPrefill));
        assert_eq!(ask(1, Some("metal")).backend, Backend::Metal);
    }

    #[test]
    fn another_backend_has_other_paths() {
        let question = Question { phase: "decode", n_tokens: 1, n_kv: 8, path: Some("direct-sparse"), backend: None };
        assert_eq!(Resolver::default().answer(&question).unwrap().reason, Reason::Override);
        let cuda = Question { backend: Some("cuda"), ..question };
        assert_eq!(Resolver::default().answer(&cuda).unwrap().reason, Reason::BackendUnsupported);
    }
}
