//! Readers that are no part of the run: what they hold at its end, and what they are still owed.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use transferqueue::{Store, catalog::views::OwedView};

use crate::interrupt;

/// A reader that holds nothing for so long is not reading.
const QUIET: Duration = Duration::from_secs(2);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Waits until readers have all they are owed, or hold nothing and take nothing any more, or get nowhere for `patience`, or
/// the run is interrupted.
pub(crate) fn wait(store: &Store, patience: Duration) {
    let (mut quiet, mut stands, mut left) = (Instant::now(), Instant::now(), u64::MAX);
    while store.stopped().is_none() && !interrupt::requested() && quiet.elapsed() < QUIET {
        let Ok(owed) = store.with_state(|state, _| state.owed_outside()) else { return };
        if owed.is_empty() || stands.elapsed() > patience {
            return;
        }
        let uses = owed.iter().map(|owed| owed.uses).sum();
        if uses < left {
            (left, stands) = (uses, Instant::now());
        }
        if stands.elapsed() < QUIET || owed.iter().any(|owed| owed.leased > 0) {
            quiet = Instant::now();
        }
        thread::park_timeout(LOOK);
    }
}

/// What readers are still owed when the run has ended, a line each.
///
/// # Errors
/// When the store is broken.
pub(crate) fn owed(phase: &str, store: &Store) -> Result<Vec<String>> {
    let line = |owed: OwedView| {
        let OwedView { task, partition, rows, columns, spilled, .. } = owed;
        let columns = columns.join(", ");
        format!(
            "phase {phase}: `{task}` is still owed {rows} rows of `{partition}` ({columns}), {spilled} bytes of them in files; they go with the run"
        )
    };
    Ok(store.with_state(|state, _| state.owed_outside())?.into_iter().map(line).collect())
}
