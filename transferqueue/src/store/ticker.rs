//! Time passes: once a second leases and sessions that are due end, and sessions of this process show life.

use std::{
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use super::{Shared, core::Sender};
use crate::{
    catalog::command::{Command, Request},
    error::Error,
};

const PERIOD: Duration = Duration::from_secs(1);
/// Heartbeats come with every so many ticks.
const HEARTBEAT: u64 = 5;

pub(super) struct Ticker {
    /// Nothing is sent: its end is the sign to stop.
    alive: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(super) fn start(shared: Arc<Shared>) -> Self {
        let (alive, ended) = sync_channel(0);
        let run = move || {
            let mut count = 0;
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                count += 1;
                if let Err(error) = tick(&shared, count % HEARTBEAT == 0) {
                    // Waiters ask again and hear the same error.
                    tracing::error!(%error, "the store no longer ticks");
                    shared.waiters.wake_all();
                    return;
                }
            }
        };
        let thread = Builder::new().name("tq-ticker".to_owned()).spawn(run);
        Self { alive: Some(alive), thread: Some(thread.expect("invariant: the process can start a thread")) }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.alive = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn tick(shared: &Shared, heartbeat: bool) -> Result<(), Error> {
    shared.attempt(Sender::Here(None), &mut Request { caller: None, command: Command::Tick }, false)?;
    let sessions: Vec<_> = if heartbeat { shared.lock()?.sessions.keys().copied().collect() } else { Vec::new() };
    for session in sessions {
        let mut request = Request { caller: None, command: Command::Heartbeat };
        match shared.attempt(Sender::Here(Some(session)), &mut request, false) {
            // It ended in between.
            Err(Error::Refused(_)) | Ok(_) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
