//! The streamed answer: events of all choices in, SSE frames out.
//!
//! One state machine, polled by the connection. Dropping it (the client is gone) drops the receivers, which cancels the
//! generations.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{Instant, Sleep, sleep},
};
use tokio_stream::Stream;

use super::{
    Head, Tally,
    convert::{Assembler, Output},
    types::{Choice, Completion, TimingsBody},
};
use crate::{
    http::{
        error::{ApiError, ErrorCode},
        middleware::access_log::LogFields,
        sse,
    },
    serve::Event,
};

/// Frames that one poll puts together at most: a reader that was away must not get everything as one piece.
const MAX_FRAME_BYTES: usize = 64 << 10;

/// One choice that is still being generated.
pub(super) struct Lane {
    pub(super) index: u32,
    pub(super) assembler: Assembler,
    pub(super) counts_prompt: bool,
    pub(super) events: UnboundedReceiver<Event>,
    /// Events that were looked at already.
    pub(super) seen: VecDeque<Event>,
}

/// The stream of frames.
pub(super) struct Frames {
    head: Head,
    include_usage: bool,
    lanes: Vec<Lane>,
    tally: Tally,
    log: LogFields,
    /// Silence after which to send a ping, and the clock for it.
    keep_alive: Option<(Duration, Pin<Box<Sleep>>)>,
    ended: bool,
}

impl Frames {
    pub(super) fn new(
        head: Head,
        lanes: Vec<Lane>,
        include_usage: bool,
        keep_alive: Option<Duration>,
        log: LogFields,
    ) -> Self {
        let keep_alive = keep_alive.filter(|period| !period.is_zero()).map(|period| (period, Box::pin(sleep(period))));
        Self { head, include_usage, lanes, tally: Tally::default(), log, keep_alive, ended: false }
    }

    /// Frames for everything that is there now.
    fn collect(&mut self, cx: &mut Context<'_>) -> BytesMut {
        let mut frames = BytesMut::new();
        let mut i = 0;
        while let Some(lane) = self.lanes.get_mut(i) {
            if frames.len() >= MAX_FRAME_BYTES {
                cx.waker().wake_by_ref();
                return frames;
            }
            let event = match lane.seen.pop_front() {
                Some(event) => event,
                None => match lane.events.poll_recv(cx) {
                    Poll::Pending => {
                        i += 1;
                        continue;
                    }
                    Poll::Ready(Some(event)) => event,
                    Poll::Ready(None) => {
                        Event::Failed(crate::serve::ServeError::Engine("the request was let go".into()))
                    }
                },
            };
            match lane.assembler.take(event) {
                Output::Nothing => {}
                Output::Piece(text, logprobs) => {
                    let choice = Choice { text, index: lane.index, logprobs, finish_reason: None };
                    self.head.push(&mut frames, vec![choice], self.include_usage.then_some(None), None);
                }
                Output::Done(reason, usage, timings) => {
                    self.tally.add(usage, lane.counts_prompt);
                    self.tally.finish_reason = Some(reason.label());
                    let (text, index) = (String::new(), lane.index);
                    let choice = Choice { text, index, logprobs: None, finish_reason: Some(reason.label()) };
                    self.head.push(&mut frames, vec![choice], self.include_usage.then_some(None), Some(timings.into()));
                    self.lanes.remove(i);
                }
                Output::Failed(error) => {
                    self.fail(error, &mut frames);
                    return frames;
                }
            }
        }
        if self.lanes.is_empty() {
            if self.include_usage {
                self.head.push(&mut frames, Vec::new(), Some(Some(self.tally.usage.into())), None);
            }
            frames.extend_from_slice(sse::DONE);
            self.ended = true;
            self.log.update(|fields| self.tally.note(fields));
        }
        frames
    }

    /// An error in the midst of a stream is a `data` object with `error`, and the end (llama.cpp#16104).
    fn fail(&mut self, error: ApiError, frames: &mut BytesMut) {
        let code: ErrorCode = error.code();
        self.log.update(|fields| {
            self.tally.note(fields);
            fields.error = Some(code.row().code);
        });
        sse::push_data(frames, &error.into_envelope());
        self.lanes.clear();
        self.ended = true;
    }
}

impl Stream for Frames {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let frames = self.collect(cx);
        let silent = frames.is_empty();
        let Some((period, clock)) = &mut self.keep_alive else {
            return if silent { Poll::Pending } else { Poll::Ready(Some(Ok(frames.freeze()))) };
        };
        if silent && clock.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        clock.as_mut().reset(Instant::now() + *period);
        let frames = if silent { Bytes::from_static(sse::PING) } else { frames.freeze() };
        Poll::Ready(Some(Ok(frames)))
    }
}

impl Head {
    /// Appends one chunk.
    fn push(
        &self,
        frames: &mut BytesMut,
        choices: Vec<Choice>,
        usage: Option<Option<super::types::UsageBody>>,
        timings: Option<TimingsBody>,
    ) {
        sse::push_data(frames, &Completion { choices, usage, timings, ..self.empty() });
    }
}
