//! Looking inside a running store: the system tables, as values, as text, and over a local socket. Read-only.
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
mod peek;
mod render;
mod server;
mod status;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

pub use self::{
    client::Client,
    peek::{Cell, Peek, PeekedRow},
    server::{Server, serve},
    status::{ColumnBytesView, Status},
};
use crate::{
    catalog::views::{LedgerEntry, PartitionView, SessionView, TaskView, VersionView},
    error::Error,
    store::Store,
};

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
            Request::Tasks => Reply::Tasks(store.with_state(|state, now| state.tasks(now))?),
            Request::Columns => Reply::Columns(status::columns(store)?),
            Request::Ledger => Reply::Ledger(store.with_state(|state, _| state.ledger())?),
            Request::Partitions => Reply::Partitions(store.with_state(|state, _| state.partitions())?),
            Request::Sessions => Reply::Sessions(store.with_state(|state, now| state.sessions(now))?),
            Request::Versions => Reply::Versions(store.with_state(|state, _| state.weights())?),
            Request::Peek { partition, rows, columns } => {
                return peek::peek(store, partition, rows.as_deref(), columns).map(|peeked| match peeked {
                    Ok(peek) => Reply::Peek(peek),
                    Err(what) => Reply::Error(what),
                });
            }
        })
    };
    reply().unwrap_or_else(|error| Reply::Error(error.to_string()))
}
