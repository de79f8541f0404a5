//! The engine thread.

use std::{
    sync::{Arc, mpsc},
    time::Instant,
};

use crate::{
    serve::{
        Phase,
        job::{Job, Limits},
        shared::Shared,
    },
    stage::StageEngine,
    text::TextModel,
};

/// What handles send to the engine thread.
pub(super) enum Command {
    /// A checked request.
    Submit(Box<Job>),
    /// Shut down; running requests may go on until then (`None`: for ever).
    Drain(Option<Instant>),
}

/// The engine thread's whole life.
pub(super) fn run(
    _engine: Box<dyn StageEngine>,
    _text: Arc<dyn TextModel>,
    shared: Arc<Shared>,
    inbox: mpsc::Receiver<Command>,
    _limits: Limits,
) {
    while let Ok(Command::Submit(job)) = inbox.recv() {
        drop(job);
    }
    shared.advance(Phase::Draining);
    shared.advance(Phase::Stopped);
}
