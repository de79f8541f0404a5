//! Queues between the tasks that serve a link and the thread that works on its frames.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

use super::codec::FrameError;

/// Frames that wait for their reader at most. What comes then waits in the network.
const MAX_WAITING: usize = 64;

/// Why no more frames come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkEnded {
    /// One end has closed it.
    #[error("the link was closed")]
    Closed,
    /// The other end does not answer any more.
    #[error("the link is lost: {0}")]
    Lost(String),
    /// The other end sent what it must not.
    #[error("the other end broke the protocol: {0}")]
    Protocol(#[from] FrameError),
}

/// The reading end of a link's frames.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    frames: mpsc::Receiver<Result<T, LinkEnded>>,
    ended: Option<LinkEnded>,
}

pub(super) type Filler<T> = mpsc::Sender<Result<T, LinkEnded>>;

impl<T> Inbox<T> {
    pub(super) fn new() -> (Filler<T>, Self) {
        let (filler, frames) = mpsc::channel(MAX_WAITING);
        (filler, Self { frames, ended: None })
    }

    pub(super) async fn recv(&mut self) -> Result<T, LinkEnded> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// For threads outside of the runtime; [`None`] when nothing comes within `wait`.
    pub(super) fn recv_timeout(&mut self, wait: Duration) -> Result<Option<T>, LinkEnded> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut cx = Context::from_waker(&waker);
        let until = Instant::now().checked_add(wait);
        loop {
            if let Poll::Ready(frame) = self.poll(&mut cx) {
                return frame.map(Some);
            }
            match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Ok(None),
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, LinkEnded>> {
        if let Some(ended) = &self.ended {
            return Poll::Ready(Err(ended.clone()));
        }
        let frame = std::task::ready!(self.frames.poll_recv(cx)).unwrap_or(Err(LinkEnded::Closed));
        if let Err(ended) = &frame {
            self.ended = Some(ended.clone());
        }
        Poll::Ready(frame)
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Frames on their way out, as gRPC wants them. Ends when nobody can send any more, or the link is cancelled and what was
/// sent before is out. Cancels the link when it is dropped: then the other end has gone.
#[derive(Debug)]
pub(super) struct Outbox<M> {
    frames: UnboundedReceiver<M>,
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
    _cancel: DropGuard,
}

impl<M> Outbox<M> {
    pub(super) fn new(frames: UnboundedReceiver<M>, link: &CancellationToken) -> Self {
        Self { frames, cancelled: Box::pin(link.clone().cancelled_owned()), _cancel: link.clone().drop_guard() }
    }
}

impl<M> Stream for Outbox<M> {
    type Item = M;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<M>> {
        match self.frames.poll_recv(cx) {
            Poll::Pending => self.cancelled.as_mut().poll(cx).map(|()| None),
            ready => ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_is_told_again_and_again() {
        let (filler, mut inbox) = Inbox::new();
        filler.send(Ok(1)).await.unwrap();
        filler.send(Err(LinkEnded::Lost("no answer".into()))).await.unwrap();
        assert_eq!(inbox.recv().await, Ok(1));
        for _ in 0..2 {
            assert_eq!(inbox.recv().await, Err(LinkEnded::Lost("no answer".into())));
            assert_eq!(inbox.recv_timeout(Duration::ZERO), Err(LinkEnded::Lost("no answer".into())));
        }
    }

    #[test]
    fn a_thread_waits_no_longer_than_it_said_and_is_woken() {
        let (filler, mut inbox) = Inbox::new();
        assert_eq!(inbox.recv_timeout(Duration::from_millis(1)), Ok(None));
        let thread = thread::spawn(move || {
            let first = inbox.recv_timeout(Duration::from_secs(60));
            (first, inbox.recv_timeout(Duration::MAX))
        });
        filler.blocking_send(Ok(7)).unwrap();
        drop(filler);
        assert_eq!(thread.join().unwrap(), (Ok(Some(7)), Err(LinkEnded::Closed)));
    }
}
