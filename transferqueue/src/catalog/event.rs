//! What happened: the only way the catalog's state changes, and the log that recovery and `why` read.
//!
//! Events carry every choice that was made (rows, ids), so replaying them never runs a sampler. The form is versioned by
//! [`Record::version`]; a field is only ever added, with a default.

use serde::{Deserialize, Serialize};

use super::{
    command::{CellWrite, DropRows, NewRow, Reply, RowNote, SavedRow, SpillFile, Totals},
    definition::{Definition, Partition},
};
use crate::ids::{ChunkId, GroupId, LeaseId, Millis, ModelId, PartitionId, RowId, Rows, SessionId, TaskId};

/// One group born at admission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admitted {
    /// The group.
    pub group: GroupId,
    /// Its first row; `n` follow.
    pub first: RowId,
    /// Rows born.
    pub n: u32,
    /// The parent row.
    pub parent: RowId,
    /// Position of the prompt in the stream.
    pub ordinal: u64,
    /// Weight version at admission.
    pub version: u64,
}

/// Why rows left a lease without being consumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum Returned {
    Released,
    /// Counts as an attempt.
    Expired,
    /// Counts as an attempt, since the row may have killed its worker.
    SessionEnded,
    /// Counts as an attempt.
    Failed(String),
    /// Another rank of its gang was lost or gave rows back.
    GangEnded,
}

/// What one rank of a gang is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareCut {
    /// Its worker.
    pub session: SessionId,
    /// The lease that holds its rows; 0, which is no lease, when there are none.
    pub lease: LeaseId,
    /// Its rows of each mini-batch in turn, in the order of the cut.
    pub minis: Vec<Rows>,
}

/// One model's new version in a publication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Which model.
    pub model: ModelId,
    /// Where the weights lie; the partition of the version before for an alias.
    pub weights: PartitionId,
    /// Where the trainer's state lies.
    pub state: Option<PartitionId>,
}

/// A change of the catalog's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "fields are named after what they hold; the variant's line says what happened")]
pub enum Event {
    /// The catalog came to be.
    Defined { definition: Box<Definition>, incarnation: u64 },
    /// The catalog was read back: leases ended, the clock starts anew, a new lineage begins.
    Restored { lineage: u64 },
    /// A worker arrived.
    /// `here`: in the store's own process.
    SessionOpened {
        session: SessionId,
        name: String,
        at: Millis,
        #[serde(default, skip_serializing_if = "super::command::is_false")]
        here: bool,
    },
    /// It showed life.
    SessionSeen { session: SessionId, at: Millis },
    /// It left or was lost; a later call of it is refused.
    SessionEnded { session: SessionId, lost: bool },
    /// A partition was added.
    /// `owner`: it goes when this session ends, unless a publication names it before.
    PartitionCreated { id: PartitionId, partition: Partition, owner: Option<SessionId> },
    /// No further row comes.
    PartitionClosed { partition: PartitionId },
    /// All of it left.
    PartitionDeleted { partition: PartitionId },
    /// Rows came by `put`, with ids `first..first + rows.len()`; each is a group of one. Cells name row ids.
    RowsPut { partition: PartitionId, first: RowId, rows: Vec<NewRow>, cells: Vec<CellWrite> },
    /// Groups were born.
    GroupsAdmitted {
        partition: PartitionId,
        groups: Vec<Admitted>,
        /// For `Gate::Every`: the version this round belongs to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        round: Option<u64>,
    },
    /// A lease began.
    Leased { lease: LeaseId, task: TaskId, session: SessionId, rows: Rows, at: Millis },
    /// A worker became a rank of a task's gang.
    GangJoined { task: TaskId, rank: u32, session: SessionId },
    /// Batches were cut into shares, and a lease began for each: all ranks or none.
    SharesCut {
        task: TaskId,
        cycle: u64,
        /// The first of them.
        index: u64,
        /// The last of them ends the cycle.
        last: bool,
        /// One entry a rank.
        shares: Vec<ShareCut>,
        /// Of each mini-batch.
        totals: Vec<Totals>,
        at: Millis,
    },
    /// A rank heard of its share.
    ShareTaken { task: TaskId, rank: u32 },
    /// The gang broke up: its leases went back (in the events before), its training is undone, its ranks are free.
    GangEnded { task: TaskId, why: String },
    /// It was prolonged.
    LeaseRenewed { lease: LeaseId, progress: u64, at: Millis },
    /// Outputs became visible.
    CellsWritten { partition: PartitionId, task: Option<TaskId>, cells: Vec<CellWrite>, notes: Vec<RowNote> },
    /// Partial outputs of leased rows took the place of what was saved of them before. `rows`: every row that is live.
    RowsSaved { lease: LeaseId, task: TaskId, cells: Vec<CellWrite>, rows: Vec<SavedRow> },
    /// What was saved of these rows is gone.
    SavedForgotten { partition: PartitionId, rows: Rows },
    /// Rows were used (for a training task: done) and left the lease: consumed, or ready again while uses are left. `lost`: rows
    /// the worker finished although they had been dropped; they leave the lease without being consumed.
    RowsCommitted {
        lease: LeaseId,
        task: TaskId,
        rows: Rows,
        #[serde(default, skip_serializing_if = "Rows::is_empty")]
        lost: Rows,
    },
    /// Rows left the lease and can be claimed again; `lost` as above.
    RowsReturned {
        lease: LeaseId,
        task: TaskId,
        rows: Rows,
        #[serde(default, skip_serializing_if = "Rows::is_empty")]
        lost: Rows,
        why: Returned,
    },
    /// Rows left for good.
    RowsDropped { partition: PartitionId, drop: DropRows },
    /// The run must stop: this row failed too often.
    Poisoned { task: TaskId, row: RowId, error: String },
    /// A batch was cut: these groups, in this order.
    BatchCut { partition: PartitionId, cycle: u64, index: u64, groups: Vec<GroupId>, last: bool },
    /// A training task's model offered its part.
    PartOffered { model: ModelId, cycle: Option<u64>, weights: Option<PartitionId>, state: Option<PartitionId> },
    /// The publication: cycle ended (or the beginning), rows of it consumed by every training task, versions visible.
    CyclePublished { cycle: Option<u64>, version: u64, lineage: u64, models: Vec<Published> },
    /// The run ends after fewer cycles than the plan has.
    ScheduleShortened { cycles: u64 },
    /// A session holds a version.
    VersionPinned { session: SessionId, model: ModelId, version: u64 },
    /// It lets go.
    VersionUnpinned { session: SessionId, model: ModelId, version: u64 },
    /// A version is needed by no one; its partition follows unless another version is its alias.
    VersionRetired { model: ModelId, version: u64 },
    /// No live cell refers to these chunks; their bytes are reused once every grant is gone. `slots`: for each chunk, the
    /// cells the catalog has heard of (highest slot + 1). A unit that has written more keeps the chunk: a write is under
    /// way, and the chunk is announced again when those cells are dead too.
    ChunksFreed { partition: PartitionId, chunks: Vec<ChunkId>, slots: Vec<u32> },
    /// The live cells of these chunks lie in a file, until the chunks are freed or the catalog is restored.
    ChunksSpilled { partition: PartitionId, file: SpillFile, chunks: Vec<ChunkId> },
    /// The clock jumped: every lease and session gets its full time again.
    ClockJumped { to: Millis },
}

/// One transaction: what a command (and what followed from it) changed, all or nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Form of the events: [`Record::VERSION`].
    pub version: u32,
    /// Position in the log, from 0, without gaps.
    pub seq: u64,
    /// Store time.
    pub at: Millis,
    /// Who asked, and the number of the call.
    pub call: Option<(SessionId, u64)>,
    /// The answer, where sessions outlive the store's process ([`Catalog::keep_replies`](super::Catalog::keep_replies)):
    /// its caller may not have heard it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<Reply>,
    /// In order.
    pub events: Vec<Event>,
}

impl Record {
    /// The form written by this version.
    pub const VERSION: u32 = 1;
}
