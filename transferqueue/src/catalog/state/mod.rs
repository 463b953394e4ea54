//! The catalog's state: plain data, changed by events alone.
//!
//! [`State`] is what a snapshot holds. Its parts, each in a file of its own: [`table`] (a partition: rows, groups, cells,
//! batches), [`cursor`] (a task), [`reuse`] (rows it draws several times), [`gang`] (its ranks), [`models`] (weight versions), [`cycle`] (the schedule's progress), and here sessions
//! and leases. Numbers that follow from others (masks of columns and tasks) are resolved once, at creation.

pub(crate) mod cursor;
pub(crate) mod cycle;
pub(crate) mod gang;
pub(crate) mod models;
pub(crate) mod pages;
pub(crate) mod reuse;
pub(crate) mod table;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use self::models::Newest;
use self::{cursor::Cursor, cycle::Progress, models::Versions, table::Table};
use super::{bits::Bits, definition::Definition, refusal::Refusal};
use crate::ids::{ChunkId, LeaseId, Millis, ModelId, PartitionId, RowId, SessionId, TaskId};

/// A waiting call that may be served now. Wake every waiter of that kind: what one of them takes another may not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wake {
    /// Claims of this task.
    Task(TaskId),
    /// Puts into this partition.
    Put(PartitionId),
    /// Pins of this model and offers that wait for its initial weights.
    Version(ModelId),
    /// Everything: the run is stopped.
    Stopped,
}

/// A worker's connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) name: String,
    /// Last recorded sign of life.
    pub(crate) seen: Millis,
    /// In the store's own process.
    #[serde(default)]
    pub(crate) here: bool,
    pub(crate) leases: BTreeSet<LeaseId>,
}

/// Rows a worker holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) task: TaskId,
    pub(crate) session: SessionId,
    pub(crate) rows: Bits,
    /// Rows dropped by others while leased: late results for them are ignored.
    pub(crate) lost: Bits,
    pub(crate) since: Millis,
    pub(crate) until: Millis,
    /// The last progress reported; `None` before the first renewal.
    pub(crate) progress: Option<u64>,
}

/// Why the run cannot go on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Poisoned {
    pub(crate) task: TaskId,
    pub(crate) row: RowId,
    pub(crate) error: String,
}

/// What is noticed while events are applied and is used before the call ends: never part of the state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) wakes: BTreeSet<Wake>,
    /// Chunks without a live cell.
    pub(crate) chunks: Vec<(PartitionId, ChunkId)>,
    /// Rows of a parent that one child reads no longer.
    pub(crate) released: Vec<(PartitionId, RowId)>,
    /// Admission, cutting or closing may be due.
    pub(crate) schedule: bool,
    /// Chunks of deleted partitions, with the slots heard of.
    pub(crate) gone: Vec<(PartitionId, ChunkId, u32)>,
    /// A weight version may have become superfluous.
    pub(crate) versions: bool,
}

impl PartialEq for Scratch {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The next ids; none is ever given out twice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Next {
    pub(crate) partition: PartitionId,
    pub(crate) session: SessionId,
    pub(crate) lease: LeaseId,
}

/// Everything the catalog knows. Two catalogs that applied the same records are equal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub(crate) definition: Definition,
    /// Of the first life; each restore adds one.
    pub(crate) incarnation: u64,
    pub(crate) lineage: u64,
    /// Records applied.
    pub(crate) seq: u64,
    /// Publications of the surviving lineage.
    pub(crate) version: u64,
    pub(crate) tables: BTreeMap<PartitionId, Table>,
    pub(crate) cursors: Vec<Cursor>,
    pub(crate) models: Vec<Versions>,
    pub(crate) progress: Option<Progress>,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    pub(crate) leases: BTreeMap<LeaseId, Lease>,
    pub(crate) next: Next,
    pub(crate) poisoned: Option<Poisoned>,
    #[serde(skip)]
    pub(crate) scratch: Scratch,
}

impl State {
    /// What the catalog was created from.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// Number that tells pointers of this catalog from those of others, and of its life before a restore.
    pub fn incarnation(&self) -> u64 {
        self.incarnation.wrapping_add(self.lineage)
    }

    /// How often the catalog was restored; part of a weight version's identity.
    pub fn lineage(&self) -> u64 {
        self.lineage
    }

    /// Number of records applied: the position in the log.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Publications so far: the newest weight version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether a session lives.
    pub(crate) fn has_session(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// Sessions that live.
    pub(crate) fn count_sessions(&self) -> usize {
        self.sessions.len()
    }

    /// The live partition of that name. One that a session is still building is found only if no other has the name.
    pub fn partition(&self, name: &str) -> Option<PartitionId> {
        let named = self.tables.iter().filter(|(_, table)| table.name == name);
        named.min_by_key(|(_, table)| table.owner.is_some()).map(|(&id, _)| id)
    }

    /// Rows ever born in a partition.
    ///
    /// # Errors
    /// [`Refusal::Unknown`] when it is not there (any more).
    pub fn born(&self, partition: PartitionId) -> Result<u64, Refusal> {
        Ok(self.table(partition)?.next_row.0)
    }

    /// The task of that name.
    pub fn task(&self, name: &str) -> Option<TaskId> {
        self.definition.tasks.iter().position(|task| task.name == name).map(|i| TaskId(i as u32))
    }

    /// The model of that name.
    pub fn model(&self, name: &str) -> Option<ModelId> {
        self.definition.models.iter().position(|model| model.name == name).map(|i| ModelId(i as u16))
    }

    pub(crate) fn table(&self, id: PartitionId) -> Result<&Table, Refusal> {
        self.tables.get(&id).ok_or_else(|| {
            let known: Vec<String> = self.tables.iter().map(|(id, t)| format!("{id} `{}`", t.name)).collect();
            Refusal::Unknown { what: "partition".into(), name: id.to_string(), known: known.join(", ") }
        })
    }

    pub(crate) fn cursor(&self, id: TaskId) -> Result<&Cursor, Refusal> {
        self.cursors.get(id.0 as usize).ok_or_else(|| {
            let known: Vec<&str> = self.definition.tasks.iter().map(|task| task.name.as_str()).collect();
            Refusal::Unknown { what: "task".into(), name: id.to_string(), known: known.join(", ") }
        })
    }

    pub(crate) fn versions(&self, id: ModelId) -> Result<&Versions, Refusal> {
        self.models.get(usize::from(id.0)).ok_or_else(|| {
            let known: Vec<&str> = self.definition.models.iter().map(|model| model.name.as_str()).collect();
            Refusal::Unknown { what: "model".into(), name: id.to_string(), known: known.join(", ") }
        })
    }

    /// The table of a task's partition. Declared partitions live as long as the catalog.
    pub(crate) fn table_of(&self, cursor: &Cursor) -> &Table {
        self.tables.get(&cursor.partition).expect("invariant: a declared partition is never deleted")
    }
}
