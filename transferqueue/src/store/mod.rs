//! The store in one process: catalog, unit, waiters, ticker and event log, behind one clonable handle.
//!
//! A call takes the catalog's lock once, lets the catalog decide and apply, tells the unit what the events mean for its
//! chunks, appends the record to the log, runs the publication hooks, lets go and wakes whoever may now be served. Nothing
//! waits while holding the lock, and no worker ever polls: a call that must wait registers its listener *before*
//! it asks again, so that no wake-up is lost.

pub(crate) mod asking;
pub(crate) mod clock;
pub(crate) mod core;
mod flusher;
pub(crate) mod gang;
pub(crate) mod held;
mod link;
pub(crate) mod meeting;
mod options;
mod publication;
mod recover;
#[cfg(test)]
mod simulation;
mod spiller;
#[cfg(test)]
mod tests;
mod ticker;
mod waiters;

#[cfg(any(test, feature = "fuzzing"))]
use std::sync::atomic::AtomicU64;
use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use self::{
    clock::Clock,
    core::{Core, Sender},
    flusher::Flusher,
    meeting::Meetings,
    options::Ground,
    spiller::{Spiller, Spilling},
    ticker::Ticker,
    waiters::Waiters,
};
pub use self::{
    options::{Durability, Options},
    publication::Publication,
    recover::Recovered,
};
use crate::{
    batch::Batch,
    catalog::{
        Catalog, State,
        command::{Command, Request},
        definition::Definition,
    },
    error::Error,
    ids::{Millis, PartitionId, Rows},
    link::Link,
    log::{self, Log},
    session::{Session, reading},
    snapshot::{self, Captured, Manifest},
    transport::{Local, Transport},
    unit::{Unit, Units, units},
};

/// A store; clones share it. The last clone (sessions hold one each) stops its ticker.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    /// Joined when the last handle goes; the threads themselves only hold `shared`. `None`: nothing happens by itself.
    _threads: Option<Arc<(Ticker, Option<Spilling>)>>,
}

/// What every handle and the ticker work on.
struct Shared {
    core: Mutex<Core>,
    definition: Arc<Definition>,
    units: Units,
    transport: Arc<dyn Transport>,
    waiters: Waiters,
    flusher: Flusher,
    durability: Durability,
    meetings: Meetings,
    /// `None`: no cell leaves memory.
    spiller: Option<Spiller>,
    starved: Duration,
    clock: Clock,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // What sessions of other processes hold is theirs in the next life, too: it stays in the files.
        self.units.close();
    }
}

impl Store {
    /// A store that begins, empty.
    ///
    /// # Errors
    /// [`Error::Refused`] when the definition contradicts itself, [`Error::Log`] when the folder for events holds those of
    /// an earlier run or cannot be written.
    pub fn create(definition: Definition, options: Options) -> Result<Self, Error> {
        Ok(Self::begin(definition, &options, Ground::machine())?.ticking())
    }

    /// A store without threads, whose time is set by hand: the same calls in the same order come to the same end.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn still(definition: Definition, options: Options, now: Arc<AtomicU64>) -> Result<Self, Error> {
        let options = Options { incarnation: Some(7), ..options };
        Self::begin(definition, &options, Ground { clock: Clock::Set(now), ..Ground::machine() })
    }

    /// A store that begins, where nothing happens by itself.
    fn begin(definition: Definition, options: &Options, ground: Ground) -> Result<Self, Error> {
        let log = options.begin_log(&ground)?;
        let incarnation = options.incarnation.unwrap_or_else(options::random);
        let (catalog, first) = Catalog::create(definition, incarnation, ground.clock.now())?;
        let units = Units::over(options.units(&ground, incarnation, 0)?, HashMap::new());
        let mut core = Core::new(catalog, log, options.durability);
        core.settle(&first, &units)?;
        let store = Self::open(core, units, ground.clock, options);
        store.shared.begun()?;
        Ok(store)
    }

    /// A store that goes on from a snapshot: leases return, sessions end, a new lineage begins. It has as many units as
    /// `options` say, however many had the store that the snapshot was taken of; chunks are shared out by their bytes. With a log folder
    /// (the same as before or a fresh one), events go on in a new segment.
    ///
    /// # Errors
    /// [`Error::Snapshot`] for a damaged or foreign snapshot, by file; [`Error::Log`]; [`Error::Arena`].
    pub fn restore(snapshot: &Path, options: Options) -> Result<Self, Error> {
        let ground = Ground::machine();
        let mut taken = snapshot::read(snapshot)?;
        let log = match options.events() {
            None => None,
            Some(dir) => {
                // A lineage is never begun twice, also when one snapshot is restored twice.
                taken.state.lineage = taken.state.lineage.max(log::last_lineage(&dir, taken.state.incarnation)?);
                Some(Log::resume(&dir, options.policy(&ground))?.0)
            }
        };
        let (catalog, first) = Catalog::restore(taken.state, ground.clock.now());
        let state = catalog.state();
        let lives = taken.chunks.iter().map(|chunk| Unit::life(chunk.id) + 1).max().unwrap_or_default();
        let empty = options.units(&ground, state.incarnation, lives.max(state.lineage()))?;
        let units = units::restore(state, empty, taken.chunks)?;
        let mut core = Core::new(catalog, log, options.durability);
        core.settle(&first, &units)?;
        let store = Self::open(core, units, ground.clock, &options);
        store.shared.begun()?;
        Ok(store.ticking())
    }

    fn open(core: Core, units: Units, clock: Clock, options: &Options) -> Self {
        let durability = core.durability;
        let definition = Arc::new(core.catalog.state().definition().clone());
        let transport = Arc::new(Local::new(units.clone()));
        let shared = Arc::new(Shared {
            core: Mutex::new(core),
            definition,
            units,
            transport,
            waiters: Waiters::default(),
            flusher: Flusher::default(),
            durability,
            meetings: Meetings::default(),
            spiller: options.spill.as_ref().map(|_| Spiller::default()),
            starved: Duration::from_millis(options.starved_ms),
            clock,
        });
        Self { shared, _threads: None }
    }

    fn ticking(self) -> Self {
        let ticker = Ticker::start(self.shared.clone());
        let spilling = self.shared.spiller.is_some().then(|| Spilling::start(self.shared.clone()));
        Self { _threads: Some(Arc::new((ticker, spilling))), ..self }
    }

    /// A worker's connection. The store keeps its heartbeat; its leases stay its own business.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub fn session(&self, name: impl Into<String>) -> Result<Session, Error> {
        Session::open(Arc::new(self.clone()), |_| self.shared.transport.clone(), name.into())
    }

    /// What the run declared.
    pub fn definition(&self) -> Arc<Definition> {
        self.shared.definition.clone()
    }

    /// Ends the run from outside (Ctrl-C): every waiting claim, put and pin, now and later, gets [`Error::Stopped`];
    /// what is leased can still be committed or given back. The first reason stays.
    pub fn stop(&self, reason: impl Into<String>) {
        self.shared.stop(reason.into());
    }

    /// Why the store was stopped, if it was.
    pub fn stopped(&self) -> Option<String> {
        self.shared.lock().ok().and_then(|core| core.stopped.clone())
    }

    /// Ends the sessions of that name as lost: its worker was seen to end, or another one takes its place, and nobody need
    /// wait for its silence. What they held goes back and counts an attempt. Returns how many there were.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub fn lose(&self, name: &str) -> Result<usize, Error> {
        let sessions = self.with_state(|state, now| state.sessions(now))?;
        let lost: Vec<_> = sessions.iter().filter(|view| view.name == name).map(|view| view.session).collect();
        for &session in &lost {
            self.shared.attempt(
                Sender::Here(None),
                &mut Request { caller: None, command: Command::Lose(session) },
                false,
            )?;
        }
        Ok(lost.len())
    }

    /// Looks at the catalog's state under its lock: be short, and do not call the store from inside.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub fn with_state<R>(&self, look: impl FnOnce(&State, Millis) -> R) -> Result<R, Error> {
        let core = self.shared.lock()?;
        Ok(look(core.catalog.state(), self.shared.clock.now()))
    }

    /// Runs `hook` at every publication, in order, under the catalog's lock and before anyone hears of it: it sees
    /// exactly the state of the publication, and can capture it. It must be short and must not call the store: hand
    /// what takes time to another thread.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub fn on_publication(&self, hook: impl FnMut(&Publication<'_>) + Send + 'static) -> Result<(), Error> {
        self.shared.lock()?.hooks.push(Box::new(hook));
        Ok(())
    }

    /// One position of the catalog with holds on every chunk it needs; cheap next to writing it.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub fn capture(&self) -> Result<Captured, Error> {
        let core = self.shared.lock()?;
        Ok(Captured::take(core.catalog.state(), &self.shared.units))
    }

    /// Writes a snapshot of this moment to a folder that does not exist yet; workers go on meanwhile.
    ///
    /// # Errors
    /// [`Error::Snapshot`], [`Error::Broken`].
    pub fn snapshot(&self, dir: &Path) -> Result<Manifest, Error> {
        Ok(self.capture()?.write(dir)?)
    }

    /// Looks at rows (all live ones for `None`) without a session. No row is held; the bytes are while the batch lives.
    ///
    /// # Errors
    /// [`Error::Refused`] when a row, a column or a cell is not there.
    pub fn read(&self, partition: PartitionId, rows: Option<&Rows>, columns: &[&str]) -> Result<Batch, Error> {
        reading::fresh(self, &*self.shared.transport, |id| self.describe(id), partition, rows, columns)
    }

    /// The units that hold the bytes.
    pub fn units(&self) -> &Units {
        &self.shared.units
    }

    /// How bytes travel.
    pub fn transport(&self) -> &'static str {
        self.shared.transport.name()
    }
}
