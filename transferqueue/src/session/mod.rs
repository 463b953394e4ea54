//! A worker's connection to the store: claims, puts, publications, and looking at rows.
//!
//! Written against [`Link`] and [`Transport`] alone, so that a worker does not see whether the store is in its process.

mod gang;
mod lease;
mod pinned;
pub(crate) mod reading;
mod writing;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

pub use self::{
    gang::{Addend, Gang},
    lease::{Lease, Saved},
    pinned::Pinned,
};
use crate::{
    batch::Batch,
    catalog::{
        Newest, Refusal,
        command::{Command, DropRows, NewRow, Reply},
        definition::{Definition, Partition},
    },
    error::Error,
    ids::{ModelId, PartitionId, RowId, Rows, SessionId, TaskId},
    link::Link,
    outputs::{OutputError, Outputs},
    transport::{Purpose, Transport},
};

/// Partitions whose descriptions are kept; the oldest go first and are asked for again.
const MAX_DESCRIBED: usize = 1_024;
/// How long an offer waits for the initial weights of other models.
const OFFER_PATIENCE: Duration = Duration::from_secs(60);

/// A worker's connection. Clones share it (and may be used from several threads at once); when the last one and every
/// lease and pin of it are gone the session ends, and whatever it still held goes back.
#[derive(Clone)]
pub struct Session {
    inner: Arc<Inner>,
}

struct Inner {
    link: Arc<dyn Link>,
    transport: Arc<dyn Transport>,
    definition: Arc<Definition>,
    id: SessionId,
    name: String,
    /// Descriptions of partitions, which never change; ids are not reused.
    described: Mutex<BTreeMap<PartitionId, Arc<Partition>>>,
}

/// What a claim brought.
#[derive(Debug)]
pub enum Claim {
    /// Rows to work on. (A training task may get an empty lease: nothing is left in its cycle, publish.)
    Lease(Lease),
    /// Nothing will ever come for this task again.
    Ended,
}

impl Claim {
    /// The lease, unless the stream has ended.
    pub fn lease(self) -> Option<Lease> {
        match self {
            Self::Lease(lease) => Some(lease),
            Self::Ended => None,
        }
    }
}

impl Session {
    /// A session over any link, and the transport that is made for it.
    ///
    /// # Errors
    /// What the link says.
    pub fn open(
        link: Arc<dyn Link>,
        transport: impl FnOnce(SessionId) -> Arc<dyn Transport>,
        name: String,
    ) -> Result<Self, Error> {
        let id = match link.call(None, Command::OpenSession { name: name.clone(), here: false }, None)? {
            Reply::Session(id) => id,
            other => return Err(unexpected("open_session", &other)),
        };
        let (definition, described, transport) = (link.definition(), Mutex::default(), transport(id));
        Ok(Self { inner: Arc::new(Inner { link, transport, definition, id, name, described }) })
    }

    /// Its id.
    pub fn id(&self) -> SessionId {
        self.inner.id
    }

    /// The name it is shown under as a holder.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What the run declared.
    pub fn definition(&self) -> &Definition {
        &self.inner.definition
    }

    /// The live partition of that name.
    ///
    /// # Errors
    /// [`Error::Refused`] with the names that there are.
    pub fn partition(&self, name: &str) -> Result<PartitionId, Error> {
        self.inner.link.partition(name)
    }

    /// The declared task of that name.
    ///
    /// # Errors
    /// [`Error::Refused`] with the names that there are.
    pub fn task(&self, name: &str) -> Result<TaskId, Error> {
        let names = self.inner.definition.tasks.iter().map(|task| task.name.as_str());
        Ok(TaskId(position("task", name, names)? as u32))
    }

    /// The declared model of that name.
    ///
    /// # Errors
    /// [`Error::Refused`] with the names that there are.
    pub fn model(&self, name: &str) -> Result<ModelId, Error> {
        let names = self.inner.definition.models.iter().map(|model| model.name.as_str());
        Ok(ModelId(position("model", name, names)? as u16))
    }

    /// Waits for rows to work on: at most `limit` rows or groups, as the task's grain says; one cut batch or cycle whatever
    /// the limit.
    ///
    /// # Errors
    /// [`Error::Deadline`] with what is waited for; [`Error::Stopped`]; [`Error::Refused`].
    pub fn claim(&self, task: &str, limit: u64, deadline: Instant) -> Result<Claim, Error> {
        let task = self.task(task)?;
        match self.call(Command::Claim { task, limit }, Some(deadline))? {
            Reply::Claimed(claimed) => Ok(Claim::Lease(Lease::new(self.clone(), task, claimed))),
            Reply::Ended => Ok(Claim::Ended),
            other => Err(unexpected("claim", &other)),
        }
    }

    /// Waits for rows of any of the tasks; of those that have rows now, the first is served. `Ended`: all of them have.
    ///
    /// # Errors
    /// As [`Session::claim`]; the deadline's message is about the first task that has not ended.
    pub fn claim_any(&self, tasks: &[&str], limit: u64, deadline: Instant) -> Result<Claim, Error> {
        let tasks = tasks.iter().map(|task| self.task(task)).collect::<Result<Vec<_>, _>>()?;
        match self.inner.link.claim_any(self.inner.id, &tasks, limit, deadline)? {
            Some((task, claimed)) => Ok(Claim::Lease(Lease::new(self.clone(), task, claimed))),
            None => Ok(Claim::Ended),
        }
    }

    /// Where a model stands, without waiting for a version or holding one.
    ///
    /// # Errors
    /// [`Error::Refused`] for a model that was not declared.
    pub fn newest(&self, model: &str) -> Result<Newest, Error> {
        self.inner.link.newest(self.model(model)?)
    }

    /// Rows ever born in a partition: where a source goes on.
    ///
    /// # Errors
    /// [`Error::Refused`] when the partition is not there (any more).
    pub fn born(&self, partition: PartitionId) -> Result<u64, Error> {
        self.inner.link.born(partition)
    }

    /// Stops the run for everyone: a worker that cannot go on says so instead of leaving the others waiting.
    pub fn stop_store(&self, reason: impl Into<String>) {
        self.inner.link.stop(reason.into());
    }

    /// Puts new rows with their cells, in one event. Waits while the partition is full. The cells' rows are the
    /// positions of `rows`; notes name positions as well (they add to the tags of `rows`).
    ///
    /// # Errors
    /// [`Error::Outputs`] by column; [`Error::Deadline`] with who must consume first; [`Error::Ended`] when the run needs
    /// no further rows; [`Error::Refused`] (closed partition, taken key); [`Error::Stopped`].
    pub fn put(
        &self,
        partition: PartitionId,
        mut rows: Vec<NewRow>,
        cells: Outputs,
        deadline: Instant,
    ) -> Result<Rows, Error> {
        if !cells.drops.is_empty() || cells.rows.is_some() || cells.notes.iter().any(|note| note.span.is_some()) {
            let what = "a put takes cells for all of its rows and tags; it has no rows to drop and no token versions"
                .to_owned();
            return Err(OutputError::Misplaced { what }.into());
        }
        for note in &cells.notes {
            let n = rows.len();
            let Some(row) = rows.get_mut(note.row.0 as usize) else {
                let what = format!("a note names position {}, the put has {n} rows", note.row);
                return Err(OutputError::Misplaced { what }.into());
            };
            row.tags.extend(note.tags.clone());
        }
        let positions = Rows::run(RowId(0), rows.len() as u64);
        let description = self.describe(partition)?;
        let mut written = writing::Written::default();
        let encoded = cells.encode(&description.name, &description.columns, &positions)?;
        self.place(partition, &description, &positions, encoded, Purpose::Final, &mut written)?;
        // The holds in `written` live until the catalog has answered.
        match self.call(Command::Put { partition, rows, cells: written.cells }, Some(deadline))? {
            Reply::Put(rows) => Ok(rows),
            Reply::Ended => Err(Error::Ended { partition }),
            other => Err(unexpected("put", &other)),
        }
    }

    /// Adds a table while the run goes on (weights, trainer state). It is deleted with this session unless it is offered.
    ///
    /// # Errors
    /// [`Error::Refused`] when the name is taken or the description contradicts itself.
    pub fn create_partition(&self, partition: Partition) -> Result<PartitionId, Error> {
        match self.call(Command::CreatePartition(partition), None)? {
            Reply::Partition(id) => Ok(id),
            other => Err(unexpected("create_partition", &other)),
        }
    }

    /// Says that no further row comes into a partition.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn close_partition(&self, partition: PartitionId) -> Result<(), Error> {
        self.done("close_partition", Command::ClosePartition(partition))
    }

    /// Deletes a table that was added while running; its rows leave with reason `deleted`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn delete_partition(&self, partition: PartitionId) -> Result<(), Error> {
        self.done("delete_partition", Command::DeletePartition(partition))
    }

    /// Takes rows out, outside any lease.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn drop_rows(&self, partition: PartitionId, rows: &Rows, reason: &str) -> Result<(), Error> {
        let rows = DropRows { rows: rows.clone(), reason: reason.to_owned() };
        self.done("drop", Command::Drop { partition, rows })
    }

    /// Offers a model's part of a publication: its cycle's rows are done. `cycle: None` publishes the initial weights.
    /// `weights` and `state` are closed partitions; weights `None`: unchanged. Returns the version when this was the last
    /// part, and every part is published with it. A cycle's part waits (a minute at most) for the initial weights of models
    /// that others still load.
    ///
    /// # Errors
    /// [`Error::Refused`] when the part is not done; [`Error::Deadline`] when initial weights are missing.
    pub fn offer(
        &self,
        model: &str,
        cycle: Option<u64>,
        weights: Option<PartitionId>,
        state: Option<PartitionId>,
    ) -> Result<Option<u64>, Error> {
        let model = self.model(model)?;
        let patience = Instant::now() + OFFER_PATIENCE;
        match self.call(Command::Offer { model, cycle, weights, state }, Some(patience))? {
            Reply::Offered(version) => Ok(version),
            other => Err(unexpected("offer", &other)),
        }
    }

    /// Makes the cycle in progress the run's last; called by a training task between its `last` batch and its offer.
    ///
    /// # Errors
    /// [`Error::Refused`] for another cycle, or one that is not completely cut.
    pub fn end_schedule(&self, cycle: u64) -> Result<(), Error> {
        self.done("end of the schedule", Command::EndSchedule { cycle })
    }

    /// Waits for a weight version and holds it until the returned pin is dropped. `None`: the newest.
    ///
    /// # Errors
    /// [`Error::Deadline`], [`Error::Stopped`], [`Error::Refused`] for a version that is retired.
    pub fn pin(&self, model: &str, version: Option<u64>, deadline: Instant) -> Result<Pinned, Error> {
        let model = self.model(model)?;
        match self.call(Command::Pin { model, version }, Some(deadline))? {
            Reply::Pinned(version) => Ok(Pinned::new(self.clone(), version)),
            other => Err(unexpected("pin", &other)),
        }
    }

    /// Looks at rows (all live ones for `None`) without claiming them. No row is held; the bytes are while the batch lives.
    ///
    /// # Errors
    /// [`Error::Refused`] when a row, a column or a cell is not there.
    pub fn read(&self, partition: PartitionId, rows: Option<&Rows>, columns: &[&str]) -> Result<Batch, Error> {
        self.read_fresh(partition, rows, columns)
    }

    /// Ends the session now and says what went wrong, if anything did. Its leases go back.
    ///
    /// # Errors
    /// [`Error::Refused`] when it had ended already.
    pub fn close(self) -> Result<(), Error> {
        self.done("close_session", Command::CloseSession)
    }

    fn call(&self, command: Command, deadline: Option<Instant>) -> Result<Reply, Error> {
        self.inner.link.call(Some(self.inner.id), command, deadline)
    }

    fn done(&self, name: &'static str, command: Command) -> Result<(), Error> {
        match self.call(command, None)? {
            Reply::Done => Ok(()),
            other => Err(unexpected(name, &other)),
        }
    }

    fn describe(&self, partition: PartitionId) -> Result<Arc<Partition>, Error> {
        let known = || self.inner.described.lock().expect("invariant: nothing panics under this lock");
        if let Some(description) = known().get(&partition) {
            return Ok(description.clone());
        }
        let description = self.inner.link.describe(partition)?;
        let mut known = known();
        // Versions of weights are partitions, too: those of long ago are not asked for again.
        while known.len() >= MAX_DESCRIBED {
            known.pop_first();
        }
        known.insert(partition, description.clone());
        Ok(description)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {} ({})", self.inner.id, self.inner.name)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Refused when it was closed or had ended: there is nothing left to give back then.
        if let Err(error) = self.link.call(Some(self.id), Command::CloseSession, None) {
            tracing::debug!(session = %self.id, %error, "session had ended");
        }
    }
}

fn unexpected(command: &'static str, reply: &Reply) -> Error {
    Error::Protocol { command, found: format!("{reply:?}") }
}

fn position<'a>(what: &str, name: &str, names: impl Iterator<Item = &'a str> + Clone) -> Result<usize, Error> {
    names.clone().position(|known| known == name).ok_or_else(|| {
        let known = names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        Refusal::Unknown { what: what.to_owned(), name: format!("`{name}`"), known }.into()
    })
}
