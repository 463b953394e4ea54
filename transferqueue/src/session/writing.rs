//! Outputs into cells: bytes first, then one command that names them.

use arrow::{array::ArrayRef, buffer::MutableBuffer};

use super::Session;
use crate::{
    arrow_map,
    catalog::{command::CellWrite, definition::Partition},
    error::Error,
    ids::{ColumnId, PartitionId, Rows},
    outputs::{Encoded, OutputError, unknown},
    schema::{Column, Kind},
    transport::{Lens, Placed, Purpose, Room, Target},
    unit::OpenCell,
};

/// Cells whose bytes lie in a unit, and the holds that keep them there until the catalog has answered.
#[derive(Default)]
pub(super) struct Written {
    pub(super) cells: Vec<CellWrite>,
    holds: Vec<Placed>,
}

impl Session {
    /// Room for cells of a column, one for each row that they are put for: where they are to lie, if this session's store can be
    /// reached there ([`Room::is_in_place`]). Fill it, and put it with [`Outputs::room`](crate::Outputs::room).
    ///
    /// # Errors
    /// [`Error::Refused`] when the partition is not there; [`Error::Outputs`] when the column is not;
    /// [`Error::Transport`] when the lengths do not fit the column, or there is no room.
    pub fn reserve(&self, partition: PartitionId, column: &str, lens: Lens<'_>) -> Result<Room, Error> {
        let description = self.describe(partition)?;
        let position = description.columns.iter().position(|known| known.name == column);
        let position = position.ok_or_else(|| unknown(&description.name, &description.columns, column))?;
        let (id, column) = (ColumnId(position as u16), &description.columns[position]);
        Ok(self.inner.transport.reserve(Target { partition, id, column, purpose: Purpose::Final }, lens)?)
    }

    /// Puts the bytes of encoded columns into the unit.
    pub(super) fn place(
        &self,
        partition: PartitionId,
        description: &Partition,
        rows: &Rows,
        columns: Vec<(ColumnId, Encoded)>,
        purpose: Purpose,
        written: &mut Written,
    ) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        for (id, cells) in columns {
            let target = Target { partition, id, column: &description.columns[usize::from(id.0)], purpose };
            let placed = match cells {
                Encoded::Array(array) => self.inner.transport.put_along(target, array)?,
                Encoded::Room(room) => self.inner.transport.put_room(target, room)?,
            };
            written.cells.push(CellWrite {
                column: id,
                rows: rows.clone(),
                chunk: placed.chunk,
                slot: placed.slot,
                sizes: placed.sizes.clone(),
                seal: purpose == Purpose::Final,
                replaces: None,
            });
            written.holds.push(placed);
        }
        Ok(())
    }
}

/// The array of open cells that are sealed together: the one copy of their bytes.
pub(super) fn seal<'a>(column: &Column, cells: impl Iterator<Item = &'a OpenCell>) -> Result<ArrayRef, Error> {
    let Kind::Ragged { dtype, .. } = &column.kind else {
        return Err(OutputError::NotRagged { column: column.name.clone(), kind: column.kind.clone() }.into());
    };
    let step = dtype.size() * arrow_map::inner_len(&column.kind);
    let (mut lens, mut values) = (Vec::new(), MutableBuffer::new(0));
    for (row, cell) in cells.enumerate() {
        if !cell.bytes().is_multiple_of(step) {
            let (found, inner) = (cell.bytes() / dtype.size(), arrow_map::inner_len(&column.kind));
            let (column, kind) = (column.name.clone(), column.kind.clone());
            return Err(OutputError::Inner { column, kind, row, found, inner }.into());
        }
        lens.push(cell.bytes() / step);
        cell.parts().for_each(|part| values.extend_from_slice(part));
    }
    let array = arrow_map::ragged_array(&column.name, &column.kind, &lens, values.into());
    Ok(array.map_err(OutputError::from)?)
}
