//! A connection that notices when its other side stalls, in the two places where nobody else looks: before it is known
//! which HTTP it speaks, and while it takes nothing of what is sent to it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

/// What a client begins with that speaks HTTP/2 without asking first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Limits of [`Watched`]; `None` sets none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For enough bytes to tell the protocol, from the start.
    pub(super) opening: Option<Duration>,
    /// For the next byte to be taken.
    pub(super) stall: Option<Duration>,
}

/// A stream under [`Limits`]. Past one of them its reads or writes fail, which ends the connection and cancels what runs
/// on it.
pub(super) struct Watched<S> {
    inner: S,
    /// Until the protocol is known: bytes of the preface seen, and when patience ends.
    opening: Option<Opening>,
    stall: Option<Duration>,
    /// Runs while a write waits; made for the first one that does, since most never do.
    stalled: Option<Pin<Box<Sleep>>>,
}

struct Opening {
    matched: usize,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Watched<S> {
    pub(super) fn new(inner: S, limits: Limits) -> Self {
        let deadline = limits.opening.and_then(|limit| Instant::now().checked_add(limit));
        let opening = Opening { matched: 0, deadline: deadline.map(|at| Box::pin(sleep_until(at))) };
        Self { inner, opening: Some(opening), stall: limits.stall, stalled: None }
    }

    /// Passes the result of a write on, unless it has been waiting for too long.
    fn written<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let (Poll::Pending, Some(limit)) = (&polled, self.stall) else {
            self.stalled = None;
            return polled;
        };
        let deadline = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(timed_out("the client takes nothing of what is sent to it")))
    }
}

impl Opening {
    /// Whether it is over: `bytes` tell the protocol.
    fn is_over(&mut self, bytes: &[u8]) -> bool {
        let rest = PREFACE.get(self.matched..).unwrap_or_default();
        let common = rest.iter().zip(bytes).take_while(|(expected, byte)| expected == byte).count();
        self.matched += common;
        common < bytes.len() || self.matched == PREFACE.len()
    }
}

fn timed_out(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buffer);
        let Some(opening) = &mut self.opening else { return polled };
        match polled {
            Poll::Ready(_) => {
                let bytes = buffer.filled().get(before..).unwrap_or_default();
                if opening.is_over(bytes) {
                    self.opening = None;
                }
                polled
            }
            Poll::Pending => {
                let Some(deadline) = &mut opening.deadline else { return Poll::Pending };
                ready!(deadline.as_mut().poll(cx));
                Poll::Ready(Err(timed_out("the client has not begun a request")))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.written(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.written(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(cx);
        self.written(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.written(cx, polled)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const NONE: Option<Duration> = Some(Duration::ZERO);

    /// Nothing, or only a beginning that may become HTTP/2, does not hold a connection.
    #[tokio::test]
    async fn an_opening_that_stays_open_fails() {
        for begun in ["", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
            let (mut client, server) = duplex(64);
            let mut server = Watched::new(server, Limits { opening: NONE, stall: None });
            client.write_all(begun.as_bytes()).await.unwrap();
            let mut got = Vec::new();
            let error = server.read_to_end(&mut got).await.unwrap_err();
            assert_eq!((error.kind(), got.as_slice()), (io::ErrorKind::TimedOut, begun.as_bytes()));
        }
    }

    /// Once the protocol is known, others keep the time.
    #[tokio::test]
    async fn a_known_protocol_has_no_limit_here() {
        for begun in ["G", "PX", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
            let (mut client, server) = duplex(64);
            let mut server = Watched::new(server, Limits { opening: NONE, stall: None });
            client.write_all(begun.as_bytes()).await.unwrap();
            server.read_exact(&mut vec![0; begun.len()]).await.unwrap();
            tokio::select! {
                biased;
                got = server.read_u8() => panic!("{begun}: {got:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
    }

    /// lattice#744: a reader that stands still is given up; one that is only slow is not.
    #[tokio::test]
    async fn lattice_744_a_reader_that_stands_still_is_given_up() {
        let limits = Limits { opening: None, stall: NONE };
        let (_client, server) = duplex(16);
        let error = Watched::new(server, limits).write_all(&[7; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        let (mut client, server) = duplex(16);
        let reader = tokio::spawn(async move {
            for _ in 0..16 {
                tokio::task::yield_now().await;
                client.read_exact(&mut [0; 4]).await.unwrap();
            }
        });
        let limits = Limits { stall: Some(Duration::from_secs(20)), ..limits };
        Watched::new(server, limits).write_all(&[7; 64]).await.unwrap();
        reader.await.unwrap();
    }
}
