//! How many cache rows a stage holds, for `skippy_kv_rows`.

use super::DsaStage;
use crate::telemetry::{labels::KvKind, metrics};

/// What was told last: several stages of a process add up to one series.
#[derive(Default)]
pub(super) struct Told {
    attention: i64,
    indexer: i64,
    draft: i64,
}

impl Told {
    fn tell(&mut self, attention: i64, indexer: i64, draft: i64) {
        for (kind, told, now) in [
            (KvKind::Attention, &mut self.attention, attention),
            (KvKind::Indexer, &mut self.indexer, indexer),
            (KvKind::Draft, &mut self.draft, draft),
        ] {
            metrics::kv_rows(kind, now - *told);
            *told = now;
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.tell(0, 0, 0);
    }
}

impl DsaStage {
    /// Publishes what is held now.
    pub(super) fn tell_rows(&mut self) {
        let positions: i64 = self.rows_held.iter().map(|rows| i64::from(*rows)).sum();
        let (rows, keys) = self.cache.rows_per_position();
        let drafts = self.drafts.as_ref().map_or(0, |drafts| drafts.rows());
        self.told.tell(positions * rows as i64, positions * keys as i64, drafts as i64);
    }
}
