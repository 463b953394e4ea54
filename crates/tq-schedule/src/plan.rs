//! The plan: everything a runner needs, with nothing left to derive.
//!
//! A [`Plan`] is plain data. It is written to `plan.yaml` ([`Plan::to_yaml`]) and shown by `--dry-run`
//! ([`Plan::describe`]).

use std::{collections::BTreeMap, fmt, net::SocketAddr, path::PathBuf};

use indexmap::IndexMap;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, Visitor},
};
use serde_json::Value as Json;
pub use transferqueue::catalog::definition::OnLost;
use transferqueue::{Durability, client::Choice, server::ServerTls};

use crate::port::{Attributes, Extent, Kind, Per};
use crate::schedule::{LagPromise, Schedule};

/// A validated pipeline under given parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Pipeline file it was made from.
    pub pipeline: String,
    /// Arguments it was made under, as typed.
    pub overrides: Vec<String>,
    /// `trainer.seed`: every sample's seed is derived from it.
    pub seed: u64,
    /// Phases in the order they run; a pipeline without `phases:` has one, named `main`.
    pub phases: Vec<Phase>,
    /// Models some stage uses.
    pub models: IndexMap<String, Model>,
    /// Groups of workers.
    pub workers: IndexMap<String, Workers>,
    /// Limits of the store.
    pub store: Store,
    /// Keys that were accepted and have no meaning here, with the reason; columns linked by themselves; other remarks.
    pub notes: Vec<Note>,
    /// The parameter tree, resolved, before any phase's own `parameters:`.
    pub parameters: Json,
}

/// A remark: a key that means nothing here, a model nobody uses, a column that is linked though nobody listed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Dotted key.
    pub key: String,
    /// Where it was set.
    pub at: String,
    /// One line: why it has no effect, or what was done.
    pub reason: String,
}

/// A model of `models:`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Kind: `causal-lm`, `value-lm`, or one that the program registers.
    #[serde(rename = "use")]
    pub kind: String,
    /// Folder or name it is loaded from.
    pub path: String,
}

/// A group of workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workers {
    /// Stages they run, by the pipeline's names.
    pub stages: Vec<String>,
    /// How many workers each stage gets.
    pub count: u64,
    /// `cpu`, `cuda:0`, …
    pub device: String,
    /// Threads of this process or processes of their own.
    pub kind: WorkerKind,
}

/// Where a worker runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerKind {
    /// OS threads of the runner's process.
    #[serde(alias = "thread")]
    Threads,
    /// Processes of their own.
    #[serde(alias = "process")]
    Processes,
}

/// Limits of the store, and where it is served.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// Bytes that rows may reserve; `None`: no limit.
    pub budget: Option<u64>,
    /// Bytes that weights of all models may hold; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<u64>,
    /// Where cells go that leave memory; `None`: they stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill: Option<Spill>,
    /// Seconds that the run may wait for bytes which only readers outside it would let go.
    #[serde(default = "patience")]
    pub patience: u64,
    /// Units that hold the bytes, 1 to 64; `None`: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<usize>,
    /// What survives when a process is killed.
    #[serde(default)]
    pub durability: Durability,
    /// Folder for the bytes that survive; `None`: `arena/` in the run's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arena: Option<PathBuf>,
    /// A part of the runner, or a process of its own.
    #[serde(default)]
    pub kind: StoreKind,
    /// Which way bytes come to workers in processes of their own.
    #[serde(default)]
    pub transport: Choice,
    /// Where workers of other hosts may join; `None`: workers of this host alone, while it has processes of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<Listen>,
}

/// Where cells go that leave memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Spill {
    /// `spill/` in the run's folder (`true`), or nowhere.
    Run(bool),
    /// A folder for the spill folders of runs.
    Folder(PathBuf),
}

impl<'de> Deserialize<'de> for Spill {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl Visitor<'_> for Seen {
            type Value = Spill;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or a folder")
            }

            fn visit_bool<E: de::Error>(self, run: bool) -> Result<Spill, E> {
                Ok(Spill::Run(run))
            }

            fn visit_str<E: de::Error>(self, folder: &str) -> Result<Spill, E> {
                Ok(Spill::Folder(folder.into()))
            }
        }
        deserializer.deserialize_any(Seen)
    }
}

/// [`Store::patience`] unless the pipeline says otherwise.
pub(crate) fn patience() -> u64 {
    60
}

/// Where the store runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreKind {
    /// In the runner's process: it ends with it.
    #[default]
    #[serde(alias = "threads")]
    Thread,
    /// In a process of its own (`tq-run store`), which may be killed: its workers wait for the next one and go on.
    #[serde(alias = "processes")]
    Process,
}

/// An address that the store is served at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listen {
    /// Address and port.
    pub address: SocketAddr,
    /// Nothing is encrypted, and that is meant.
    pub insecure: bool,
    /// The server's certificate.
    pub tls: Option<ServerTls>,
}

/// A phase: its own partitions, tasks, schedule and version count (v = 0 at its start).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Name in `phases:`.
    pub name: String,
    /// Phase whose final weights it starts from; `None`: the models' paths.
    pub init: Option<String>,
    /// Schedule.
    pub schedule: Schedule,
    /// What the algorithm needs, by verl's rules.
    pub needs: Needs,
    /// Partitions, sources first.
    pub partitions: IndexMap<String, Partition>,
    /// Tasks, in the order of the pipeline's stages; within a stage in the order of its `serve`.
    pub tasks: IndexMap<String, Task>,
    /// Models the phase uses and how.
    pub models: IndexMap<String, ModelUse>,
    /// Derived numbers.
    pub arithmetic: Arithmetic,
    /// What the schedule promises.
    pub promises: Promises,
    /// The phase's parameter tree (its own `parameters:` applied), resolved.
    pub parameters: Json,
}

/// What `when: need.…` refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// `critic.enable`, or when null: `algorithm.adv_estimator` is `gae`.
    pub critic: bool,
    /// `algorithm.use_kl_in_reward` or `actor_rollout_ref.actor.use_kl_loss`.
    pub reference: bool,
    /// The rollout's log-probs cannot serve as the old policy's: not `algorithm.rollout_correction.bypass_mode`, and
    /// either more than one update per publication or groups admitted ahead (⌊S·B⌋ > 0).
    pub old: bool,
    /// `algorithm.filter_groups.enable`.
    pub filter: bool,
}

/// How a phase uses a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelUse {
    /// The task that trains it, if any does.
    pub trained_by: Option<String>,
    /// Which weights its other users take.
    pub versions: Vec<Version>,
}

/// Which weights of a model a task uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Version {
    /// `@live`: the newest published weights the schedule allows.
    #[serde(rename = "live")]
    Live,
    /// `@cycle`: the weights at the cycle's start.
    #[serde(rename = "cycle")]
    Cycle,
    /// `@0`: the weights at the phase's start.
    #[serde(rename = "0")]
    Initial,
}

/// A task's model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRef {
    /// Name in `models:`.
    pub name: String,
    /// Weights; `None` for the task that trains the model.
    pub version: Option<Version>,
}

/// A table of rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Partition {
    /// How its rows come to be.
    pub rows: Rows,
    /// Whether this is the partition the phase trains on (exactly one per phase).
    pub training: bool,
    /// Columns that exist in it, by name.
    pub columns: IndexMap<String, Column>,
    /// Bytes that one group reserves in this partition at admission (for a source: one row).
    pub bytes_per_group: u64,
}

/// How a partition's rows come to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// Read from files by the source stage.
    Files {
        /// Paths.
        files: Vec<String>,
        /// Rows in the files (after `data.*_max_samples`), when the caller could count them.
        count: Option<u64>,
    },
    /// Born at admission: `n` rows for each row of `source`.
    Expand {
        /// Partition whose rows are expanded.
        source: String,
        /// Rows per group.
        n: u64,
        /// `None`: admitted by the schedule. `Some(k)`: the whole source is admitted after every k-th publication.
        every: Option<u64>,
    },
    /// Put by clients, one row at a time.
    Put,
}

/// A column of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Type.
    #[serde(rename = "type")]
    pub column_type: Kind,
    /// Facts it carries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: Attributes,
    /// Who fills it.
    pub origin: ColumnOrigin,
    /// Tasks that read it; when all are done its bytes are freed.
    pub readers: Vec<String>,
    /// Partitions that read it through their groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub linked_into: Vec<String>,
    /// Kept although (or after) nobody reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Keep>,
    /// Longest cell, as declared.
    pub extent: Extent,
    /// Bytes the longest cell takes (payload, without offsets). A linked column takes none here.
    pub max_bytes_per_row: u64,
}

/// Who fills a column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ColumnOrigin {
    /// Written by these tasks (several have disjoint `where`).
    Written(Vec<String>),
    /// Read through the group from this partition.
    Linked(String),
    /// Put by clients.
    Put,
}

/// What happens to a column when its readers are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// Stays until its rows are dropped or the partition is deleted.
    Rows,
    /// Written to Parquet before it is freed.
    Archive,
}

/// One stage serving one partition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The pipeline's name of the stage.
    pub stage: String,
    /// Registered name of the implementation.
    #[serde(rename = "use")]
    pub implementation: String,
    /// Partition it serves.
    pub partition: String,
    /// Rank of this task among those of the same stage; 0 is served first.
    pub priority: u64,
    /// What it claims at once.
    pub per: Per,
    /// Model and weights.
    pub model: Option<ModelRef>,
    /// Input port → column, for ports that are bound.
    pub reads: IndexMap<String, String>,
    /// Output port → column, for ports that are written.
    pub writes: IndexMap<String, String>,
    /// Rows it is owed: tags that must match.
    #[serde(default, rename = "where", skip_serializing_if = "IndexMap::is_empty")]
    pub filter: IndexMap<String, Json>,
    /// Whoever reads the rows is no part of the run, which ends without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
    /// Times it uses every row before the row is consumed.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub reuse: u64,
    /// Set for a task that trains.
    pub training: Option<TaskTraining>,
    /// Times a row may fail before `on_failure` applies.
    pub attempts: u64,
    /// What then happens.
    pub on_failure: OnFailure,
    /// What becomes of unfinished work on a row whose worker is lost.
    #[serde(default, skip_serializing_if = "OnLost::is_again")]
    pub on_lost: OnLost,
    /// The stage's `with:` map.
    pub with: Json,
    /// The subtrees of the phase's parameter tree that the stage asks for ([`Phase::parameter`]).
    pub parameters: Vec<String>,
}

/// Training part of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskTraining {
    /// Groups per update.
    pub mini_batch: u64,
    /// Passes over each mini-batch.
    pub epochs: u64,
    /// First step (steps count from 1) in which it updates its model; earlier cycles only mark their rows done.
    pub from_cycle: u64,
    /// Workers that share each mini-batch and add up their gradients.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub ranks: u64,
    /// Columns whose lengths, added up, are the size of a row in tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lengths: Vec<String>,
}

fn one() -> u64 {
    1
}

fn is_one(n: &u64) -> bool {
    *n == 1
}

/// What happens to a row that fails `attempts` times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The run stops with the row and the error.
    Stop,
    /// The row's group is dropped as `failed`.
    Drop,
}

/// Derived numbers of a phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arithmetic {
    /// B: groups per cycle.
    pub groups_per_cycle: u64,
    /// Rows per group in the training partition.
    pub rows_per_group: u64,
    /// Rows per cycle.
    pub rows_per_cycle: u64,
    /// Groups per mini-batch.
    pub mini_batch: u64,
    /// Mini-batches per cycle = updates per publication, each group counted once.
    pub mini_batches_per_cycle: u64,
    /// Optimiser steps per publication of each training task (mini-batches × epochs).
    pub updates_per_publication: IndexMap<String, u64>,
    /// Length of the phase in cycles; `None`: not known before the data is read.
    pub total_cycles: Option<u64>,
    /// How `total_cycles` came about.
    pub total_cycles_from: String,
    /// The level that ends the phase earlier.
    pub level: Option<Level>,
    /// ⌊S·B⌋.
    pub groups_ahead: u64,
    /// B + ⌊S·B⌋.
    pub window: u64,
    /// Most tokens a cycle can hold: rows × (longest prompt + longest response).
    pub max_tokens_per_cycle: u64,
    /// Bytes one admitted group reserves (its rows, plus its source row).
    pub bytes_per_group: u64,
    /// Bytes of `state_every` cycles: the least a budget can be.
    pub bytes_reserved_least: u64,
    /// Bytes reserved when the window is full and `state_every − 1` cycles are held.
    pub bytes_at_peak: u64,
    /// Bytes that partitions with `every` reserve while they are evaluated; `None`: their rows were not counted.
    pub bytes_evaluation: Option<u64>,
}

/// A metric's level that ends a phase: the first cycle that reaches it is the last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// A metric of the training task, averaged over the cycle.
    pub metric: String,
    /// From which side.
    pub side: Side,
    /// The level.
    pub value: f64,
}

/// From which side a level is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// At the level or below.
    AtMost,
    /// At the level or above.
    AtLeast,
}

impl Level {
    /// Whether a value reaches it; not-a-number never does.
    #[must_use]
    pub fn is_reached(&self, value: f64) -> bool {
        match self.side {
            Side::AtMost => value <= self.value,
            Side::AtLeast => value >= self.value,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.side == Side::AtMost { "at most" } else { "at least" };
        write!(f, "{} {side} {}", self.metric, self.value)
    }
}

/// What a phase's schedule promises.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promises {
    /// Largest lag of a trained row.
    pub lag: LagPromise,
    /// Bit for bit repeatable on CPU at a fixed number of threads.
    pub repeatable: bool,
    /// One sentence on what repeatable rests on or what is promised instead.
    pub repeatable_why: String,
}

impl Plan {
    /// The phase called `name`.
    #[must_use]
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|p| p.name == name)
    }
}

impl Phase {
    /// The partition the phase trains on, with its name.
    #[must_use]
    pub fn training_partition(&self) -> Option<(&str, &Partition)> {
        self.partitions.iter().find(|(_, p)| p.training).map(|(name, p)| (name.as_str(), p))
    }

    /// The parameter, or subtree of parameters, at a dotted path.
    #[must_use]
    pub fn parameter(&self, path: &str) -> Option<&Json> {
        path.split('.').try_fold(&self.parameters, |tree, key| tree.get(key))
    }

    /// Tasks of one stage, first served first.
    pub fn tasks_of<'a>(&'a self, stage: &'a str) -> impl Iterator<Item = (&'a str, &'a Task)> {
        self.tasks.iter().filter(move |(_, t)| t.stage == stage).map(|(name, t)| (name.as_str(), t))
    }
}
