//! The streamed answer: events of all choices in, SSE frames out.
//!
//! One state machine, polled by the connection. Dropping it (the client is gone) drops the receivers, which cancels the
//! generations.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep};
use tokio_stream::Stream;

use super::{
    answer::{Body, Head, Tally, TimingsBody, UsageBody},
    respond::{Choice, End, Lane, let_go},
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

/// The stream of frames.
pub(super) struct Frames<C> {
    head: Head,
    include_usage: bool,
    lanes: Vec<Lane<C>>,
    tally: Tally,
    log: LogFields,
    /// Silence after which to send a ping, and the clock for it.
    keep_alive: Option<(Duration, Pin<Box<Sleep>>)>,
    ended: bool,
}

impl<C: Choice> Frames<C> {
    pub(super) fn new(
        head: Head,
        lanes: Vec<Lane<C>>,
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
                    Poll::Ready(None) => Event::Failed(let_go()),
                },
            };
            let output = lane.choice.take(event);
            for piece in output.pieces {
                let delta = C::delta(lane.index, piece);
                self.head.push(&mut frames, C::CHUNK, vec![delta], self.include_usage.then_some(None), None);
            }
            match output.end {
                None => {}
                Some(End::Done(reason, usage, timings)) => {
                    self.tally.add(reason, usage, lane.counts_prompt);
                    let (end, usage) = (C::end(lane.index, reason), self.include_usage.then_some(None));
                    self.head.push(&mut frames, C::CHUNK, vec![end], usage, Some(timings.into()));
                    self.lanes.remove(i);
                }
                Some(End::Failed(error)) => {
                    self.fail(error, &mut frames);
                    return frames;
                }
            }
        }
        if self.lanes.is_empty() {
            if self.include_usage {
                let usage = Some(Some(self.tally.usage.into()));
                self.head.push::<C::Delta>(&mut frames, C::CHUNK, Vec::new(), usage, None);
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

impl<C: Choice> Stream for Frames<C> {
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
    fn push<D: Serialize>(
        &self,
        frames: &mut BytesMut,
        object: &'static str,
        choices: Vec<D>,
        usage: Option<Option<UsageBody>>,
        timings: Option<TimingsBody>,
    ) {
        sse::push_data(frames, &Body { usage, timings, ..self.with(object, choices) });
    }
}
