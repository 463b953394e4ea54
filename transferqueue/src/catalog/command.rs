//! What callers ask of the catalog, and what it answers.
//!
//! A [`Request`] carries the caller's session and sequence number; the last replies of a live session are kept, so
//! sending a request again returns the first answer and changes nothing.

use std::{cmp::Ordering, collections::BTreeMap};

use serde::{Deserialize, Serialize};

use super::{definition::Partition, wait::Wait};
use crate::ids::{ChunkId, ColumnId, GroupId, LeaseId, ModelId, PartitionId, RowId, Rows, SessionId, TaskId};

/// A small typed value of a row's tag.
#[derive(Clone, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(untagged)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum Tag {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

impl Tag {
    /// Order of two tags: of the same type, or two numbers. `None` for tags that cannot be compared.
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(b)),
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(b)),
            (Self::Text(a), Self::Text(b)) => Some(a.cmp(b)),
            (Self::Float(a), Self::Float(b)) => a.partial_cmp(b),
            (Self::Int(a), Self::Float(b)) => (*a as f64).partial_cmp(b),
            (Self::Float(a), Self::Int(b)) => a.partial_cmp(&(*b as f64)),
            _ => None,
        }
    }
}

/// Tags of a row by name.
pub type Tags = BTreeMap<String, Tag>;

/// Bytes of each cell of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sizes {
    /// Every cell has this many bytes.
    Uniform(u32),
    /// One number per cell, in order.
    Each(Vec<u32>),
}

impl Sizes {
    /// Bytes of the cell at a position. Panics beyond the end of `Each`.
    pub fn at(&self, index: usize) -> u32 {
        match self {
            Self::Uniform(bytes) => *bytes,
            Self::Each(each) => each[index],
        }
    }

    /// Bytes of `cells` cells together.
    pub fn total(&self, cells: u64) -> u64 {
        match self {
            Self::Uniform(bytes) => u64::from(*bytes) * cells,
            Self::Each(each) => each.iter().map(|&bytes| u64::from(bytes)).sum(),
        }
    }
}

/// Cells of one column whose bytes lie in a unit already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellWrite {
    /// Which column of the partition.
    pub column: ColumnId,
    /// Which rows, in the order of their slots. In a [`Command::Put`]: positions `0..rows.len()` instead of ids.
    pub rows: Rows,
    /// Where the bytes lie.
    pub chunk: ChunkId,
    /// Slot of the first cell in the chunk; the others follow.
    pub slot: u32,
    /// Bytes of each cell.
    pub sizes: Sizes,
    /// `false`: the cells stay open and more will be appended (a later write of the same cells takes their place).
    pub seal: bool,
    /// The generation that is replaced, for cells sealed before. `None`: they must not be sealed yet.
    pub replaces: Option<u32>,
}

/// First and last weight version that a row's tokens were sampled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Version of the first token.
    pub first: u64,
    /// Version of the last token.
    pub last: u64,
}

/// Consecutive tokens of a row that were sampled with one weight version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// The version.
    pub version: u64,
    /// How many tokens, at least 1.
    pub tokens: u64,
}

/// What a writer says about a row that it saves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRow {
    /// Which row.
    pub row: RowId,
    /// Weight versions of its tokens so far, in order; versions rise.
    pub sampled: Vec<Sampled>,
}

/// What a writer says about one row besides its cells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowNote {
    /// Which row.
    pub row: RowId,
    /// Tags to set; others stay. Numbers are finite.
    pub tags: Tags,
    /// Weight versions of its tokens.
    pub span: Option<Span>,
}

/// Rows that leave, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropRows {
    /// Which rows.
    pub rows: Rows,
    /// Kept for ever in the ledger; lower case, one word.
    pub reason: String,
}

/// A file of cells that were taken out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpillFile {
    /// Its number; no other file has it while an event has named this one and a chunk of it lives.
    pub number: u64,
    /// Its length.
    pub bytes: u64,
    /// Checksum of all of it.
    pub crc32: u32,
}

/// A row that a client puts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NewRow {
    /// Unique among live rows of the partition.
    pub key: Option<String>,
    /// Its tags.
    pub tags: Tags,
}

/// What a caller asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A worker arrives; sent without a session.
    OpenSession {
        /// Shown as the holder of its leases.
        name: String,
        /// It lives in the store's own process, and ends with it.
        #[serde(default, skip_serializing_if = "is_false")]
        here: bool,
    },
    /// The worker lives.
    Heartbeat,
    /// The worker leaves: its leases return.
    CloseSession,
    /// A table that is added while running (weights, trainer state).
    CreatePartition(Partition),
    /// Its rows leave with reason `deleted`; its chunks are free once every grant is gone.
    DeletePartition(PartitionId),
    /// Rows and their cells come in, in one event; cells name positions.
    Put {
        /// Into which partition (its birth is `Put`).
        partition: PartitionId,
        /// One entry a row.
        rows: Vec<NewRow>,
        /// Cells of those rows; all sealed.
        cells: Vec<CellWrite>,
    },
    /// No further row comes into a partition.
    ClosePartition(PartitionId),
    /// Rows to work on.
    Claim {
        /// For which task.
        task: TaskId,
        /// At most this many rows (`Grain::Row`) or groups (`Grain::Group`); ignored for batches.
        limit: u64,
    },
    /// This session is one rank of a training task's gang from now on, until the gang ends.
    Join {
        /// Which task.
        task: TaskId,
        /// Which of its ranks, from 0.
        rank: u32,
    },
    /// Rows of any of these tasks: of those that have rows now, the first is served.
    ClaimAny {
        /// In order of preference.
        tasks: Vec<TaskId>,
        /// As for [`Command::Claim`].
        limit: u64,
    },
    /// The lease is still worked on. Progress must grow, or the lease is not prolonged.
    Renew {
        /// Which lease.
        lease: LeaseId,
        /// Any counter that the worker's compute advances.
        progress: u64,
    },
    /// Outputs become visible; the rows stay leased.
    Write {
        /// Which lease.
        lease: LeaseId,
        /// Cells of leased rows.
        cells: Vec<CellWrite>,
        /// Tags and versions of leased rows.
        notes: Vec<RowNote>,
    },
    /// Partial outputs of leased rows: not visible, but handed to whoever leases the rows next, should this lease end without
    /// them. They take the place of what was saved of these rows before, and go once the rows are finished. Only tasks with
    /// [`OnLost::Resume`](super::definition::OnLost::Resume).
    Save {
        /// Which lease.
        lease: LeaseId,
        /// Open cells of leased rows.
        cells: Vec<CellWrite>,
        /// Versions of those rows' tokens; rows without are saved, too.
        rows: Vec<SavedRow>,
    },
    /// Outputs become visible and `rows` become consumed, in one event.
    Commit {
        /// Which lease.
        lease: LeaseId,
        /// Leased rows that are finished; the others stay leased.
        rows: Rows,
        /// Cells of leased rows.
        cells: Vec<CellWrite>,
        /// Tags and versions of leased rows.
        notes: Vec<RowNote>,
        /// Rows of the partition that leave.
        drops: Vec<DropRows>,
    },
    /// Rows go back unworked.
    Release {
        /// Which lease.
        lease: LeaseId,
        /// Which of its rows.
        rows: Rows,
    },
    /// Rows go back after an error; counts as an attempt.
    Fail {
        /// Which lease.
        lease: LeaseId,
        /// Which of its rows.
        rows: Rows,
        /// What went wrong.
        error: String,
    },
    /// Rows leave outside a lease.
    Drop {
        /// Of which partition.
        partition: PartitionId,
        /// Which, and why.
        rows: DropRows,
    },
    /// A training task ended its part of a cycle. The last part publishes: one event consumes the cycle's rows for every
    /// training task, makes the new versions visible and ends the cycle. `cycle: None` publishes a model's initial
    /// weights (version 0).
    Offer {
        /// Of which model.
        model: ModelId,
        /// Which cycle, or the beginning.
        cycle: Option<u64>,
        /// The closed partition with the weights; `None`: unchanged (the version is an alias of the one before).
        weights: Option<PartitionId>,
        /// The closed partition with the trainer's state.
        state: Option<PartitionId>,
    },
    /// The cycle in progress is the last one, though the plan has more. It is completely cut; groups that were admitted
    /// ahead leave as `surplus` once it ends.
    EndSchedule {
        /// The cycle in progress.
        cycle: u64,
    },
    /// Holds a weight version for this session. `None`: the newest.
    Pin {
        /// Of which model.
        model: ModelId,
        /// Which version.
        version: Option<u64>,
    },
    /// Lets a pinned version go.
    Unpin {
        /// Of which model.
        model: ModelId,
        /// Which version.
        version: u64,
    },
    /// A session's worker is known to be dead: it is lost now rather than after its silence. Nothing happens when it has
    /// ended already. Sent by the store itself.
    Lose(SessionId),
    /// Bytes of cells lie in a file now, and no longer in memory. Chunks that were freed meanwhile are left out. Sent by the
    /// store itself.
    Spill {
        /// Of which partition.
        partition: PartitionId,
        /// Where they lie.
        file: SpillFile,
        /// All of one column.
        chunks: Vec<ChunkId>,
    },
    /// Bytes of what was saved of these rows are lost: their next workers begin anew. Sent by the store itself.
    Forget {
        /// Of which partition.
        partition: PartitionId,
        /// Which rows; those without anything saved are left out.
        rows: Rows,
    },
    /// Time passed: leases and sessions that are due end. Sent by the store itself.
    Tick,
    /// Consequences that are due: admissions, cuts, ends of stream, freed chunks. The catalog sees to them after every
    /// command, within the same record; sent alone it finds nothing more.
    Settle,
}

impl Command {
    /// The cells that it names.
    pub(crate) fn cells(&self) -> &[CellWrite] {
        match self {
            Self::Put { cells, .. }
            | Self::Write { cells, .. }
            | Self::Save { cells, .. }
            | Self::Commit { cells, .. } => cells,
            _ => &[],
        }
    }

    /// The same, to say where they lie.
    pub(crate) fn cells_mut(&mut self) -> &mut [CellWrite] {
        match self {
            Self::Put { cells, .. }
            | Self::Write { cells, .. }
            | Self::Save { cells, .. }
            | Self::Commit { cells, .. } => cells,
            _ => &mut [],
        }
    }
}

pub(super) fn is_false(value: &bool) -> bool {
    !value
}

/// A command with its sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Sender and its sequence number, which grows by 1 with each new call; `None` for the store itself and `OpenSession`.
    pub caller: Option<(SessionId, u64)>,
    /// What is asked.
    pub command: Command,
}

/// Consecutive cells in one chunk, for consecutive rows of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellRun {
    /// Where.
    pub chunk: ChunkId,
    /// Its generation when the pointer was made.
    pub generation: u32,
    /// First slot.
    pub slot: u32,
    /// Number of cells.
    pub len: u32,
}

/// Where one column of a batch lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnRef {
    /// Name as the task knows it.
    pub name: String,
    /// The partition that stores it (another one for linked columns).
    pub partition: PartitionId,
    /// Its position there.
    pub column: ColumnId,
    /// Cells in the order of the batch's rows.
    pub runs: Vec<CellRun>,
}

/// What was saved of some rows of a batch, all in the same columns, before their worker was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRef {
    /// Which rows.
    pub rows: Rows,
    /// Where their partial cells lie.
    pub columns: Vec<ColumnRef>,
    /// Weight versions of the tokens, one entry a row.
    pub sampled: Vec<Vec<Sampled>>,
}

/// The pointer: which rows, and where their columns lie. Identity, not permission; small; holds no bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRef {
    /// The catalog it came from.
    pub incarnation: u64,
    /// Partition of the rows.
    pub partition: PartitionId,
    /// The rows in order.
    pub rows: Rows,
    /// The columns asked for.
    pub columns: Vec<ColumnRef>,
    /// For a claim: what former workers have saved of these rows. Rows that are not in it begin anew.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub saved: Vec<SavedRef>,
}

/// What a worker knows of a claimed row without reading a byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowHead {
    /// Which row.
    pub row: RowId,
    /// Its group.
    pub group: GroupId,
    /// Position of its prompt in the stream of prompts.
    pub ordinal: u64,
    /// Which sample of its group.
    pub sample: u32,
    /// Weight version at its admission.
    pub version: u64,
    /// Versions of its tokens, once written.
    pub span: Option<Span>,
    /// Its tags.
    pub tags: Tags,
}

/// Rows under a lease.
///
/// A training task may be given a lease without rows and with `cut.last`: the current cycle is completely cut, nothing in
/// it is left for this task, and its part has not been offered. Such a lease has the number 0, is not kept, and
/// asks for the offer alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claimed {
    /// The lease.
    pub lease: LeaseId,
    /// Where to read.
    pub batch: BatchRef,
    /// One entry a row, in the same order.
    pub heads: Vec<RowHead>,
    /// The cut batch (for `Grain::Mini`, `Grain::Cycle`).
    pub cut: Option<CutRef>,
    /// Milliseconds until the lease expires unless renewed.
    pub lease_ms: u64,
}

/// Which cut batches a claim holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutRef {
    /// The cycle (for validation: the version).
    pub cycle: u64,
    /// First index within the cycle.
    pub index: u64,
    /// Rows of each mini-batch in turn; their sum is the number of rows.
    pub sizes: Vec<u64>,
    /// Whether the last of them ends the cycle.
    pub last: bool,
    /// For a rank of a gang: which share of the batches these rows are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
}

/// A rank's share of cut batches. What the whole gang got is the same for every rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Which rank, from 0.
    pub rank: u32,
    /// Of how many.
    pub ranks: u32,
    /// Which life of the gang.
    pub epoch: u64,
    /// All ranks together, for each mini-batch in turn.
    pub totals: Vec<Totals>,
}

/// What all ranks of a gang got of one mini-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Rows.
    pub rows: u64,
    /// Their sizes: elements of the columns that [`Gang::lengths`](super::definition::Gang::lengths) names.
    pub tokens: u64,
}

/// A version of a model's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRef {
    /// Of which model.
    pub model: ModelId,
    /// Lineage in which it was published.
    pub lineage: u64,
    /// Number of publications before it.
    pub version: u64,
    /// Where the weights lie.
    pub partition: PartitionId,
}

/// What the catalog answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each names the command it answers")]
pub enum Reply {
    Done,
    Session(SessionId),
    Partition(PartitionId),
    Put(Rows),
    Claimed(Claimed),
    ClaimedAny {
        task: TaskId,
        claimed: Claimed,
    },
    /// For writes and saves. `dropped`: named rows that someone else had dropped meanwhile; nothing of them was kept.
    Written {
        dropped: Rows,
    },
    /// The same for a commit.
    Committed {
        dropped: Rows,
    },
    /// Nothing will ever come for this task again; for a put: the run needs no further rows, and these were not taken.
    Ended,
    /// Not now; the store waits and asks again.
    NotYet(Wait),
    /// Milliseconds until the lease expires.
    Renewed(u64),
    /// The version that this offer published, once every part is there.
    Offered(Option<u64>),
    Pinned(VersionRef),
    /// Which life of the gang this rank is part of.
    Joined {
        epoch: u64,
    },
}
