//! Accepting connections and serving each on a task of its own, until told to close.
//!
//! A connection that closes its sending side counts as gone, as one that closes both does: the two cannot be told apart
//! before something is written, and a client that has left must not hold a lane.

use std::{pin::pin, time::Duration};

use axum::{Router, serve::Listener};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::io::{Limits, Watched};

/// Buffers of one connection grow to this at most, bytes, for reading and for writing; also the largest head of a request.
const MAX_BUFFER: usize = 64 << 10;
/// Silence on an HTTP/2 connection after which it is asked whether it is still there, and how long it may take to answer.
const HTTP2_PING: Duration = Duration::from_secs(30);

/// Serves on `listener` until `close`; then takes no more connections, closes idle ones, lets the others finish their
/// requests, and returns when all are closed.
pub(super) async fn serve(mut listener: TcpListener, router: Router, limits: Limits, close: CancellationToken) {
    let tasks = TaskTracker::new();
    let builder = builder(limits);
    loop {
        let stream = tokio::select! {
            biased;
            () = close.cancelled() => break,
            // axum's, which goes on when there are no more file descriptors.
            (stream, _) = Listener::accept(&mut listener) => stream,
        };
        // Small frames must not wait for each other.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY cannot be set");
        }
        tasks.spawn(connection(stream, router.clone(), builder.clone(), limits, close.clone()));
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

async fn connection(
    stream: TcpStream,
    router: Router,
    builder: Builder<TokioExecutor>,
    limits: Limits,
    close: CancellationToken,
) {
    let stream = TokioIo::new(Watched::new(stream, limits));
    let mut served = pin!(builder.serve_connection(stream, TowerToHyperService::new(router)));
    let mut closing = false;
    let ended = loop {
        tokio::select! {
            ended = served.as_mut() => break ended,
            () = close.cancelled(), if !closing => {
                closing = true;
                served.as_mut().graceful_shutdown();
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a connection ended early");
    }
}

fn builder(limits: Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    // The time for a head runs from the end of the request before, so it is that of idle connections too.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.opening).max_buf_size(MAX_BUFFER);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(HTTP2_PING).keep_alive_timeout(HTTP2_PING);
    builder
}
