//! Takes cells out of memory that only readers outside the run still want, when the budget keeps groups out.
//!
//! The catalog says which; they are written here, without its lock, on a thread of its own; then a command tells the catalog
//! where they lie, and its event lets go of the memory.

#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle},
    time::Duration,
};

use super::{Shared, core::Sender};
use crate::{
    catalog::{
        Cold,
        command::{Command, Request},
    },
    error::Error,
};

/// Payload bytes that are written before the catalog hears of them: groups are admitted as room is made.
const MOST: u64 = 256 << 20;
/// Between two looks at what could be spilled: each goes through all live rows.
const PAUSE: Duration = Duration::from_millis(50);
/// The same after a failure.
const PAUSE_FAILED: Duration = Duration::from_secs(2);

/// What the store's threads share with the one that spills.
#[derive(Default)]
pub(super) struct Spiller {
    state: Mutex<State>,
    wanted: Condvar,
}

#[derive(Default)]
struct State {
    nudged: bool,
    ending: bool,
    /// Why the last try failed.
    failed: Option<String>,
    /// A file is being written.
    writing: bool,
}

impl Spiller {
    /// Bytes are wanted.
    pub(super) fn nudge(&self) {
        self.lock().nudged = true;
        self.wanted.notify_one();
    }

    /// Why the last try failed, if it did.
    pub(super) fn failed(&self) -> Option<String> {
        self.lock().failed.clone()
    }

    /// Whether a file is being written.
    pub(super) fn is_writing(&self) -> bool {
        self.lock().writing
    }

    fn end(&self) {
        self.lock().ending = true;
        self.wanted.notify_one();
    }

    /// Waits until bytes are wanted; `false` when the store ends.
    fn wait(&self) -> bool {
        let idle = |state: &mut State| !state.nudged && !state.ending;
        let waited = self.wanted.wait_while(self.lock(), idle);
        let mut state = waited.expect("invariant: nothing panics under this lock");
        state.nudged = false;
        !state.ending
    }

    /// Waits for a while; `false` when the store ends meanwhile.
    fn pause(&self, long: Duration) -> bool {
        let waited = self.wanted.wait_timeout_while(self.lock(), long, |state| !state.ending);
        !waited.expect("invariant: nothing panics under this lock").0.ending
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("invariant: nothing panics under this lock")
    }
}

/// The thread that spills; it ends with this.
pub(super) struct Spilling {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Spilling {
    pub(super) fn start(shared: Arc<Shared>) -> Self {
        let own = shared.clone();
        let run = move || {
            let Some(spiller) = &own.spiller else { return };
            while spiller.wait() {
                spiller.lock().writing = true;
                let failed = own.spill().err().map(|error| error.to_string());
                spiller.lock().writing = false;
                if let Some(error) = &failed {
                    tracing::warn!("cells stay in memory: {error}");
                }
                let pause = if failed.is_some() { PAUSE_FAILED } else { PAUSE };
                spiller.lock().failed = failed;
                if !spiller.pause(pause) {
                    return;
                }
            }
        };
        let thread = Builder::new().name("tq-spill".to_owned()).spawn(run);
        Self { shared, thread: Some(thread.expect("invariant: the process can start a thread")) }
    }
}

impl Drop for Spilling {
    fn drop(&mut self) {
        if let Some(spiller) = &self.shared.spiller {
            spiller.end();
        }
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Shared {
    /// Spills what the budget is short of, as far as there is anything to spill.
    pub(super) fn spill(&self) -> Result<(), Error> {
        // Closed under the lock: what the catalog knows of a chunk then is all that it will ever hold.
        let cold: Vec<_> = {
            let core = self.lock()?;
            let state = core.catalog.state();
            let closed = |cold: Cold| {
                let column =
                    state.describe(cold.partition).ok()?.columns.into_iter().nth(usize::from(cold.column.0))?;
                let chunks = self.units.close_chunks(&cold.chunks);
                (!chunks.is_empty()).then_some((cold.partition, column, chunks))
            };
            state.cold(state.short_of().min(MOST)).into_iter().filter_map(closed).collect()
        };
        for (partition, column, chunks) in cold {
            let Some(file) = self.units.write_out(&column, &chunks)? else { continue };
            let command = Command::Spill { partition, file, chunks: chunks.into_keys().collect() };
            let told = self.attempt(Sender::Here(None), &mut Request { caller: None, command }, false);
            // Chunks that were freed meanwhile are not in the event, and a file without any was for nothing.
            self.units.forget_file(file.number);
            told?;
        }
        Ok(())
    }
}
