//! How the tokens of one request are chosen.

use super::{Opening, TailError};
use crate::{
    grammar::Matching,
    text::{Sampler, TextModel, argmax, has_nan},
};

/// Sampler and grammar of one request, as far as it has got.
pub(super) struct Picker {
    /// `None`: the largest logit, which needs no state.
    sampler: Option<Box<dyn Sampler>>,
    /// What the text must look like.
    grammar: Option<Matching>,
}

impl Picker {
    /// What `opening` wants, behind the text that it comes with.
    pub(super) fn new(opening: &Opening, text: &dyn TextModel) -> Result<Self, TailError> {
        let mut grammar = opening.grammar.as_ref().map(|grammar| grammar.start(opening.ignore_eos));
        if let Some(grammar) = &mut grammar {
            let chosen = opening.text.get(opening.prompt as usize..).unwrap_or_default();
            chosen.iter().try_for_each(|&token| grammar.accept(token))?;
        }
        if opening.sampling.is_plain_greedy() {
            return Ok(Self { sampler: None, grammar });
        }
        let mut sampler = text.sampler(&opening.sampling)?;
        opening.text.iter().for_each(|&token| sampler.accept(token));
        Ok(Self { sampler: Some(sampler), grammar })
    }

    /// The next token for `logits` `[n_vocab]`, already accepted.
    pub(super) fn pick(&mut self, logits: &[f32]) -> Result<i32, TailError> {
        let n_vocab = logits.len();
        if (self.sampler.is_some() || self.grammar.is_some()) && has_nan(logits) {
            return Err(TailError::Nan);
        }
        let logits = match &mut self.grammar {
            Some(grammar) => grammar.mask(logits)?,
            None => logits,
        };
        let token = match &mut self.sampler {
            Some(sampler) => sampler.sample(logits),
            None => argmax(logits).and_then(|id| i32::try_from(id).ok()).ok_or(TailError::Nan)?,
        };
        if usize::try_from(token).map_or(true, |id| id >= n_vocab) {
            return Err(TailError::NoToken(token));
        }
        if let Some(sampler) = &mut self.sampler {
            sampler.accept(token);
        }
        if let Some(grammar) = &mut self.grammar {
            grammar.accept(token)?;
        }
        Ok(token)
    }

    /// Whether the grammar, if there is one, lets nothing follow the tokens picked.
    pub(super) fn is_over(&self) -> bool {
        self.grammar.as_ref().is_some_and(Matching::is_over)
    }
}
