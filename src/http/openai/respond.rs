//! From generations to an answer, whole or streamed, whatever shape its choices have.

use std::collections::VecDeque;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    answer::{Head, Tally},
    params::Common,
    stream::Frames,
};
use crate::{
    http::{AppState, error::ApiError, middleware::access_log::LogFields, sse},
    serve::{Event, GenerateRequest, ServeError, Timings, Usage},
};

/// How an endpoint makes a choice of the events of a generation.
pub(super) trait Choice: Send + Unpin + 'static {
    /// `object` of the answer in one piece.
    const OBJECT: &'static str;
    /// `object` of a chunk.
    const CHUNK: &'static str;
    /// What ids begin with.
    const PREFIX: &'static str;
    /// What is added to a choice at a time.
    type Piece: Send;
    /// A choice in a chunk.
    type Delta: Serialize;
    /// A choice in the answer in one piece.
    type Whole: Serialize;

    /// Takes the next event.
    fn take(&mut self, event: Event) -> Output<Self::Piece>;

    /// A piece as part of a stream.
    fn delta(index: u32, piece: Self::Piece) -> Self::Delta;

    /// The end as part of a stream.
    fn end(index: u32, reason: &'static str) -> Self::Delta;

    /// All pieces together.
    fn whole(&self, index: u32, pieces: Vec<Self::Piece>, reason: &'static str) -> Self::Whole;
}

/// What an event adds to a choice.
#[derive(Debug)]
pub struct Output<P> {
    /// More of it.
    pub pieces: Vec<P>,
    /// Its end, behind the pieces.
    pub end: Option<End>,
}

/// How a choice ends.
#[derive(Debug)]
pub enum End {
    /// With OpenAI's `finish_reason`.
    Done(&'static str, Usage, Timings),
    /// Badly.
    Failed(ApiError),
}

impl<P> Output<P> {
    /// Nothing to show.
    pub fn nothing() -> Self {
        Self { pieces: Vec::new(), end: None }
    }

    /// One piece.
    pub fn piece(piece: P) -> Self {
        Self { pieces: vec![piece], end: None }
    }

    /// The end.
    pub fn end(end: End) -> Self {
        Self { pieces: Vec::new(), end: Some(end) }
    }
}

/// A generation to submit, and what to make of its events.
pub struct Planned<C> {
    /// For the scheduler.
    pub request: GenerateRequest,
    /// For the answer.
    pub choice: C,
    /// Whether its prompt counts in the usage: several choices of one prompt count it once.
    pub counts_prompt: bool,
}

/// One choice that is still being generated.
pub(super) struct Lane<C> {
    pub(super) index: u32,
    pub(super) choice: C,
    pub(super) counts_prompt: bool,
    pub(super) events: UnboundedReceiver<Event>,
    /// Events that were looked at already.
    pub(super) seen: VecDeque<Event>,
}

/// Submits what was planned and answers.
///
/// # Errors
/// What goes wrong before the head of the response is sent.
pub(super) async fn respond<C: Choice>(
    state: &AppState,
    common: &Common,
    planned: Vec<Planned<C>>,
    log: LogFields,
) -> Result<Response, ApiError> {
    let head = Head::new(C::PREFIX, &state.loaded()?.card);
    // When one of several is refused, the receivers of the others are dropped: none of them runs.
    let mut lanes: Vec<Lane<C>> =
        (0..).zip(planned).map(|(index, plan)| submit(state, index, plan)).collect::<Result<_, _>>()?;
    if !common.stream {
        return answer(&head, lanes, &log).await;
    }
    // The head of the response waits for the first lane, so that early failures are plain HTTP errors.
    if let Some(lane) = lanes.first_mut() {
        match lane.events.recv().await {
            Some(Event::Failed(error)) => return Err(error.into()),
            Some(event) => lane.seen.push_back(event),
            None => return Err(let_go().into()),
        }
    }
    Ok(sse::response(Frames::new(head, lanes, common.include_usage, state.options().keep_alive, log)))
}

fn submit<C>(state: &AppState, index: u32, plan: Planned<C>) -> Result<Lane<C>, ApiError> {
    let Planned { request, choice, counts_prompt } = plan;
    let events = state.serve().submit(request)?;
    Ok(Lane { index, choice, counts_prompt, events, seen: VecDeque::new() })
}

/// The whole answer in one piece.
async fn answer<C: Choice>(head: &Head, lanes: Vec<Lane<C>>, log: &LogFields) -> Result<Response, ApiError> {
    let mut choices = Vec::new();
    let mut tally = Tally::default();
    let mut last_timings = None;
    for mut lane in lanes {
        let mut pieces = Vec::new();
        let reason = loop {
            let event = lane.events.recv().await.ok_or_else(let_go)?;
            let output = lane.choice.take(event);
            pieces.extend(output.pieces);
            match output.end {
                None => {}
                Some(End::Failed(error)) => return Err(error),
                Some(End::Done(reason, usage, timings)) => {
                    tally.add(reason, usage, lane.counts_prompt);
                    last_timings = Some(timings.into());
                    break reason;
                }
            }
        };
        choices.push(lane.choice.whole(lane.index, pieces, reason));
    }
    log.update(|fields| tally.note(fields));
    let mut body = head.with(C::OBJECT, choices);
    body.timings = last_timings.filter(|_| body.choices.len() == 1);
    body.usage = Some(Some(tally.usage.into()));
    Ok(Json(body).into_response())
}

pub(super) fn let_go() -> ServeError {
    ServeError::Engine("the request was let go without an answer".to_owned())
}
