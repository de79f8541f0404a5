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

/// How long the other end has said nothing. Pings go to and fro once a second, so that a long silence means that it is lost,
/// however its end of the stream looks: a connection that hyper gives up looks as if the other end had closed it.
#[derive(Debug)]
pub(super) struct Silence {
    since: Instant,
    suspicious: Duration,
}

impl Silence {
    /// `timeout`: after how long a link is given up.
    pub(super) fn new(timeout: Duration) -> Self {
        Self { since: Instant::now(), suspicious: timeout.max(Duration::from_secs(3)) }
    }

    pub(super) fn broken(&mut self) {
        self.since = Instant::now();
    }

    /// What an end means in the light of it.
    pub(super) fn explain(&self, ended: LinkEnded) -> LinkEnded {
        let silent = self.since.elapsed();
        let said = format!("no answer for {:.1} s", silent.as_secs_f32());
        match ended {
            LinkEnded::Closed if silent >= self.suspicious => LinkEnded::Lost(said),
            LinkEnded::Lost(reason) if silent >= self.suspicious => LinkEnded::Lost(format!("{said} ({reason})")),
            ended => ended,
        }
    }
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
    fn a_long_silence_tells_a_loss_from_a_good_bye() {
        let mut silence = Silence::new(Duration::from_millis(1));
        assert_eq!(silence.explain(LinkEnded::Closed), LinkEnded::Closed);
        silence.since = Instant::now().checked_sub(Duration::from_secs(3)).unwrap();
        for ended in [LinkEnded::Closed, LinkEnded::Lost("h2".into())] {
            let LinkEnded::Lost(reason) = silence.explain(ended) else { panic!("another end") };
            assert!(reason.starts_with("no answer for 3.0 s"), "{reason}");
        }
        silence.broken();
        assert_eq!(silence.explain(LinkEnded::Lost("h2".into())), LinkEnded::Lost("h2".into()));
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
