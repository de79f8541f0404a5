//! Work that may take long: on threads of its own, few at a time, and not waited for longer than a limit.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use crate::grammar::GrammarError;

/// Stack of a thread: the compiler descends once for each level of a schema and each rule.
const STACK_BYTES: usize = 256 << 20;

/// Places for work.
#[derive(Debug)]
pub(super) struct Places {
    free: Mutex<usize>,
    freed: Condvar,
}

/// One place taken, until dropped.
struct Place(Arc<Places>);

impl Places {
    pub(super) fn new(n: usize) -> Self {
        Self { free: Mutex::new(n), freed: Condvar::new() }
    }

    /// The result of `work`, which gets a place within `limit` and then as much time again. Work that takes longer goes on
    /// in its place, and its result is dropped.
    ///
    /// # Errors
    /// [`GrammarError::Busy`] without a place, [`GrammarError::TooLarge`] without a result.
    pub(super) fn run<T: Send + 'static>(
        self: &Arc<Self>,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, GrammarError> {
        let place = self.take(limit).ok_or(GrammarError::Busy)?;
        let (done, result) = mpsc::channel();
        let thread = thread::Builder::new().name("skippy-grammar".into()).stack_size(STACK_BYTES);
        let started = thread.spawn(move || {
            let result = work();
            drop(place);
            // Nobody may be waiting any more.
            let _ = done.send(result);
        });
        started.map_err(|error| GrammarError::Fault(format!("no thread to compile it: {error}")))?;
        result.recv_timeout(limit).map_err(|error| match error {
            mpsc::RecvTimeoutError::Timeout => {
                GrammarError::TooLarge(format!("it takes more than {} s to compile", limit.as_secs()))
            }
            mpsc::RecvTimeoutError::Disconnected => GrammarError::Fault("the compiler failed".into()),
        })
    }

    fn take(self: &Arc<Self>, limit: Duration) -> Option<Place> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.freed.wait_timeout_while(free, limit, |free| *free == 0);
        let (mut free, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *free = free.checked_sub(1)?;
        Some(Place(self.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_takes_too_long_is_left_and_holds_its_place_until_it_ends() {
        let places = Arc::new(Places::new(1));
        assert_eq!(places.run(LONG, || 7), Ok(7));
        let (go, wait) = mpsc::channel::<()>();
        let slow = places.run(SOON, move || wait.recv().is_ok());
        assert!(matches!(slow, Err(GrammarError::TooLarge(_))), "{slow:?}");
        assert_eq!(places.run(SOON, || 7), Err(GrammarError::Busy));
        go.send(()).unwrap();
        assert_eq!(places.run(LONG, || 8), Ok(8));
    }

    #[test]
    fn work_that_panics_gives_its_place_back() {
        let places = Arc::new(Places::new(1));
        let failed: Result<(), _> = places.run(LONG, || panic!("on purpose"));
        assert!(matches!(failed, Err(GrammarError::Fault(_))), "{failed:?}");
        assert_eq!(places.run(LONG, || 9), Ok(9));
    }
}
