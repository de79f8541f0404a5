//! Who gets which lane, and with whose rows.

use super::Scheduler;
use crate::{
    serve::{
        ServeError,
        job::Job,
        lane::{Ending, Lane, Leader, end_queued},
        prefix::{Footing, Source, Wanted},
    },
    stage::{SeqId, StageError},
    telemetry::metrics,
};

/// How far a lane may be from the next busy one: engines may compute neighbours together.
const NEAR: usize = 1;

/// What a request starts from.
enum Start {
    /// Nothing, or rows that are there.
    Now(Option<(Source, u32)>),
    /// Rows that another request is about to compute.
    Behind(Leader),
}

impl Scheduler {
    /// Gives free lanes to waiting requests, strictly first come first served: one that does not fit yet holds back
    /// those behind it, else a large one might wait for ever.
    pub(super) fn admit(&mut self) -> Result<(), ServeError> {
        let before = self.admissions;
        while let Some(job) = self.queue.front() {
            let fits = job.kv_rows <= self.limits.kv_rows - self.promised;
            if !fits || self.lost.is_some() || self.lanes.iter().all(Option::is_some) {
                break;
            }
            let Some(job) = self.queue.pop_front() else { break };
            self.start(*job)?;
        }
        if self.admissions != before {
            self.publish();
        }
        Ok(())
    }

    fn start(&mut self, job: Job) -> Result<(), ServeError> {
        let footing = self.footing(&job);
        let drafts = self.strategy.is_some() && job.may_speculate();
        let wanted = job.wanted(footing, drafts, self.limits.pieces, self.prefixes.step());
        let start = wanted.map_or(Start::Now(None), |wanted| self.seek(&wanted));
        let counted = wanted.is_some();
        let Some(free) = self.free_lane(&start) else { return Ok(()) };
        let place = (SeqId(free as u32), footing);
        match self.pipeline.open(job.opening(place.0, &[])) {
            Ok(None) => {}
            Ok(Some(fault)) => {
                end_queued(job, Ending::Failed(fault.into()));
                return Ok(());
            }
            Err(error) => {
                // It waits for the chain like those that run, or fails with them.
                self.queue.push_front(Box::new(job));
                return self.engine_failed(error);
            }
        }
        let mut lane = Lane::start(job, place, self.strategy.as_ref(), self.text.as_ref());
        if let Some(ending) = lane.ending.take() {
            // It generates nothing and has no prompt to compute.
            lane.end(ending);
            return Ok(());
        }
        self.promised += lane.kv_rows();
        self.admissions += 1;
        self.ages[free] = self.admissions;
        match start {
            Start::Now(source) => lane.take_over(self.fetch(free, source, counted)?),
            Start::Behind(leader) => {
                self.fetch(free, None, false)?;
                lane.wait_for(leader);
            }
        }
        self.lanes[free] = Some(lane);
        self.shrink_kept(self.limits.kv_rows - self.promised)
    }

    /// What decides how the prompt of `job` is computed.
    fn footing(&self, job: &Job) -> Footing {
        let policy = self.policy.as_ref();
        Footing { path: job.request.path, phase: policy.map(|policy| policy.prefill(job.prompt_tokens())) }
    }

    /// The best that there is, or that is about to be.
    fn seek(&self, wanted: &Wanted<'_>) -> Start {
        let found = self.prefixes.find(wanted, &self.lanes, None);
        let now = found.map_or(0, |(_, rows)| rows);
        let later =
            self.lanes.iter().enumerate().filter_map(|(i, lane)| Some((i, lane.as_ref()?.shared_later(wanted))));
        // The first of equals: it has most likely got furthest.
        let later = later.rev().max_by_key(|(_, rows)| *rows).filter(|(_, rows)| *rows > now);
        match later {
            Some((lane, rows)) => Start::Behind(Leader { lane, age: self.ages[lane], rows }),
            None => Start::Now(found),
        }
    }

    /// The lane to start in: the one with the rows if they are most of what it holds; else one near others, rather an
    /// empty one, rather one whose rows were of no use for long.
    fn free_lane(&self, start: &Start) -> Option<usize> {
        let source = match start {
            Start::Now(Some((Source::Kept(lane), rows))) => Some((*lane, *rows)),
            _ => None,
        };
        if let Some((lane, rows)) = source
            && self.prefixes.is_mostly(lane, rows)
        {
            return Some(lane);
        }
        let free = |lane: &usize| self.lanes[*lane].is_none();
        let busy: Vec<usize> = (0..self.lanes.len()).filter(|lane| !free(lane)).collect();
        let distance = |lane: usize| busy.iter().map(|other| lane.abs_diff(*other)).min().unwrap_or(0);
        (0..self.lanes.len()).filter(free).min_by_key(|lane| {
            let is_source = source.is_some_and(|(source, _)| source == *lane);
            (is_source, distance(*lane) > NEAR, self.prefixes.last_use(*lane), *lane)
        })
    }

    /// Makes rows from `source` the content of a lane that is about to start or waits. `counted`: it could have made
    /// use of some.
    fn fetch(&mut self, lane: usize, source: Option<(Source, u32)>, counted: bool) -> Result<u32, ServeError> {
        let rows = self.prefixes.fetch(self.pipeline.as_mut(), lane, source).map_err(|error| broken(lane, &error))?;
        if counted {
            metrics::prefix_looked_up(rows > 0);
        }
        Ok(rows)
    }

    /// Lanes that wait for rows of others get them once they are there, or whatever there is when they will not come.
    pub(super) fn fetch_from_leaders(&mut self) -> Result<(), ServeError> {
        for i in 0..self.lanes.len() {
            let Some(lane) = &self.lanes[i] else { continue };
            let Some(leader) = lane.leader() else { continue };
            let leading = self.lanes.get(leader.lane).and_then(Option::as_ref);
            if leading.is_some_and(|lane| self.ages[leader.lane] == leader.age && lane.rows() < leader.rows) {
                continue;
            }
            let wanted = lane.wanted(self.limits.pieces, self.prefixes.step());
            let source = wanted.and_then(|wanted| self.prefixes.find(&wanted, &self.lanes, Some(i)));
            let rows = self.fetch(i, source, true)?;
            if let Some(lane) = &mut self.lanes[i] {
                lane.take_over(rows);
            }
        }
        Ok(())
    }

    /// Keeps at most `rows` KV rows for nobody.
    pub(super) fn shrink_kept(&mut self, rows: u32) -> Result<(), ServeError> {
        let shrunk = self.prefixes.shrink(self.pipeline.as_mut(), rows);
        shrunk.map_err(|error| ServeError::Engine(format!("an idle sequence cannot be dropped: {error}")))
    }
}

fn broken(lane: usize, error: &StageError) -> ServeError {
    ServeError::Engine(format!("sequence {lane} cannot be emptied: {error}"))
}
