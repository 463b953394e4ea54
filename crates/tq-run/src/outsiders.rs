//! Readers that are no part of the run: what they hold at its end, and what they are still owed.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use transferqueue::{Store, catalog::views::OwedView};

/// A reader that holds nothing for so long is not reading.
const QUIET: Duration = Duration::from_secs(2);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Waits until readers have all they are owed, or hold nothing any more. A lease that is not renewed ends, so this does.
pub(crate) fn wait(store: &Store) {
    let mut quiet = Instant::now();
    while store.stopped().is_none() && quiet.elapsed() < QUIET {
        let Ok(owed) = store.with_state(|state, _| state.owed_outside()) else { return };
        if owed.is_empty() {
            return;
        }
        if owed.iter().any(|owed| owed.leased > 0) {
            quiet = Instant::now();
        }
        thread::park_timeout(LOOK);
    }
}

/// Says what readers are still owed when the run has ended.
///
/// # Errors
/// When the store is broken.
pub(crate) fn owed(phase: &str, store: &Store) -> Result<()> {
    for owed in store.with_state(|state, _| state.owed_outside())? {
        let OwedView { task, partition, rows, columns, spilled, .. } = owed;
        let columns = columns.join(", ");
        println!(
            "phase {phase}: `{task}` is still owed {rows} rows of `{partition}` ({columns}), {spilled} bytes of them in files; they go with the run"
        );
    }
    Ok(())
}
