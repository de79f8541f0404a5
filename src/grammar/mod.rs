//! Constrained decoding: which tokens may come next under a JSON schema, a regular expression or a grammar.
//!
//! A [`GrammarEngine`] belongs to one vocabulary, a [`Grammar`] to one request, and a [`Matching`] follows one answer: it
//! masks each row of logits before a token is chosen, and moves on with the token that was. Drafts are compared with
//! chosen tokens and never chosen themselves, so a matching has nothing to take back.
//!
//! The work is llguidance's, not that of llama.cpp's grammar sampler, because it is pure Rust, answers with errors where
//! llama.cpp may end the process, refuses what it cannot enforce, and walks the vocabulary as a trie, so that a mask
//! costs tens of microseconds.
//!
//! What a grammar cannot enforce is refused by [`GrammarEngine::compile`], with the reason: nothing is left out in
//! silence.

mod bounded;
mod engine;
mod gbnf;
mod lark;
mod matching;
pub mod schema;
#[cfg(test)]
mod tests;

pub use self::{
    engine::{Grammar, GrammarEngine},
    matching::Matching,
};

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSpec {
    /// Any JSON object.
    JsonObject,
    /// A JSON value that a schema admits.
    JsonSchema(serde_json::Value),
    /// A grammar as a client writes it: GBNF when it defines a rule with `::=`, else Lark.
    Text(String),
    /// A text that a regular expression matches as a whole.
    Regex(String),
    /// A grammar in llguidance's variant of Lark, with schemas as `%json {...}` where wanted. Tokens (`<...>`),
    /// `%llguidance` and the attributes `temperature`, `capture`, `stop` and `stop_capture` are refused.
    Lark(String),
}

/// Why a grammar cannot be used, or not any longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The vocabulary cannot be used with grammars at all.
    #[error("the vocabulary cannot be constrained: {0}")]
    Vocabulary(String),
    /// The grammar says something that cannot be enforced.
    #[error("{0}")]
    Invalid(String),
    /// The grammar is larger than a limit.
    #[error("the grammar is too large: {0}")]
    TooLarge(String),
    /// Too many grammars are being compiled.
    #[error("other grammars are being compiled, retry later")]
    Busy,
    /// An answer has led the grammar beyond what may be spent on one token.
    #[error("the grammar has become too complex to follow: {0}")]
    TooComplex(String),
    /// A fault of the matcher.
    #[error("the grammar cannot be followed: {0}")]
    Fault(String),
}

/// Foreign text in a message: printable and short.
fn shown(text: &str) -> String {
    const MOST: usize = 80;
    let mut shown: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(MOST).collect();
    if text.chars().nth(MOST).is_some() {
        shown.push_str("...");
    }
    shown
}
