//! Time passes: once a second leases and sessions that are due end, and sessions of this process show life.

use std::{
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use super::{Shared, core::Sender, spiller::Spiller};
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
            let (mut count, mut hunger) = (0, Hunger::default());
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                count += 1;
                if let Err(error) = tick(&shared, count % HEARTBEAT == 0).and_then(|()| hunger.look(&shared)) {
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

/// Whether the run waits for bytes that nobody in it will let go, and since when.
#[derive(Default)]
struct Hunger {
    since: Option<(Instant, u64)>,
}

impl Hunger {
    fn look(&mut self, shared: &Shared) -> Result<(), Error> {
        let (starved, spiller) = {
            let core = shared.lock()?;
            let starved = if core.stopped.is_none() { core.catalog.state().starved() } else { None };
            (starved, shared.spiller.as_ref())
        };
        let Some(starved) = starved.filter(|_| !spiller.is_some_and(Spiller::is_writing)) else {
            self.since = None;
            return Ok(());
        };
        spiller.iter().for_each(|spiller| spiller.nudge());
        let (since, moved) = *self.since.get_or_insert((Instant::now(), starved.moved));
        if moved != starved.moved {
            self.since = Some((Instant::now(), starved.moved));
        } else if since.elapsed() >= shared.starved {
            let spilling = match spiller.map(Spiller::failed) {
                Some(Some(error)) => format!("; spilling failed: {error}"),
                _ => String::new(),
            };
            shared.stop(format!("nothing has moved for {} s: {}{spilling}", since.elapsed().as_secs(), starved.why));
        }
        Ok(())
    }
}
