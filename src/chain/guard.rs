//! Connections that do not stay: whoever has not become the upstream of this stage within a few seconds is hung up on.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{self, Sleep},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// Connections at a time.
const MAX_CONNECTIONS: usize = 128;

/// A connection that is closed when its time is up, unless it has been admitted, or when the listener ends.
#[derive(Debug)]
pub(super) struct Guarded {
    stream: TcpStream,
    info: PeerInfo,
    deadline: Pin<Box<Sleep>>,
    end: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: OwnedSemaphorePermit,
}

/// Who is at the other end.
#[derive(Clone, Debug)]
pub(super) struct PeerInfo {
    pub(super) address: String,
    admitted: Arc<AtomicBool>,
}

impl PeerInfo {
    /// The connection may stay.
    pub(super) fn admit(&self) {
        self.admitted.store(true, Ordering::Release);
    }
}

/// Connections as they come, until `end`. Without a session they last `patience`; health checks take milliseconds.
pub(super) fn accept(
    listener: TcpListener,
    patience: Duration,
    end: CancellationToken,
) -> ReceiverStream<io::Result<Guarded>> {
    let (connections, incoming) = mpsc::channel(1);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    tokio::spawn(async move {
        let accepting = async {
            while let Ok(place) = places.clone().acquire_owned().await {
                match listener.accept().await {
                    Ok((stream, address)) => {
                        let info = PeerInfo { address: address.to_string(), admitted: Arc::default() };
                        let _ = stream.set_nodelay(true);
                        let deadline = Box::pin(time::sleep(patience));
                        let end = Box::pin(end.clone().cancelled_owned());
                        let guarded = Guarded { stream, info, deadline, end, _place: place };
                        if connections.send(Ok(guarded)).await.is_err() {
                            break;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a link");
                        // As a rule there are no file descriptors left; asking again at once would not free any.
                        time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accepting => {}
            () = end.cancelled() => {}
            () = connections.closed() => {}
        }
    });
    ReceiverStream::new(incoming)
}

impl Guarded {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.end.as_mut().poll(cx).is_ready() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the stage is shutting down"));
        }
        let late = self.deadline.as_mut().poll(cx).is_ready();
        if late && !self.info.admitted.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no session was begun in time"));
        }
        Ok(())
    }
}

impl Connected for Guarded {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        self.info.clone()
    }
}

impl AsyncRead for Guarded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
