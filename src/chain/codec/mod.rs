//! Frames to bytes and back.
//!
//! Decoding trusts nothing: every count, length, id, position and number is held against the [`FrameLimits`] of the link
//! before anything is allocated for it. What comes out can be given to an engine.

mod check;
mod hello;
mod opening;
mod step;
#[cfg(test)]
pub(super) mod tests;
mod up;

use bytes::Bytes;
use prost::Message as _;

use super::{Down, FrameLimits, Up, WireDtype};
use crate::stage::SeqId;
use check::{at_most, sequence};

/// The messages of `stage.proto`, and its service.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub(super) mod pb {
    tonic::include_proto!("skippy.stage.v1");
}

/// A frame that says what it must not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` is {got}, expected {expected}")]
pub struct FrameError {
    /// Which field, by its path.
    pub field: String,
    /// What it holds.
    pub got: String,
    /// What it may hold.
    pub expected: String,
}

impl FrameError {
    pub(super) fn new(field: impl Into<String>, got: impl ToString, expected: impl ToString) -> Self {
        Self { field: field.into(), got: got.to_string(), expected: expected.to_string() }
    }
}

/// Bytes of `down`, with hidden rows as `wire`.
///
/// # Errors
/// When `wire` cannot hold a hidden row.
pub fn encode_down(down: Down, wire: WireDtype) -> Result<Bytes, FrameError> {
    Ok(down_to_message(down, wire)?.encode_to_vec().into())
}

/// Back from [`encode_down`].
///
/// # Errors
/// The first thing that is wrong with the frame.
pub fn decode_down(bytes: Bytes, limits: &FrameLimits) -> Result<Down, FrameError> {
    at_most("frame", "bytes", bytes.len(), limits.max_frame_bytes)?;
    down_from_message(pb::Down::decode(bytes).map_err(malformed)?, limits)
}

/// Bytes of `up`.
pub fn encode_up(up: Up) -> Bytes {
    up_to_message(up).encode_to_vec().into()
}

/// Back from [`encode_up`]. A fault of the tail comes back as [`TailError::Remote`](crate::pipeline::TailError::Remote).
///
/// # Errors
/// The first thing that is wrong with the frame.
pub fn decode_up(bytes: Bytes, limits: &FrameLimits) -> Result<Up, FrameError> {
    at_most("frame", "bytes", bytes.len(), limits.max_frame_bytes)?;
    up_from_message(pb::Up::decode(bytes).map_err(malformed)?, limits)
}

fn malformed(error: prost::DecodeError) -> FrameError {
    FrameError::new("frame", error, "a message of skippy.stage.v1")
}

pub(super) fn down_to_message(down: Down, wire: WireDtype) -> Result<pb::Down, FrameError> {
    use pb::down::Frame;
    let frame = match down {
        Down::Hello(hello) => Frame::Hello(hello::to_message(hello)),
        Down::Open(opening) => Frame::Open(opening::to_message(opening)),
        Down::Step(step) => Frame::Step(step::to_message(step, wire)?),
        Down::Truncate { seq, n_keep } => Frame::Truncate(pb::Truncate { seq: seq.0, n_keep }),
        Down::Copy { from, to, n_rows } => Frame::Copy(pb::Copy { from: from.0, to: to.0, n_rows }),
        Down::Ping { id } => Frame::Ping(id),
    };
    Ok(pb::Down { frame: Some(frame) })
}

pub(super) fn down_from_message(message: pb::Down, limits: &FrameLimits) -> Result<Down, FrameError> {
    use pb::down::Frame;
    let rows = |field, n: u32| at_most(field, "rows", n as usize, limits.n_ctx_seq as usize);
    Ok(match message.frame.ok_or_else(|| FrameError::new("frame", "absent", "one of those of Down"))? {
        Frame::Hello(hello) => Down::Hello(hello::from_message(hello)?),
        Frame::Open(opening) => Down::Open(opening::from_message(opening, limits)?),
        Frame::Step(step) => Down::Step(step::from_message(step, limits)?),
        Frame::Truncate(pb::Truncate { seq, n_keep }) => {
            sequence("truncate.seq", seq, limits)?;
            rows("truncate.n_keep", n_keep)?;
            Down::Truncate { seq: SeqId(seq), n_keep }
        }
        Frame::Copy(pb::Copy { from, to, n_rows }) => {
            sequence("copy.from", from, limits)?;
            sequence("copy.to", to, limits)?;
            rows("copy.n_rows", n_rows)?;
            Down::Copy { from: SeqId(from), to: SeqId(to), n_rows }
        }
        Frame::Ping(id) => Down::Ping { id },
    })
}

pub(super) fn up_to_message(up: Up) -> pb::Up {
    use pb::up::Frame;
    let frame = match up {
        Up::Welcome(stages) => {
            Frame::Welcome(pb::Welcome { stages: stages.into_iter().map(hello::info_to_message).collect() })
        }
        Up::Done(report) => Frame::Done(up::report_to_message(report)),
        Up::Fault(fault) => Frame::Fault(up::fault_to_message(fault)),
        Up::Draining { stage } => Frame::Draining(stage),
        Up::Pong { id } => Frame::Pong(id),
    };
    pb::Up { frame: Some(frame) }
}

pub(super) fn up_from_message(message: pb::Up, limits: &FrameLimits) -> Result<Up, FrameError> {
    use pb::up::Frame;
    Ok(match message.frame.ok_or_else(|| FrameError::new("frame", "absent", "one of those of Up"))? {
        Frame::Welcome(welcome) => Up::Welcome(hello::infos_from_message(welcome)?),
        Frame::Done(report) => Up::Done(up::report_from_message(report, limits)?),
        Frame::Fault(fault) => Up::Fault(up::fault_from_message(fault)?),
        Frame::Draining(stage) => Up::Draining { stage },
        Frame::Pong(id) => Up::Pong { id },
    })
}
