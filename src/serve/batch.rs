//! Who gets how many rows of the next step, and the rows themselves.

use crate::{
    serve::{lane::Lane, pace::Pace},
    stage::{DraftRow, Pieces, Row, SeqId, Span, StageError},
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
    /// Prompt rows each lane has still to read, and how many of them one step may hold.
    needs: Vec<(u32, u32)>,
    /// The lane whose prompt gets the first piece.
    first_prompt: usize,
    /// Lanes past their prompt.
    pub(super) decoding: usize,
}

impl Batch {
    /// Shares out the rows of a step: one for each decoding lane; then pieces of prompts, taking turns, as many rows
    /// as `pace` allows where lanes decode; then drafts, lane by lane, while there is room. There are never more lanes than rows in a
    /// batch, so every decoding lane and at least one prompt move on with every step, and a draft never takes a row from
    /// either.
    pub(super) fn plan(&mut self, lanes: &[Option<Lane>], n_batch: u32, pieces: Pieces, pace: &Pace) {
        self.needs.clear();
        let need = |lane: &Lane| (lane.prompt_need(), lane.piece_limit());
        self.needs.extend(lanes.iter().map(|lane| lane.as_ref().map_or((0, 0), need)));
        self.decoding = lanes.iter().flatten().filter(|lane| lane.decodes()).count();
        let budget = n_batch.saturating_sub(u32::try_from(self.decoding).unwrap_or(u32::MAX));
        let waiting = self.needs.iter().filter(|(need, _)| *need > 0).count();
        let wish = if self.decoding > 0 { pace.rows(waiting, self.decoding) } else { budget };
        let share = Share { budget, wish, pieces };
        self.first_prompt = share.grant(&self.needs, self.first_prompt, &mut self.grants);
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
            let span = match (lane.decodes(), self.grants[i]) {
                (true, _) => {
                    let draft = answers.next_if(|(seq, _)| *seq == lane.seq()).map(|(_, token)| *token);
                    lane.put_window(draft, &mut self.tokens, &mut self.rows)
                }
                // Its turn comes later, or it waits for another lane's rows.
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

/// What prompts may have of a step.
struct Share {
    /// Rows that there are.
    budget: u32,
    /// Rows that prompts should have together.
    wish: u32,
    pieces: Pieces,
}

impl Share {
    /// Gives prompts their next piece. The first piece goes to prompt `first`, the others follow in order while they fit.
    ///
    /// `needs[i]` is what is left of prompt `i`, 0 for none, and how much of it one step may hold; `grants` is overwritten,
    /// one entry for each need. Returns the prompt that should come first in the next step: the one after the last that
    /// got a piece.
    fn grant(&self, needs: &[(u32, u32)], first: usize, grants: &mut Vec<u32>) -> usize {
        grants.clear();
        grants.resize(needs.len(), 0);
        let (mut granted, mut next) = (0, first);
        for i in (0..needs.len()).map(|i| (first + i) % needs.len()) {
            let (need, limit) = needs[i];
            let piece = self.pieces.next(need, self.wish.min(limit));
            // One piece there must be, so that somebody gets on.
            let most = if granted == 0 { self.budget } else { self.budget.min(self.wish) };
            if granted + piece > most {
                break;
            }
            if piece > 0 {
                grants[i] = piece;
                granted += piece;
                next = i + 1;
            }
        }
        next
    }
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

    fn pieces(budget: u32, wish: u32, (unit, most): (u32, u32), needs: &[u32], first: usize) -> (Vec<u32>, usize) {
        let needs: Vec<(u32, u32)> = needs.iter().map(|need| (*need, u32::MAX)).collect();
        let mut grants = vec![99];
        let share = Share { budget, wish, pieces: Pieces { unit, most } };
        let next = share.grant(&needs, first, &mut grants);
        (grants, next)
    }

    #[test]
    fn pieces_start_where_the_last_step_ended() {
        let fit = |budget, needs: &[u32], first| pieces(budget, budget, (1, 8), needs, first);
        assert_eq!(fit(8, &[], 0), (vec![], 0));
        assert_eq!(fit(8, &[100], 0), (vec![8], 1));
        assert_eq!(fit(8, &[100, 100], 0), (vec![8, 0], 1));
        assert_eq!(fit(8, &[92, 100], 1), (vec![0, 8], 2));
        assert_eq!(fit(8, &[92, 92], 2), (vec![8, 0], 1));
        assert_eq!(fit(10, &[3, 0, 4, 5], 0), (vec![3, 0, 4, 0], 3));
        assert_eq!(fit(10, &[0, 0, 0, 5], 3), (vec![0, 0, 0, 5], 4));
    }

    #[test]
    fn beside_lanes_that_decode_prompts_share_a_wish() {
        let share = |needs: &[u32]| pieces(100, 8, (4, 48), needs, 0).0;
        assert_eq!(share(&[100, 100]), [8, 0]);
        assert_eq!(share(&[3, 4, 2]), [3, 4, 0]);
        assert_eq!(share(&[11, 4]), [11, 0], "a rest too small for a piece goes along, wish or not");
        assert_eq!(pieces(100, 1, (4, 48), &[100], 0).0, [4], "less than a unit is none");
    }

    proptest! {
        #[test]
        fn nobody_waits_longer_than_a_round(
            unit in 1u32..9,
            most in 1u32..50,
            spare in 0u32..20,
            wish in 0u32..80,
            needs in prop::collection::vec(0u32..200, 1..8),
        ) {
            let most = most.max(unit) / unit * unit;
            let budget = most + unit - 1 + spare;
            let (mut left, mut first, mut steps) = (needs.clone(), 0, 0);
            let mut waited = vec![0; needs.len()];
            while left.iter().any(|need| *need > 0) {
                let (grants, next) = pieces(budget, wish, (unit, most), &left, first);
                prop_assert!(grants.iter().sum::<u32>() <= budget);
                prop_assert!(grants.iter().any(|grant| *grant > 0), "a step must get somewhere");
                for (((grant, need), waited), whole) in grants.iter().zip(&mut left).zip(&mut waited).zip(&needs) {
                    *need -= grant;
                    let begun = whole - *need;
                    prop_assert!(*need == 0 || begun % unit == 0, "a prompt is cut at multiples of the unit");
                    *waited = if *grant > 0 || *need == 0 { 0 } else { *waited + 1 };
                    prop_assert!(*waited < needs.len());
                }
                first = next;
                steps += 1;
                prop_assert!(steps <= 200 * needs.len());
            }
        }
    }
}
