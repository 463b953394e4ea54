//! What the catalog's lock protects, and what follows from a record.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    sync::{MutexGuard, PoisonError},
};

use super::{Durability, Publication, Shared, held::Held, waiters::Waiters};
use crate::{
    catalog::{
        Catalog, Outcome, Refusal,
        command::{Command, Reply, Request},
        event::{Event, Record},
        wait::Wait,
    },
    error::Error,
    ids::SessionId,
    log::Log,
    unit::Units,
};

type Hook = Box<dyn FnMut(&Publication<'_>) + Send>;

pub(super) struct Core {
    pub(super) catalog: Catalog,
    log: Option<Log>,
    /// Never changes.
    pub(super) durability: Durability,
    /// Sessions of this process, with the number of their last answered call.
    pub(super) sessions: BTreeMap<SessionId, u64>,
    pub(super) hooks: Vec<Hook>,
    pub(super) stopped: Option<String>,
    /// Cells that sessions of other processes have put and not named yet.
    pub(super) held: Held,
    /// What holds bytes whose end is not on the disk yet, with the position of its event.
    freed: VecDeque<(u64, Box<dyn Any + Send>)>,
    /// What is to go once the lock is let go.
    spent: Vec<Box<dyn Any + Send>>,
    /// The newest call that was seen of each session of another process.
    newest: BTreeMap<SessionId, Newest>,
    /// What made the store unusable.
    broken: Option<String>,
}

/// The newest call of a session, and what it heard if its number is free again.
#[derive(Default)]
struct Newest {
    attempt: u64,
    gave_back: Option<GaveBack>,
}

enum GaveBack {
    Later(Wait),
    Refused(Refusal),
}

/// Who sends a call, and who numbers it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sender {
    /// A session of this process (`None`: one that is being opened, or the store itself): numbered here.
    Here(Option<SessionId>),
    /// A session of another process: its client numbers, since only it knows which reply it never heard.
    Wire {
        /// The session and the call's number; `None`: a session is opened.
        caller: Option<(SessionId, u64)>,
        /// Grows with every call that the session sends, also when the number of one that was not answered is used again.
        attempt: Option<u64>,
    },
}

/// The catalog's answer to one attempt.
pub(super) enum Attempt {
    Answered(Reply),
    Later(Wait),
}

impl Core {
    pub(super) fn new(mut catalog: Catalog, log: Option<Log>, durability: Durability) -> Self {
        if durability > Durability::None {
            catalog.keep_replies();
        }
        Self {
            catalog,
            log,
            durability,
            sessions: BTreeMap::new(),
            hooks: Vec::new(),
            stopped: None,
            held: Held::default(),
            freed: VecDeque::new(),
            spent: Vec::new(),
            newest: BTreeMap::new(),
            broken: None,
        }
    }

    #[cfg(test)]
    pub(super) fn break_for_test(&mut self, what: &str) {
        self.broken = Some(what.to_owned());
    }

    /// Lets a record take effect outside the catalog: first the log, then the chunks, so that no byte goes before its end
    /// is written down. A record that cannot be logged breaks the store, since memory and log would tell two stories
    /// from then on.
    pub(super) fn settle(&mut self, record: &Record, units: &Units) -> Result<(), Error> {
        if let Some(log) = &mut self.log
            && let Err(error) = log.append(record)
        {
            self.broken = Some(error.to_string());
            return Err(error.into());
        }
        for event in &record.events {
            match event {
                Event::RowsPut { cells, .. } | Event::CellsWritten { cells, .. } | Event::RowsSaved { cells, .. } => {
                    cells.iter().for_each(|cell| units.committed(cell.chunk));
                }
                Event::ChunksFreed { chunks, .. } => {
                    if self.durability == Durability::Host {
                        // Their bytes do not go before the event is on the disk.
                        let grants = chunks.iter().filter_map(|chunk| units.grant(*chunk));
                        self.freed.extend(grants.map(|grant| (record.seq, Box::new(grant) as _)));
                    }
                    chunks.iter().for_each(|chunk| units.free(*chunk));
                }
                Event::ChunksSpilled { file, chunks, .. } => {
                    let before = Box::new(units.spilled(file, chunks));
                    match self.durability {
                        Durability::Host => self.freed.push_back((record.seq, before)),
                        _ => self.spent.push(before),
                    }
                }
                Event::SessionEnded { session, .. } => {
                    self.sessions.remove(session);
                    let held = self.held.end(*session);
                    if self.durability == Durability::Host {
                        self.freed.extend(held.map(|held| (record.seq, Box::new(held) as _)));
                    }
                    self.newest.remove(session);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Core {
    /// A call that has to wait, or is refused, gives its number back, and another one may take it. A copy of it that comes late
    /// must not take it first: it hears the same again, or, once others were sent, that it was overtaken. `again`: the call
    /// itself is asked a second time.
    fn in_order(&mut self, sender: Sender, again: bool) -> Result<Option<Wait>, Error> {
        let Sender::Wire { caller: Some((session, seq)), attempt: Some(attempt) } = sender else { return Ok(None) };
        if !self.catalog.state().has_session(session) {
            return Ok(None);
        }
        let newest = self.newest.entry(session).or_default();
        if attempt < newest.attempt {
            return Err(Refusal::Overtaken { session, seq }.into());
        }
        if attempt == newest.attempt && !again {
            match &newest.gave_back {
                Some(GaveBack::Later(wait)) => return Ok(Some(wait.clone())),
                Some(GaveBack::Refused(refusal)) => return Err(refusal.clone().into()),
                None => {}
            }
        }
        *newest = Newest { attempt, gave_back: None };
        Ok(None)
    }

    /// The newest call of a session gave its number back.
    fn gave_back(&mut self, sender: Sender, how: impl FnOnce() -> GaveBack) {
        if let Sender::Wire { caller: Some((session, _)), attempt: Some(_) } = sender
            && let Some(newest) = self.newest.get_mut(&session)
        {
            newest.gave_back = Some(how());
        }
    }

    /// A session of another process names only cells that it has put itself. (Those of this process hold what they name.)
    fn owns_cells(&self, sender: Sender, request: &Request) -> Result<(), Refusal> {
        let cells = request.command.cells();
        let Sender::Wire { caller: Some((session, _)), .. } = sender else { return Ok(()) };
        // A call that was answered before has let go of its cells; it hears the same answer.
        if cells.is_empty() || !self.catalog.is_new(request) {
            return Ok(());
        }
        let state = self.catalog.state();
        let partition = match &request.command {
            Command::Put { partition, .. } => Some(*partition),
            Command::Write { lease, .. } | Command::Save { lease, .. } | Command::Commit { lease, .. } => {
                state.leased_from(*lease)
            }
            _ => None,
        };
        // Without one the catalog says what is wrong.
        let Some(partition) = partition else { return Ok(()) };
        let Some(cell) = self.held.stranger(session, partition, cells) else { return Ok(()) };
        let (chunk, slot, rows) = (cell.chunk, cell.slot, cell.rows.len());
        Err(Refusal::Cells {
            partition: state.describe(partition)?.name,
            found: format!("{rows} cells of column {} in chunk {chunk} from slot {slot}", cell.column),
            expected: format!("cells as session {session} has put them, and not let go or named before"),
        })
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

    /// One attempt at a command; `again`: not the first one at this call. Time is read under the lock, so that it never runs
    /// backwards for the catalog.
    pub(super) fn attempt(&self, sender: Sender, request: &mut Request, again: bool) -> Result<Attempt, Error> {
        // Its record may get to the disk by itself, and must not name cells that are not there. (Those of other processes are.)
        if matches!(sender, Sender::Here(_)) && !request.command.cells().is_empty() {
            self.bytes_to_disk()?;
        }
        let mut core = self.lock()?;
        if let Some(reason) = &core.stopped
            && waits(&request.command)
        {
            return Err(Error::Stopped { reason: reason.clone() });
        }
        request.caller = match sender {
            // An unknown session is sent as it is: the catalog says that it has ended.
            Sender::Here(session) => session.map(|id| (id, core.sessions.get(&id).map_or(1, |last| last + 1))),
            Sender::Wire { caller, .. } => caller,
        };
        if let Some(wait) = core.in_order(sender, again)? {
            return Ok(Attempt::Later(wait));
        }
        // An answer that is given once more is promised once more, though its record may still be on its way to the disk.
        let host = core.durability == Durability::Host;
        let repeated = host && matches!(sender, Sender::Wire { caller: Some(_), .. }) && !core.catalog.is_new(request);
        let now = self.clock.now();
        let decided = core.owns_cells(sender, request).and_then(|()| core.catalog.call(request, now));
        let Outcome { reply, record, wakes, published } = decided.inspect_err(|refusal| {
            core.gave_back(sender, || GaveBack::Refused(refusal.clone()));
        })?;
        if let Reply::NotYet(wait) = &reply {
            core.gave_back(sender, || GaveBack::Later(wait.clone()));
        }
        match (&reply, sender) {
            (Reply::NotYet(_), _) | (_, Sender::Wire { .. }) => {}
            (Reply::Session(id), Sender::Here(_)) => drop(core.sessions.insert(*id, 0)),
            (_, Sender::Here(session)) => {
                if let Some(last) = session.and_then(|id| core.sessions.get_mut(&id)) {
                    *last += 1;
                }
            }
        }
        if let Some(record) = &record {
            core.settle(record, &self.units)?;
            if let Some(consumed) = &published {
                let Core { catalog, hooks, .. } = &mut *core;
                let publication = Publication::new(consumed, record, catalog.state(), &self.units);
                hooks.iter_mut().for_each(|hook| hook(&publication));
            }
        }
        // What the call named the catalog holds by now. Of a call without a record the store's next life knows nothing:
        // sent again, it has to find what it names, so its cells stay until the writer lets them go or its session ends.
        if let Some((session, _)) = record.as_ref().and_then(|record| record.call)
            && matches!(sender, Sender::Wire { .. })
        {
            core.held.named(session, &request.command);
        }
        for event in record.iter().flat_map(|record| &record.events) {
            if let Event::GangEnded { task, .. } = event {
                self.meetings.forget(*task);
                self.waiters.wake_gangs();
            }
        }
        if let (Some(spiller), true) = (&self.spiller, record.is_some() && core.catalog.state().short_of() > 0) {
            spiller.nudge();
        }
        let stopped = core.stopped.clone();
        let waits_for_disk = match record.filter(|_| host) {
            None if repeated => core.catalog.state().seq().checked_sub(1),
            record => record.map(|record| record.seq),
        };
        let spent = std::mem::take(&mut core.spent);
        drop(core);
        drop(spent);
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
    /// Ends the run for everyone; the first reason stays.
    pub(super) fn stop(&self, reason: String) {
        if let Ok(mut core) = self.lock() {
            core.stopped.get_or_insert(reason);
        }
        self.waiters.wake_all();
    }

    fn break_down(&self, error: &Error) {
        if let Ok(mut core) = self.core.lock() {
            core.broken.get_or_insert_with(|| error.to_string());
        }
    }

    /// A store that waits for the disk is there once its beginning is on it.
    pub(super) fn begun(&self) -> Result<(), Error> {
        if self.durability == Durability::Host { self.flush().map(drop) } else { Ok(()) }
    }

    /// Waits until the bytes of every put so far are on the disk, where calls wait for it.
    pub(super) fn bytes_to_disk(&self) -> Result<(), Error> {
        if self.durability < Durability::Host {
            return Ok(());
        }
        self.units.sync().map_err(Error::from).inspect_err(|error| self.break_down(error))
    }

    /// Brings everything so far to the disk, bytes before the events that name them; the position behind it.
    fn flush(&self) -> Result<u64, Error> {
        let (end, log) = {
            let core = self.lock()?;
            (core.catalog.state().seq(), core.log.as_ref().map(Log::file))
        };
        // What was written after this moment may come along; what was named before it does.
        self.units.sync()?;
        if let Some(log) = log {
            log.sync()?;
        }
        let freed: Vec<(u64, Box<dyn Any + Send>)> = {
            let mut core = self.lock()?;
            let ends = core.freed.partition_point(|(seq, _)| *seq < end);
            core.freed.drain(..ends).collect()
        };
        drop(freed);
        Ok(end)
    }
}

/// Whether a command begins something new and may have to wait; a store that is being stopped refuses these alone.
fn waits(command: &Command) -> bool {
    Waiters::may_wait(command) && !matches!(command, Command::Offer { .. })
}
