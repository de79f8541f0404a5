//! One answer under a grammar.

use std::sync::Arc;

use llguidance::Matcher;

use crate::grammar::{
    GrammarError,
    engine::{TokenKinds, first_line},
};

/// Where one answer stands in its grammar.
pub struct Matching {
    matcher: Matcher,
    kinds: Arc<TokenKinds>,
    ignore_eos: bool,
    /// The last row of logits, masked; kept to be reused.
    masked: Vec<f32>,
}

impl Matching {
    pub(super) fn new(matcher: Matcher, kinds: Arc<TokenKinds>, ignore_eos: bool) -> Self {
        Self { matcher, kinds, ignore_eos, masked: Vec::new() }
    }

    /// The row `logits` `[n_vocab]` with every token that may not come next at minus infinity. At least one may.
    ///
    /// # Errors
    /// When the grammar cannot be followed any further; it stays so.
    pub fn mask(&mut self, logits: &[f32]) -> Result<&[f32], GrammarError> {
        let mut allowed = self.matcher.compute_mask_or_eos().map_err(|error| fault(&error.to_string()))?;
        allowed.and(&self.kinds.usable);
        if self.ignore_eos {
            let mut others = allowed.clone();
            others.sub(&self.kinds.ends);
            // The end stays where nothing else may come.
            if !others.is_zero() {
                allowed = others;
            }
        }
        if allowed.is_zero() {
            return Err(GrammarError::Fault("no token of the vocabulary may come next".into()));
        }
        self.masked.clear();
        for (&word, logits) in allowed.as_slice().iter().zip(logits.chunks(32)) {
            let end = self.masked.len() + logits.len();
            match word {
                0 => self.masked.resize(end, f32::NEG_INFINITY),
                u32::MAX => self.masked.extend_from_slice(logits),
                _ => {
                    let masked =
                        |(&logit, bit): (&f32, u32)| if (word >> bit) & 1 == 1 { logit } else { f32::NEG_INFINITY };
                    self.masked.extend(logits.iter().zip(0..).map(masked));
                }
            }
        }
        self.masked.resize(logits.len(), f32::NEG_INFINITY);
        Ok(&self.masked)
    }

    /// Moves on: `token` has been chosen from a masked row.
    ///
    /// # Errors
    /// When the grammar does not allow `token`, or cannot be followed any further.
    pub fn accept(&mut self, token: i32) -> Result<(), GrammarError> {
        let id = u32::try_from(token).map_err(|_| GrammarError::Fault(format!("token {token} was chosen")))?;
        self.matcher.consume_token(id).map_err(|error| fault(&error.to_string()))
    }

    /// Whether nothing can follow: the text is whole, and any more would be too much.
    pub fn is_over(&self) -> bool {
        self.matcher.is_stopped()
    }
}

/// The matcher itself keeps nothing but the message.
fn fault(message: &str) -> GrammarError {
    let message = first_line(message);
    // Some grammars have texts that begin and cannot end.
    if message.starts_with("NoExtension") {
        return GrammarError::Invalid("the grammar lets no token follow this answer".into());
    }
    if ["lexer error", "parser error"].iter().any(|start| message.to_lowercase().starts_with(start)) {
        return GrammarError::TooComplex(message);
    }
    GrammarError::Fault(message)
}
