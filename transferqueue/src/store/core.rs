//! What the catalog's lock protects, and what follows from a record.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{MutexGuard, PoisonError},
};

use super::{Durability, Publication, Shared, held::Held, waiters::Waiters};
use crate::{
    catalog::{
        Catalog, Outcome,
        command::{Command, Reply, Request},
        event::{Event, Record},
        wait::Wait,
    },
    error::Error,
    ids::{ChunkId, SessionId},
    log::Log,
    unit::Unit,
};

type Hook = Box<dyn FnMut(&Publication<'_>) + Send>;

pub(super) struct Core {
    pub(super) catalog: Catalog,
    log: Option<Log>,
    pub(super) durability: Durability,
    /// Sessions of this process, with the number of their last answered call.
    pub(super) sessions: BTreeMap<SessionId, u64>,
    pub(super) hooks: Vec<Hook>,
    pub(super) stopped: Option<String>,
    /// Cells that sessions of other processes have put and not named yet.
    pub(super) held: Held,
    /// Chunks whose end is not on the disk yet, with the position of its event.
    freed: VecDeque<(u64, ChunkId)>,
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
    pub(super) fn new(mut catalog: Catalog, log: Option<Log>, durability: Durability) -> Self {
        let (sessions, hooks, held) = (BTreeMap::new(), Vec::new(), Held::default());
        if durability > Durability::None {
            catalog.keep_replies();
        }
        Self { catalog, log, durability, sessions, hooks, stopped: None, held, freed: VecDeque::new(), broken: None }
    }

    #[cfg(test)]
    pub(super) fn break_for_test(&mut self, what: &str) {
        self.broken = Some(what.to_owned());
    }

    /// Lets a record take effect outside the catalog: first the log, then the chunks, so that no byte goes before its end
    /// is written down. A record that cannot be logged breaks the store, since memory and log would tell two stories
    /// from then on.
    pub(super) fn settle(&mut self, record: &Record, unit: &Unit) -> Result<(), Error> {
        if let Some(log) = &mut self.log
            && let Err(error) = log.append(record)
        {
            self.broken = Some(error.to_string());
            return Err(error.into());
        }
        for event in &record.events {
            match event {
                Event::RowsPut { cells, .. } | Event::CellsWritten { cells, .. } => {
                    cells.iter().for_each(|cell| unit.committed(cell.chunk));
                }
                // Not before the event is on the disk, where that is waited for.
                Event::ChunksFreed { chunks, .. } if self.durability == Durability::Host => {
                    self.freed.extend(chunks.iter().map(|chunk| (record.seq, *chunk)));
                }
                Event::ChunksFreed { chunks, .. } => chunks.iter().for_each(|chunk| unit.free(*chunk)),
                Event::SessionEnded { session, .. } => {
                    self.sessions.remove(session);
                    self.held.end(*session);
                }
                _ => {}
            }
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
        let stopped = core.stopped.clone();
        let waits_for_disk = record.filter(|_| core.durability == Durability::Host).map(|record| record.seq);
        drop(core);
        wakes.into_iter().for_each(|wake| self.waiters.wake(wake));
        if let Some(seq) = waits_for_disk {
            // What others have seen already cannot be promised any more.
            self.flusher.wait(seq, || self.flush()).inspect_err(|error| self.break_down(error))?;
        }
        match (reply, stopped) {
            (Reply::NotYet(_), Some(reason)) => Err(Error::Stopped { reason }),
            (Reply::NotYet(wait), None) => Ok(Attempt::Later(wait)),
            (reply, _) => Ok(Attempt::Answered(reply)),
        }
    }
}

impl Shared {
    fn break_down(&self, error: &Error) {
        if let Ok(mut core) = self.core.lock() {
            core.broken.get_or_insert_with(|| error.to_string());
        }
    }

    /// Brings everything so far to the disk, bytes before the events that name them; the position behind it.
    fn flush(&self) -> Result<u64, Error> {
        let (end, log) = {
            let core = self.lock()?;
            (core.catalog.state().seq(), core.log.as_ref().map(Log::file).transpose()?)
        };
        // What was written after this moment may come along; what was named before it does.
        self.unit.sync()?;
        if let Some(log) = log {
            log.sync()?;
        }
        let freed: Vec<ChunkId> = {
            let mut core = self.lock()?;
            let ends = core.freed.partition_point(|(seq, _)| *seq < end);
            core.freed.drain(..ends).map(|(_, chunk)| chunk).collect()
        };
        freed.into_iter().for_each(|chunk| self.unit.free(chunk));
        Ok(end)
    }
}

/// Whether a command begins something new and may have to wait; a store that is being stopped refuses these alone.
fn waits(command: &Command) -> bool {
    Waiters::may_wait(command) && !matches!(command, Command::Offer { .. })
}
