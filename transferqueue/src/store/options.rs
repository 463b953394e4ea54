//! How a store is set up.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    path::PathBuf,
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::clock::Clock;
use crate::{
    disk::{self, Disk},
    error::Error,
    log::{Flush, Log, Policy},
    unit::{
        Backing, Spills, Unit, Units,
        arena::{Arena, ArenaError, Found, Memory},
    },
};

/// What survives the end of the store's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Events alone, for their history: what is not in a snapshot is gone.
    #[default]
    None,
    /// Every byte and event, when any process is killed: bytes lie in shared-mapped files
    /// ([`Store::recover`](super::Store::recover)).
    Process,
    /// The same when the machine goes down: a call is answered once its event and bytes are on the disk.
    Host,
}

/// Folders of several units' arenas begin with this.
const UNIT: &str = "unit_";

/// How a store is set up. Every field has a default: in memory alone, no event log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Folder of the run: the event log goes to `events/` in it. `None`: no log.
    pub dir: Option<PathBuf>,
    /// When events reach the disk.
    pub flush: Flush,
    /// Bytes after which the event log begins a new file.
    pub segment_bytes: u64,
    /// What survives the end of the process. Beyond [`Durability::None`], `dir` is needed.
    pub durability: Durability,
    /// Where bytes lie that outlive the process. `None`: `arena/` in `dir`. On a memory file system (`/dev/shm/…`) they
    /// cost no disk, and go with the machine.
    pub arena: Option<PathBuf>,
    /// Size of a file of the arena, or of a segment of shared memory, in bytes; its room is reserved at once.
    pub arena_segment_bytes: usize,
    /// Whether bytes that need not outlive the process lie in shared memory, in segments that are used again, so that readers of
    /// the same host map them.
    pub shared: bool,
    /// Where cells go that leave memory: when the budget keeps groups out, those that only readers outside the run
    /// ([`Task::external`](crate::catalog::definition::Task::external)) still want. `None`: they stay.
    pub spill: Option<PathBuf>,
    /// How long the run may wait for bytes that only readers outside it will let go, in milliseconds, before it is stopped.
    pub starved_ms: u64,
    /// Units that hold the bytes, each with an arena of its own: 1 to 64. Those of a store that is recovered are as many as
    /// it had; a snapshot is restored into any number.
    pub units: usize,
    /// Bytes after which a chunk takes no more cells.
    pub chunk_bytes: usize,
    /// Tells pointers of this catalog from those of others. `None`: random.
    pub incarnation: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dir: None,
            flush: Flush::None,
            segment_bytes: 64 << 20,
            durability: Durability::None,
            arena: None,
            arena_segment_bytes: 16 << 20,
            shared: false,
            spill: None,
            starved_ms: 60_000,
            units: 1,
            chunk_bytes: 256 << 10,
            incarnation: None,
        }
    }
}

/// What one life of a store stands on: the machine's own clock and disk, or those of a simulation.
pub(super) struct Ground {
    pub(super) clock: Clock,
    pub(super) disk: Arc<dyn Disk>,
}

impl Ground {
    pub(super) fn machine() -> Self {
        Self { clock: Clock::start(), disk: disk::machine() }
    }
}

impl Options {
    /// With an event log under this folder.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: Some(dir.into()), ..Self::default() }
    }

    pub(super) fn events(&self) -> Option<PathBuf> {
        self.dir.as_ref().map(|dir| dir.join("events"))
    }

    /// The folder of a store that outlives its process.
    ///
    /// # Errors
    /// [`Error::Options`] when there is none.
    pub(super) fn lasting(&self) -> Result<&PathBuf, Error> {
        self.dir.as_ref().ok_or_else(|| Error::Options {
            what: format!(
                "durability `{}` needs a folder for events and bytes; found `dir: None`",
                serde_json::json!(self.durability).as_str().unwrap_or_default()
            ),
        })
    }

    /// Where bytes lie that outlive the process.
    pub(super) fn arena_dir(&self) -> Result<PathBuf, Error> {
        let dir = self.lasting()?;
        Ok(self.arena.clone().unwrap_or_else(|| dir.join("arena")))
    }

    /// The folder of each unit's arena: `arena/` itself when there is one, else `arena/unit_0/`, `arena/unit_1/`, …
    fn arenas(&self, units: usize) -> Result<Vec<PathBuf>, Error> {
        let dir = self.arena_dir()?;
        let part = |number| dir.join(format!("{UNIT}{number}"));
        Ok(if units == 1 { vec![dir] } else { (0..units).map(part).collect() })
    }

    /// How many units an earlier store has left arenas of; 0 when there are none.
    pub(super) fn units_left(&self) -> Result<usize, Error> {
        if Arena::is_there(&self.arena_dir()?) {
            return Ok(1);
        }
        let parts = self.arenas(Units::MAX)?;
        Ok(parts.iter().take_while(|part| Arena::is_there(part)).count())
    }

    fn check_units(&self, life: u64) -> Result<(), Error> {
        let (most, found) = (Units::MAX, self.units);
        if !(1..=most).contains(&found) {
            return Err(Error::Options { what: format!("a store has 1 to {most} units; found `units: {found}`") });
        }
        if life >= Unit::LIVES {
            let most = Unit::LIVES;
            let what = format!("this is life {life} of the store, chunk numbers tell {most} apart; begin a new run");
            return Err(Error::Options { what });
        }
        Ok(())
    }

    /// The units of a store that begins or is restored: empty ones. What an earlier store has left is deleted, however many
    /// units it had.
    pub(super) fn units(&self, ground: &Ground, incarnation: u64, life: u64) -> Result<Vec<Unit>, Error> {
        self.check_units(life)?;
        let spills = self.spills(|_| false)?;
        spills.iter().for_each(|spills| spills.go_on());
        if self.durability == Durability::None {
            let backing = || match self.shared {
                true => Backing::Memory(Memory::new(self.arena_segment_bytes)),
                false => Backing::Heap,
            };
            let empty = |number| Unit::over(backing(), spills.clone(), self.chunk_bytes, life, number);
            return Ok((0..self.units).map(empty).collect());
        }
        let dirs = self.arenas(self.units)?;
        for former in [self.arena_dir()?].into_iter().chain(self.arenas(Units::MAX)?) {
            if !dirs.contains(&former) {
                Arena::delete(&former)?;
            }
        }
        let empty = |(number, dir): (usize, PathBuf)| {
            let arena = Arena::create(ground.disk.clone(), &dir, self.arena_segment_bytes, incarnation)?;
            Ok(Unit::over(Backing::Files(arena), spills.clone(), self.chunk_bytes, life, number))
        };
        dirs.into_iter().enumerate().map(empty).collect()
    }

    /// The arenas of a store that goes on, with what lies in each.
    pub(super) fn open_arenas(&self, ground: &Ground) -> Result<Vec<(Arena, Vec<Found>)>, Error> {
        self.check_units(0)?;
        let (dir, found, expected) = (self.arena_dir()?, self.units_left()?, self.units);
        if found == 0 {
            return Err(ArenaError::Missing { path: dir }.into());
        }
        if found != expected {
            let what = format!(
                "the store that was left in {} has {found} units, found `units: {expected}`; \
                 recover it with `units: {found}`, or restore a snapshot of it into {expected}",
                dir.display()
            );
            return Err(Error::Options { what });
        }
        let open = |dir: PathBuf| Ok(Arena::open(ground.disk.clone(), &dir, self.arena_segment_bytes)?);
        self.arenas(found)?.into_iter().map(open).collect()
    }

    /// Where cells of all units go that leave memory. Of the files there those stay that are `known`.
    pub(super) fn spills(&self, known: impl Fn(u64) -> bool) -> Result<Option<Arc<Spills>>, Error> {
        let durable = self.durability == Durability::Host;
        Ok(self.spill.as_ref().map(|dir| Spills::open(dir, durable, known).map(Arc::new)).transpose()?)
    }

    /// A log that begins, where one is wanted.
    pub(super) fn begin_log(&self, ground: &Ground) -> Result<Option<Log>, Error> {
        Ok(self.events().map(|dir| Log::create(&dir, self.policy(ground))).transpose()?)
    }

    pub(super) fn policy(&self, ground: &Ground) -> Policy {
        // A store whose calls wait for the disk flushes bytes before events.
        let flush = if self.durability == Durability::Host { Flush::None } else { self.flush };
        Policy { segment_bytes: self.segment_bytes, flush, disk: ground.disk.clone() }
    }
}

/// A number that differs from one store to the next: the seed of the standard library's hash maps.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
