//! What keepers of worker processes need to know of the run, be the store here or in a process of its own.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use transferqueue::{Store, catalog::State, client::Remote};

use crate::reports;

/// Whether every task of a phase has ended, after its last cycle.
pub(crate) fn ended(state: &State) -> bool {
    state.schedule().is_some_and(|schedule| schedule.over) && state.all_ended()
}

/// How a run stands, for the keeper of one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Standing {
    /// Why it is being stopped, if it is.
    pub(crate) stopped: Option<String>,
    /// Nobody needs workers any more.
    pub(crate) over: bool,
    /// The worker is connected.
    pub(crate) there: bool,
    /// What shows that the run gets on: rows consumed so far, and publications.
    pub(crate) progress: (u64, u64),
}

/// The run that worker processes are kept for.
pub(crate) trait Ground: Send + Sync {
    /// How it stands, and whether this worker is there.
    ///
    /// # Errors
    /// When the store is broken or out of reach.
    fn standing(&self, worker: &str) -> Result<Standing>;

    /// Stops it for everyone.
    fn stop(&self, reason: String);
}

impl Ground for Store {
    fn standing(&self, worker: &str) -> Result<Standing> {
        let stopped = self.stopped();
        let look = |state: &State, now| Standing {
            over: stopped.is_some() || state.schedule().is_some_and(|schedule| schedule.over),
            there: state.sessions(now).iter().any(|session| session.name == worker),
            progress: (
                state.ledger().iter().map(|entry| entry.consumed).sum(),
                state.schedule().map_or(0, |schedule| schedule.version),
            ),
            stopped,
        };
        Ok(self.with_state(look)?)
    }

    fn stop(&self, reason: String) {
        Self::stop(self, reason);
    }
}

/// A store in a process of its own. It may be away for a while, when it was killed.
pub(crate) struct Distant {
    remote: Remote,
    /// It has ended for good.
    ended: Arc<AtomicBool>,
    /// The last that was heard.
    last: Mutex<Option<Standing>>,
}

/// How long one look may take: the store may be on its way back, and whoever asks looks again.
const LOOK: Duration = Duration::from_secs(2);

impl Distant {
    pub(crate) fn new(remote: Remote, ended: Arc<AtomicBool>) -> Self {
        Self { remote, ended, last: Mutex::default() }
    }
}

impl Ground for Distant {
    fn standing(&self, worker: &str) -> Result<Standing> {
        let mut last = self.last.lock().unwrap_or_else(|error| error.into_inner());
        let ended = self.ended.load(Ordering::SeqCst);
        if !ended {
            match reports::standing(&self.remote, worker, LOOK) {
                Ok(standing) => {
                    *last = Some(standing.clone());
                    return Ok(standing);
                }
                // Another phase has begun: this one is over.
                Err(error) if crate::worker::is(&error, is_another) => {
                    return Ok(Standing { stopped: None, over: true, there: false, progress: (0, 0) });
                }
                Err(error) => tracing::debug!("the store is away: {error:#}"),
            }
        }
        let away = Standing { stopped: None, over: false, there: true, progress: (0, 0) };
        let seen = last.clone().unwrap_or(away);
        Ok(Standing { over: seen.over || ended, there: seen.there && !ended, ..seen })
    }

    fn stop(&self, reason: String) {
        transferqueue::link::Link::stop(&self.remote, reason);
    }
}

fn is_another(error: &transferqueue::Error) -> bool {
    matches!(error, transferqueue::Error::Incarnation { .. })
}
