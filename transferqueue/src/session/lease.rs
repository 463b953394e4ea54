//! Rows a worker holds until it commits, releases or fails them.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use super::{
    Session, unexpected,
    writing::{Written, seal},
};
use crate::{
    batch::Batch,
    catalog::{
        command::{BatchRef, Claimed, Command, CutRef, Reply, RowHead, Sampled, SavedRef, SavedRow},
        definition::Partition,
    },
    element::Element,
    error::Error,
    ids::{ColumnId, LeaseId, RowId, Rows, TaskId},
    outputs::{Encoded, OutputError, Outputs, unknown},
    schema::Kind,
    transport::{Lens, Purpose, Room},
    unit::OpenCell,
};

/// What former workers have saved of some claimed rows, all in the same columns.
#[derive(Debug)]
pub struct Saved {
    /// The cells so far.
    pub batch: Batch,
    /// Weight versions of each row's tokens, in the batch's order.
    pub sampled: Vec<Vec<Sampled>>,
}

/// Leased rows. Dropping a lease gives back what is not committed: released, or failed when the thread panics.
pub struct Lease {
    session: Session,
    task: TaskId,
    claimed: Claimed,
    heads: Arc<Vec<RowHead>>,
    /// Rows not yet committed, dropped or given back.
    left: Rows,
    open: BTreeMap<(ColumnId, RowId), OpenCell>,
}

impl Lease {
    pub(super) fn new(session: Session, task: TaskId, mut claimed: Claimed) -> Self {
        let heads = Arc::new(std::mem::take(&mut claimed.heads));
        let left = claimed.batch.rows.clone();
        Self { session, task, claimed, heads, left, open: BTreeMap::new() }
    }

    /// Its id.
    pub fn id(&self) -> LeaseId {
        self.claimed.lease
    }

    /// Name of the task it belongs to.
    pub fn task(&self) -> &str {
        &self.session.definition().tasks[self.task.0 as usize].name
    }

    /// Rows still held, in the order of the claim.
    pub fn rows(&self) -> &Rows {
        &self.left
    }

    /// What is known of each claimed row without reading a column, in the order of the claim.
    pub fn heads(&self) -> &[RowHead] {
        &self.heads
    }

    /// The cut batches it holds (for tasks that claim by mini-batch or cycle).
    pub fn cut(&self) -> Option<&CutRef> {
        self.claimed.cut.as_ref()
    }

    /// The pointer to the claimed rows.
    pub fn reference(&self) -> &BatchRef {
        &self.claimed.batch
    }

    /// How long the lease lives without renewal.
    pub fn life(&self) -> Duration {
        Duration::from_millis(self.claimed.lease_ms)
    }

    /// All columns that the task reads, of all claimed rows.
    ///
    /// # Errors
    /// [`Error::Transport`] that [is gone](Error::is_gone) when rows were dropped by others or the lease has expired.
    pub fn batch(&self) -> Result<Batch, Error> {
        self.session.read_pointer(&self.claimed.batch, &self.heads, None)
    }

    /// Some columns of all claimed rows: those the task reads, or any that are sealed.
    ///
    /// # Errors
    /// As [`Lease::batch`]; [`Error::Refused`] for a column that is not there.
    pub fn batch_of(&self, columns: &[&str]) -> Result<Batch, Error> {
        self.session.read_pointer(&self.claimed.batch, &self.heads, Some(columns))
    }

    /// Adds elements to an open cell of a ragged column. Readers see the cell once the commit of its row seals it
    /// (with one copy); until then it is this lease's own, and is forgotten with it.
    ///
    /// # Errors
    /// [`Error::Outputs`] when the column is not ragged or of another dtype, or the row is not held.
    pub fn append<T: Element>(&mut self, row: RowId, column: &str, elements: &[T]) -> Result<(), Error> {
        let description = self.description()?;
        let position = description.columns.iter().position(|known| known.name == column);
        let position = position.ok_or_else(|| unknown(&description.name, &description.columns, column))?;
        match &description.columns[position].kind {
            Kind::Ragged { dtype, .. } if *dtype == T::DTYPE => {}
            kind @ Kind::Ragged { .. } => {
                let (expected, found) = (kind.clone(), format!("ragged {}", T::DTYPE));
                return Err(OutputError::Kind { column: column.to_owned(), expected, found }.into());
            }
            kind => {
                return Err(OutputError::NotRagged { column: column.to_owned(), kind: kind.clone() }.into());
            }
        }
        if !self.left.contains(row) {
            let what = format!("row {row} is not under lease {} (any more); it holds {}", self.id(), self.left);
            return Err(OutputError::Misplaced { what }.into());
        }
        let (partition, id) = (self.claimed.batch.partition, ColumnId(position as u16));
        let transport = &self.session.inner.transport;
        self.open.entry((id, row)).or_insert_with(|| transport.open(partition, id)).append(elements);
        Ok(())
    }

    /// Room for cells of a column of the claimed rows' partition, as [`Session::reserve`] gives it.
    ///
    /// # Errors
    /// As [`Session::reserve`].
    pub fn reserve(&self, column: &str, lens: Lens<'_>) -> Result<Room, Error> {
        self.session.reserve(self.claimed.batch.partition, column, lens)
    }

    /// What former workers have saved of the claimed rows, one entry for each set of columns. Rows that are in none of them begin
    /// anew.
    ///
    /// # Errors
    /// As [`Lease::batch`].
    pub fn saved(&self) -> Result<Vec<Saved>, Error> {
        let read = |saved: &SavedRef| {
            let heads = self.heads.iter().filter(|head| saved.rows.contains(head.row)).cloned().collect();
            let batch = self.session.read_columns(&saved.columns, Arc::new(heads))?;
            Ok(Saved { batch, sampled: saved.sampled.clone() })
        };
        self.claimed.batch.saved.iter().map(read).collect()
    }

    /// Saves unfinished work on rows, for whoever has them next if this worker is lost: cells that grow until the commit, and
    /// the weight versions of their tokens so far. It takes the place of what was saved of these rows before. Only for
    /// a task with [`OnLost::Resume`](crate::catalog::definition::OnLost::Resume).
    ///
    /// # Errors
    /// [`Error::Outputs`] by column, [`Error::Refused`]; nothing is saved then.
    pub fn save(&mut self, outputs: Outputs, sampled: Vec<SavedRow>) -> Result<(), Error> {
        if !outputs.drops.is_empty() || !outputs.notes.is_empty() {
            let what = "what is saved has cells and versions of tokens; it has no rows to drop and no notes".to_owned();
            return Err(OutputError::Misplaced { what }.into());
        }
        let rows = outputs.rows.clone().unwrap_or_else(|| self.left.clone());
        let description = self.description()?;
        let mut written = Written::default();
        self.place(&description, &rows, &outputs, Purpose::Partial, &mut written)?;
        let command = Command::Save { lease: self.id(), cells: written.cells, rows: sampled };
        match self.session.call(command, None)? {
            Reply::Written { dropped } => self.forget(&dropped),
            other => return Err(unexpected("save", &other)),
        }
        Ok(())
    }

    /// Makes outputs visible; the rows stay leased.
    ///
    /// # Errors
    /// [`Error::Outputs`] by column, [`Error::Refused`]; nothing is written then.
    pub fn write(&mut self, outputs: Outputs) -> Result<(), Error> {
        if !outputs.drops.is_empty() {
            let what = "rows are dropped by a commit, not by a write".to_owned();
            return Err(OutputError::Misplaced { what }.into());
        }
        let rows = outputs.rows.clone().unwrap_or_else(|| self.left.clone());
        let description = self.description()?;
        let mut written = Written::default();
        self.place(&description, &rows, &outputs, Purpose::Final, &mut written)?;
        let command = Command::Write { lease: self.id(), cells: written.cells, notes: outputs.notes };
        match self.session.call(command, None)? {
            Reply::Written { dropped } => self.forget(&dropped),
            other => return Err(unexpected("write", &other)),
        }
        Ok(())
    }

    /// Commits every row still held: outputs become visible and the rows consumed, in one event. Without
    /// `Outputs::for_rows`, columns have one entry for each row held that these outputs do not drop.
    ///
    /// # Errors
    /// [`Error::Outputs`] by column, [`Error::Refused`]; nothing is committed then and the rows are released.
    pub fn commit(mut self, outputs: Outputs) -> Result<(), Error> {
        let rows = self.left.clone();
        self.commit_rows(&rows, outputs)
    }

    /// Commits some of the rows; the others stay leased. Columns have one entry for each of `rows` that these outputs do
    /// not drop, unless the outputs name their rows.
    ///
    /// # Errors
    /// [`Error::Outputs`] by column, [`Error::Refused`]; nothing is committed then and the rows stay leased.
    pub fn commit_rows(&mut self, rows: &Rows, outputs: Outputs) -> Result<(), Error> {
        let drops: Rows = outputs.drops.iter().flat_map(|drop| drop.rows.iter()).collect();
        if rows.is_empty() && drops.is_empty() && self.claimed.batch.rows.is_empty() {
            return Ok(()); // the empty lease of a training task: nothing to consume
        }
        let kept = rows.without(&drops);
        let covered = outputs.rows.clone().unwrap_or_else(|| kept.clone());
        let description = self.description()?;
        let mut written = Written::default();
        self.place(&description, &covered, &outputs, Purpose::Final, &mut written)?;
        self.seal_open(&description, &kept, &outputs, &mut written)?;
        let (lease, rows, cells) = (self.id(), rows.clone(), written.cells);
        let Outputs { notes, drops: dropping, .. } = outputs;
        let command = Command::Commit { lease, rows: rows.clone(), cells, notes, drops: dropping };
        match self.session.call(command, None)? {
            Reply::Committed { .. } => {}
            other => return Err(unexpected("commit", &other)),
        }
        self.forget(&rows);
        self.forget(&drops);
        Ok(())
    }

    /// Gives every row still held back, unworked.
    ///
    /// # Errors
    /// [`Error::Refused`] when the lease had expired: the rows are back already.
    pub fn release(mut self) -> Result<(), Error> {
        let rows = self.left.clone();
        self.release_rows(&rows)
    }

    /// Gives some rows back, unworked.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn release_rows(&mut self, rows: &Rows) -> Result<(), Error> {
        self.give_back(rows, Command::Release { lease: self.id(), rows: rows.clone() })
    }

    /// Gives every row still held back after an error; counts as an attempt.
    ///
    /// # Errors
    /// [`Error::Refused`] when the lease had expired: the rows are back already.
    pub fn fail(mut self, error: impl Into<String>) -> Result<(), Error> {
        let rows = self.left.clone();
        self.fail_rows(&rows, error)
    }

    /// Gives some rows back after an error; counts as an attempt.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn fail_rows(&mut self, rows: &Rows, error: impl Into<String>) -> Result<(), Error> {
        self.give_back(rows, Command::Fail { lease: self.id(), rows: rows.clone(), error: error.into() })
    }

    /// Prolongs the lease. `progress` is any counter that the compute itself advances; it must have grown since the last
    /// renewal, or the lease keeps its old end. Returns the time that is left.
    ///
    /// # Errors
    /// [`Error::Refused`] when the lease had expired.
    pub fn renew(&mut self, progress: u64) -> Result<Duration, Error> {
        if self.claimed.batch.rows.is_empty() {
            return Ok(self.life()); // the empty lease of a training task: nobody else can have it
        }
        match self.session.call(Command::Renew { lease: self.id(), progress }, None)? {
            Reply::Renewed(left) => Ok(Duration::from_millis(left)),
            other => Err(unexpected("renew", &other)),
        }
    }

    fn description(&self) -> Result<Arc<Partition>, Error> {
        self.session.describe(self.claimed.batch.partition)
    }

    fn place(
        &self,
        description: &Partition,
        rows: &Rows,
        outputs: &Outputs,
        purpose: Purpose,
        written: &mut Written,
    ) -> Result<(), Error> {
        let encoded = outputs.encode(&description.name, &description.columns, rows)?;
        self.session.place(self.claimed.batch.partition, description, rows, encoded, purpose, written)
    }

    /// Seals the open cells of the rows that are committed, one array a column.
    fn seal_open(
        &self,
        description: &Partition,
        rows: &Rows,
        outputs: &Outputs,
        written: &mut Written,
    ) -> Result<(), Error> {
        if self.open.is_empty() {
            return Ok(());
        }
        for (position, column) in description.columns.iter().enumerate() {
            let id = ColumnId(position as u16);
            let sealed: Rows = rows.iter().filter(|row| self.open.contains_key(&(id, *row))).collect();
            let Some(row) = sealed.iter().next() else {
                continue;
            };
            if outputs.columns().any(|given| given == column.name) {
                return Err(OutputError::OpenAndGiven { column: column.name.clone(), row }.into());
            }
            let array = seal(column, sealed.iter().filter_map(|row| self.open.get(&(id, row))))?;
            let (partition, columns) = (self.claimed.batch.partition, vec![(id, Encoded::Array(array))]);
            self.session.place(partition, description, &sealed, columns, Purpose::Final, written)?;
        }
        Ok(())
    }

    fn give_back(&mut self, rows: &Rows, command: Command) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        self.session.done("give back", command)?;
        self.forget(rows);
        Ok(())
    }

    fn forget(&mut self, rows: &Rows) {
        if rows.is_empty() {
            return;
        }
        self.left = self.left.without(rows);
        if !self.open.is_empty() {
            let left = &self.left;
            self.open.retain(|(_, row), _| left.contains(*row));
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lease {} of task `{}`: rows {}", self.id(), self.task(), self.left)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let rows = self.left.clone();
        let result = match std::thread::panicking() {
            true => self.fail_rows(&rows, "the worker panicked"),
            false => self.release_rows(&rows),
        };
        if let Err(error) = result {
            tracing::debug!(lease = ?self, %error, "lease had ended");
        }
    }
}
