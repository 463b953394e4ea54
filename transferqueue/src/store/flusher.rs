//! Group commit: whoever waits for the disk takes along every record that was appended before it began to flush.

use std::sync::{Condvar, Mutex, MutexGuard};

use crate::error::Error;

/// How far the log and the bytes that it names are on the disk.
#[derive(Default)]
pub(super) struct Flusher {
    state: Mutex<Flushed>,
    changed: Condvar,
}

#[derive(Default)]
struct Flushed {
    /// Records before this position are on the disk.
    end: u64,
    /// Someone is flushing.
    leading: bool,
}

impl Flusher {
    /// Returns once the record at a position is on the disk. `flush` brings everything there that was appended before it
    /// is called, and says the position behind it; one caller does so for all who wait.
    ///
    /// # Errors
    /// Of `flush`, for the one who called it; the next one tries again.
    pub(super) fn wait(&self, seq: u64, flush: impl Fn() -> Result<u64, Error>) -> Result<(), Error> {
        let mut state = self.lock();
        while state.end <= seq {
            if state.leading {
                state = self.changed.wait(state).expect("invariant: nothing panics under this lock");
                continue;
            }
            state.leading = true;
            drop(state);
            let flushed = flush();
            state = self.lock();
            state.leading = false;
            self.changed.notify_all();
            state.end = state.end.max(flushed?);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Flushed> {
        self.state.lock().expect("invariant: nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Barrier,
            atomic::{AtomicU64, Ordering},
        },
        thread,
    };

    use super::*;

    #[test]
    fn those_who_wait_while_one_flushes_share_the_next_flush() {
        let (flusher, flushes, appended) = (Flusher::default(), AtomicU64::new(0), AtomicU64::new(1));
        let (begun, go) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                let slow = || {
                    let end = appended.load(Ordering::SeqCst);
                    flushes.fetch_add(1, Ordering::SeqCst);
                    begun.wait();
                    go.wait();
                    Ok(end)
                };
                flusher.wait(0, slow).unwrap();
            });
            begun.wait();
            // Ten records come while the first is being flushed: one more flush is enough for all of them.
            appended.store(11, Ordering::SeqCst);
            for seq in 1..11 {
                let (flusher, flushes, appended) = (&flusher, &flushes, &appended);
                scope.spawn(move || {
                    let fast = || {
                        flushes.fetch_add(1, Ordering::SeqCst);
                        Ok(appended.load(Ordering::SeqCst))
                    };
                    flusher.wait(seq, fast).unwrap();
                });
            }
            go.wait();
        });
        assert_eq!(flushes.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_flush_that_fails_is_its_callers_error_and_the_next_tries_again() {
        let flusher = Flusher::default();
        let full = || Err(Error::Broken { what: "no room".into() });
        assert!(matches!(flusher.wait(0, full), Err(Error::Broken { .. })));
        flusher.wait(0, || Ok(1)).unwrap();
        flusher.wait(0, || panic!("it is on the disk already")).unwrap();
    }
}
