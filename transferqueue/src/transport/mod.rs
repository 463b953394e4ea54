//! The data plane's one contract: cells go to a unit, views come back.
//!
//! An implementation says how bytes travel; what they mean, and when they may go, is the catalog's business. Every
//! implementation passes the same suite (`conformance`, run with the tests of this module), which describes it by
//! behaviour: a view shows exactly what was put, keeps it alive, and a pointer to freed bytes is refused as gone.

#[cfg(test)]
pub(crate) mod conformance;
mod local;

use std::{any::Any, fmt, sync::Arc};

use arrow::array::ArrayRef;

pub use local::Local;

use crate::{
    catalog::command::{ColumnRef, Sizes},
    ids::{ChunkId, ColumnId, PartitionId},
    schema::Column,
    unit::{OpenCell, UnitError},
};

/// How cells reach a unit and come back.
pub trait Transport: Send + Sync {
    /// Shown in `status`: `local`, `shm`, `flight`.
    fn name(&self) -> &'static str;

    /// Stores cells of one column in one chunk, in consecutive slots. They become visible when the catalog's event names
    /// them; until then the returned hold keeps them, afterwards the catalog does.
    ///
    /// # Errors
    /// [`TransportError::Unit`] when the array does not fit the column.
    fn put(&self, target: Target<'_>, array: ArrayRef) -> Result<Placed, TransportError>;

    /// Views of the cells that a pointer names, in its order; together they have as many rows as its runs. The bytes stay
    /// until the last view of them is gone.
    ///
    /// # Errors
    /// [`TransportError::Gone`] by column when a cell is not there any more.
    fn get(&self, pointer: &ColumnRef) -> Result<Vec<View>, TransportError>;

    /// A cell that the caller fills step by step and puts once it is complete; its bytes are counted meanwhile.
    fn open(&self, partition: PartitionId, id: ColumnId) -> OpenCell;
}

/// Which column is written.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Of which partition.
    pub partition: PartitionId,
    /// Its position there.
    pub id: ColumnId,
    /// Its type.
    pub column: &'a Column,
    /// What it is written for.
    pub purpose: Purpose,
}

/// What cells are written for. Cells that live long and cells that soon make room for others lie in different chunks: the bytes of a
/// chunk are freed together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Outputs.
    #[default]
    Final,
    /// Unfinished work that is saved.
    Partial,
}

/// Where cells lie, and a hold on them until the catalog has decided.
pub struct Placed {
    /// The chunk.
    pub chunk: ChunkId,
    /// Slot of the first cell.
    pub slot: u32,
    /// Payload bytes of each cell.
    pub sizes: Sizes,
    /// Let go of it after the catalog has answered.
    pub hold: Box<dyn Any + Send>,
}

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {} from slot {}", self.chunk, self.slot)
    }
}

/// Some cells of a column, as an Arrow array that nobody changes, with the hold that keeps its bytes in place.
#[derive(Clone)]
pub struct View {
    array: ArrayRef,
    grant: Arc<dyn Any + Send + Sync>,
}

impl View {
    /// A view whose bytes stay while `grant` lives.
    pub fn new(array: ArrayRef, grant: Arc<dyn Any + Send + Sync>) -> Self {
        Self { array, grant }
    }

    /// The cells. A clone of the array outlives the grant's accounting: use it for as long as the view lives, or copy.
    pub fn array(&self) -> &ArrayRef {
        &self.array
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.array.len()
    }

    /// Whether there is no cell.
    pub fn is_empty(&self) -> bool {
        self.array.is_empty()
    }

    /// Part of the view, under the same grant.
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        Self { array: self.array.slice(offset, len), grant: self.grant.clone() }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cells of {}", self.array.len(), self.array.data_type())
    }
}

/// Why bytes did not travel.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum TransportError {
    /// The pointer is older than the bytes.
    #[error("column `{column}`: {gone}")]
    Gone { column: String, gone: UnitError },
    /// The unit refused.
    #[error(transparent)]
    Unit(UnitError),
    /// The bytes did not get there, or are not what was asked for.
    #[error("column `{column}`: {why}")]
    Travel { column: String, why: String },
}

impl TransportError {
    /// Why a column is not read.
    pub(crate) fn of(column: &str, error: UnitError) -> Self {
        match error {
            gone @ UnitError::Gone { .. } => Self::Gone { column: column.to_owned(), gone },
            other => Self::Unit(other),
        }
    }

    /// Whether the pointer is older than the bytes; resolving it again may help.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }
}
