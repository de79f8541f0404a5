//! How many rows of prompts a step takes while lanes generate.
//!
//! Everybody who generates waits for the whole step. So the rows of prompts beside them are held to what takes about as
//! long as the generating lanes take themselves: then no gap between two tokens becomes twice as long, however long a
//! prompt arrives. Where a pass is bound by reading the weights, that is many rows, where it is bound by arithmetic, few;
//! so it is measured. How a prompt is cut changes no result (see [`Pieces`]).
//!
//! Where more requests wait for their prompts than generate, prompts get more in proportion: the step then takes about as
//! long as it will once all of them generate, so that a burst is read without pauses longer than those to come, and the
//! many do not wait for the few.

use crate::stage::Pieces;
use std::time::Duration;

/// Time of the prompt's rows over that of the generating lanes, as aimed for. Less than 1, since both vary.
const SHARE: f64 = 0.7;
/// Weight of a new measurement.
const FRESH: f64 = 0.2;

/// Measured times of steps, and what follows from them.
#[derive(Debug)]
pub(super) struct Pace {
    pieces: Pieces,
    /// What the operator wants instead.
    fixed: Option<u32>,
    /// Rows of prompts that take as long as aimed for, not yet rounded.
    rows: f64,
    /// Seconds of a step without prompts, by the lanes that generate in it; 0 where none was seen.
    alone: Vec<f64>,
}

impl Pace {
    pub(super) fn new(pieces: Pieces, lanes: u32, fixed: Option<u32>) -> Self {
        Self { pieces, fixed, rows: f64::from(pieces.unit), alone: vec![0.0; lanes as usize + 1] }
    }

    /// Rows of prompts beside `generating` lanes, while `waiting` lanes have not read theirs.
    pub(super) fn rows(&self, waiting: usize, generating: usize) -> u32 {
        let scale = (waiting as f64 / generating.max(1) as f64).max(1.0);
        let rows = (self.rows * scale).min(f64::from(self.pieces.most)) as u32;
        let unit = self.pieces.unit.max(1);
        self.fixed.unwrap_or((rows / unit * unit).max(unit))
    }

    /// A step with rows of prompts and generating lanes took so long.
    pub(super) fn note(&mut self, prompt_rows: usize, generating: usize, took: Duration) {
        let took = took.as_secs_f64();
        let Some(alone) = self.alone.get_mut(generating).filter(|_| generating > 0) else { return };
        if prompt_rows == 0 {
            *alone = if *alone == 0.0 { took } else { *alone + FRESH * (took - *alone) };
            return;
        }
        // The lanes may never have been so many, or so few, without a prompt beside them.
        let Some(alone) = self.known(generating) else { return };
        let fitting = prompt_rows as f64 * SHARE * alone / (took - alone).max(alone * 1e-3);
        // Downwards at once, upwards step by step: one short measurement must not make a long pause.
        let unit = f64::from(self.pieces.unit);
        self.rows = fitting.min(self.rows.max(unit) + unit).min(f64::from(self.pieces.most));
    }

    /// Seconds of a step in which `generating` lanes generate: as measured, or scaled from the nearest count that was.
    fn known(&self, generating: usize) -> Option<f64> {
        let distance = |(count, _): &(usize, &f64)| count.abs_diff(generating);
        let seen = self.alone.iter().enumerate().skip(1).filter(|(_, took)| **took > 0.0);
        let (count, took) = seen.min_by_key(distance)?;
        // A step of fewer lanes is shorter, but not in proportion.
        Some(if generating < count { took * (1.0 + generating as f64 / count as f64) / 2.0 } else { *took })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECES: Pieces = Pieces { unit: 8, most: 512 };

    /// Rows while one lane has a prompt to read.
    fn rows(pace: &Pace) -> u32 {
        pace.rows(1, 1)
    }

    fn ms(time: f64) -> Duration {
        Duration::from_secs_f64(time / 1e3)
    }

    /// A machine on which a step takes `fixed` ms and `row` ms for each row, prompts being a pass of their own.
    fn settled(fixed: f64, row: f64, generating: usize) -> u32 {
        let mut pace = Pace::new(PIECES, 16, None);
        let alone = fixed + row * generating as f64;
        pace.note(0, generating, ms(alone));
        for _ in 0..100 {
            let rows = rows(&pace);
            pace.note(rows as usize, generating, ms(alone + fixed + row * f64::from(rows)));
        }
        rows(&pace)
    }

    #[test]
    fn prompts_get_about_as_much_time_as_the_lanes_that_generate() {
        assert_eq!(settled(4.0, 7.0, 8), 8, "bound by arithmetic: a row of a prompt costs what a token costs");
        assert_eq!(settled(4.0, 0.5, 16), 8);
        assert_eq!(settled(100.0, 0.5, 1), 8, "a pass more takes as long as the step, whatever is in it");
        assert!(settled(1.0, 0.1, 64) == 8, "a count of lanes that cannot be is ignored");
        let wide = settled(0.0, 0.05, 8);
        assert!((5..=8).contains(&(wide)), "{wide}");
    }

    #[test]
    fn it_grows_step_by_step_and_shrinks_at_once() {
        let mut pace = Pace::new(PIECES, 4, None);
        pace.note(8, 2, ms(5.0));
        assert_eq!(rows(&pace), 8, "nothing is known yet");
        pace.note(0, 2, ms(100.0));
        let grown: Vec<u32> = (0..4)
            .map(|_| {
                let before = rows(&pace) as usize;
                pace.note(before, 2, ms(110.0));
                rows(&pace)
            })
            .collect();
        assert_eq!(grown, [16, 24, 32, 40]);
        pace.note(40, 2, ms(900.0));
        assert_eq!(rows(&pace), 8);
        pace.note(8, 4, ms(101.0));
        assert_eq!(rows(&pace), 16, "four lanes were never measured: as two");
    }

    #[test]
    fn a_burst_of_prompts_is_not_held_up_by_one_that_generates() {
        let (fixed, row) = (4.0, 5.0);
        let mut pace = Pace::new(PIECES, 16, None);
        pace.note(0, 1, ms(fixed + row));
        for _ in 0..20 {
            let prompts = pace.rows(15, 1);
            pace.note(prompts as usize, 1, ms(2.0 * fixed + row + row * f64::from(prompts)));
        }
        assert_eq!(pace.rows(15, 1), 16, "15 prompts beside one: as long as a step of 16 that generate");
        assert_eq!(pace.rows(1, 8), 8, "one prompt beside eight");
    }

    #[test]
    fn an_operator_knows_better() {
        let mut pace = Pace::new(PIECES, 4, Some(256));
        pace.note(0, 2, ms(1.0));
        pace.note(256, 2, ms(900.0));
        assert_eq!(pace.rows(9, 1), 256);
    }
}
