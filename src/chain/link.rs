//! The calling end of a link.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use prost::Message as _;
use tokio::{
    sync::mpsc::{self, UnboundedSender, WeakUnboundedSender},
    time::{self, MissedTickBehavior},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{
    Code, Request, Status, Streaming,
    transport::{Channel, Endpoint},
};

use super::{
    Disagreement, Down, Fault, FaultCode, FrameLimits, Hello, LinkEnded, Security, SecurityError, StageInfo, Target,
    Up, WireDtype,
    codec::{self, FrameError, pb},
    handshake,
    queue::{Filler, Inbox, Outbox, Silence},
};
use crate::telemetry::{
    labels::{Direction, LinkConnect},
    metrics::{self, LinkUp},
};

/// HTTP/2 windows: what may be on its way before the other end has taken it, at least.
const WINDOW: u32 = 16 << 20;

/// How often the round trip is measured.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// How long things may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkOptions {
    /// How often each end asks whether the other is there.
    pub keep_alive: Duration,
    /// How long the answer may take: then the link is lost.
    pub timeout: Duration,
    /// How long a connection may take to come up.
    pub connect_timeout: Duration,
    /// How long the stages behind may take to welcome.
    pub welcome_timeout: Duration,
    /// How long a caller may take to say hello.
    pub hello_timeout: Duration,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(2),
            timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            welcome_timeout: Duration::from_secs(30),
            hello_timeout: Duration::from_secs(5),
        }
    }
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Nothing may be sent there in this way.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// Nobody answers.
    #[error("stage {stage} at {address} cannot be reached: {reason}")]
    Unreachable {
        /// Its place in the chain.
        stage: usize,
        /// Where it should be.
        address: String,
        /// Why not.
        reason: String,
    },
    /// It did not answer in time.
    #[error("stage {stage} at {address} did not answer within {} s", .waited.as_secs_f32())]
    Timeout {
        /// Its place in the chain.
        stage: usize,
        /// Where it should be.
        address: String,
        /// How long we waited.
        waited: Duration,
    },
    /// It wants another token, or none was given.
    #[error("stage {stage} at {address} does not let us in: {reason}")]
    Unauthenticated {
        /// Its place in the chain.
        stage: usize,
        /// Where it is.
        address: String,
        /// What it says.
        reason: String,
    },
    /// It, or a stage behind it, has refused.
    #[error("stage {stage} at {address} refuses: {fault}")]
    Refused {
        /// Its place in the chain.
        stage: usize,
        /// Where it is.
        address: String,
        /// What it says.
        fault: Fault,
    },
    /// The stages there do not complete this chain.
    #[error("stage {stage} at {address} does not fit: {source}")]
    Disagreement {
        /// Its place in the chain.
        stage: usize,
        /// Where it is.
        address: String,
        /// What does not fit.
        source: Disagreement,
    },
    /// It does not speak the protocol.
    #[error("stage {stage} at {address} broke the protocol: {source}")]
    Protocol {
        /// Its place in the chain.
        stage: usize,
        /// Where it is.
        address: String,
        /// What it sent.
        source: FrameError,
    },
}

/// A link to the next stage.
#[derive(Debug)]
pub struct Link {
    /// The next stage and all behind it, in order.
    pub stages: Vec<StageInfo>,
    /// Sends frames.
    pub sender: LinkSender,
    /// Receives frames. The link lives as long as this.
    pub receiver: LinkReceiver,
}

impl Link {
    /// Time from here to the next stage and back, as measured last.
    pub fn rtt(&self) -> Option<Duration> {
        self.receiver.rtt()
    }
}

/// Sends frames on a link.
#[derive(Clone, Debug)]
pub struct LinkSender {
    frames: UnboundedSender<pb::Down>,
    wire: WireDtype,
}

impl LinkSender {
    /// Puts a frame on its way. Never waits, and works on any thread.
    ///
    /// # Errors
    /// When the link has ended ([`LinkReceiver`] tells why), or cannot carry the frame's hidden rows.
    pub fn send(&self, down: Down) -> Result<(), LinkEnded> {
        let message = codec::down_to_message(down, self.wire)?;
        metrics::link_frame(Direction::Out, message.encoded_len());
        self.frames.send(message).map_err(|_| LinkEnded::Closed)
    }
}

/// Receives what comes back on a link. Dropping it closes the link at once.
#[derive(Debug)]
pub struct LinkReceiver {
    inbox: Inbox<Up>,
    rtt: Arc<AtomicU64>,
    _cancel: DropGuard,
}

impl LinkReceiver {
    /// The next frame, if it comes within `wait`. Never [`Up::Welcome`] nor [`Up::Pong`]. For threads outside of the
    /// runtime.
    ///
    /// # Errors
    /// The link has ended; an [`Up::Fault`] before it says why, if the other end could.
    pub fn recv_timeout(&mut self, wait: Duration) -> Result<Option<Up>, LinkEnded> {
        self.inbox.recv_timeout(wait)
    }

    /// The next frame. May be dropped and called again.
    ///
    /// # Errors
    /// As [`recv_timeout`](Self::recv_timeout).
    pub async fn recv(&mut self) -> Result<Up, LinkEnded> {
        self.inbox.recv().await
    }

    /// As [`Link::rtt`].
    pub fn rtt(&self) -> Option<Duration> {
        let nanos = self.rtt.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }
}

/// Calls the stage at `target` and brings it, with all behind it, into the chain of the one that says `hello`.
///
/// # Errors
/// [`LinkError`]; whether trying again may help is the caller's to judge.
pub async fn connect(
    target: &Target,
    hello: Hello,
    security: &Security,
    options: &LinkOptions,
) -> Result<Link, LinkError> {
    let call = Call { stage: hello.route.len(), address: target.to_string() };
    let link = call.make(target, hello, security, options).await;
    metrics::link_connect(match &link {
        Ok(_) => LinkConnect::Up,
        Err(LinkError::Security(_) | LinkError::Unreachable { .. }) => LinkConnect::Unreachable,
        Err(LinkError::Timeout { .. }) => LinkConnect::Timeout,
        Err(LinkError::Unauthenticated { .. }) => LinkConnect::Unauthenticated,
        Err(LinkError::Refused { .. } | LinkError::Disagreement { .. }) => LinkConnect::Refused,
        Err(LinkError::Protocol { .. }) => LinkConnect::Protocol,
    });
    link
}

/// Whom errors are about.
struct Call {
    stage: usize,
    address: String,
}

impl Call {
    async fn make(
        &self,
        target: &Target,
        hello: Hello,
        security: &Security,
        options: &LinkOptions,
    ) -> Result<Link, LinkError> {
        let channel = self.channel(target, security, options).await?;
        let limits = FrameLimits::new(hello.n_embd, hello.n_batch, hello.n_seq_max, hello.n_ctx_seq, true);
        let (frames, sent) = mpsc::unbounded_channel();
        let sender = LinkSender { frames, wire: hello.wire };
        let _ = sender.send(Down::Hello(hello.clone()));
        let link = CancellationToken::new();
        let mut request = Request::new(Outbox::new(sent, &link));
        security.show(request.metadata_mut());
        let mut client = pb::stage_client::StageClient::new(channel).max_decoding_message_size(limits.max_frame_bytes);
        let welcome = async {
            let mut incoming = client.run(request).await?.into_inner();
            let first = incoming.message().await?;
            Ok((incoming, first))
        };
        let (incoming, first) = time::timeout(options.welcome_timeout, welcome)
            .await
            .map_err(|_| self.timeout(options.welcome_timeout))?
            .map_err(|status| self.failed(&status))?;
        let first = first.ok_or_else(|| self.unreachable("it hung up without a word"))?;
        metrics::link_frame(Direction::In, first.encoded_len());
        let stages = self.welcomed(&hello, codec::up_from_message(first, &limits))?;
        let limits = limits.with_vocabulary(stages.last().map_or(0, |last| last.n_vocab));
        let (filler, inbox) = Inbox::new();
        let rtt = Arc::new(AtomicU64::new(0));
        let reader = Reader {
            incoming,
            filler,
            limits,
            pings: sender.frames.downgrade(),
            pinged: None,
            rtt: rtt.clone(),
            silence: Silence::new(options.timeout),
            _up: LinkUp::new(Direction::Out),
        };
        tokio::spawn(reader.run(link.clone()));
        Ok(Link { stages, sender, receiver: LinkReceiver { inbox, rtt, _cancel: link.drop_guard() } })
    }

    async fn channel(&self, target: &Target, security: &Security, options: &LinkOptions) -> Result<Channel, LinkError> {
        let loopback = time::timeout(options.connect_timeout, target.is_loopback())
            .await
            .map_err(|_| self.timeout(options.connect_timeout))?
            .map_err(|error| self.unreachable(&error.to_string()))?;
        security.allow(&self.address, loopback)?;
        let tls = security.client_tls(target.host())?;
        if target.wants_tls() && tls.is_none() {
            return Err(SecurityError::NoCertificates { what: self.address.clone() }.into());
        }
        let mut endpoint = Endpoint::from_shared(target.uri(tls.is_some()))
            .map_err(|error| self.unreachable(&chain(&error)))?
            .connect_timeout(options.connect_timeout)
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .http2_keep_alive_interval(options.keep_alive)
            .keep_alive_timeout(options.timeout)
            .keep_alive_while_idle(true);
        if let Some(tls) = tls {
            endpoint = endpoint.tls_config(tls).map_err(|error| SecurityError::Tls(chain(&error)))?;
        }
        time::timeout(options.connect_timeout, endpoint.connect())
            .await
            .map_err(|_| self.timeout(options.connect_timeout))?
            .map_err(|error| self.unreachable(&chain(&error)))
    }

    /// The stages behind, where the first frame brings them and they fit.
    fn welcomed(&self, hello: &Hello, first: Result<Up, FrameError>) -> Result<Vec<StageInfo>, LinkError> {
        let (stage, address) = (self.stage, self.address.clone());
        match first {
            Ok(Up::Welcome(mut stages)) => {
                if let Some(next) = stages.first_mut() {
                    next.address.clone_from(&address);
                }
                match handshake::check_welcome(hello, &stages) {
                    Ok(()) => Ok(stages),
                    Err(source) => Err(LinkError::Disagreement { stage, address, source }),
                }
            }
            Ok(Up::Fault(fault)) => {
                metrics::link_fault(fault.code);
                Err(LinkError::Refused { stage, address, fault })
            }
            Ok(_) => {
                metrics::link_fault(FaultCode::Protocol);
                let source = FrameError::new("frame", "a report", "welcome or fault at the beginning");
                Err(LinkError::Protocol { stage, address, source })
            }
            Err(source) => {
                metrics::link_fault(FaultCode::Protocol);
                Err(LinkError::Protocol { stage, address, source })
            }
        }
    }

    fn timeout(&self, waited: Duration) -> LinkError {
        LinkError::Timeout { stage: self.stage, address: self.address.clone(), waited }
    }

    fn unreachable(&self, reason: &str) -> LinkError {
        LinkError::Unreachable { stage: self.stage, address: self.address.clone(), reason: reason.to_owned() }
    }

    fn failed(&self, status: &Status) -> LinkError {
        let (stage, address, reason) = (self.stage, self.address.clone(), chain(status));
        match status.code() {
            Code::Unauthenticated | Code::PermissionDenied => {
                LinkError::Unauthenticated { stage, address, reason: status.message().to_owned() }
            }
            // An HTTP server of another kind answers with a body that is no frame.
            code if code == Code::Unimplemented || reason.contains("invalid compression flag") => {
                let reason = format!("what answers there is no `skippy-stage stage` ({reason})");
                LinkError::Unreachable { stage, address, reason }
            }
            _ => LinkError::Unreachable { stage, address, reason },
        }
    }
}

/// Takes frames off the network for as long as the link lives.
struct Reader {
    incoming: Streaming<pb::Up>,
    filler: Filler<Up>,
    limits: FrameLimits,
    pings: WeakUnboundedSender<pb::Down>,
    /// The ping that is on its way.
    pinged: Option<(u64, Instant)>,
    rtt: Arc<AtomicU64>,
    silence: Silence,
    _up: LinkUp,
}

impl Reader {
    async fn run(mut self, link: CancellationToken) {
        let mut clock = time::interval(PING_INTERVAL);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut id = 0;
        let ended = loop {
            tokio::select! {
                biased;
                message = self.incoming.message() => match self.take(message).await {
                    Ok(()) => {}
                    Err(ended) => break self.silence.explain(ended),
                },
                () = link.cancelled() => break LinkEnded::Closed,
                _ = clock.tick() => self.ping(&mut id),
            }
        };
        match &ended {
            LinkEnded::Closed => {}
            LinkEnded::Lost(_) => metrics::link_fault(FaultCode::Unavailable),
            LinkEnded::Protocol(_) => metrics::link_fault(FaultCode::Protocol),
        }
        // Whoever has dropped the receiver wants to know nothing.
        tokio::select! {
            _ = self.filler.send(Err(ended)) => {}
            () = link.cancelled() => {}
        }
        link.cancel();
    }

    async fn take(&mut self, message: Result<Option<pb::Up>, Status>) -> Result<(), LinkEnded> {
        let message = message.map_err(|status| lost(&status))?.ok_or(LinkEnded::Closed)?;
        self.silence.broken();
        metrics::link_frame(Direction::In, message.encoded_len());
        let up = codec::up_from_message(message, &self.limits)?;
        match &up {
            Up::Pong { id } => {
                if let Some((_, sent)) = self.pinged.take_if(|(pinged, _)| pinged == id) {
                    let took = sent.elapsed();
                    self.rtt.store(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
                    metrics::link_rtt(took);
                }
                return Ok(());
            }
            Up::Welcome(_) => return Err(FrameError::new("frame", "a second welcome", "reports").into()),
            Up::Fault(fault) => metrics::link_fault(fault.code),
            Up::Done(_) | Up::Draining { .. } => {}
        }
        self.filler.send(Ok(up)).await.map_err(|_| LinkEnded::Closed)
    }

    /// One at a time: while the other end is busy, pings must not pile up.
    fn ping(&mut self, id: &mut u64) {
        if self.pinged.is_some() {
            return;
        }
        *id += 1;
        if let Some(pings) = self.pings.upgrade() {
            let ping = pb::Down { frame: Some(pb::down::Frame::Ping(*id)) };
            metrics::link_frame(Direction::Out, ping.encoded_len());
            let _ = pings.send(ping);
            self.pinged = Some((*id, Instant::now()));
        }
    }
}

/// What the end of a stream says.
pub(super) fn lost(status: &Status) -> LinkEnded {
    match status.code() {
        Code::OutOfRange | Code::InvalidArgument => {
            LinkEnded::Protocol(FrameError::new("frame", status.message(), "a message within the limits"))
        }
        Code::Internal if status.message().contains("decode") => {
            LinkEnded::Protocol(FrameError::new("frame", status.message(), "a message of skippy.stage.v1"))
        }
        _ => LinkEnded::Lost(chain(status)),
    }
}

/// An error with its causes, in one line.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let said =
            error.downcast_ref::<Status>().map_or_else(|| error.to_string(), |status| status.message().to_owned());
        if !said.is_empty() && !text.contains(&said) {
            text.extend([if text.is_empty() { "" } else { ": " }, &said]);
        }
        next = error.source();
    }
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
