//! Rows of finished requests in host memory.

use super::{Rows, Wanted};
use std::sync::Arc;

/// What an entry takes besides rows and tokens, roughly.
const OVERHEAD: u64 = 256;

/// Saved sequences, at most so many bytes; the one used longest ago goes first.
#[derive(Debug, Default)]
pub(super) struct Store {
    limit: u64,
    bytes: u64,
    entries: Vec<Entry>,
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    rows: Rows,
    state: Arc<Vec<u8>>,
    used: u64,
}

impl Entry {
    fn bytes(&self) -> u64 {
        (self.state.len() + self.rows.tokens.len() * size_of::<i32>()) as u64 + OVERHEAD
    }
}

impl Store {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Whether anything fits at all.
    pub(super) fn is_open(&self) -> bool {
        self.limit > OVERHEAD
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The entry that shares the longest beginning with what is wanted, and how many rows of it.
    pub(super) fn best(&self, wanted: &Wanted<'_>) -> Option<(usize, u32)> {
        let shared = self.entries.iter().enumerate().map(|(i, entry)| (i, entry.rows.shared(wanted)));
        shared.filter(|(_, rows)| *rows > 0).max_by_key(|(_, rows)| *rows)
    }

    /// The state of an entry, which counts as used.
    pub(super) fn open(&mut self, index: usize) -> Option<Arc<Vec<u8>>> {
        self.uses += 1;
        let entry = self.entries.get_mut(index)?;
        entry.used = self.uses;
        Some(entry.state.clone())
    }

    /// Whether an entry can do all that `rows` could; it counts as used.
    pub(super) fn covers(&mut self, rows: &Rows) -> bool {
        self.uses += 1;
        let found = self.entries.iter_mut().find(|entry| rows.is_within(&entry.rows));
        found.map(|entry| entry.used = self.uses).is_some()
    }

    /// Takes in rows that no entry covers. Those that they cover go, and others as far as room is needed. Returns how
    /// many went for want of room; the rows themselves count when they alone are too many.
    pub(super) fn insert(&mut self, rows: Rows, state: Vec<u8>) -> u64 {
        self.uses += 1;
        let entry = Entry { rows, state: Arc::new(state), used: self.uses };
        if entry.bytes() > self.limit {
            return 1;
        }
        self.entries.retain(|old| !old.rows.is_within(&entry.rows));
        self.bytes = self.entries.iter().map(Entry::bytes).sum::<u64>() + entry.bytes();
        let mut gone = 0;
        while self.bytes > self.limit {
            let Some(oldest) = (0..self.entries.len()).min_by_key(|i| self.entries[*i].used) else { break };
            self.remove(oldest);
            gone += 1;
        }
        self.entries.push(entry);
        gone
    }

    /// Forgets an entry.
    pub(super) fn remove(&mut self, index: usize) {
        if index < self.entries.len() {
            self.bytes -= self.entries.swap_remove(index).bytes();
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::Footing;
    use super::*;
    use proptest::prelude::*;

    fn rows(tokens: &[i32]) -> Rows {
        Rows { tokens: tokens.to_vec(), footing: Footing::default(), followed: false }
    }

    fn wanted(tokens: &[i32]) -> Wanted<'_> {
        Wanted { tokens, footing: Footing::default(), drafts: false, most: u32::MAX, step: 1 }
    }

    /// Room for `n` entries of ten bytes of state and one token.
    fn room(n: u64) -> Store {
        Store::new(n * (OVERHEAD + 14))
    }

    #[test]
    fn the_one_used_longest_ago_goes() {
        let mut store = room(2);
        assert_eq!(store.insert(rows(&[1]), vec![1; 10]), 0);
        assert_eq!(store.insert(rows(&[2]), vec![2; 10]), 0);
        let (first, _) = store.best(&wanted(&[1, 9])).unwrap();
        assert_eq!(*store.open(first).unwrap(), [1; 10]);
        assert_eq!(store.insert(rows(&[3]), vec![3; 10]), 1);
        assert!(store.best(&wanted(&[1])).is_some() && store.best(&wanted(&[2])).is_none());
        assert!(store.covers(&rows(&[1])), "and is used by that");
        assert_eq!(store.insert(rows(&[4]), vec![4; 10]), 1);
        assert!(store.best(&wanted(&[1])).is_some() && store.best(&wanted(&[3])).is_none());
        assert_eq!(store.insert(rows(&[5]), vec![5; 1000]), 1, "too large by itself");
        assert_eq!(store.bytes(), 2 * (OVERHEAD + 14));
    }

    #[test]
    fn a_longer_sequence_takes_the_place_of_its_beginning() {
        let mut store = Store::new(1 << 20);
        store.insert(rows(&[1, 2]), vec![1]);
        assert!(store.covers(&rows(&[1])) && !store.covers(&rows(&[1, 2, 3])) && !store.covers(&rows(&[2])));
        store.insert(rows(&[1, 2, 3]), vec![2]);
        store.insert(rows(&[1, 3]), vec![3]);
        assert_eq!(store.entries.len(), 2);
        let (best, shared) = store.best(&wanted(&[1, 2, 4])).unwrap();
        assert_eq!((store.open(best).unwrap().as_slice(), shared), ([2].as_slice(), 2));
        store.clear();
        assert_eq!((store.bytes(), store.best(&wanted(&[1]))), (0, None));
        assert!(!Store::new(0).is_open());
    }

    proptest! {
        #[test]
        fn bytes_stay_below_the_limit_and_entries_stay_themselves(
            limit in 0u64..6000,
            inserts in prop::collection::vec((prop::collection::vec(0i32..3, 1..6), 0usize..900), 1..40),
        ) {
            let mut store = Store::new(limit);
            for (tokens, size) in inserts {
                let byte = tokens.iter().sum::<i32>() as u8;
                if !store.covers(&rows(&tokens)) {
                    store.insert(rows(&tokens), vec![byte; size]);
                }
                prop_assert!(store.bytes() <= limit);
                prop_assert_eq!(store.bytes(), store.entries.iter().map(Entry::bytes).sum::<u64>());
                for entry in &store.entries {
                    let byte = entry.rows.tokens.iter().sum::<i32>() as u8;
                    prop_assert!(entry.state.iter().all(|b| *b == byte));
                }
            }
        }
    }
}
