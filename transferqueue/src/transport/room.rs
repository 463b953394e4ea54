//! Room for cells that are filled where they are to lie: for whoever makes them elsewhere than in an array of this process (a
//! device, a file), so that nothing is copied in between.

use std::fmt;

use arrow::{array::ArrayRef, buffer::Buffer};

use super::{Target, TransportError};
use crate::{
    arrow_map::{self, MapError},
    bulk::pool::Block,
    client::shm::Claim,
    ids::{ColumnId, PartitionId},
    schema::{Column, Kind},
    unit::{
        Unit, UnitError,
        arena::{Layout, Reserved},
    },
};

/// How long cells are.
#[derive(Clone, Copy, Debug)]
pub enum Lens<'a> {
    /// So many cells of a dense column.
    Equal(usize),
    /// The length of each cell of another column: elements of a ragged one, further axes flattened; bytes of text, binary and JSON.
    Each(&'a [usize]),
}

/// Cells that room is asked for: their bytes, and where each begins.
pub(crate) struct Wanted {
    pub(crate) layout: Layout,
    pub(crate) offsets: Buffer,
}

/// Room for the cells of one column, filled by its owner and then put (`Outputs::room`).
///
/// What it holds before it is filled is undefined: cells of others that have gone. Room that is dropped instead is free again. Its
/// bytes stay where they are when the value is moved.
pub struct Room {
    of: (PartitionId, ColumnId),
    column: Column,
    layout: Layout,
    place: Place,
}

/// Where room lies.
pub(crate) enum Place {
    /// In a unit of this process.
    Here(Unit, Reserved),
    /// In a segment of a store of this host.
    Near(Claim),
    /// In memory of its own: cells are sent from there, or taken over.
    Apart { offsets: Buffer, values: Block },
}

impl Wanted {
    /// Cells of a column.
    ///
    /// # Errors
    /// [`MapError`] when they are none of the column.
    pub(crate) fn of(column: &Column, lens: Lens<'_>) -> Result<Self, MapError> {
        let wrong = |what: String| MapError::Value { column: column.name.clone(), kind: column.kind.clone(), what };
        let step = arrow_map::step_bytes(&column.kind);
        let too_large =
            |rows| MapError::TooLarge { column: column.name.clone(), found: rows, limit: i32::MAX as usize };
        match (lens, &column.kind) {
            (Lens::Equal(rows), Kind::Dense { .. }) => {
                let values = rows.checked_mul(step).filter(|_| rows <= i32::MAX as usize);
                let values = values.ok_or_else(|| too_large(rows))?;
                Ok(Self { layout: Layout { rows, offsets: 0, values }, offsets: Buffer::default() })
            }
            (Lens::Each(lens), kind) if !matches!(kind, Kind::Dense { .. }) => {
                let inner = arrow_map::inner_len(kind).max(1);
                if let Some((row, len)) = lens.iter().enumerate().find(|(_, len)| !len.is_multiple_of(inner)) {
                    return Err(wrong(format!("row {row} is to have {len} elements, not a multiple of {inner}")));
                }
                let steps: Vec<usize> = lens.iter().map(|len| len / inner).collect();
                let offsets = arrow_map::offset_buffer(&column.name, &steps)?;
                let values = steps.iter().sum::<usize>().checked_mul(step).ok_or_else(|| too_large(lens.len()))?;
                Ok(Self { layout: Layout { rows: lens.len(), offsets: offsets.len(), values }, offsets })
            }
            (Lens::Equal(_), _) => Err(wrong("room for cells of one length, expected the length of each".to_owned())),
            (Lens::Each(_), _) => Err(wrong("room by the length of each cell, expected their number".to_owned())),
        }
    }
}

impl Room {
    pub(crate) fn new(target: Target<'_>, layout: Layout, place: Place) -> Self {
        Self { of: (target.partition, target.id), column: target.column.clone(), layout, place }
    }

    /// In memory of its own.
    pub(crate) fn apart(target: Target<'_>, wanted: Wanted, memory: impl FnOnce(usize) -> Block) -> Self {
        let Wanted { layout, offsets } = wanted;
        Self::new(target, layout, Place::Apart { offsets, values: memory(layout.values) })
    }

    /// The column that it is for.
    pub fn column(&self) -> &Column {
        &self.column
    }

    /// Number of cells.
    pub fn rows(&self) -> usize {
        self.layout.rows
    }

    /// Bytes of the values.
    pub fn len(&self) -> usize {
        self.layout.values
    }

    /// Whether there is nothing to fill.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it lies where its cells are to lie. Otherwise they are sent once they are put, or taken over as they are where a
    /// store keeps its bytes on the heap.
    pub fn is_in_place(&self) -> bool {
        !matches!(self.place, Place::Apart { .. })
    }

    /// The values of all cells, one after the other, to be filled: elements (little-endian, row-major), text or bytes. They begin on
    /// 64 bytes.
    pub fn values_mut(&mut self) -> &mut [u8] {
        match &mut self.place {
            Place::Here(_, reserved) => reserved.values_mut(),
            Place::Near(claim) => claim.values_mut(),
            Place::Apart { values, .. } => values.bytes(),
        }
    }

    /// Where it lies, for the transport that puts it.
    ///
    /// # Errors
    /// [`TransportError::Travel`] when it is room for another column.
    pub(crate) fn place_for(self, target: Target<'_>) -> Result<Place, TransportError> {
        if self.of == (target.partition, target.id) {
            return Ok(self.place);
        }
        let why = format!(
            "the room was reserved for column `{}` (position {} of partition {}); reserve room for each column",
            self.column.name, self.of.1, self.of.0
        );
        Err(TransportError::Travel { column: target.column.name.clone(), why })
    }

    /// The cells as an array of this process, for outputs that no store takes.
    ///
    /// # Errors
    /// [`MapError`] when they are not cells of the column, or lie in another process's store.
    pub(crate) fn into_array(self) -> Result<ArrayRef, MapError> {
        let (column, rows) = (self.column, self.layout.rows);
        match self.place {
            Place::Apart { offsets, values } => array(&column, rows, offsets, values),
            Place::Here(..) | Place::Near(_) => Err(MapError::Value {
                kind: column.kind,
                what: "its room lies in a store; put it there".to_owned(),
                column: column.name,
            }),
        }
    }
}

/// The cells of room apart.
pub(crate) fn array(column: &Column, rows: usize, offsets: Buffer, values: Block) -> Result<ArrayRef, MapError> {
    let array = arrow_map::from_buffers(column, rows, offsets, Buffer::from(values.freeze()))?;
    arrow_map::check(column, &array)?;
    Ok(array)
}

/// A refusal of cells that fit no column.
pub(crate) fn misfit(error: MapError) -> TransportError {
    TransportError::Unit(UnitError::Map(error))
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_in_place() { "in place" } else { "apart" };
        write!(f, "room for {} cells of `{}`, {} bytes {place}", self.rows(), self.column.name, self.len())
    }
}
