//! The data plane's one contract: cells go to a unit, views come back.
//!
//! An implementation says how bytes travel; what they mean, and when they may go, is the catalog's business. Every
//! implementation passes the same suite (`conformance`, run with the tests of this module), which describes it by
//! behaviour: a view shows exactly what was put, keeps it alive, and a pointer to freed bytes is refused as gone.

#[cfg(test)]
pub(crate) mod conformance;
mod local;
pub(crate) mod room;

use std::{any::Any, fmt, sync::Arc};

use arrow::array::ArrayRef;

pub use local::Local;
pub use room::{Lens, Room};

use self::room::{Place, Wanted, array, misfit};
use crate::{
    arrow_map,
    bulk::pool::Block,
    catalog::command::{ColumnRef, Sizes},
    ids::{ChunkId, ColumnId, PartitionId},
    schema::Column,
    unit::{Mapping, OpenCell, UnitError},
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

    /// Stores cells that the session's next commands name once and nobody else will before: they may lie nowhere until then, and the
    /// place that is returned is good for those commands alone.
    ///
    /// # Errors
    /// As [`Transport::put`].
    fn put_along(&self, target: Target<'_>, array: ArrayRef) -> Result<Placed, TransportError> {
        self.put(target, array)
    }

    /// Views of the cells that a pointer names, in its order; together they have as many rows as its runs. The bytes stay
    /// until the last view of them is gone.
    ///
    /// # Errors
    /// [`TransportError::Gone`] by column when a cell is not there any more.
    fn get(&self, pointer: &ColumnRef) -> Result<Vec<View>, TransportError>;

    /// Room for cells, to be filled and then put ([`Transport::put_room`]): where they are to lie, if this transport reaches
    /// there.
    ///
    /// # Errors
    /// [`TransportError::Unit`] when the lengths do not fit the column, or there is no room.
    fn reserve(&self, target: Target<'_>, lens: Lens<'_>) -> Result<Room, TransportError> {
        let wanted = Wanted::of(target.column, lens).map_err(misfit)?;
        Ok(Room::apart(target, wanted, Block::alone))
    }

    /// Stores the cells that room was filled with, as [`Transport::put`] does; those that lie in place are not copied.
    ///
    /// # Errors
    /// As [`Transport::put`]; [`TransportError::Travel`] when the room is not of this store, or for another column.
    fn put_room(&self, target: Target<'_>, room: Room) -> Result<Placed, TransportError> {
        let rows = room.rows();
        match room.place_for(target)? {
            Place::Apart { offsets, values } => {
                self.put(target, array(target.column, rows, offsets, values).map_err(misfit)?)
            }
            Place::Here(..) | Place::Near(_) => Err(TransportError::elsewhere(target.column)),
        }
    }

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

    /// The bytes of the cells' own elements, text or bytes, one cell after the other: little-endian, row-major. They stay where they
    /// are while the view lives.
    pub fn values(&self) -> &[u8] {
        arrow_map::own_bytes(&self.array).unwrap_or_default()
    }

    /// The segment of a store that its [`View::values`] lie in, as this process has mapped it; `None` where they lie elsewhere (on
    /// the heap, received over the network).
    pub fn mapping(&self) -> Option<Arc<Mapping>> {
        Mapping::of(self.values())
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
    /// Room that another store gave.
    pub(crate) fn elsewhere(column: &Column) -> Self {
        let why = "the room was reserved of another store, or over another connection; reserve it in the session that puts it";
        Self::Travel { column: column.name.clone(), why: why.to_owned() }
    }

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
