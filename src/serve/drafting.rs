//! One request's drafts: whether it asks for any, the one under verification, and what became of them.

use std::sync::Arc;

use crate::{
    serve::request::Drafts,
    spec::Acceptance,
    telemetry::{
        labels::{DraftPosition, DraftingStopped},
        metrics,
    },
};

/// A window of one draft: the chosen token and the draft behind it.
pub(super) const WINDOW: u32 = 2;

/// A request's side of speculation.
#[derive(Debug, Default)]
pub(super) struct Drafting {
    /// Id of the strategy; `None` when the request has never speculated.
    strategy: Option<Arc<str>>,
    /// Set once the request has given up.
    stopped: bool,
    /// The draft whose row is in the batch.
    draft: Option<i32>,
    /// The last draft was not what the model chose: its row must go.
    rejected: bool,
    acceptance: Acceptance,
    /// Passes past the prompt.
    forwards: u32,
}

impl Drafting {
    /// `strategy` is `None` for a request that does not speculate.
    pub(super) fn new(strategy: Option<Arc<str>>) -> Self {
        Self { strategy, ..Self::default() }
    }

    /// Whether the draft head has to follow the request.
    pub(super) fn is_on(&self) -> bool {
        self.strategy.is_some() && !self.stopped
    }

    pub(super) fn strategy(&self) -> Option<&str> {
        self.strategy.as_deref()
    }

    /// What to tell the client; `None` when the request has never speculated.
    pub(super) fn counts(&self) -> Option<Drafts> {
        self.strategy.as_ref()?;
        let (drafts, accepted) = (self.acceptance.drafts(), self.acceptance.accepted());
        Some(Drafts { drafts, accepted, forwards: self.forwards })
    }

    /// A window goes into the batch, with or without a draft.
    pub(super) fn open(&mut self, draft: Option<i32>) {
        self.draft = draft;
        self.rejected = false;
    }

    /// The model has chosen `token` where the draft stands, if there is one.
    pub(super) fn verify(&mut self, token: i32) {
        let Some(draft) = self.draft.take() else { return };
        let accepted = draft == token;
        self.rejected = !accepted;
        metrics::draft_verified(DraftPosition::First, accepted);
        if self.acceptance.record(accepted) {
            self.stop(DraftingStopped::LowAcceptance);
        }
    }

    /// The draft head's answer was no guess.
    pub(super) fn unusable(&mut self) {
        self.stop(DraftingStopped::BadLogits);
    }

    fn stop(&mut self, reason: DraftingStopped) {
        if self.is_on() {
            metrics::drafting_stopped(reason);
        }
        self.stopped = true;
    }

    /// Whether the row behind the one read last counts for nothing.
    pub(super) fn is_rejected(&self) -> bool {
        self.rejected
    }

    /// The window is over: `tokens` were chosen in it.
    pub(super) fn close(&mut self, tokens: u32) {
        self.forwards += 1;
        if self.strategy.is_some() {
            metrics::speculating_forward(tokens);
        }
    }
}
