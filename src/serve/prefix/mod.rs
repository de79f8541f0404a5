//! Rows of earlier requests that stand in for the beginning of a prompt.
//!
//! Three places are looked through for the longest common beginning: lanes whose request is over and whose rows are still
//! there (*kept*), lanes that run, and a store in host memory of what kept lanes held before somebody else needed them.
//! Tokens are compared one by one, never by a hash, so that no request can get rows of another text. Model and package
//! are the same for the life of the process; what else decides on the bits of a row is the [`Footing`].
//!
//! Only rows are reused that a cold run would compute alike, bit for bit: rows of prompts (a token's row that was computed
//! alone, while generating, may be rounded otherwise), up to where a prompt may be cut ([`Pieces`]), and never the last
//! piece, which is computed in any case since its logits are needed.
//!
//! [`Pieces`]: crate::stage::Pieces

mod store;

use crate::{
    pipeline::Pipeline,
    policy::{Path, Phase},
    serve::lane::Lane,
    stage::{SeqId, StageError},
    telemetry::metrics,
};
use store::Store;

/// What decides how the rows of a prompt are computed, besides its tokens: equal footings, equal bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Footing {
    /// The attention path that the request forces.
    pub(super) path: Option<Path>,
    /// Whether the prompt counts as short or long; `None` when the engine has no choice of paths.
    pub(super) phase: Option<Phase>,
}

/// Rows of a sequence from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) tokens: Vec<i32>,
    pub(super) footing: Footing,
    /// The draft head has followed them.
    pub(super) followed: bool,
}

/// What a request could make use of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// Its prompt.
    pub(super) tokens: &'a [i32],
    pub(super) footing: Footing,
    /// It drafts, so that the draft head must have followed.
    pub(super) drafts: bool,
    /// Rows at most.
    pub(super) most: u32,
    /// Rows come in multiples of this, at least 1.
    pub(super) step: u32,
}

impl Wanted<'_> {
    /// Rows of the common beginning that may be reused, when these tokens were computed on that footing.
    pub(super) fn shared(&self, tokens: &[i32], footing: Footing, followed: bool) -> u32 {
        if footing != self.footing || (self.drafts && !followed) {
            return 0;
        }
        let common = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        u32::try_from(common).unwrap_or(u32::MAX).min(self.most) / self.step * self.step
    }
}

impl Rows {
    fn shared(&self, wanted: &Wanted<'_>) -> u32 {
        wanted.shared(&self.tokens, self.footing, self.followed)
    }

    fn is_within(&self, other: &Self) -> bool {
        let as_good = self.footing == other.footing && (other.followed || !self.followed);
        as_good && other.tokens.starts_with(&self.tokens)
    }

    fn len(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }
}

/// Where rows come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A lane without a request.
    Kept(usize),
    /// A lane with one.
    Running(usize),
    /// An entry of the store.
    Stored(usize),
}

/// Rows that a lane without a request still holds.
#[derive(Debug)]
struct Kept {
    rows: Rows,
    used: u64,
}

/// All rows that may be reused.
pub(super) struct Prefixes {
    /// Rows are reused in multiples of this; 0 for not at all.
    step: u32,
    /// One for each lane; never one of a lane with a request.
    kept: Vec<Option<Kept>>,
    store: Store,
    uses: u64,
}

impl Prefixes {
    /// `step` 0 or no `bytes` for nothing at all.
    pub(super) fn new(lanes: u32, step: u32, bytes: u64) -> Self {
        let step = if bytes > 0 { step } else { 0 };
        let kept = (0..lanes).map(|_| None).collect();
        Self { step, kept, store: Store::new(bytes), uses: 0 }
    }

    pub(super) fn step(&self) -> u32 {
        self.step
    }

    /// KV rows held for nobody.
    pub(super) fn kept_rows(&self) -> u32 {
        self.kept.iter().flatten().map(|kept| kept.rows.len()).sum()
    }

    /// When the rows of a free lane were last of use; `None` when it holds none.
    pub(super) fn last_use(&self, lane: usize) -> Option<u64> {
        self.kept.get(lane)?.as_ref().map(|kept| kept.used)
    }

    /// Whether most of what a free lane holds is among `rows` rows.
    pub(super) fn is_mostly(&self, lane: usize, rows: u32) -> bool {
        let kept = self.kept.get(lane).and_then(Option::as_ref);
        kept.is_some_and(|kept| rows.saturating_mul(2) >= kept.rows.len())
    }

    /// The place that has the longest common beginning, and its rows. Where several have it, one that costs nothing.
    pub(super) fn find(
        &self,
        wanted: &Wanted<'_>,
        lanes: &[Option<Lane>],
        but: Option<usize>,
    ) -> Option<(Source, u32)> {
        let kept = self
            .kept
            .iter()
            .enumerate()
            .filter_map(|(i, kept)| Some((Source::Kept(i), kept.as_ref()?.rows.shared(wanted))));
        let running = lanes.iter().enumerate().filter(|(i, _)| Some(*i) != but);
        let running = running.filter_map(|(i, lane)| Some((Source::Running(i), lane.as_ref()?.shared_now(wanted))));
        let stored = self.store.best(wanted).map(|(entry, rows)| (Source::Stored(entry), rows));
        // The last of equals wins.
        stored.into_iter().chain(running).chain(kept).filter(|(_, rows)| *rows > 0).max_by_key(|(_, rows)| *rows)
    }

    /// Makes `rows` rows from `source` the content of the free lane `target`, whatever it held; what that was may go to
    /// the store. Returns how many rows there are now: none when the engine could not do it, which is logged.
    ///
    /// # Errors
    /// When the engine cannot even empty the lane.
    pub(super) fn fetch(
        &mut self,
        engine: &mut dyn Pipeline,
        target: usize,
        source: Option<(Source, u32)>,
    ) -> Result<u32, StageError> {
        let (seq, own) = (seq(target), self.kept.get_mut(target).and_then(Option::take));
        if let (Some((Source::Kept(lane), rows)), Some(own)) = (source, &own)
            && lane == target
        {
            if rows < own.rows.len() {
                self.stash(engine, seq, own.rows.clone());
            }
            return or_empty(engine, seq, rows, |engine| engine.truncate(seq, rows));
        }
        // Looked up before the store changes below.
        let state = match source {
            Some((Source::Stored(entry), _)) => self.store.open(entry),
            _ => None,
        };
        if let Some(own) = own {
            self.stash(engine, seq, own.rows);
        }
        engine.truncate(seq, 0)?;
        let Some((source, rows)) = source else { return Ok(0) };
        if let (Source::Kept(lane), uses) = (source, self.next_use())
            && let Some(kept) = self.kept.get_mut(lane).and_then(Option::as_mut)
        {
            kept.used = uses;
        }
        or_empty(engine, seq, rows, |engine| match (source, &state) {
            (Source::Kept(lane) | Source::Running(lane), _) => engine.copy(self::seq(lane), seq, rows),
            (Source::Stored(_), Some(state)) => engine.restore(seq, state, rows),
            (Source::Stored(_), None) => Err(StageError::InvalidBatch("the entry is gone".into())),
        })
    }

    /// The request of `lane` is over: what is worth keeping of its rows stays, the rest goes.
    ///
    /// # Errors
    /// When the engine cannot even empty the lane.
    pub(super) fn keep(
        &mut self,
        engine: &mut dyn Pipeline,
        lane: usize,
        rows: Option<Rows>,
    ) -> Result<(), StageError> {
        let seq = seq(lane);
        let Some(rows) = rows.filter(|rows| self.step > 0 && rows.len() >= self.step) else {
            return engine.truncate(seq, 0);
        };
        // What another lane keeps already need not be kept twice.
        if self.kept.iter().flatten().any(|kept| rows.is_within(&kept.rows)) {
            return engine.truncate(seq, 0);
        }
        let n = rows.len();
        if or_empty(engine, seq, n, |engine| engine.truncate(seq, n))? > 0 {
            let used = self.next_use();
            self.kept[lane] = Some(Kept { rows, used });
        }
        Ok(())
    }

    /// Lets go of kept rows, those used longest ago first, until at most `rows` are left.
    ///
    /// # Errors
    /// When the engine cannot empty a lane.
    pub(super) fn shrink(&mut self, engine: &mut dyn Pipeline, rows: u32) -> Result<(), StageError> {
        while self.kept_rows() > rows {
            let used = |lane: &usize| self.kept[*lane].as_ref().map_or(u64::MAX, |kept| kept.used);
            let Some(oldest) = (0..self.kept.len()).min_by_key(used) else { break };
            if let Some(kept) = self.kept[oldest].take() {
                self.stash(engine, seq(oldest), kept.rows);
                engine.truncate(seq(oldest), 0)?;
            }
        }
        Ok(())
    }

    /// Forgets everything: the engine's state cannot be trusted any more. Its sequences are left to the caller.
    pub(super) fn forget(&mut self) {
        self.kept.iter_mut().for_each(|kept| *kept = None);
        self.store.clear();
        metrics::set_prefix_cache(0, 0);
    }

    /// Tells metrics what is held.
    pub(super) fn publish(&self) {
        metrics::set_prefix_cache(self.store.bytes(), self.kept_rows());
    }

    /// Puts rows that `seq` holds into the store, if nothing there is as good.
    fn stash(&mut self, engine: &mut dyn Pipeline, seq: SeqId, rows: Rows) {
        if !self.store.is_open() || self.store.covers(&rows) {
            return;
        }
        match engine.save(seq, rows.len()) {
            Ok(state) => metrics::prefixes_evicted(self.store.insert(rows, state)),
            Err(StageError::Unsupported(what)) => {
                tracing::info!("finished requests leave no rows in host memory: the engine cannot {what}");
                self.store = Store::default();
            }
            Err(error) => tracing::warn!(%error, sequence = seq.0, "rows could not be saved"),
        }
    }

    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }
}

/// Lane `i` owns sequence `i`.
fn seq(lane: usize) -> SeqId {
    SeqId(lane as u32)
}

/// Has `seq` filled with `rows` rows, or emptied when that fails.
fn or_empty(
    engine: &mut dyn Pipeline,
    seq: SeqId,
    rows: u32,
    fill: impl FnOnce(&mut dyn Pipeline) -> Result<(), StageError>,
) -> Result<u32, StageError> {
    match fill(engine) {
        Ok(()) => Ok(rows),
        Err(error) => {
            tracing::warn!(%error, sequence = seq.0, rows, "rows could not be reused, they are computed again");
            engine.truncate(seq, 0)?;
            Ok(0)
        }
    }
}
