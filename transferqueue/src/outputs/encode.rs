//! Outputs against a schema: arrays of the columns' Arrow types, or a refusal by name.

use arrow::array::{Array, ArrayRef};

use super::{Data, OutputError, Outputs};
use crate::{
    arrow_map::{self, inner_len},
    catalog::command::RowNote,
    ids::{ColumnId, Rows},
    schema::{Column, Kind},
    transport::Room,
};

/// Cells of a column, as they are put.
#[derive(Debug)]
pub(crate) enum Encoded {
    Array(ArrayRef),
    Room(Room),
}

/// Columns with their descriptions, and notes.
type Detached = (Vec<(Column, ArrayRef)>, Vec<RowNote>);

impl Outputs {
    /// The cells of every column, for `rows` rows of the partition called `partition`. Rooms are taken out.
    pub(crate) fn encode(
        &self,
        partition: &str,
        columns: &[Column],
        rows: &Rows,
    ) -> Result<Vec<(ColumnId, Encoded)>, OutputError> {
        let n = rows.len() as usize;
        let mut encoded: Vec<(ColumnId, Encoded)> = Vec::with_capacity(self.columns.len());
        for (name, data) in &self.columns {
            let position = columns.iter().position(|column| &column.name == name);
            let position = position.ok_or_else(|| unknown(partition, columns, name))?;
            let id = ColumnId(position as u16);
            if encoded.iter().any(|(other, _)| *other == id) {
                return Err(OutputError::Twice { column: name.clone() });
            }
            encoded.push((id, data.encode(&columns[position], n)?));
        }
        Ok(encoded)
    }

    /// The arrays of every column, where there is no store to put a room in.
    pub(crate) fn arrays(
        &self,
        partition: &str,
        columns: &[Column],
        rows: &Rows,
    ) -> Result<Vec<(ColumnId, ArrayRef)>, OutputError> {
        let array = |(id, encoded)| match encoded {
            Encoded::Array(array) => Ok((id, array)),
            Encoded::Room(room) => Ok((id, room.into_array()?)),
        };
        self.encode(partition, columns, rows)?.into_iter().map(array).collect()
    }

    /// The same outside a store: with the columns' descriptions, and the notes.
    pub(crate) fn encode_detached(self, columns: &[Column], rows: &Rows) -> Result<Detached, OutputError> {
        let encoded = self.arrays("detached", columns, rows)?.into_iter().map(|(id, array)| {
            let column = &columns[id.0 as usize];
            Ok((column.clone(), arrow_map::tight(column, &array)?))
        });
        Ok((encoded.collect::<Result<_, OutputError>>()?, self.notes))
    }
}

/// A refusal that lists what there is.
pub(crate) fn unknown(partition: &str, columns: &[Column], column: &str) -> OutputError {
    let names: Vec<_> = columns.iter().map(|column| format!("`{}`", column.name)).collect();
    let have = if names.is_empty() { "none of its own".to_owned() } else { names.join(", ") };
    OutputError::Unknown { partition: partition.to_owned(), column: column.to_owned(), have }
}

impl Data {
    fn encode(&self, column: &Column, rows: usize) -> Result<Encoded, OutputError> {
        let Self::Room(shared) = self else { return self.array(column, rows).map(Encoded::Array) };
        let mut shared = shared.lock().expect("invariant: nothing panics under this lock");
        let what = || format!("column `{}`: its room was put already; reserve room for each put", column.name);
        let room = shared.take().ok_or_else(|| OutputError::Misplaced { what: what() })?;
        match room.rows() {
            found if found == rows => Ok(Encoded::Room(room)),
            found => Err(OutputError::Rows { column: column.name.clone(), found, expected: rows }),
        }
    }

    fn array(&self, column: &Column, rows: usize) -> Result<ArrayRef, OutputError> {
        let name = || column.name.clone();
        let kind = &column.kind;
        let other = |found: String| OutputError::Kind { column: name(), expected: kind.clone(), found };
        let counted = |found: usize| match found == rows {
            true => Ok(()),
            false => Err(OutputError::Rows { column: name(), found, expected: rows }),
        };
        match (self, kind) {
            (Self::Unwritable { row, why }, _) => {
                Err(OutputError::Unwritable { column: name(), row: *row, why: why.clone() })
            }
            (Self::Room(_), _) => unreachable!("a room is no array"),
            (Self::Array(array), _) => {
                counted(array.len())?;
                // Not copied: where it is stored is where it is brought into shape.
                arrow_map::check(column, array)?;
                Ok(array.clone())
            }
            (Self::Ragged { dtype, lens, values }, Kind::Ragged { dtype: expected, .. }) if dtype == expected => {
                counted(lens.len())?;
                let inner = inner_len(kind);
                if let Some((row, &found)) = lens.iter().enumerate().find(|(_, len)| !len.is_multiple_of(inner)) {
                    return Err(OutputError::Inner { column: name(), kind: kind.clone(), row, found, inner });
                }
                let steps: Vec<usize> = lens.iter().map(|len| len / inner).collect();
                Ok(arrow_map::ragged_array(&column.name, kind, &steps, values.clone())?)
            }
            (Self::Dense { dtype, elements, values }, Kind::Dense { dtype: expected, .. }) if dtype == expected => {
                let width = inner_len(kind);
                if *elements != rows * width {
                    return Err(match elements.is_multiple_of(width) {
                        true => OutputError::Rows { column: name(), found: elements / width, expected: rows },
                        false => {
                            OutputError::Elements { column: name(), kind: kind.clone(), found: *elements, rows, width }
                        }
                    });
                }
                Ok(arrow_map::dense_array(kind, rows, values.clone()))
            }
            (Self::Bytes { kind: given, lens, values }, kind) if given == kind => {
                counted(lens.len())?;
                Ok(arrow_map::bytes_array(&column.name, kind, lens, values.clone())?)
            }
            (Self::Ragged { dtype, .. }, _) => Err(other(format!("ragged {dtype}"))),
            (Self::Dense { dtype, .. }, _) => Err(other(format!("dense {dtype}"))),
            (Self::Bytes { kind: given, .. }, _) => Err(other(given.to_string())),
        }
    }
}
