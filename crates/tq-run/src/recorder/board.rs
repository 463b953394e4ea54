//! What stages and the store report, until the journal takes it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use tq_metrics::{Accumulator, Metrics};
use tq_stage::{Reporter, SharedReporter};

use super::{Record, journal::Message};

/// Publications that may wait for the journal before trainers wait too.
const BEHIND: usize = 1;
/// Longest wait of a trainer for the journal; a disk that is slower than this is reported and not waited for.
pub(crate) const PACE: Duration = Duration::from_secs(300);

#[derive(Default)]
struct Inner {
    /// By cycle, then by worker: what a lost worker reported can be taken back.
    cycles: BTreeMap<u64, BTreeMap<Arc<str>, Accumulator>>,
    timings: Accumulator,
    queue: VecDeque<Message>,
    waiting: Option<String>,
    closed: bool,
}

/// The shared board.
#[derive(Default)]
pub(super) struct Board {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Hands a message to the journal; never waits, since publications are posted under the store's lock.
    pub(super) fn post(&self, message: Message) {
        self.lock().queue.push_back(message);
        self.changed.notify_all();
    }

    /// The next message; `None` once the board is closed and empty.
    pub(super) fn next(&self) -> Option<Message> {
        let mut inner = self.lock();
        loop {
            if let Some(message) = inner.queue.pop_front() {
                self.changed.notify_all();
                return Some(message);
            }
            if inner.closed {
                return None;
            }
            inner = self.changed.wait(inner).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// No further message comes.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Metrics of a cycle, and the seconds spent since the last call, by stage.
    pub(super) fn take(&self, cycle: Option<u64>) -> Metrics {
        let mut inner = self.lock();
        let mut sum = Accumulator::new();
        let parts = cycle.and_then(|c| inner.cycles.remove(&c)).unwrap_or_default();
        parts.values().for_each(|part| sum.merge(part));
        let mut metrics = sum.reduce();
        if cycle.is_some() {
            metrics.merge(inner.timings.take());
        }
        metrics
    }

    /// What some stage waits for, if it has waited long.
    pub(super) fn waiting_for(&self) -> Option<String> {
        self.lock().waiting.take()
    }
}

impl Record for Arc<Board> {
    fn reporter(&self, worker: &str) -> SharedReporter {
        Arc::new(Place { board: self.clone(), worker: worker.into() })
    }

    fn forget(&self, worker: &str, first: u64) {
        self.lock().cycles.range_mut(first..).for_each(|(_, parts)| _ = parts.remove(worker));
    }
}

/// A worker's place at the board.
struct Place {
    board: Arc<Board>,
    worker: Arc<str>,
}

impl Reporter for Place {
    fn metric(&self, cycle: u64, name: &str, value: f64, weight: f64) {
        let mut inner = self.board.lock();
        let parts = inner.cycles.entry(cycle).or_default();
        parts.entry(self.worker.clone()).or_default().add_weighted(name, value, weight);
    }

    fn timing(&self, name: &str, seconds: f64) {
        self.board.lock().timings.add(&format!("timing_s/{name}"), seconds);
    }

    fn validation(&self, version: u64, metrics: &[(String, f64)]) {
        let metrics = metrics.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        self.board.post(Message::Validated { version, metrics });
    }

    fn waiting(&self, text: &str) {
        tracing::info!("{text}");
        self.board.lock().waiting = Some(text.to_owned());
    }

    fn pace(&self) {
        let begun = Instant::now();
        let mut inner = self.board.lock();
        while inner.queue.len() > BEHIND && !inner.closed {
            let Some(left) = PACE.checked_sub(begun.elapsed()) else {
                tracing::warn!(
                    "{} publications wait for the journal: writing named states is slower than training",
                    inner.queue.len()
                );
                return;
            };
            inner = self.board.changed.wait_timeout(inner, left).unwrap_or_else(|e| e.into_inner()).0;
        }
    }
}
