//! One session's numbers, and what it has put and does not want any more.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex as Blocking, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::{
    catalog::command::Command,
    wire::{ALONG, Along, Spot},
};

/// Bytes of cells that wait for the commands they come along with, at most.
const WAITING_BYTES: usize = 64 << 10;

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
    puts: AtomicU64,
    cells: Blocking<Cells>,
}

/// Cells that were put.
#[derive(Default)]
struct Cells {
    /// Those that come along with a command, by where it says that they lie: the slot in [`ALONG`].
    waiting: BTreeMap<u32, Along>,
    unwanted: Unwanted,
}

/// Cells that no call will name.
#[derive(Default)]
pub(super) struct Unwanted {
    /// By place.
    pub(super) spots: Vec<Spot>,
    /// By the number of their put, which the store may have heard of or not.
    pub(super) puts: Vec<u64>,
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

    /// Keeps cells for the command that will name them; the slot in [`ALONG`] by which it does, and `None` when too many wait.
    pub(super) fn keep(&self, cells: Along) -> Option<u32> {
        let waiting = &mut self.cells().waiting;
        let bytes = |cells: &Along| cells.offsets.len() + cells.values.len();
        let slot = cells.put.number as u32;
        let fits = waiting.values().map(bytes).sum::<usize>() + bytes(&cells) <= WAITING_BYTES;
        (fits && !waiting.contains_key(&slot)).then(|| {
            waiting.insert(slot, cells);
            slot
        })
    }

    /// What comes along with a command.
    pub(super) fn along(&self, command: &Command) -> Vec<Along> {
        let named = command.cells().iter().enumerate().filter(|(_, cell)| cell.chunk == ALONG);
        let mut named = named.peekable();
        if named.peek().is_none() {
            return Vec::new();
        }
        let waiting = &self.cells().waiting;
        let one = |(at, slot)| waiting.get(slot).map(|cells: &Along| Along { cell: at as u32, ..cells.clone() });
        named.filter_map(|(at, cell)| one((at, &cell.slot))).collect()
    }

    /// Cells that no call will name; said with the session's next call, at the latest with its next heartbeat.
    pub(super) fn release(&self, spot: Spot) {
        self.cells().unwanted.spots.push(spot);
    }

    /// The same for cells that were kept here; whether a call has named them the store knows.
    pub(super) fn leave(&self, slot: u32) {
        let cells = &mut *self.cells();
        cells.unwanted.puts.extend(cells.waiting.remove(&slot).map(|cells| cells.put.number));
    }

    pub(super) fn take_unwanted(&self) -> Unwanted {
        std::mem::take(&mut self.cells().unwanted)
    }

    fn cells(&self) -> MutexGuard<'_, Cells> {
        self.cells.lock().expect("invariant: nothing panics under this lock")
    }
}
