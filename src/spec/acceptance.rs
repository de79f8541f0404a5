//! When a request stops drafting.

/// Counts a request's drafts and notices when they cost more than they save.
///
/// A window of the chosen token and one draft costs more than a pass over the chosen token alone: the second row of
/// the pass and the draft head, together about a quarter of a forward pass where weights are what is waited for. It saves one forward
/// pass when the draft is accepted. So drafting pays while more than [`BREAK_EVEN`](Self::BREAK_EVEN) of the drafts are
/// accepted, and each draft moves the balance by that share, less 1 if it is accepted. A request stops when the balance
/// has risen [`MAX_LOSS`](Self::MAX_LOSS) forward passes above its lowest point.
///
/// That is a cumulative-sum test. Without any hit it ends drafting after 16 drafts, at one hit in ten after some 27, at
/// break-even after some 85; at one hit in two a false alarm comes once in tens of thousands of drafts. A text that drafts
/// well for a long time and then badly is noticed as fast as one that is bad from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acceptance {
    drafts: u32,
    accepted: u32,
    /// Balance above its lowest point, in units of a quarter of a forward pass.
    loss: u32,
    stopped: bool,
}

/// What one accepted draft gains, less what it costs, in units of what a draft costs.
const GAIN: u32 = 3;
/// Loss that ends drafting, in the same units.
const LIMIT: u32 = 16;

impl Acceptance {
    /// Share of accepted drafts at which drafting neither costs nor saves.
    pub const BREAK_EVEN: f32 = 1.0 / (GAIN + 1) as f32;
    /// Forward passes that a request may lose before it stops drafting.
    pub const MAX_LOSS: f32 = LIMIT as f32 * Self::BREAK_EVEN;

    /// A draft has been verified. Whether it is the one that ends drafting for this request.
    pub fn record(&mut self, accepted: bool) -> bool {
        self.drafts = self.drafts.saturating_add(1);
        self.accepted = self.accepted.saturating_add(u32::from(accepted));
        self.loss = if accepted { self.loss.saturating_sub(GAIN) } else { self.loss.saturating_add(1) };
        let stops = !self.stopped && self.loss >= LIMIT;
        self.stopped |= stops;
        stops
    }

    /// Whether the request has stopped drafting, for good.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Drafts verified.
    pub fn drafts(&self) -> u32 {
        self.drafts
    }

    /// Drafts that were the token chosen.
    pub fn accepted(&self) -> u32 {
        self.accepted
    }
}

#[cfg(test)]
mod tests {
    use proptest::{
        prelude::*,
        test_runner::{RngAlgorithm, TestRng},
    };

    use super::*;

    /// After how many drafts a request with this rate of acceptance stops, if before `most`.
    fn stops_after(rng: &mut TestRng, rate: f64, most: u32) -> Option<u32> {
        let mut acceptance = Acceptance::default();
        (1..=most).find(|_| acceptance.record(f64::from(rng.next_u32()) < rate * f64::from(u32::MAX)))
    }

    fn outcomes(rate: f64, requests: usize, most: u32) -> Vec<Option<u32>> {
        let mut rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        (0..requests).map(|_| stops_after(&mut rng, rate, most)).collect()
    }

    #[test]
    fn the_constants_are_what_the_documentation_says() {
        assert_eq!((Acceptance::BREAK_EVEN, Acceptance::MAX_LOSS), (0.25, 4.0));
        assert_eq!(outcomes(0.0, 1, 100), [Some(16)]);
    }

    #[test]
    fn a_request_that_gains_by_drafting_almost_never_stops() {
        for (rate, allowed) in [(0.5, 10), (0.6, 1), (0.8, 0), (1.0, 0)] {
            let stopped = outcomes(rate, 400, 1000).iter().flatten().count();
            assert!(stopped <= allowed, "{stopped} of 400 at {rate}");
        }
    }

    #[test]
    fn a_request_that_loses_by_drafting_stops_soon() {
        for (rate, mean, all) in [(0.0, 16, 16), (0.05, 25, 150), (0.1, 40, 300), (0.2, 90, 2000)] {
            let outcomes: Vec<u32> = outcomes(rate, 400, 5000).into_iter().map(Option::unwrap).collect();
            assert!(outcomes.iter().sum::<u32>() <= mean * 400, "{rate}: {outcomes:?}");
            assert!(outcomes.iter().all(|&drafts| (16..=all).contains(&drafts)), "{rate}: {outcomes:?}");
        }
    }

    #[test]
    fn a_good_beginning_does_not_hide_a_bad_end() {
        let mut acceptance = Acceptance::default();
        (0..1000).for_each(|_| assert!(!acceptance.record(true)));
        assert_eq!((1..=100).find(|_| acceptance.record(false)), Some(16));
        assert!(acceptance.is_stopped() && !acceptance.record(false), "it stops once");
        assert_eq!((acceptance.drafts(), acceptance.accepted()), (1017, 1000));
    }

    proptest! {
        #[test]
        fn nobody_loses_more_than_the_limit_or_stops_before_16_drafts(hits in prop::collection::vec(any::<bool>(), 0..400)) {
            let mut acceptance = Acceptance::default();
            let (mut balance, mut lowest) = (0.0f32, 0.0f32);
            for &hit in &hits {
                let stops = acceptance.record(hit);
                balance += Acceptance::BREAK_EVEN - if hit { 1.0 } else { 0.0 };
                lowest = lowest.min(balance);
                prop_assert!(balance - lowest <= Acceptance::MAX_LOSS);
                prop_assert_eq!(stops, balance - lowest == Acceptance::MAX_LOSS);
                prop_assert_eq!(stops, acceptance.is_stopped());
                if stops {
                    prop_assert!(acceptance.drafts() >= 16);
                    break;
                }
            }
        }
    }
}
