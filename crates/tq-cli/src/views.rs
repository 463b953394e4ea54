//! One look at everything that is shown together.

use anyhow::{Error, Result, anyhow};
use transferqueue::{
    catalog::views::{HealthView, LedgerEntry, PartitionView, SessionView, TaskView},
    inspect::{Client, ColumnBytesView, Reply, Request, Status, UnitView},
};

/// An answer to something that was not asked.
pub(crate) fn another_version() -> Error {
    anyhow!("the job answers something else than it was asked: it is of another version than this program")
}

/// What a job shows, from one moment to the next.
pub(crate) struct Views {
    pub(crate) status: Status,
    pub(crate) tasks: Vec<TaskView>,
    pub(crate) columns: Vec<ColumnBytesView>,
    pub(crate) ledger: Vec<LedgerEntry>,
    pub(crate) partitions: Vec<PartitionView>,
    pub(crate) sessions: Vec<SessionView>,
    pub(crate) units: Vec<UnitView>,
    pub(crate) health: HealthView,
}

impl Views {
    /// Asks for all of it.
    pub(crate) fn get(client: &mut Client) -> Result<Self> {
        macro_rules! ask {
            ($kind:ident) => {
                match client.get(&Request::$kind)? {
                    Reply::$kind(reply) => reply,
                    _ => return Err(another_version()),
                }
            };
        }
        Ok(Self {
            status: *ask!(Status),
            tasks: ask!(Tasks),
            columns: ask!(Columns),
            ledger: ask!(Ledger),
            partitions: ask!(Partitions),
            sessions: ask!(Sessions),
            units: ask!(Units),
            health: *ask!(Health),
        })
    }
}
