//! Serving the router: listening, and ending in good order.

mod connections;
mod io;

use std::{io::Result, time::Duration};

use tokio::{net::TcpListener, sync::mpsc, time};
use tokio_util::sync::CancellationToken;

use self::io::Limits;
use super::{AppState, HttpOptions, assemble};
use crate::{
    serve::{Phase, ServeHandle},
    telemetry::{PrometheusHandle, UPKEEP_INTERVAL},
};

/// Time for the last error events to leave after running requests were cut off.
const FLUSH: Duration = Duration::from_secs(2);

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every request got its answer, or its error within the shutdown timeout.
    Drained,
    /// Connections were still open after the shutdown timeout.
    TimedOut,
    /// A second signal came.
    Forced,
}

/// SIGTERM and Ctrl-C, as a channel that [`run`] takes.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn signals() -> Result<mpsc::Receiver<()>> {
    let (sender, receiver) = mpsc::channel(4);
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::spawn(async move {
            loop {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                tracing::info!(signal = name, "signal received");
                if sender.send(()).await.is_err() {
                    return;
                }
            }
        });
    }
    #[cfg(not(unix))]
    tokio::spawn(async move { while tokio::signal::ctrl_c().await.is_ok() && sender.send(()).await.is_ok() {} });
    Ok(receiver)
}

/// Serves on `listener` until the first signal, then:
/// 1. `/readyz` says 503 at once, requests are still taken for [`HttpOptions::drain_delay`];
/// 2. the listener closes, waiting requests get 503, running ones go on for [`HttpOptions::shutdown_timeout`];
/// 3. what still runs gets an error event and ends.
///
/// A second signal ends it at once. The model may still be loading: probes and metrics answer all the while.
///
/// # Errors
/// When a task of the server panics.
pub async fn run(
    listener: TcpListener,
    serve: ServeHandle,
    metrics: PrometheusHandle,
    options: HttpOptions,
    mut signals: mpsc::Receiver<()>,
) -> Result<Ended> {
    let (drain_delay, shutdown_timeout) = (options.drain_delay, options.shutdown_timeout);
    let limits = Limits { opening: options.idle_timeout, stall: options.stall_timeout };
    let state = AppState::new(serve.clone(), metrics.clone(), options);
    let close = CancellationToken::new();
    let mut server = tokio::spawn(connections::serve(listener, assemble(state.clone()), limits, close.clone()));
    let mut upkeep = time::interval(UPKEEP_INTERVAL);
    let signalled = loop {
        tokio::select! {
            signal = signals.recv() => break signal,
            _ = upkeep.tick() => metrics.run_upkeep(),
            ended = &mut server => return ended.map(|()| Ended::Drained).map_err(std::io::Error::other),
        }
    };
    if signalled.is_none() {
        tracing::warn!("nobody is left to signal: shutting down");
    }

    state.begin_shutdown();
    tracing::info!(?drain_delay, ?shutdown_timeout, "shutting down");
    let second = async {
        if signals.recv().await.is_none() {
            std::future::pending().await
        }
    };
    let drained = async {
        if serve.status().phase == Phase::Ready {
            time::sleep(drain_delay).await;
        }
        serve.drain(shutdown_timeout);
        close.cancel();
        time::timeout(shutdown_timeout.saturating_add(FLUSH), &mut server).await
    };
    let ended = tokio::select! {
        drained = drained => match drained {
            Ok(ended) => ended.map(|()| Ended::Drained).map_err(std::io::Error::other)?,
            Err(_) => Ended::TimedOut,
        },
        () = second => Ended::Forced,
    };
    server.abort();
    tracing::info!(?ended, "stopped serving");
    Ok(ended)
}
