//! The called end of a link.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use prost::Message as _;
use tokio::{
    net::TcpListener,
    sync::mpsc::{self, UnboundedSender, WeakUnboundedSender},
    time,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Server, server::TlsConnectInfo},
};

use super::{
    Down, Fault, FaultCode, FrameLimits, Hello, LinkEnded, LinkOptions, LocalStage, Security, SecurityError, Up,
    codec::{self, FrameError, pb},
    guard::{self, PeerInfo},
    handshake,
    link::{chain, lost},
    queue::{Filler, Inbox, Outbox, Silence},
};
use crate::telemetry::{
    labels::Direction,
    metrics::{self, LinkUp},
};

/// HTTP/2 windows: what may be on its way before this end has taken it, at least.
const WINDOW: u32 = 16 << 20;

/// How long last words may take when the listener ends.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why nobody can call this stage.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Not in this way.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// The socket is of no use.
    #[error("cannot listen for links: {0}")]
    Socket(#[from] std::io::Error),
    /// The server failed.
    #[error("cannot serve links: {0}")]
    Server(String),
}

/// The stage before, once it has said a [`Hello`] that fits. The owner answers it with [`Up::Welcome`] or [`Up::Fault`].
#[derive(Debug)]
pub struct Session {
    /// What it said.
    pub hello: Hello,
    /// Its address, for logs.
    pub peer: String,
    /// What it sends. The session lasts as long as this; meanwhile nobody else gets one.
    pub frames: LinkFrames,
    /// Answers. When the last of them is dropped the link is closed, after what was sent before.
    pub replies: ReplySender,
}

/// Receives what the stage before sends.
#[derive(Debug)]
pub struct LinkFrames {
    inbox: Inbox<Down>,
    _cancel: DropGuard,
    _slot: Slot,
}

impl LinkFrames {
    /// The next frame, if it comes within `wait`. Never [`Down::Hello`] nor [`Down::Ping`]. For threads outside of the
    /// runtime.
    ///
    /// # Errors
    /// The link has ended.
    pub fn recv_timeout(&mut self, wait: Duration) -> Result<Option<Down>, LinkEnded> {
        self.inbox.recv_timeout(wait)
    }

    /// The next frame. May be dropped and called again.
    ///
    /// # Errors
    /// The link has ended.
    pub async fn recv(&mut self) -> Result<Down, LinkEnded> {
        self.inbox.recv().await
    }
}

/// Answers the stage before.
#[derive(Clone, Debug)]
pub struct ReplySender(UnboundedSender<Result<pb::Up, Status>>);

impl ReplySender {
    /// Puts a frame on its way. Never waits, and works on any thread.
    ///
    /// # Errors
    /// When the link has ended; [`LinkFrames`] tells why.
    pub fn send(&self, up: Up) -> Result<(), LinkEnded> {
        if let Up::Fault(fault) = &up {
            metrics::link_fault(fault.code);
        }
        let message = codec::up_to_message(up);
        metrics::link_frame(Direction::Out, message.encoded_len());
        self.0.send(Ok(message)).map_err(|_| LinkEnded::Closed)
    }
}

/// Answers calls on `listener`, and standard gRPC health checks, until `shutdown`. Each stage that fits becomes a
/// [`Session`]; there is one at a time. Sessions that are left a second after `shutdown` are cut off.
///
/// # Errors
/// [`ListenError`], before anything is answered.
pub async fn serve(
    listener: TcpListener,
    local: LocalStage,
    security: Security,
    options: &LinkOptions,
    sessions: mpsc::Sender<Session>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ListenError> {
    let address = listener.local_addr()?;
    security.allow(&address.to_string(), address.ip().to_canonical().is_loopback())?;
    let mut server = Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(16)
        .http2_keepalive_interval(Some(options.keep_alive))
        .http2_keepalive_timeout(Some(options.timeout));
    if let Some(tls) = security.server_tls()? {
        server = server.tls_config(tls).map_err(|error| SecurityError::Tls(chain(&error)))?;
    }
    let info = &local.info;
    let limits = FrameLimits::new(info.n_embd, info.n_batch, info.n_seq_max, info.n_ctx_seq, info.takes_top_k)
        .with_vocabulary(local.vocabulary);
    let max_frame_bytes = limits.max_frame_bytes;
    let stage = Listener {
        local,
        limits,
        security,
        sessions,
        slot: Arc::default(),
        patience: options.hello_timeout,
        timeout: options.timeout,
    };
    let service = pb::stage_server::StageServer::new(stage).max_decoding_message_size(max_frame_bytes);
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<pb::stage_server::StageServer<Listener>>().await;
    let end = CancellationToken::new();
    let _end = end.clone().drop_guard();
    let stopping = CancellationToken::new();
    let incoming = guard::accept(listener, options.hello_timeout, end.clone());
    let serving = server
        .add_service(health_service)
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, stopping.clone().cancelled_owned());
    let stop = async {
        shutdown.await;
        stopping.cancel();
        time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        served = serving => served.map_err(|error| ListenError::Server(chain(&error))),
        () = stop => Ok(()),
    }
}

/// Takes the first frame of each call.
struct Listener {
    local: LocalStage,
    limits: FrameLimits,
    security: Security,
    sessions: mpsc::Sender<Session>,
    slot: Arc<Mutex<Option<String>>>,
    patience: Duration,
    timeout: Duration,
}

/// The right to be the one session; holds the peer's address.
#[derive(Debug)]
struct Slot(Arc<Mutex<Option<String>>>);

impl Slot {
    /// Takes it, or says who has it.
    fn take(slot: &Arc<Mutex<Option<String>>>, peer: &str) -> Result<Self, String> {
        let mut held = slot.lock().unwrap_or_else(PoisonError::into_inner);
        match &*held {
            Some(other) => Err(other.clone()),
            None => {
                *held = Some(peer.to_owned());
                Ok(Self(slot.clone()))
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[tonic::async_trait]
impl pb::stage_server::Stage for Listener {
    type RunStream = Outbox<Result<pb::Up, Status>>;

    async fn run(&self, request: Request<Streaming<pb::Down>>) -> Result<Response<Self::RunStream>, Status> {
        let info = peer(&request).ok_or_else(|| Status::internal("a call without a connection"))?;
        self.security.admit(request.metadata()).inspect_err(|status| {
            tracing::warn!(peer = %info.address, reason = status.message(), "a link was refused");
        })?;
        let mut incoming = request.into_inner();
        let hello = match time::timeout(self.patience, self.hello(&mut incoming)).await {
            Ok(hello) => hello?,
            Err(_) => return Err(Status::deadline_exceeded("no hello came in time")),
        };
        let link = CancellationToken::new();
        let (replies, sent) = mpsc::unbounded_channel();
        let replies = ReplySender(replies);
        if let Err(fault) = self.open(hello, &info, incoming, &replies, &link).await {
            tracing::warn!(peer = %info.address, code = fault.code.label(), reason = %fault.text, "a link was refused");
            let _ = replies.send(Up::Fault(fault));
        }
        Ok(Response::new(Outbox::new(sent, &link)))
    }
}

impl Listener {
    /// The first frame, if it is a hello.
    async fn hello(&self, incoming: &mut Streaming<pb::Down>) -> Result<Result<Hello, FrameError>, Status> {
        let first = incoming.message().await?.ok_or_else(|| Status::cancelled("no hello came"))?;
        metrics::link_frame(Direction::In, first.encoded_len());
        Ok(match codec::down_from_message(first, &self.limits) {
            Ok(Down::Hello(hello)) => Ok(hello),
            Ok(_) => Err(FrameError::new("frame", "something else", "hello at the beginning")),
            Err(error) => Err(error),
        })
    }

    /// Makes a session of a call.
    async fn open(
        &self,
        hello: Result<Hello, FrameError>,
        info: &PeerInfo,
        incoming: Streaming<pb::Down>,
        replies: &ReplySender,
        link: &CancellationToken,
    ) -> Result<(), Fault> {
        let hello = hello.map_err(|error| fault(0, FaultCode::Protocol, error))?;
        let place = hello.route.len();
        handshake::check_hello(&hello, &self.local).map_err(|error| fault(place, FaultCode::Refused, error))?;
        let slot = Slot::take(&self.slot, &info.address)
            .map_err(|other| fault(place, FaultCode::Busy, format!("it serves {other} already")))?;
        if hello.version != self.local.info.version {
            tracing::warn!(theirs = %hello.version, ours = %self.local.info.version, "the stage before is of another version");
        }
        info.admit();
        let (filler, inbox) = Inbox::new();
        let reader = Reader {
            incoming,
            filler,
            limits: self.limits.clone().with_wire(hello.wire),
            place,
            replies: replies.0.downgrade(),
            silence: Silence::new(self.timeout),
            _up: LinkUp::new(Direction::In),
        };
        let frames = LinkFrames { inbox, _cancel: link.clone().drop_guard(), _slot: slot };
        let session = Session { hello, peer: info.address.clone(), frames, replies: replies.clone() };
        let gone = |_| fault(place, FaultCode::Draining, "the stage is shutting down");
        self.sessions.send(session).await.map_err(gone)?;
        tokio::spawn(reader.run(link.clone()));
        Ok(())
    }
}

fn peer<T>(request: &Request<T>) -> Option<PeerInfo> {
    let extensions = request.extensions();
    let tls = || extensions.get::<TlsConnectInfo<PeerInfo>>().map(TlsConnectInfo::get_ref);
    extensions.get::<PeerInfo>().or_else(tls).cloned()
}

fn fault(place: usize, code: FaultCode, text: impl ToString) -> Fault {
    Fault { stage: u32::try_from(place).unwrap_or(u32::MAX), code, text: text.to_string() }
}

/// Takes frames off the network for as long as the session lives.
struct Reader {
    incoming: Streaming<pb::Down>,
    filler: Filler<Down>,
    limits: FrameLimits,
    place: usize,
    /// Weak: the link ends when its owner has dropped the others.
    replies: WeakUnboundedSender<Result<pb::Up, Status>>,
    silence: Silence,
    _up: LinkUp,
}

impl Reader {
    async fn run(mut self, link: CancellationToken) {
        let ended = loop {
            tokio::select! {
                biased;
                message = self.incoming.message() => match self.take(message).await {
                    Ok(()) => {}
                    Err(ended) => break self.silence.explain(ended),
                },
                () = link.cancelled() => break LinkEnded::Closed,
            }
        };
        match &ended {
            LinkEnded::Closed => {}
            LinkEnded::Lost(reason) => {
                metrics::link_fault(FaultCode::Unavailable);
                // Where only one direction is lost, the other end hears of it.
                let replies = self.replies.upgrade();
                let _ = replies.map(|replies| replies.send(Err(Status::unavailable(reason.as_str()))));
            }
            LinkEnded::Protocol(error) => self.tell(Up::Fault(fault(self.place, FaultCode::Protocol, error))),
        }
        tokio::select! {
            _ = self.filler.send(Err(ended)) => {}
            () = link.cancelled() => {}
        }
        link.cancel();
    }

    async fn take(&mut self, message: Result<Option<pb::Down>, Status>) -> Result<(), LinkEnded> {
        let message = message.map_err(|status| lost(&status))?.ok_or(LinkEnded::Closed)?;
        self.silence.broken();
        metrics::link_frame(Direction::In, message.encoded_len());
        match codec::down_from_message(message, &self.limits)? {
            Down::Ping { id } => {
                self.tell(Up::Pong { id });
                Ok(())
            }
            Down::Hello(_) => Err(FrameError::new("frame", "a second hello", "anything else").into()),
            down => self.filler.send(Ok(down)).await.map_err(|_| LinkEnded::Closed),
        }
    }

    fn tell(&self, up: Up) {
        if let Some(replies) = self.replies.upgrade() {
            let _ = ReplySender(replies).send(up);
        }
    }
}
