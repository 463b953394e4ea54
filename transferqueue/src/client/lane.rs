//! One session's numbers, and what it has put and does not want any more.

use std::sync::{
    Arc, Mutex as Blocking,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::wire::Spot;

/// The numbers of a session's calls.
#[derive(Default)]
pub(super) struct Numbers {
    /// Of the last answered call.
    pub(super) last: u64,
    /// Calls sent so far, those among them whose number was given back.
    pub(super) attempts: u64,
    /// A call whose answer was never heard: nobody knows whether the next number is taken.
    pub(super) doubt: Option<String>,
}

#[derive(Default)]
pub(super) struct Lane {
    numbers: Arc<Mutex<Numbers>>,
    released: Blocking<Vec<Spot>>,
    puts: AtomicU64,
}

impl Lane {
    /// The turn to send one call; in the order of asking.
    pub(super) async fn turn(&self) -> OwnedMutexGuard<Numbers> {
        self.numbers.clone().lock_owned().await
    }

    /// A number for a put.
    pub(super) fn put(&self) -> u64 {
        self.puts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Cells that no call will name; said with the session's next call, at the latest with its next heartbeat.
    pub(super) fn release(&self, spot: Spot) {
        self.released().push(spot);
    }

    pub(super) fn take_released(&self) -> Vec<Spot> {
        std::mem::take(&mut *self.released())
    }

    fn released(&self) -> std::sync::MutexGuard<'_, Vec<Spot>> {
        self.released.lock().expect("invariant: nothing panics under this lock")
    }
}
