//! What happens around every request, one file each.

pub(super) mod access_log;
mod body;
pub(super) mod metrics;
pub(super) mod request_id;
