//! What a run declares before its first row: partitions, tasks, models and the schedule.
//!
//! The definition is fixed for the life of a catalog (weights partitions are added while it runs). Who reads and who
//! writes a column is said here once; lifecycle, readiness and the ledger all follow from it.

use serde::{Deserialize, Serialize};

use super::predicate::Predicate;
use crate::{ids::TaskId, schema::Column};

/// Everything a catalog is created from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    /// Seed of samplers and of the samples' own seeds.
    pub seed: u64,
    /// Tables; `PartitionId` is the position.
    pub partitions: Vec<Partition>,
    /// Consumers; `TaskId` is the position.
    pub tasks: Vec<Task>,
    /// Models whose weights are published; `ModelId` is the position.
    pub models: Vec<Model>,
    /// Admission and cutting of the trained partition. `None`: nothing is trained.
    pub schedule: Option<Schedule>,
    /// Bytes that admitted rows may hold or have reserved. `None`: no limit.
    pub budget: Option<u64>,
    /// Bytes that weights of all models may hold: a put beyond is refused. `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<u64>,
}

/// A named table of rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Partition {
    /// Unique among live partitions.
    pub name: String,
    /// Own columns; `ColumnId` is the position. Linked columns are not repeated here.
    pub columns: Vec<Column>,
    /// How rows come into it.
    pub birth: Birth,
}

/// How rows are born.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Birth {
    /// By `put`, from any client.
    Put {
        /// A put waits while this many rows are live and not yet expanded. `None`: never waits.
        capacity: Option<u64>,
    },
    /// At admission: one group of `n` empty rows from each row of partition `from`.
    Expand {
        /// Name of the parent partition.
        from: String,
        /// Rows per group, at least 1.
        n: u32,
        /// Columns of `from` that rows of the group read through it; stored once.
        link: Vec<String>,
        /// When groups are admitted.
        gate: Gate,
    },
}

/// When an expanding partition admits groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// By the schedule's inequality (the trained partition; one at most).
    Schedule,
    /// All rows of the parent at once, before version 0 trains (if `first`) and after each version divisible by `cycles`,
    /// and after the last cycle. The parent's rows are used again each time. Not counted by the schedule.
    /// Each round is one batch `(cycle = version, index = 0)`.
    Every {
        /// Distance between rounds in cycles; 0: only `first`.
        cycles: u64,
        /// Whether a round runs before the first update.
        first: bool,
    },
}

/// What one claim of a task returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grain {
    /// Any ready rows.
    Row,
    /// Whole groups.
    Group,
    /// One cut batch: (cycle, index), in order.
    Mini,
    /// All batches of one cycle, in order.
    Cycle,
}

/// How a task's claims choose among what is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampling {
    /// Lowest row (or group) id first.
    #[default]
    Sequential,
    /// Uniformly, by the definition's seed; no row twice in one claim.
    Shuffled,
    /// Rows whose lengths (of the first ragged column read) balance: of the candidates, a set whose total is close to the mean.
    Balanced,
}

/// What becomes of a row that failed `attempts` times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Poison {
    /// The run stops with the row and the error.
    #[default]
    Stop,
    /// The row's group is dropped as `failed`.
    Drop,
}

/// What becomes of unfinished work on a row whose worker is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLost {
    /// It is done again.
    #[default]
    Again,
    /// What the worker has saved ([`Command::Save`](super::command::Command::Save)) goes to the next one.
    Resume,
}

impl OnLost {
    /// Whether it is the usual.
    pub fn is_again(&self) -> bool {
        *self == Self::Again
    }
}

/// A named consumer of one partition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Unique.
    pub name: String,
    /// Name of the partition it consumes.
    pub partition: String,
    /// Columns it waits for and reads: own ones of the partition, or linked ones.
    pub reads: Vec<String>,
    /// Columns it alone writes (several tasks may write one column when their `filter`s are disjoint).
    pub writes: Vec<String>,
    /// What a claim returns.
    pub per: Grain,
    /// Only rows that match are owed to it.
    pub filter: Option<Predicate>,
    /// How claims choose. Batches keep their order whatever this says.
    pub sampling: Sampling,
    /// How often it uses every row; at least 1. After a commit a row can be claimed again, until as many were committed:
    /// then it is consumed. Without shuffling, claims go through the rows in passes: those used least first.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub reuse: u32,
    /// Which model it trains; its commits mark rows done and the publication consumes them. Within a cycle its batches go
    /// to one session (or to the ranks of `gang`), whose memory holds the training: if that is lost before it offered, or one of its leases expires,
    /// all its rows of the cycle are trained again, and a worker that hears of an ended lease goes back to the last
    /// published state.
    pub trains: Option<Trains>,
    /// Its workers share every batch as ranks of one gang; `None`: one worker trains alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<Gang>,
    /// The model whose weights it must use at the version of the row's admission (see `Schedule::weights`): a claim
    /// then returns rows of one required version only.
    pub samples_with: Option<String>,
    /// Failures of one row before it counts as poison; at least 1.
    pub attempts: u32,
    /// What poison does.
    pub on_poison: Poison,
    /// What becomes of unfinished work on a row whose worker is lost.
    #[serde(default, skip_serializing_if = "OnLost::is_again")]
    pub on_lost: OnLost,
    /// Life of a lease without renewal, in milliseconds.
    pub lease_ms: u64,
    /// Whoever consumes it is no part of the run and may never come: the run ends without it, its failures are counted and
    /// have no consequence, bytes that it alone still reads may be spilled, and the message of a budget that they fill up names it.
    #[serde(default, skip_serializing_if = "super::command::is_false")]
    pub external: bool,
}

fn once() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_once(reuse: &u32) -> bool {
    *reuse == 1
}

impl Task {
    /// A streaming task with the usual limits: 3 attempts, leases of 60 s.
    pub fn new(name: impl Into<String>, partition: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            partition: partition.into(),
            reads: Vec::new(),
            writes: Vec::new(),
            per: Grain::Row,
            filter: None,
            sampling: Sampling::Sequential,
            reuse: 1,
            trains: None,
            gang: None,
            samples_with: None,
            attempts: 3,
            on_poison: Poison::Stop,
            on_lost: OnLost::Again,
            lease_ms: 60_000,
            external: false,
        }
    }
}

/// Workers of a training task that go through its batches together. Each claims as one rank and gets its share of every
/// mini-batch: together they get every row once. When one of them is lost, or gives rows back, the gang has ended: what
/// it did since the last publication is undone, and all ranks join again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gang {
    /// How many workers, at least 1.
    pub ranks: u32,
    /// Columns the task reads whose lengths, added up, are the size of a row in tokens; shares are balanced by it. Ragged
    /// ones count elements, texts bytes. Empty: every row counts the same.
    pub lengths: Vec<String>,
}

/// A training task's model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trains {
    /// Name of the model.
    pub model: String,
    /// First cycle in which it trains; rows of earlier cycles are not owed to it.
    pub from_cycle: u64,
}

/// A model whose weight versions live in partitions `weights/<name>/<lineage>.<version>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Unique.
    pub name: String,
    /// Version 0 is needed throughout (a reference policy reads it).
    pub keep_initial: bool,
}

/// Order in which batches are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The next groups in admission order, complete or waited for.
    Admission,
    /// The groups that were complete first.
    Completion,
}

/// Which weights a group's first token is sampled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightRule {
    /// Exactly those at admission.
    Exact,
    /// At least those at admission.
    AtLeast,
}

/// How much is complete before batches are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutGrain {
    /// A whole cycle: its B groups in admission order, then sliced into mini-batches.
    Cycle,
    /// Each mini-batch as soon as it is complete.
    Mini,
}

/// What running generations do at a publication. Carried for the rollout stage; the catalog does not act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnPublication {
    /// Finish on the weights they began with.
    Finish,
    /// Go on with the new weights; versions are recorded per token.
    Continue,
}

/// Admission and cutting (one inequality, see `docs/ARCHITECTURE.md`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// The trained partition; its birth is `Expand` with `Gate::Schedule`.
    pub partition: String,
    /// B, groups per cycle, at least 1.
    pub groups_per_cycle: u64,
    /// Mini-batches per cycle; divides B.
    pub minis_per_cycle: u64,
    /// ⌊S·B⌋, groups that may be ahead.
    pub ahead: u64,
    /// Length of the whole run in cycles.
    pub total_cycles: u64,
    /// Which groups are cut next.
    pub order: Order,
    /// When they are cut.
    pub grain: CutGrain,
    /// Which weights rollout uses.
    pub weights: WeightRule,
    /// Largest lag of a trained row. In completion order without `drop_beyond`, groups that would exceed it at the next
    /// version are cut first and waited for.
    pub max_lag: Option<u64>,
    /// Drop groups beyond `max_lag` (reason `stale`) instead of waiting for those about to be.
    pub drop_beyond: bool,
    /// What running generations do at a publication.
    pub on_publication: OnPublication,
}

/// Where a task stands in the definition, and itself: what `Definition::task` finds by name.
pub type Named<'a, T> = (TaskId, &'a T);
