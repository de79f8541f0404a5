//! Who gets how many rows of the next step, and the rows themselves.

use crate::{
    serve::lane::Lane,
    stage::{DraftRow, Row, SeqId, Span, StageError},
};

/// Buffers of the step at hand; kept to be reused.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) tokens: Vec<i32>,
    pub(super) rows: Vec<Row>,
    pub(super) spans: Vec<Span>,
    /// Lane and position of each row that returns logits, in order.
    pub(super) outputs: Vec<(usize, u32)>,
    /// Rows each lane gets, 0 for none.
    pub(super) grants: Vec<u32>,
    /// Whom to ask the draft head for, in the order of lanes.
    pub(super) questions: Vec<DraftRow>,
    /// Its answers, as far as they are usable.
    answers: Vec<(SeqId, i32)>,
    /// Prompt rows each lane can use.
    needs: Vec<u32>,
    /// The lane whose prompt gets the first piece.
    first_prompt: usize,
    /// Lanes past their prompt.
    pub(super) decoding: usize,
}

impl Batch {
    /// Shares out the rows of a step: one for each decoding lane; then pieces of prompts, taking turns; then drafts,
    /// lane by lane, while there is room. There are never more lanes than rows in a batch, so every decoding lane and
    /// at least one prompt move on with every step, and a draft never takes a row from either.
    pub(super) fn plan(&mut self, lanes: &[Option<Lane>], n_batch: u32, chunk: u32) {
        self.needs.clear();
        self.needs.extend(lanes.iter().map(|lane| lane.as_ref().map_or(0, Lane::prompt_need)));
        let past_prompt = |(lane, need): (&Option<Lane>, &u32)| lane.is_some() && *need == 0;
        self.decoding = lanes.iter().zip(&self.needs).filter(|pair| past_prompt(*pair)).count();
        let budget = n_batch.saturating_sub(u32::try_from(self.decoding).unwrap_or(u32::MAX));
        self.first_prompt = grant_pieces(budget, chunk, &self.needs, self.first_prompt, &mut self.grants);
        let room = budget.saturating_sub(self.grants.iter().sum());
        self.questions.clear();
        self.questions.extend(lanes.iter().flatten().filter_map(Lane::question).take(room as usize));
        self.answers.clear();
    }

    /// The draft head guesses that `token` follows in `seq`. In the order of [`questions`](Self::questions).
    pub(super) fn answer(&mut self, seq: SeqId, token: i32) {
        self.answers.push((seq, token));
    }

    /// Puts the rows together as planned.
    pub(super) fn compose(&mut self, lanes: &mut [Option<Lane>]) {
        self.tokens.clear();
        self.rows.clear();
        self.spans.clear();
        self.outputs.clear();
        let mut answers = self.answers.iter().peekable();
        for (i, lane) in lanes.iter_mut().enumerate() {
            let Some(lane) = lane else { continue };
            let first = self.rows.len();
            let span = match (self.needs[i], self.grants[i]) {
                (0, _) => {
                    let draft = answers.next_if(|(seq, _)| *seq == lane.seq()).map(|(_, token)| *token);
                    lane.put_window(draft, &mut self.tokens, &mut self.rows)
                }
                // Its turn comes later.
                (_, 0) => continue,
                (_, n) => lane.put_prompt(n, &mut self.tokens, &mut self.rows),
            };
            self.spans.push(span);
            self.outputs.extend(self.rows[first..].iter().filter(|row| row.output).map(|row| (i, row.pos)));
            self.grants[i] = (self.rows.len() - first) as u32;
        }
    }

    /// Rows of prompts.
    pub(super) fn prompt_rows(&self) -> usize {
        self.rows.len() - self.decoding - self.drafts()
    }

    /// Rows of drafts.
    pub(super) fn drafts(&self) -> usize {
        self.answers.len()
    }
}

/// Gives prompts their next piece: `chunk` rows, or what is left of the prompt. Whole pieces only, so that a prompt is cut
/// in the same places whoever its neighbours are (how it is cut may change how its logits round). The first piece goes to
/// prompt `first`, the others follow in order while they fit into `budget`.
///
/// `needs[i]` is what is left of prompt `i`, 0 for none; `grants` is overwritten, one entry for each need. Returns the
/// prompt that should come first in the next step: the one after the last that got a piece.
pub(super) fn grant_pieces(budget: u32, chunk: u32, needs: &[u32], first: usize, grants: &mut Vec<u32>) -> usize {
    grants.clear();
    grants.resize(needs.len(), 0);
    let (mut left, mut next) = (budget, first);
    for i in (0..needs.len()).map(|i| (first + i) % needs.len()) {
        let piece = needs[i].min(chunk);
        if piece > left {
            break;
        }
        if piece > 0 {
            grants[i] = piece;
            left -= piece;
            next = i + 1;
        }
    }
    next
}

/// Refuses logits that are not `n` rows of `n_vocab` columns.
pub(super) fn check_logits(logits: &[f32], n: usize, n_vocab: usize) -> Result<&[f32], StageError> {
    match logits.len() == n * n_vocab {
        true => Ok(logits),
        false => {
            Err(StageError::Engine(format!("{} logits came back for {n} rows of {n_vocab} columns", logits.len())))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pieces(budget: u32, chunk: u32, needs: &[u32], first: usize) -> (Vec<u32>, usize) {
        let mut grants = vec![99];
        let next = grant_pieces(budget, chunk, needs, first, &mut grants);
        (grants, next)
    }

    #[test]
    fn pieces_are_whole_and_start_where_the_last_step_ended() {
        assert_eq!(pieces(8, 8, &[], 0), (vec![], 0));
        assert_eq!(pieces(8, 8, &[100], 0), (vec![8], 1));
        assert_eq!(pieces(8, 8, &[100, 100], 0), (vec![8, 0], 1));
        assert_eq!(pieces(8, 8, &[92, 100], 1), (vec![0, 8], 2));
        assert_eq!(pieces(8, 8, &[92, 92], 2), (vec![8, 0], 1));
        assert_eq!(pieces(10, 8, &[3, 0, 4, 5], 0), (vec![3, 0, 4, 0], 3));
        assert_eq!(pieces(10, 8, &[0, 0, 0, 5], 3), (vec![0, 0, 0, 5], 4));
    }

    proptest! {
        #[test]
        fn nobody_waits_longer_than_a_round(
            chunk in 1u32..50,
            spare in 0u32..20,
            needs in prop::collection::vec(0u32..200, 1..8),
        ) {
            let (mut left, mut first, mut steps) = (needs.clone(), 0, vec![0u32; needs.len()]);
            let mut rounds = 0;
            while left.iter().any(|need| *need > 0) {
                let (grants, next) = pieces(chunk + spare, chunk, &left, first);
                prop_assert!(grants.iter().sum::<u32>() <= chunk + spare);
                prop_assert!(grants.iter().any(|grant| *grant > 0), "a step must get somewhere");
                for ((grant, need), steps) in grants.iter().zip(&mut left).zip(&mut steps) {
                    prop_assert!(*grant == 0 || *grant == chunk.min(*need), "a piece must be whole");
                    *need -= grant;
                    *steps += u32::from(*grant > 0);
                }
                first = next;
                rounds += 1;
                prop_assert!(rounds <= 200 * needs.len());
            }
            for (need, steps) in needs.iter().zip(steps) {
                prop_assert_eq!(steps, need.div_ceil(chunk));
            }
        }
    }
}
