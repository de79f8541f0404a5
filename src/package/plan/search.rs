//! The choice of cuts: dynamic programmes over the layers at which a stage may start.

use super::Costs;
use crate::package::LayerRange;

/// A machine that is exactly full, when its memory is known.
const FULL: u128 = 1 << 32;

/// How much more the fullest machine may be loaded for the sake of fewer sideband bytes: one part in so many.
const SLACK: u128 = 50;

/// What makes one choice better than another: sideband bytes first, then a sum or a maximum of loads.
type Score = (u64, u128);

pub(super) struct Search<'a> {
    machines: &'a [Option<u64>],
    /// Layers a stage may start or end at, the first and the last boundary included.
    bounds: Vec<u32>,
    /// Sideband bytes of a stage that starts at each of them.
    sideband: Vec<u64>,
    /// `bytes[start][end]`, by places in `bounds`.
    bytes: Vec<Vec<u64>>,
}

impl<'a> Search<'a> {
    /// `cuts` are ascending layers with their sideband bytes; at least one fewer than there are machines.
    pub(super) fn new(costs: &Costs, cuts: &[(u32, u64)], machines: &'a [Option<u64>]) -> Self {
        let layer_count = u32::try_from(costs.layers.len()).unwrap_or(u32::MAX);
        let all = || [(0, 0)].into_iter().chain(cuts.iter().copied()).chain([(layer_count, 0)]);
        let bounds: Vec<u32> = all().map(|(layer, _)| layer).collect();
        let total = |start: &u32, end: &u32| {
            // Backwards there is no stage, and nobody asks.
            LayerRange::new(*start, *end).map_or(u64::MAX, |range| costs.stage(range).total())
        };
        let bytes = bounds.iter().map(|start| bounds.iter().map(|end| total(start, end)).collect()).collect();
        Self { machines, bounds, sideband: all().map(|(_, bytes)| bytes).collect(), bytes }
    }

    /// The layers of each stage.
    pub(super) fn run(&self) -> Vec<(u32, u32)> {
        let first = self.best(u128::MAX, false, u128::max);
        let lightest = self.heaviest(&first);
        // Nothing fits: the caller says so of the plan that comes closest.
        let most = if self.machines.iter().any(Option::is_some) { FULL.max(lightest) } else { u128::MAX };
        let limit = lightest.saturating_add(lightest / SLACK).min(most);
        let fewest = self.best(limit, true, u128::max);
        let square = |sum: u128, load: u128| sum.saturating_add(load.saturating_mul(load));
        let even = self.best(self.heaviest(&fewest), true, square);
        even.windows(2).map(|pair| (self.bounds[pair[0]], self.bounds[pair[1]])).collect()
    }

    /// How full a machine is with these layers, in parts of [`FULL`]; without a machine, how many bytes they are.
    fn load(&self, stage: usize, start: usize, end: usize) -> u128 {
        let bytes = u128::from(self.bytes[start][end]);
        match self.machines[stage] {
            // Rounded up, so that a load is above `FULL` just when the bytes exceed the memory.
            Some(memory) => (bytes * FULL).div_ceil(u128::from(memory.max(1))),
            None => bytes,
        }
    }

    fn heaviest(&self, places: &[usize]) -> u128 {
        let loads = places.windows(2).enumerate().map(|(stage, pair)| self.load(stage, pair[0], pair[1]));
        loads.max().unwrap_or(0)
    }

    /// The best choice of one range for each machine, none loaded above `limit`, with loads joined by `join`: the
    /// places of its bounds, one more than there are stages. There must be one.
    fn best(&self, limit: u128, count_sideband: bool, join: impl Fn(u128, u128) -> u128) -> Vec<usize> {
        let n = self.bounds.len();
        // best[end]: how well everything before that bound can be covered by the stages so far; from[stage][end]: where the
        // last of them began.
        let mut best: Vec<Option<Score>> = vec![None; n];
        best[0] = Some((0, 0));
        let mut from: Vec<Vec<usize>> = Vec::new();
        for stage in 0..self.machines.len() {
            let (mut next, mut began) = (vec![None; n], vec![0; n]);
            for end in 1..n {
                for (start, reached) in best.iter().enumerate().take(end) {
                    let Some((sideband, joined)) = *reached else { continue };
                    let load = self.load(stage, start, end);
                    if load > limit {
                        continue;
                    }
                    let extra = if count_sideband { self.sideband[start] } else { 0 };
                    let score = (sideband.saturating_add(extra), join(joined, load));
                    if next[end].is_none_or(|known| score < known) {
                        (next[end], began[end]) = (Some(score), start);
                    }
                }
            }
            best = next;
            from.push(began);
        }
        let mut places = vec![n - 1];
        for began in from.iter().rev() {
            places.push(began[places[places.len() - 1]]);
        }
        places.reverse();
        places
    }
}
