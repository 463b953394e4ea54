//! Pointers into batches.

use std::sync::Arc;

use super::Session;
use crate::{
    batch::Batch,
    catalog::{
        command::{BatchRef, ColumnRef, RowHead},
        definition::Partition,
    },
    error::Error,
    ids::{PartitionId, Rows},
    link::Link,
    schema::Column,
    transport::{Transport, View},
};

/// A pointer made without a lease may be overtaken by a commit before its bytes are held; it is made anew this often.
const ATTEMPTS: usize = 3;

/// A batch over a pointer that is made for it.
pub(crate) fn fresh(
    link: &dyn Link,
    transport: &dyn Transport,
    describe: impl Fn(PartitionId) -> Result<Arc<Partition>, Error>,
    partition: PartitionId,
    rows: Option<&Rows>,
    columns: &[&str],
) -> Result<Batch, Error> {
    let mut attempt = 1;
    loop {
        let (pointer, heads) = link.resolve(partition, rows, columns)?;
        match fetch(transport, &describe, &pointer.columns, Arc::new(heads)) {
            Err(error) if error.is_gone() && attempt < ATTEMPTS => attempt += 1,
            result => return result,
        }
    }
}

fn fetch(
    transport: &dyn Transport,
    describe: &impl Fn(PartitionId) -> Result<Arc<Partition>, Error>,
    columns: &[ColumnRef],
    heads: Arc<Vec<RowHead>>,
) -> Result<Batch, Error> {
    let mut read: Vec<(Arc<Column>, Vec<View>)> = Vec::with_capacity(columns.len());
    for pointer in columns {
        let mut column = describe(pointer.partition)?.columns[usize::from(pointer.column.0)].clone();
        column.name.clone_from(&pointer.name);
        read.push((Arc::new(column), transport.get(pointer)?));
    }
    Ok(Batch::new(heads, read)?)
}

impl Session {
    pub(super) fn read_fresh(
        &self,
        partition: PartitionId,
        rows: Option<&Rows>,
        columns: &[&str],
    ) -> Result<Batch, Error> {
        let inner = &self.inner;
        fresh(&*inner.link, &*inner.transport, |id| self.describe(id), partition, rows, columns)
    }

    /// A batch over pointers to columns of given rows.
    pub(super) fn read_columns(&self, columns: &[ColumnRef], heads: Arc<Vec<RowHead>>) -> Result<Batch, Error> {
        fetch(&*self.inner.transport, &|id| self.describe(id), columns, heads)
    }

    /// A batch over a lease's pointer, of all or some of its columns.
    pub(super) fn read_pointer(
        &self,
        pointer: &BatchRef,
        heads: &Arc<Vec<RowHead>>,
        columns: Option<&[&str]>,
    ) -> Result<Batch, Error> {
        let transport = &*self.inner.transport;
        let describe = |id| self.describe(id);
        let Some(names) = columns else {
            return fetch(transport, &describe, &pointer.columns, heads.clone());
        };
        let wanted: Option<Vec<ColumnRef>> =
            names.iter().map(|name| pointer.columns.iter().find(|column| &column.name == name).cloned()).collect();
        match wanted {
            Some(wanted) => fetch(transport, &describe, &wanted, heads.clone()),
            // A column that the task does not declare: readable as for anyone else, if it is sealed.
            None => self.read_fresh(pointer.partition, Some(&pointer.rows), names),
        }
    }
}
