//! Why a call is refused, by what the caller must do.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::{ColumnId, LeaseId, RowId, Rows, SessionId};

/// What the caller of a refused call must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// The call is wrong and will be refused again: correct it.
    FixCall,
    /// What the call refers to is gone (a lease, a session): begin again from there.
    BeginAgain,
    /// The run cannot go on.
    GiveUp,
}

/// A refused call. Nothing changed, and its sequence number is still free.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each message says what the fields are")]
pub enum Refusal {
    #[error("definition: {0}")]
    Definition(String),
    #[error("no {what} {name} in this catalog; there are: {known}")]
    Unknown { what: String, name: String, known: String },
    #[error("row {row} of `{partition}` does not exist (any more); {hint}")]
    NoRow { partition: String, row: RowId, hint: String },
    #[error("this call needs a session; open one first")]
    NoSession,
    #[error(
        "session {session} has ended (closed, or silent for longer than {timeout_ms} ms): its leases went back; open a new session and claim again"
    )]
    SessionEnded { session: SessionId, timeout_ms: u64 },
    #[error(
        "session {session} sent call {found}, expected {expected} (or one of the {kept} before it, to hear the same reply again)"
    )]
    Sequence { session: SessionId, found: u64, expected: u64, kept: u64 },
    #[error(
        "call {seq} of session {session} was overtaken by a later one, and its number may stand for that one by now: send calls in their order"
    )]
    Overtaken { session: SessionId, seq: u64 },
    #[error(
        "lease {lease} has ended (expired, committed, or given back): its rows may be with another worker; drop the result and claim again"
    )]
    LeaseEnded { lease: LeaseId },
    #[error("lease {lease} belongs to session {owner}, not to session {caller}")]
    NotYours { lease: LeaseId, owner: SessionId, caller: SessionId },
    #[error("rows {rows} are not under lease {lease}; it holds {held}")]
    NotLeased { lease: LeaseId, rows: Rows, held: Rows },
    #[error(
        "task `{task}` does not declare column `{column}` (position {id}) of `{partition}` in its writes; writes: {writes}"
    )]
    NotWriter { task: String, partition: String, column: String, id: ColumnId, writes: String },
    #[error(
        "task `{task}` cannot commit rows {rows} of `{partition}`: column `{column}` is not sealed there; write and seal it, or drop the rows in the same commit"
    )]
    Unsealed { task: String, partition: String, column: String, rows: Rows },
    #[error(
        "task `{task}` has `on_lost: again`: what is not finished is not saved; declare `on_lost: resume` for it, or save nothing"
    )]
    NotResumed { task: String },
    #[error("column `{column}` of `{partition}`, row {row}: {found}; {hint}")]
    Cell { partition: String, column: String, row: RowId, found: String, hint: String },
    #[error("cells of `{partition}`: {found}; expected {expected}")]
    Cells { partition: String, found: String, expected: String },
    #[error("note on row {row} of `{partition}`: {found}; expected {expected}")]
    Note { partition: String, row: RowId, found: String, expected: String },
    #[error("key `{key}` is taken by row {row} of `{partition}`; keys are unique among live rows")]
    KeyTaken { partition: String, key: String, row: RowId },
    #[error("partition `{partition}` is closed: no further row comes into it")]
    Closed { partition: String },
    #[error("partition `{partition}`: {found}; {hint}")]
    Partition { partition: String, found: String, hint: String },
    #[error("reason `{0}` is not one lower-case word (letters, digits, underscores)")]
    Reason(String),
    #[error("{found}; {hint}")]
    Offer { found: String, hint: String },
    #[error(
        "weights: {more} bytes more for `{partition}` beside the {held} that are held exceed the limit of {ceiling} (store.weights); alive are {alive}; let pins go, lower the lag, or raise the limit"
    )]
    Weights { partition: String, more: u64, held: u64, ceiling: u64, alive: String },
    #[error("version {version} of model `{model}` is not there: {found}")]
    Version { model: String, version: u64, found: String },
    #[error("the run is stopped: row {row} failed too often in task `{task}`: {error}")]
    Poisoned { task: String, row: RowId, error: String },
    #[error("claim of task `{task}`: {found}; expected {expected}")]
    Claim { task: String, found: String, expected: String },
    #[error("gang of task `{task}`: {found}; {hint}")]
    Gang { task: String, found: String, hint: String },
    #[error(
        "the gang of task `{task}` has ended: {why}; what it did since the last publication is undone: go back to the last published state and join again"
    )]
    GangEnded { task: String, why: String },
    #[error(
        "record {found} does not follow: expected record {expected} of form {form}; the log has a gap or is of another catalog"
    )]
    Log { found: u64, expected: u64, form: u32 },
}

impl Refusal {
    /// What the caller must do.
    pub fn advice(&self) -> Advice {
        match self {
            Self::SessionEnded { .. } | Self::LeaseEnded { .. } | Self::GangEnded { .. } => Advice::BeginAgain,
            Self::Poisoned { .. } | Self::Log { .. } => Advice::GiveUp,
            _ => Advice::FixCall,
        }
    }
}
