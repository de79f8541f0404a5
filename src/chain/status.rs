//! What is known of the chain: written by the engine thread, read by requests for `/v1/chain` and probes.

use super::{Link, StageInfo};
use std::{
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// A chain as it was last seen.
#[derive(Debug, Default)]
pub struct ChainStatus {
    inner: RwLock<Inner>,
    /// Nanoseconds; 0 while nothing was measured. Beside the lock, since it is written with every look for a result.
    rtt: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    own: Option<StageInfo>,
    stages: Arc<[StageInfo]>,
    lost: Option<String>,
}

/// A reading of a [`ChainStatus`].
#[derive(Clone, Debug, PartialEq)]
pub struct ChainView {
    /// This process's own stage, once loaded.
    pub own: Option<StageInfo>,
    /// The stages behind the first, as they were last seen; empty before the first handshake.
    pub stages: Arc<[StageInfo]>,
    /// Round trip of the link to the second stage, while there is one.
    pub rtt: Option<Duration>,
    /// Why there is no chain at the moment.
    pub lost: Option<String>,
}

impl ChainStatus {
    /// What is known now.
    pub fn view(&self) -> ChainView {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let nanos = self.rtt.load(Relaxed);
        let rtt = (nanos > 0 && inner.lost.is_none()).then(|| Duration::from_nanos(nanos));
        ChainView { own: inner.own.clone(), stages: inner.stages.clone(), rtt, lost: inner.lost.clone() }
    }

    /// Says what this process's own stage is.
    pub fn describe(&self, own: StageInfo) {
        self.inner.write().unwrap_or_else(PoisonError::into_inner).own = Some(own);
    }

    /// Why there is no chain at the moment.
    pub(super) fn reason(&self) -> String {
        self.view().lost.unwrap_or_else(|| "the link to the next stage has ended".into())
    }

    pub(super) fn up(&self, link: &Link) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        (inner.stages, inner.lost) = (link.stages.as_slice().into(), None);
        self.rtt.store(0, Relaxed);
    }

    pub(super) fn measured(&self, rtt: Option<Duration>) {
        if let Some(rtt) = rtt {
            self.rtt.store(u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        }
    }

    pub(super) fn lost(&self, why: &str) {
        self.inner.write().unwrap_or_else(PoisonError::into_inner).lost = Some(why.to_owned());
    }
}
