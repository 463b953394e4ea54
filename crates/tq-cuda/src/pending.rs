//! A copy under way: it owns what it reads and writes.

use std::{
    any::Any,
    fmt, mem, thread,
    time::{Duration, Instant},
};

use crate::Error;

/// How long a copy that nobody waits for is waited for when it is dropped; after that its memory is never given back.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a copy is looked at without a pause: as many bytes go in it as a put takes. To be woken costs 0.1 to 0.4 ms, by a thread of
/// the driver that holds up the next copy meanwhile, and the driver's own wait has no deadline.
const EAGER: Duration = Duration::from_millis(50);
/// The pause between two looks after that.
const PAUSE: Duration = Duration::from_micros(500);

/// A copy that was begun. It goes on whether anybody waits for it or not; dropped, it is waited for, so that nothing it reads or
/// writes goes before it is done.
pub struct Pending<T> {
    what: String,
    /// What it reads and writes; the second of them is the caller's again once it is done.
    owned: Option<(Box<dyn Any + Send>, T)>,
    end: Box<dyn End>,
}

/// The end of a copy.
pub(crate) trait End: Send + Sync {
    /// What came of it; `None`: it is under way.
    fn look(&self, what: &str) -> Option<Result<(), Error>>;
}

impl<T> Pending<T> {
    pub(crate) fn new(what: String, reads: Box<dyn Any + Send>, value: T, end: Box<dyn End>) -> Self {
        Self { what, owned: Some((reads, value)), end }
    }

    /// Waits until it is done, and gives back what was copied to.
    ///
    /// # Errors
    /// [`Error::Late`] when the deadline comes first: the copy goes on, and may be waited for again. [`Error::Cuda`] when the
    /// device has failed; what the copy owned is gone then. [`Error::Taken`] after that, or after success.
    pub fn wait(&mut self, deadline: Instant) -> Result<T, Error> {
        let begun = Instant::now();
        if self.owned.is_none() {
            return Err(Error::Taken { what: self.what.clone() });
        }
        let Some(ended) = self.ended(deadline) else {
            return Err(Error::Late { what: self.what.clone(), waited: begun.elapsed() });
        };
        let (_, value) = self.owned.take().expect("invariant: looked at above");
        ended.map(|()| value)
    }

    /// What came of it; `None` when the deadline came first.
    fn ended(&self, deadline: Instant) -> Option<Result<(), Error>> {
        let eager = Instant::now() + EAGER;
        loop {
            if let Some(ended) = self.end.look(&self.what) {
                return Some(ended);
            }
            match Instant::now() {
                now if now >= deadline => return None,
                // Whoever else wants this core has it.
                now if now < eager => thread::yield_now(),
                now => thread::park_timeout(PAUSE.min(deadline - now)),
            }
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if self.owned.is_some() && self.ended(Instant::now() + PATIENCE).is_none() {
            tracing::error!(what = self.what, ?PATIENCE, "a copy does not end: its memory is not given back");
            mem::forget(self.owned.take());
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use super::*;

    /// A copy that ends when it is told so.
    #[derive(Clone, Default)]
    struct Told(Arc<AtomicBool>);

    impl End for Told {
        fn look(&self, _: &str) -> Option<Result<(), Error>> {
            self.0.load(Ordering::Acquire).then_some(Ok(()))
        }
    }

    #[test]
    fn what_a_copy_owns_comes_back_when_it_is_done_and_not_before() {
        let (told, kept) = (Told::default(), Arc::new(()));
        let mut pending = Pending::new("a copy".into(), Box::new(kept.clone()), 7, Box::new(told.clone()));
        for wait in [Duration::ZERO, EAGER + 3 * PAUSE] {
            let error = pending.wait(Instant::now() + wait).unwrap_err();
            assert!(matches!(&error, Error::Late { what, waited } if what == "a copy" && *waited >= wait), "{error}");
        }
        assert_eq!(Arc::strong_count(&kept), 2);
        told.0.store(true, Ordering::Release);
        assert_eq!(pending.wait(Instant::now()), Ok(7));
        assert_eq!(Arc::strong_count(&kept), 1);
        assert!(matches!(pending.wait(Instant::now()), Err(Error::Taken { .. })));
    }

    #[test]
    fn a_dropped_copy_is_waited_for() {
        let (told, kept) = (Told::default(), Arc::new(()));
        let pending = Pending::new("a copy".into(), Box::new(kept.clone()), (), Box::new(told.clone()));
        thread::scope(|scope| {
            let dropping = scope.spawn(move || drop(pending));
            assert_eq!(Arc::strong_count(&kept), 2, "it is not done yet");
            told.0.store(true, Ordering::Release);
            dropping.join().unwrap();
        });
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
