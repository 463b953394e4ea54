//! Arrow arrays from buffers of plain elements. Buffers come from [`MutableBuffer`], which aligns to 64 bytes or more.

use arrow::{
    array::{ArrayData, ArrayRef, make_array},
    buffer::{Buffer, MutableBuffer},
    datatypes::DataType,
};

use super::{MapError, cells::step_bytes, storage};
use crate::schema::{Column, Kind};

/// Arrow's 32-bit offsets end here.
const LIMIT: usize = i32::MAX as usize;

/// A dense array of `rows` cells from its elements, row-major.
pub(crate) fn dense_array(kind: &Kind, rows: usize, values: Buffer) -> ArrayRef {
    nested(storage(kind), rows, values)
}

/// A ragged array from the first-axis length of each row and all elements.
pub(crate) fn ragged_array(column: &str, kind: &Kind, lens: &[usize], values: Buffer) -> Result<ArrayRef, MapError> {
    let offsets = offset_buffer(column, lens)?;
    let stored = storage(kind);
    let DataType::List(item) = &stored else {
        return Err(MapError::Unsupported { column: column.to_owned(), found: stored });
    };
    let values = nested(item.data_type().clone(), lens.iter().sum(), values);
    Ok(assemble(
        ArrayData::builder(stored.clone()).len(lens.len()).add_buffer(offsets).add_child_data(values.to_data()),
    ))
}

/// A utf8, binary or json array from the byte length of each row and all bytes; those of text are UTF-8.
pub(crate) fn bytes_array(column: &str, kind: &Kind, lens: &[usize], values: Buffer) -> Result<ArrayRef, MapError> {
    let offsets = offset_buffer(column, lens)?;
    Ok(assemble(ArrayData::builder(storage(kind)).len(lens.len()).add_buffer(offsets).add_buffer(values)))
}

/// The array that [`offset_bytes`](super::offset_bytes) and [`leaf_bytes`](super::leaf_bytes) took apart; nothing is copied.
///
/// # Errors
/// [`MapError::Value`] when they are not such an array's.
pub(crate) fn from_buffers(
    column: &Column,
    rows: usize,
    offsets: Buffer,
    values: Buffer,
) -> Result<ArrayRef, MapError> {
    let wrong = |what: String| MapError::Value { column: column.name.clone(), kind: column.kind.clone(), what };
    let stored = storage(&column.kind);
    let parts = ArrayData::builder(stored.clone()).len(rows);
    let parts = match (&column.kind, &stored) {
        (Kind::Dense { .. }, _) => {
            let unit = step_bytes(&column.kind);
            if rows.checked_mul(unit) != Some(values.len()) {
                return Err(wrong(format!("{} bytes for {rows} cells of {unit}", values.len())));
            }
            return Ok(nested(stored, rows, values));
        }
        (Kind::Ragged { .. }, DataType::List(item)) => {
            let unit = step_bytes(&column.kind);
            let steps = values.len() / unit;
            let child = nested(item.data_type().clone(), steps, values.slice_with_length(0, steps * unit));
            parts.add_buffer(offsets).add_child_data(child.to_data())
        }
        _ => parts.add_buffer(offsets).add_buffer(values),
    };
    Ok(make_array(parts.build().map_err(|error| wrong(error.to_string()))?))
}

/// The offsets of cells of such lengths: in steps of the first axis, or bytes.
pub(crate) fn offset_buffer(column: &str, lens: &[usize]) -> Result<Buffer, MapError> {
    let found = lens.iter().try_fold(0usize, |sum, len| sum.checked_add(*len)).unwrap_or(usize::MAX);
    if found > LIMIT {
        return Err(MapError::TooLarge { column: column.to_owned(), found, limit: LIMIT });
    }
    let mut offsets = MutableBuffer::new((lens.len() + 1) * 4);
    let mut end = 0i32;
    offsets.push(end);
    for len in lens {
        end += *len as i32;
        offsets.push(end);
    }
    Ok(offsets.into())
}

/// `rows` cells of fixed-size lists around a primitive.
fn nested(stored: DataType, rows: usize, values: Buffer) -> ArrayRef {
    match &stored {
        DataType::FixedSizeList(item, len) => {
            let child = nested(item.data_type().clone(), rows * *len as usize, values);
            assemble(ArrayData::builder(stored.clone()).len(rows).add_child_data(child.to_data()))
        }
        _ => assemble(ArrayData::builder(stored).len(rows).add_buffer(values)),
    }
}

fn assemble(parts: arrow::array::ArrayDataBuilder) -> ArrayRef {
    make_array(
        parts.build().expect("invariant: lengths were computed from the parts themselves and text comes from str"),
    )
}
