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
    unit::{Spills, Unit, arena::Arena},
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
    /// Size of a file of the arena in bytes; its room is reserved at once.
    pub arena_segment_bytes: usize,
    /// Where cells go that leave memory: when the budget keeps groups out, those that only readers outside the run
    /// ([`Task::external`](crate::catalog::definition::Task::external)) still want. `None`: they stay.
    pub spill: Option<PathBuf>,
    /// How long the run may wait for bytes that only readers outside it will let go, in milliseconds, before it is stopped.
    pub starved_ms: u64,
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
            spill: None,
            starved_ms: 60_000,
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

    /// The unit of a store that begins or is restored: an empty one.
    pub(super) fn unit(&self, ground: &Ground, incarnation: u64, life: u64) -> Result<Unit, Error> {
        let arena = match self.durability {
            Durability::None => None,
            _ => {
                let (disk, dir) = (ground.disk.clone(), self.arena_dir()?);
                Some(Arena::create(disk, &dir, self.arena_segment_bytes, incarnation)?)
            }
        };
        let unit = Unit::over(arena, self.spills(|_| false)?, self.chunk_bytes, life);
        unit.go_on();
        Ok(unit)
    }

    /// Where cells go that leave memory. Of the files there those stay that are `known`.
    pub(super) fn spills(&self, known: impl Fn(u64) -> bool) -> Result<Option<Spills>, Error> {
        let durable = self.durability == Durability::Host;
        Ok(self.spill.as_ref().map(|dir| Spills::open(dir, durable, known)).transpose()?)
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
