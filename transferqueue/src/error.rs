//! What can go wrong between a worker and the store, by what the worker must do.

use crate::{
    batch::BatchError,
    catalog::{Advice, Refusal, wait::Wait},
    ids::PartitionId,
    log::LogError,
    outputs::OutputError,
    snapshot::SnapshotError,
    transport::TransportError,
    unit::{ArenaError, SpillError, UnitError},
};

/// Why a call did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum Error {
    /// The catalog refused; nothing changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The deadline passed; the wait says what for and who holds it up.
    #[error("deadline passed: {0}")]
    Deadline(Box<Wait>),
    /// The run is being stopped: finish what is held, claim nothing more.
    #[error("the store is stopping: {reason}")]
    Stopped { reason: String },
    /// The run is over; a put was not taken.
    #[error("partition {partition} takes no more rows: the run is over")]
    Ended { partition: PartitionId },
    /// Bytes did not travel.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A batch was read as what it is not.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// Outputs do not fit the partition.
    #[error(transparent)]
    Outputs(#[from] OutputError),
    /// The event log cannot be read or written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Bytes cannot be kept in files, or found again.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// Cells cannot be taken out of memory, or found again.
    #[error(transparent)]
    Spill(#[from] SpillError),
    /// The store is not set up so that it can do this.
    #[error("{what}")]
    Options { what: String },
    /// A snapshot cannot be read or written.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The store's process does not answer.
    #[error("{url}: {what} was not answered within {waited_ms} ms: {why}")]
    Unreachable { url: String, what: String, waited_ms: u64, why: String },
    /// Another store answers than the one this client knew.
    #[error(
        "{url} is another store than before (incarnation {found:#x}, expected {expected:#x}): it was restarted or restored; connect again and claim again"
    )]
    Incarnation { url: String, expected: u64, found: u64 },
    /// The server refuses the client or its message.
    #[error("{url}: {why}")]
    Server { url: String, why: String },
    /// The store is not usable any more.
    #[error("the store is broken: {what}; restore the last snapshot")]
    Broken { what: String },
    /// The other side speaks another protocol.
    #[error("the catalog answered `{command}` with {found}: both sides must be of one version")]
    Protocol { command: &'static str, found: String },
}

impl From<UnitError> for Error {
    fn from(error: UnitError) -> Self {
        Self::Transport(TransportError::Unit(error))
    }
}

impl Error {
    /// Whether the store is being stopped: end the loop, this is no failure.
    pub fn is_stopped(&self) -> bool {
        matches!(self, Self::Stopped { .. })
    }

    /// Whether only the deadline passed: calling again is in order.
    pub fn is_deadline(&self) -> bool {
        matches!(self, Self::Deadline(_))
    }

    /// Whether the run is over for this put.
    pub fn is_ended(&self) -> bool {
        matches!(self, Self::Ended { .. })
    }

    /// Whether the session or the lease had ended before the call, because its worker was silent for too long: what it
    /// held went back. Begin again, with a new session.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.advice() == Advice::BeginAgain)
    }

    /// Whether another rank of the gang was lost, and with it what this one did since the last publication: begin again.
    pub fn is_gang_ended(&self) -> bool {
        matches!(self, Self::Refused(Refusal::GangEnded { .. }))
    }

    /// Whether rows or bytes went away under a reader (dropped by others, or its lease expired): begin again with a claim.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Transport(error) => error.is_gone(),
            Self::Refused(refusal) => {
                matches!(refusal, Refusal::LeaseEnded { .. } | Refusal::NoRow { .. })
            }
            _ => false,
        }
    }
}
