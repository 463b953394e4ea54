//! Looking inside a running store: the system tables, as values, as text, and over a local socket. One request changes
//! something: [`Request::Drop`], once it is confirmed. [`history`] reads what became of a row from the event log, also when
//! the store is gone.
//!
//! ```
//! use transferqueue::{Definition, Options, Store, inspect::{self, Request}};
//! let store = Store::create(Definition::default(), Options::default())?;
//! let dir = std::env::temp_dir().join(format!("tq-doc-{}", std::process::id()));
//! std::fs::create_dir_all(&dir)?;
//! let server = inspect::serve(&store, &dir.join("control.sock"))?;
//! let status = inspect::Client::connect(server.path())?.get(&Request::Status)?;
//! assert!(status.table().contains("transport"));
//! drop(server);
//! assert!(!dir.join("control.sock").exists());
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod client;
mod discard;
pub mod history;
mod peek;
mod render;
pub(crate) mod server;
mod status;
#[cfg(test)]
mod tests;
mod units;
mod why;

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

pub use self::{
    client::Client,
    discard::Discard,
    peek::{Cell, Peek, PeekedRow},
    render::{bytes, grid, seconds},
    server::{Server, serve},
    status::{ColumnBytesView, Status},
    units::UnitView,
    why::{Why, samples},
};
use crate::{
    catalog::views::{HealthView, LedgerEntry, PartitionView, SessionView, TaskView, VersionView},
    error::Error,
    ids::RowId,
    store::Store,
};

/// Entries of a list that is answered at most. What there is more of, [`Status`] counts.
const MAX_LISTED: usize = 1_024;
/// Leases of one session or task that are listed.
const MAX_LEASES: usize = 32;

/// What can be asked: `{"get":"tasks"}`, `{"get":"peek","partition":"samples","rows":"0-3","columns":["reward"]}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "get", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The run at a glance.
    Status,
    /// Backlog, leases, holders, waits.
    Tasks,
    /// Bytes by column, and who still has to read it.
    Columns,
    /// owed = consumed + live + dropped.
    Ledger,
    /// Tables and their rows.
    Partitions,
    /// Workers.
    Sessions,
    /// Live weight versions.
    Versions,
    /// Some rows, cell by cell.
    Peek {
        /// Name of the partition.
        partition: String,
        /// Row ids and ranges, such as `4-6,9`; absent: the first live ones.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rows: Option<String>,
        /// Columns, linked ones included; empty: all own ones.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        columns: Vec<String>,
    },
    /// Bytes by state.
    Units,
    /// What may need a person.
    Health,
    /// Everything about one row.
    Why {
        /// Name of the partition; absent: see [`samples`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        partition: Option<String>,
        /// Its id.
        row: u64,
    },
    /// Rows leave for good. Without `confirmed`: what would leave.
    Drop {
        /// Name of the partition.
        partition: String,
        /// Row ids and ranges, such as `5,7-9`; at most 4,096 rows.
        rows: String,
        /// Kept in the ledger and the event log.
        reason: String,
        /// Do it.
        #[serde(default)]
        confirmed: bool,
    },
}

/// What is answered: `{"tasks":[…]}` or `{"error":"…"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each names the request it answers")]
pub enum Reply {
    Status(Box<Status>),
    Tasks(Vec<TaskView>),
    Columns(Vec<ColumnBytesView>),
    Ledger(Vec<LedgerEntry>),
    Partitions(Vec<PartitionView>),
    Sessions(Vec<SessionView>),
    Versions(Vec<VersionView>),
    Peek(Peek),
    Units(Vec<UnitView>),
    Health(Box<HealthView>),
    Why(Box<Why>),
    Drop(Discard),
    /// Why there is no answer.
    Error(String),
}

/// Why a store cannot be looked at.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum InspectError {
    /// The operating system refused.
    #[error("control socket {}: cannot {what}: {error}", .path.display())]
    Io { path: PathBuf, what: &'static str, error: io::Error },
    /// Someone else serves there.
    #[error("control socket {}: another process serves there; end it or choose another run name", .path.display())]
    Taken { path: PathBuf },
    /// The run has no answer.
    #[error("{what}")]
    Refused { what: String },
    /// The other side is no store, or of another version.
    #[error("control socket {}: {found}", .path.display())]
    Protocol { path: PathBuf, found: String },
}

impl InspectError {
    fn io(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { path, what, error }
    }
}

/// Answers a request; what cannot be answered is said in [`Reply::Error`].
pub fn answer(store: &Store, request: &Request) -> Reply {
    let reply = || -> Result<Reply, Error> {
        Ok(match request {
            Request::Status => Reply::Status(Box::new(Status::of(store)?)),
            Request::Tasks => {
                let mut tasks = first(store.with_state(|state, now| state.tasks(now))?);
                tasks.iter_mut().for_each(|task| task.shorten(MAX_LEASES));
                Reply::Tasks(tasks)
            }
            Request::Columns => Reply::Columns(first(status::columns(store)?)),
            Request::Ledger => Reply::Ledger(first(store.with_state(|state, _| state.ledger())?)),
            Request::Partitions => Reply::Partitions(first(store.with_state(|state, _| state.partitions())?)),
            Request::Sessions => {
                let mut sessions = first(store.with_state(|state, now| state.sessions(now))?);
                sessions.iter_mut().for_each(|session| session.shorten(MAX_LEASES));
                Reply::Sessions(sessions)
            }
            Request::Versions => Reply::Versions(first(store.with_state(|state, _| state.versions_alive())?)),
            Request::Peek { partition, rows, columns } => {
                return peek::peek(store, partition, rows.as_deref(), columns)
                    .map(|peeked| peeked.map_or_else(Reply::Error, Reply::Peek));
            }
            Request::Units => Reply::Units(UnitView::all(store)?),
            Request::Health => Reply::Health(Box::new(store.with_state(|state, now| state.health(now))?)),
            Request::Why { partition, row } => {
                Reply::Why(Box::new(why::why(store, partition.as_deref(), RowId(*row))?))
            }
            Request::Drop { partition, rows, reason, confirmed } => {
                return discard::discard(store, partition, rows, reason, *confirmed)
                    .map(|discard| discard.map_or_else(Reply::Error, Reply::Drop));
            }
        })
    };
    reply().unwrap_or_else(|error| Reply::Error(error.to_string()))
}

fn first<T>(mut all: Vec<T>) -> Vec<T> {
    all.truncate(MAX_LISTED);
    all
}
