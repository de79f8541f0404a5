//! Stages over the network: what they say to each other, and the links that carry it.
//!
//! Two stages share one *link*: a bidirectional gRPC stream that the stage nearer the input opens. Frames towards the
//! output are [`Down`], frames towards the input [`Up`]. `docs/protocol.md` describes the protocol for others who want to
//! speak it.
//!
//! Nothing that a peer sends reaches an engine unchecked: [`codec`] holds every frame against the limits agreed on when
//! the link was made, and a frame that lies ends the link.

pub mod certs;
pub mod codec;
mod frame;
mod guard;
mod handshake;
mod head;
mod limits;
pub mod link;
pub mod listen;
mod queue;
mod security;
mod status;
mod target;
#[cfg(test)]
mod tests;
mod wire;
mod worker;

pub use self::{
    frame::{Down, Fault, FaultCode, Hello, RemoteOpening, StageInfo, StepFrame, StepReport, Up},
    handshake::{Disagreement, LocalStage},
    head::{Chain, Onward},
    limits::FrameLimits,
    link::{Link, LinkError, LinkOptions, LinkReceiver, LinkSender},
    listen::{LinkFrames, ListenError, ReplySender, Session},
    queue::LinkEnded,
    security::{LinkToken, Security, SecurityError, TlsFiles},
    status::{ChainStatus, ChainView},
    target::{Target, TargetError},
    wire::WireDtype,
    worker::{Drain, Next, Worker},
};

/// Version of the protocol. Stages talk to each other only when theirs are equal.
pub const PROTOCOL: u32 = 1;

/// Stages of a chain at most.
pub const MAX_STAGES: usize = 64;
