//! Who gets how many rows of the next step, and the rows themselves.

use crate::{
    pipeline::Step,
    serve::{lane::Lane, pace::Pace},
    stage::Pieces,
};

/// Prompt rows in a step at most where several stages can work on one prompt at the same time and nobody waits for tokens:
/// a prompt then comes in enough pieces for all of them.
const OVERLAP_ROWS: u32 = 128;

/// The step at hand; kept to be reused.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) step: Step,
    /// What the step holds of each lane that is in it.
    pub(super) parts: Vec<Part>,
    /// Prompt rows each lane gets, 0 for none.
    grants: Vec<u32>,
    /// Lanes that put in their next token, and whether there is room for their guess.
    windows: Vec<(usize, bool)>,
    /// Prompt rows each lane has still to read, and how many of them one step may hold.
    needs: Vec<(u32, u32)>,
    /// The lane whose prompt gets the first piece.
    first_prompt: usize,
    /// Rows of prompts in the step.
    pub(super) prompt_rows: usize,
    /// Rows of drafts in the step.
    pub(super) drafts: usize,
}

/// What a step holds of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) lane: usize,
    pub(super) rows: u32,
    /// Not rows of its prompt.
    pub(super) window: bool,
    /// Some of them return logits.
    pub(super) output: bool,
}

impl Batch {
    /// Shares out the rows of a step: one for each lane that knows its next token; then pieces of prompts, taking turns, as
    /// many rows as `pace` allows where lanes decode; then drafts, lane by lane, while there is room. There are never more
    /// lanes than rows in a batch, so every lane and at least one prompt move on, and a draft never takes a row from either.
    ///
    /// Where `depth` stages can work at the same time, lanes that decode are shared out among as many steps.
    pub(super) fn plan(&mut self, lanes: &[Option<Lane>], n_batch: u32, pieces: Pieces, pace: &Pace, depth: usize) {
        self.needs.clear();
        let need = |lane: &Lane| (lane.prompt_need(), lane.piece_limit());
        self.needs.extend(lanes.iter().map(|lane| lane.as_ref().map_or((0, 0), need)));
        let generating = lanes.iter().flatten().filter(|lane| lane.decodes()).count();
        self.pick_windows(lanes, generating.div_ceil(depth.clamp(1, generating.max(1))));

        let budget = n_batch.saturating_sub(u32::try_from(self.windows.len()).unwrap_or(u32::MAX));
        let waiting = self.needs.iter().filter(|(need, _)| *need > 0).count();
        let wish = match generating {
            0 if depth > 1 => budget.min(OVERLAP_ROWS),
            0 => budget,
            _ => pace.rows(waiting, generating),
        };
        let share = Share { budget, wish, pieces };
        self.first_prompt = share.grant(&self.needs, self.first_prompt, &mut self.grants);
        let mut room = budget.saturating_sub(self.grants.iter().sum());
        for (lane, with_draft) in &mut self.windows {
            let drafts = lanes.get(*lane).and_then(Option::as_ref).is_some_and(Lane::has_draft);
            *with_draft = drafts && room > 0;
            room -= u32::from(*with_draft);
        }
    }

    /// At most `group` of the lanes that know their next token, those that have waited longest, in the order of lanes.
    fn pick_windows(&mut self, lanes: &[Option<Lane>], group: usize) {
        let ready =
            |(i, lane): (usize, &Option<Lane>)| lane.as_ref().filter(|lane| lane.is_ready()).map(|_| (i, false));
        self.windows.clear();
        self.windows.extend(lanes.iter().enumerate().filter_map(ready));
        if self.windows.len() > group {
            self.windows.sort_by_key(|(lane, _)| lanes[*lane].as_ref().map(Lane::landed));
            self.windows.truncate(group);
            self.windows.sort_unstable();
        }
    }

    /// Puts the rows together as planned; whether there are any.
    pub(super) fn compose(&mut self, lanes: &mut [Option<Lane>]) -> bool {
        let Step { tokens, rows, spans, .. } = &mut self.step;
        tokens.clear();
        rows.clear();
        spans.clear();
        self.parts.clear();
        (self.prompt_rows, self.drafts) = (0, 0);
        let mut windows = self.windows.iter().peekable();
        for (i, (lane, &granted)) in lanes.iter_mut().zip(&self.grants).enumerate() {
            let window = windows.next_if(|(lane, _)| *lane == i);
            let Some(lane) = lane else { continue };
            let first = rows.len();
            let span = match (window, granted) {
                (Some((_, with_draft)), _) => lane.put_window(*with_draft, tokens, rows),
                // Its turn comes later, it waits for another lane's rows, or for its own in flight.
                (None, 0) => continue,
                (None, n) => lane.put_prompt(n, tokens, rows),
            };
            let put = rows.get(first..).unwrap_or_default();
            match window {
                Some(_) => self.drafts += put.len() - 1,
                None => self.prompt_rows += put.len(),
            }
            let output = put.iter().any(|row| row.output);
            self.parts.push(Part { lane: i, rows: put.len() as u32, window: window.is_some(), output });
            spans.push(span);
        }
        !self.parts.is_empty()
    }

    /// Lanes past their prompt in the step.
    pub(super) fn decoding(&self) -> usize {
        self.windows.len()
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
