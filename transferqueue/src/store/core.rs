//! What the catalog's lock protects, and what follows from a record.

use std::{
    collections::BTreeMap,
    sync::{MutexGuard, PoisonError},
};

use super::{Publication, Shared, held::Held, waiters::Waiters};
use crate::{
    catalog::{
        Catalog, Outcome,
        command::{Command, Reply, Request},
        event::{Event, Record},
        wait::Wait,
    },
    error::Error,
    ids::SessionId,
    log::Log,
    unit::Unit,
};

type Hook = Box<dyn FnMut(&Publication<'_>) + Send>;

pub(super) struct Core {
    pub(super) catalog: Catalog,
    log: Option<Log>,
    /// Sessions of this process, with the number of their last answered call.
    pub(super) sessions: BTreeMap<SessionId, u64>,
    pub(super) hooks: Vec<Hook>,
    pub(super) stopped: Option<String>,
    /// Cells that sessions of other processes have put and not named yet.
    pub(super) held: Held,
    /// What made the store unusable.
    broken: Option<String>,
}

/// Who sends a call, and who numbers it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sender {
    /// A session of this process (`None`: one that is being opened, or the store itself): numbered here.
    Here(Option<SessionId>),
    /// A session of another process: its client numbers, since only it knows which reply it never heard.
    Wire(Option<(SessionId, u64)>),
}

/// The catalog's answer to one attempt.
pub(super) enum Attempt {
    Answered(Reply),
    Later(Wait),
}

impl Core {
    pub(super) fn new(catalog: Catalog, log: Option<Log>) -> Self {
        let (sessions, hooks, held) = (BTreeMap::new(), Vec::new(), Held::default());
        Self { catalog, log, sessions, hooks, stopped: None, held, broken: None }
    }

    #[cfg(test)]
    pub(super) fn break_for_test(&mut self, what: &str) {
        self.broken = Some(what.to_owned());
    }

    /// Lets a record take effect outside the catalog: chunks, log. A record that cannot be logged breaks the store,
    /// since memory and log would tell two stories from then on.
    pub(super) fn settle(&mut self, record: &Record, unit: &Unit) -> Result<(), Error> {
        for event in &record.events {
            match event {
                Event::RowsPut { cells, .. } | Event::CellsWritten { cells, .. } => {
                    cells.iter().for_each(|cell| unit.committed(cell.chunk));
                }
                Event::ChunksFreed { chunks, .. } => chunks.iter().for_each(|chunk| unit.free(*chunk)),
                Event::SessionEnded { session, .. } => {
                    self.sessions.remove(session);
                    self.held.end(*session);
                }
                _ => {}
            }
        }
        if let Some(log) = &mut self.log
            && let Err(error) = log.append(record)
        {
            self.broken = Some(error.to_string());
            return Err(error.into());
        }
        Ok(())
    }
}

impl Shared {
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, Core>, Error> {
        // A panic inside may have left an event half applied: refuse rather than go on from there.
        let broken = |_: PoisonError<_>| Error::Broken { what: "a thread panicked inside the catalog".to_owned() };
        let core = self.core.lock().map_err(broken)?;
        match &core.broken {
            Some(what) => Err(Error::Broken { what: what.clone() }),
            None => Ok(core),
        }
    }

    /// One attempt at a command. Time is read under the lock, so that it never runs backwards for the catalog.
    pub(super) fn attempt(&self, sender: Sender, request: &mut Request) -> Result<Attempt, Error> {
        let mut core = self.lock()?;
        if let Some(reason) = &core.stopped
            && waits(&request.command)
        {
            return Err(Error::Stopped { reason: reason.clone() });
        }
        request.caller = match sender {
            // An unknown session is sent as it is: the catalog says that it has ended.
            Sender::Here(session) => session.map(|id| (id, core.sessions.get(&id).map_or(1, |last| last + 1))),
            Sender::Wire(caller) => caller,
        };
        let outcome = core.catalog.call(request, self.clock.now())?;
        let Outcome { reply, record, wakes, published } = outcome;
        match (&reply, sender) {
            (Reply::NotYet(_), _) | (_, Sender::Wire(None)) => {}
            (Reply::Session(id), Sender::Here(_)) => drop(core.sessions.insert(*id, 0)),
            (_, Sender::Here(session)) => {
                if let Some(last) = session.and_then(|id| core.sessions.get_mut(&id)) {
                    *last += 1;
                }
            }
            (_, Sender::Wire(Some(_))) => {}
        }
        if let Some(record) = &record {
            core.settle(record, &self.unit)?;
            if let Some(consumed) = &published {
                let Core { catalog, hooks, .. } = &mut *core;
                let publication = Publication::new(consumed, record, catalog.state(), &self.unit);
                hooks.iter_mut().for_each(|hook| hook(&publication));
            }
        }
        // What the call named the catalog holds by now (or has refused for good).
        if let (Sender::Wire(Some((session, _))), false) = (sender, matches!(reply, Reply::NotYet(_))) {
            core.held.named(session, &request.command);
        }
        for event in record.iter().flat_map(|record| &record.events) {
            if let Event::GangEnded { task, .. } = event {
                self.meetings.forget(*task);
                self.waiters.wake_gangs();
            }
        }
        let stopped = core.stopped.clone();
        drop(core);
        wakes.into_iter().for_each(|wake| self.waiters.wake(wake));
        match (reply, stopped) {
            (Reply::NotYet(_), Some(reason)) => Err(Error::Stopped { reason }),
            (Reply::NotYet(wait), None) => Ok(Attempt::Later(wait)),
            (reply, _) => Ok(Attempt::Answered(reply)),
        }
    }
}

/// Whether a command begins something new and may have to wait; a store that is being stopped refuses these alone.
fn waits(command: &Command) -> bool {
    Waiters::may_wait(command) && !matches!(command, Command::Offer { .. })
}
