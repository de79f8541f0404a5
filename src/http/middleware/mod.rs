//! What happens around every request, one file each.

pub(super) mod access_log;
pub(super) mod auth;
mod body;
pub(super) mod cors;
pub(super) mod metrics;
pub(super) mod request_id;
