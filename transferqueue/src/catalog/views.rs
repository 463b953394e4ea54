//! What people and tools see of the state: plain tables, read-only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{command::RowHead, definition::Grain, wait::Wait, weights::Reason};
use crate::ids::{ChunkId, ColumnId, LeaseId, PartitionId, RowId, SessionId, TaskId};

/// One line of the ledger: owed = consumed + live + dropped, always; `live` is counted from the task's bitmap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// Name of the partition.
    pub partition: String,
    /// Name of the task.
    pub task: String,
    /// Rows ever owed to it.
    pub owed: u64,
    /// Rows it consumed.
    pub consumed: u64,
    /// Rows it still owes.
    pub live: u64,
    /// Rows that left before it read them, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// How often rows were used, where the task uses each several times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<Uses>,
}

impl LedgerEntry {
    /// Whether the equation holds, of rows and of their uses.
    pub fn balanced(&self) -> bool {
        let rows = self.consumed + self.live + self.dropped.values().sum::<u64>();
        self.owed == rows && self.uses.is_none_or(|uses| uses.balanced(self.consumed))
    }
}

/// Uses of rows by a task that uses each several times: committed = `each` × rows consumed + live + dropped, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uses {
    /// Uses that consume a row.
    pub each: u32,
    /// Uses ever committed.
    pub committed: u64,
    /// Of these, uses of rows that it still owes.
    pub live: u64,
    /// Of these, uses of rows that were dropped before their last one.
    pub dropped: u64,
}

impl Uses {
    /// Whether the equation holds, given the rows consumed.
    pub fn balanced(&self, consumed: u64) -> bool {
        self.committed == u64::from(self.each) * consumed + self.live + self.dropped
    }
}

/// A lease, as shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// Its id.
    pub lease: LeaseId,
    /// Name of the session that holds it.
    pub holder: String,
    /// Rows under it.
    pub rows: u64,
    /// How long it has been held, in milliseconds of store time.
    pub for_ms: u64,
    /// Milliseconds until it expires unless renewed.
    pub left_ms: u64,
    /// The last progress its worker reported.
    pub progress: Option<u64>,
}

/// A task, as shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskView {
    /// Its id.
    pub id: TaskId,
    /// Its name.
    pub task: String,
    /// Name of the partition it consumes.
    pub partition: String,
    /// What it claims.
    pub per: Grain,
    /// Rows it owes.
    pub backlog: u64,
    /// Rows whose columns are all there and that nobody holds.
    pub ready: u64,
    /// Rows that are trained and not published.
    pub done: u64,
    /// Rows under its leases.
    pub leased: u64,
    /// How often rows were used, where it uses each several times: of those it owes, `live` of `each` × `backlog`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<Uses>,
    /// Who holds rows.
    pub leases: Vec<LeaseView>,
    /// Leases that are not listed, where a list is shortened.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_leases: u64,
    /// Nothing will come for it again.
    pub ended: bool,
    /// What a claim would wait for now; `None` when it would be served or told the end.
    pub wait: Option<Wait>,
}

/// A column, as shown. `bytes_written_total` = `bytes_live` + `bytes_dead_in_chunk` + `bytes_freed_total`, always.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnView {
    /// Name of the partition.
    pub partition: String,
    /// Name of the column.
    pub column: String,
    /// Type and shape.
    pub kind: String,
    /// Cells held.
    pub cells: u64,
    /// Bytes of these cells.
    pub bytes_live: u64,
    /// Of these, bytes that lie in a file rather than in memory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes_spilled: u64,
    /// Bytes of dead cells whose chunk still has live ones.
    pub bytes_dead_in_chunk: u64,
    /// Bytes of chunks that were freed.
    pub bytes_freed_total: u64,
    /// Bytes ever written.
    pub bytes_written_total: u64,
    /// Declared readers that still owe rows, and how many.
    pub readers_owing: Vec<(String, u64)>,
}

/// A session, as shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// Its id.
    pub session: SessionId,
    /// Its name.
    pub name: String,
    /// Milliseconds since its last recorded sign of life.
    pub seen_ms_ago: u64,
    /// Leases it holds.
    pub leases: Vec<LeaseId>,
    /// Leases that are not listed, where a list is shortened.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_leases: u64,
    /// Rows under them.
    pub rows: u64,
}

/// A partition, as shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionView {
    /// Its id.
    pub id: PartitionId,
    /// Its name.
    pub name: String,
    /// Rows in it.
    pub live: u64,
    /// Rows ever born in it.
    pub born: u64,
    /// Groups in it (0 where rows come by put).
    pub groups: u64,
    /// No row will come any more.
    pub closed: bool,
    /// Bytes reserved for cells that are not sealed.
    pub reserved: u64,
}

/// The schedule's progress, as shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleView {
    /// The trained partition.
    pub partition: String,
    /// The current cycle: cycles ended.
    pub cycle: u64,
    /// Length of the run in cycles.
    pub total_cycles: u64,
    /// Publications so far.
    pub version: u64,
    /// How often the run was restored.
    pub lineage: u64,
    /// Groups ever admitted.
    pub admitted: u64,
    /// Groups that lost all their rows before their cycle ended.
    pub dropped: u64,
    /// Undropped groups of ended cycles.
    pub retired: u64,
    /// admitted − dropped − retired.
    pub in_flight: u64,
    /// What `in_flight` stays below: B + ⌊S·B⌋.
    pub allowed: u64,
    /// The newest version minus the lowest one that a group in flight was admitted at.
    pub lag: u64,
    /// Groups that wait to be cut and are complete.
    pub complete: u64,
    /// Groups cut in the current cycle.
    pub cut: u64,
    /// Batches of the current cycle: (index, groups, rows that training tasks still have to commit).
    pub batches: Vec<(u64, u64, u64)>,
    /// Training is over.
    pub over: bool,
}

/// A weight version, as shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionView {
    /// Name of the model.
    pub model: String,
    /// Number of publications before it.
    pub version: u64,
    /// Lineage it was published in.
    pub lineage: u64,
    /// Partition its weights lie in.
    pub partition: String,
    /// Sessions that pin it, by name.
    pub pinned_by: Vec<String>,
    /// Bytes of its weights.
    #[serde(default)]
    pub bytes: u64,
    /// Why it is alive.
    #[serde(default)]
    pub reasons: Vec<Reason>,
}

/// Consecutive sealed, held cells of one column in one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveRun {
    /// Of which partition.
    pub partition: PartitionId,
    /// Of which column.
    pub column: ColumnId,
    /// Where.
    pub chunk: ChunkId,
    /// First slot.
    pub slot: u32,
    /// Number of cells.
    pub len: u32,
}

/// Everything the catalog knows of one live row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowView {
    /// Group, tags, versions.
    #[serde(flatten)]
    pub head: RowHead,
    /// Its key, where a client gave one.
    pub key: Option<String>,
    /// Partition and row it was born from.
    pub parent: Option<(String, RowId)>,
    /// Cycle (for a round: version) and index of the batch it was cut into.
    pub batch: Option<(u64, u64)>,
    /// Own columns, then linked ones.
    pub columns: Vec<RowColumn>,
    /// Tasks of its partition.
    pub tasks: Vec<RowTask>,
}

/// What became of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CellState {
    /// Sealed, and its bytes are there.
    Held,
    /// Sealed, and read by everyone who reads it.
    Freed,
    /// Still being appended to.
    Open,
    /// Not written yet.
    Missing,
    /// Nobody will write it: its writers are not owed the row.
    Never,
}

/// One column of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowColumn {
    /// Its name.
    pub column: String,
    /// Partition and row it is read from, for a linked column.
    pub from: Option<(String, RowId)>,
    /// What became of the cell.
    pub state: CellState,
    /// Bytes held.
    pub bytes: u64,
    /// Tasks that wrote it, may have written it, or still have to; none: clients put it.
    pub writers: Vec<String>,
}

/// How far a task is with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowTaskState {
    /// Its filter cannot be judged before its columns are there.
    Undecided,
    /// Columns are missing.
    Waiting,
    /// Nothing is missing; no worker holds it.
    Ready,
    /// A worker holds it.
    Leased,
    /// Trained; the publication that consumes it is to come.
    Done,
    /// Consumed.
    Consumed,
    /// The task will not have it.
    NotOwed,
}

/// Unfinished work on a row that outlives its worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedView {
    /// Name of the session that saved it.
    pub worker: String,
    /// Tokens in it, where the worker said their versions.
    pub tokens: u64,
    /// Bytes of its cells.
    pub bytes: u64,
}

/// One task and a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowTask {
    /// Its name.
    pub task: String,
    /// How far it is.
    pub state: RowTaskState,
    /// Who holds the row.
    pub lease: Option<LeaseView>,
    /// Columns that are missing.
    pub missing: Vec<String>,
    /// Attempts that failed.
    pub failed: u32,
    /// Attempts before it counts as poison.
    pub attempts: u32,
    /// What is saved of its unfinished work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedView>,
    /// Uses committed, and uses that consume the row, where it is used several times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<(u32, u32)>,
    /// Anything more.
    pub note: String,
}

/// What may need a person: the worst of each kind first, each list short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HealthView {
    /// Leases, those without a sign of progress for longest first.
    pub leases: Vec<QuietLease>,
    /// Sessions, most silent first.
    pub sessions: Vec<SessionView>,
    /// Rows that failed before, closest to their last attempt first.
    pub failed: Vec<FailedRow>,
    /// The row that stops the run.
    pub poisoned: Option<PoisonedRow>,
    /// Tasks that would wait now.
    pub waits: Vec<TaskWait>,
    /// The limit of bytes, if one is set.
    pub budget: Option<BudgetView>,
}

/// A lease, and how long its worker has shown no progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuietLease {
    /// Of which task.
    pub task: String,
    /// The lease.
    #[serde(flatten)]
    pub lease: LeaseView,
    /// Milliseconds since it began or was last renewed.
    pub quiet_ms: u64,
}

/// A row that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedRow {
    /// For which task.
    pub task: String,
    /// Name of its partition.
    pub partition: String,
    /// Which row.
    pub row: RowId,
    /// Attempts that failed.
    pub failed: u32,
    /// Attempts before it counts as poison.
    pub attempts: u32,
}

/// The row that stops the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoisonedRow {
    /// For which task.
    pub task: String,
    /// Name of its partition.
    pub partition: String,
    /// Which row.
    pub row: RowId,
    /// Its last error.
    pub error: String,
}

/// A task that would wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskWait {
    /// Which task.
    pub task: String,
    /// Rows its own workers hold.
    pub leased: u64,
    /// What it would wait for.
    pub wait: Wait,
}

/// The limit of bytes that admitted rows may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetView {
    /// The limit.
    pub bytes: u64,
    /// Reserved or held now.
    pub used: u64,
    /// Nothing but this limit keeps the next group out.
    pub blocks: bool,
    /// Bytes that were taken out of memory for its sake.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spilled: u64,
}

/// What a reader outside the run is still owed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwedView {
    /// Its task.
    pub task: String,
    /// Of which partition.
    pub partition: String,
    /// Rows it has not consumed.
    pub rows: u64,
    /// Commits of these that are to come: as many as rows, unless it uses each several times.
    pub uses: u64,
    /// Of these, rows that it holds.
    pub leased: u64,
    /// Columns it reads.
    pub columns: Vec<String>,
    /// Bytes of these columns that lie in spill files.
    pub spilled: u64,
}

/// What a task would lose if rows left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskLoss {
    /// Which task.
    pub task: String,
    /// Rows it owes or may come to owe.
    pub rows: u64,
    /// Of these, rows that a worker holds: its results for them will be ignored.
    pub leased: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}
