//! A held weight version.

use std::fmt;

use super::Session;
use crate::{
    batch::Batch,
    catalog::command::{Command, VersionRef},
    error::Error,
    ids::PartitionId,
};

/// A weight version that stays until this is dropped.
pub struct Pinned {
    session: Session,
    version: VersionRef,
}

impl Pinned {
    pub(super) fn new(session: Session, version: VersionRef) -> Self {
        Self { session, version }
    }

    /// Which version.
    pub fn version(&self) -> VersionRef {
        self.version
    }

    /// Where the weights lie.
    pub fn partition(&self) -> PartitionId {
        self.version.partition
    }

    /// Reads columns of all its rows; row order is the order in which the parts were put.
    ///
    /// # Errors
    /// [`Error::Refused`] for a column that is not there.
    pub fn read(&self, columns: &[&str]) -> Result<Batch, Error> {
        self.session.read(self.version.partition, None, columns)
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {} (lineage {}) of model {}", self.version.version, self.version.lineage, self.version.model)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let command = Command::Unpin { model: self.version.model, version: self.version.version };
        if let Err(error) = self.session.call(command, None) {
            tracing::debug!(pin = ?self, %error, "pin had ended");
        }
    }
}
