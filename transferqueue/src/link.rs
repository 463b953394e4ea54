//! The way to the catalog: what a session needs of it, in this process or over a wire.

use std::{sync::Arc, time::Instant};

use crate::{
    catalog::{
        Newest,
        command::{BatchRef, Claimed, Command, Reply, RowHead},
        definition::{Definition, Partition},
    },
    error::Error,
    gang::{Brought, Values},
    ids::{ModelId, PartitionId, Rows, SessionId, TaskId},
};

/// The control plane as a session sees it.
///
/// The link numbers the calls of a session itself: only it knows whether a reply may have been lost and a call is
/// sent a second time.
pub trait Link: Send + Sync {
    /// Carries out a command. A command that has to wait (`claim`, `put`, `pin`) does so until the deadline; `None`: it
    /// does not wait. `NotYet` is never returned.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::Deadline`] with what is waited for; [`Error::Stopped`]; [`Error::Broken`].
    fn call(&self, session: Option<SessionId>, command: Command, deadline: Option<Instant>) -> Result<Reply, Error>;

    /// A fresh pointer to rows (all live ones for `None`) and columns, without a lease: it holds nothing.
    ///
    /// # Errors
    /// [`Error::Refused`] when a row, a column or a cell is not there.
    fn resolve(
        &self,
        partition: PartitionId,
        rows: Option<&Rows>,
        columns: &[&str],
    ) -> Result<(BatchRef, Vec<RowHead>), Error>;

    /// The live partition of that name.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is none.
    fn partition(&self, name: &str) -> Result<PartitionId, Error>;

    /// A partition's description.
    ///
    /// # Errors
    /// [`Error::Refused`] when it is not there (any more).
    fn describe(&self, partition: PartitionId) -> Result<Arc<Partition>, Error>;

    /// Rows of any of the tasks, the first ones preferred, waiting until the deadline. `None`: every one of them has ended.
    ///
    /// # Errors
    /// As [`Link::call`]; the wait is that of the first task that has not ended.
    fn claim_any(
        &self,
        session: SessionId,
        tasks: &[TaskId],
        limit: u64,
        deadline: Instant,
    ) -> Result<Option<(TaskId, Claimed)>, Error>;

    /// Comes to a round of a gang and waits for the other ranks until the deadline. The same round may be come to again.
    ///
    /// # Errors
    /// [`Error::Refused`] when the gang has ended, [`Error::Deadline`] with the ranks that have not come,
    /// [`Error::Stopped`].
    fn meet(
        &self,
        session: SessionId,
        task: TaskId,
        brought: &mut Brought,
        deadline: Instant,
    ) -> Result<Arc<Vec<Values>>, Error>;

    /// Where a model stands.
    ///
    /// # Errors
    /// [`Error::Refused`] for a model that was not declared.
    fn newest(&self, model: ModelId) -> Result<Newest, Error>;

    /// Rows ever born in a partition: a source's cursor.
    ///
    /// # Errors
    /// [`Error::Refused`] when it is not there (any more).
    fn born(&self, partition: PartitionId) -> Result<u64, Error>;

    /// Stops the run for everyone, with a reason.
    fn stop(&self, reason: String);

    /// What the run declared.
    fn definition(&self) -> Arc<Definition>;
}
