//! Looking into mapped arrays: bytes per cell, the elements' bytes, and taking an array over.

use arrow::{
    array::{Array, ArrayRef, AsArray, BinaryArray, FixedSizeListArray, ListArray, StringArray},
    buffer::MutableBuffer,
    datatypes::DataType,
};

use super::{MapError, bytes_array, dense_array, ragged_array, storage};
use crate::{
    catalog::command::Sizes,
    schema::{Column, Dtype, Kind},
};

/// Elements of one step of a ragged column's first axis, or of one dense cell.
pub(crate) fn inner_len(kind: &Kind) -> usize {
    match kind {
        Kind::Dense { shape: axes, .. } | Kind::Ragged { inner: axes, .. } => axes.iter().product(),
        _ => 1,
    }
}

/// The offsets of a ragged, utf8, binary or json array; `None` for dense ones.
pub(crate) fn offsets(array: &dyn Array) -> Option<&[i32]> {
    match array.data_type() {
        DataType::List(_) => array.as_any().downcast_ref::<ListArray>().map(|a| a.value_offsets()),
        DataType::Utf8 => array.as_any().downcast_ref::<StringArray>().map(|a| a.value_offsets()),
        DataType::Binary => array.as_any().downcast_ref::<BinaryArray>().map(|a| a.value_offsets()),
        _ => None,
    }
}

/// The offsets as bytes; none for dense arrays.
pub(crate) fn offset_bytes(array: &dyn Array) -> &[u8] {
    offsets(array).map(bytemuck::cast_slice).unwrap_or_default()
}

/// The bytes of all elements of a dense or ragged array, or of all text and bytes; offsets count from their start.
pub(crate) fn leaf_bytes(array: &dyn Array) -> Option<&[u8]> {
    macro_rules! primitives {
        ($($arrow:ident => $native:ident),*) => {
            match array.data_type() {
                DataType::List(_) => leaf_bytes(array.as_any().downcast_ref::<ListArray>()?.values()),
                DataType::FixedSizeList(..) => leaf_bytes(array.as_any().downcast_ref::<FixedSizeListArray>()?.values()),
                DataType::Utf8 => Some(array.as_any().downcast_ref::<StringArray>()?.value_data()),
                DataType::Binary => Some(array.as_any().downcast_ref::<BinaryArray>()?.value_data()),
                $(DataType::$arrow => {
                    Some(array.as_primitive_opt::<arrow::datatypes::$native>()?.values().inner().as_slice())
                })*
                _ => None,
            }
        };
    }
    primitives!(
        Float64 => Float64Type, Float32 => Float32Type, Float16 => Float16Type, Int64 => Int64Type, Int32 => Int32Type,
        Int16 => Int16Type, Int8 => Int8Type, UInt64 => UInt64Type, UInt32 => UInt32Type, UInt16 => UInt16Type,
        UInt8 => UInt8Type
    )
}

/// Of the [`leaf_bytes`] of an array, those of its own cells: the first offset says where they begin, the last where they end.
pub(crate) fn own_bytes(array: &dyn Array) -> Option<&[u8]> {
    let all = leaf_bytes(array)?;
    let Some(offsets) = offsets(array) else { return Some(all) };
    let steps = array.as_list_opt::<i32>().map_or(all.len(), |list| list.values().len());
    let step = all.len().checked_div(steps).unwrap_or_default();
    all.get(*offsets.first()? as usize * step..*offsets.get(array.len())? as usize * step)
}

/// Payload bytes of each cell (without offsets).
///
/// # Errors
/// [`MapError::TooLarge`] for a cell of 4 GiB or more.
pub fn sizes(column: &Column, array: &dyn Array) -> Result<Sizes, MapError> {
    let unit = step_bytes(&column.kind);
    let checked = |bytes: usize| {
        let limit = u32::MAX as usize;
        let too_large = || MapError::TooLarge { column: column.name.clone(), found: bytes, limit };
        u32::try_from(bytes).map_err(|_| too_large())
    };
    let Some(offsets) = offsets(array) else {
        return Ok(Sizes::Uniform(checked(unit)?));
    };
    let each: Vec<u32> =
        offsets.windows(2).map(|w| checked((w[1] - w[0]) as usize * unit)).collect::<Result<_, _>>()?;
    Ok(match each.first() {
        Some(first) if each.iter().all(|size| size == first) => Sizes::Uniform(*first),
        None => Sizes::Uniform(0),
        _ => Sizes::Each(each),
    })
}

/// A checked array as it is kept where it was allocated: aligned, and holding on to nothing else; copied if it is not.
pub(crate) fn tight(column: &Column, array: &ArrayRef) -> Result<ArrayRef, MapError> {
    if is_stored(column, array) && is_tight(array) { Ok(array.clone()) } else { copy(column, [array]) }
}

/// A checked array whose [`offset_bytes`] and [`leaf_bytes`] are its own cells and no others, to be copied from: copied here
/// if they are not.
pub(crate) fn plain(column: &Column, array: &ArrayRef) -> Result<ArrayRef, MapError> {
    if is_plain(column, array) { Ok(array.clone()) } else { copy(column, [array]) }
}

/// Whether the [`offset_bytes`] and [`leaf_bytes`] of a checked array are its own cells and no others.
pub(crate) fn is_plain(column: &Column, array: &ArrayRef) -> bool {
    let ends = offsets(array).map(|offsets| (offsets[0], offsets[array.len()] as usize));
    let (first, steps) = ends.unwrap_or((0, array.len()));
    let own = steps.checked_mul(step_bytes(&column.kind));
    is_stored(column, array) && first == 0 && own == leaf_bytes(array).map(<[u8]>::len)
}

fn is_stored(column: &Column, array: &ArrayRef) -> bool {
    array.data_type() == &storage(&column.kind)
}

/// Bytes of a dense cell, of a step of a ragged one's first axis, or of a text's.
pub(crate) fn step_bytes(kind: &Kind) -> usize {
    match kind {
        Kind::Dense { dtype, .. } | Kind::Ragged { dtype, .. } => dtype.size() * inner_len(kind),
        _ => 1,
    }
}

/// Whether an array is of the column's type, without nulls, with legal values.
///
/// # Errors
/// [`MapError::Type`], [`MapError::Null`], [`MapError::Value`].
pub(crate) fn check(column: &Column, array: &ArrayRef) -> Result<(), MapError> {
    let expected = storage(&column.kind);
    if !same_storage(&expected, array.data_type()) {
        return Err(MapError::Type {
            column: column.name.clone(),
            kind: column.kind.clone(),
            expected,
            found: array.data_type().clone(),
        });
    }
    let nulls = count_nulls(array);
    if nulls > 0 {
        return Err(MapError::Null { column: column.name.clone(), nulls });
    }
    check_values(column, array)
}

/// One array with the cells of all `parts`, which are of the column's storage type: a copy.
pub(crate) fn copy<'a>(column: &Column, parts: impl IntoIterator<Item = &'a ArrayRef>) -> Result<ArrayRef, MapError> {
    let (mut rows, mut lens, mut bytes) = (0, Vec::new(), MutableBuffer::new(0));
    let unit = step_bytes(&column.kind);
    for part in parts {
        let unsupported = || MapError::Unsupported { column: column.name.clone(), found: part.data_type().clone() };
        let all = leaf_bytes(part).ok_or_else(unsupported)?;
        rows += part.len();
        match offsets(part) {
            None => bytes.extend_from_slice(&all[..part.len() * unit]),
            Some(offsets) => {
                lens.extend(offsets.windows(2).map(|w| (w[1] - w[0]) as usize));
                let (first, last) = (offsets[0] as usize, offsets[part.len()] as usize);
                bytes.extend_from_slice(&all[first * unit..last * unit]);
            }
        }
    }
    match &column.kind {
        kind @ Kind::Dense { .. } => Ok(dense_array(kind, rows, bytes.into())),
        kind @ Kind::Ragged { .. } => ragged_array(&column.name, kind, &lens, bytes.into()),
        kind => bytes_array(&column.name, kind, &lens, bytes.into()),
    }
}

/// Types that store the same bytes: item names and nullability do not count.
fn same_storage(expected: &DataType, found: &DataType) -> bool {
    match (expected, found) {
        (DataType::List(a), DataType::List(b)) => same_storage(a.data_type(), b.data_type()),
        (DataType::FixedSizeList(a, n), DataType::FixedSizeList(b, m)) => {
            n == m && same_storage(a.data_type(), b.data_type())
        }
        (a, b) => a == b,
    }
}

fn count_nulls(array: &dyn Array) -> usize {
    let inside = match array.data_type() {
        DataType::List(_) => array.as_list_opt::<i32>().map_or(0, |a| {
            let (first, last) = (a.value_offsets()[0] as usize, a.value_offsets()[a.len()] as usize);
            count_nulls(&a.values().slice(first, last - first))
        }),
        DataType::FixedSizeList(..) => array.as_fixed_size_list_opt().map_or(0, |a| count_nulls(a.values())),
        _ => 0,
    };
    array.null_count() + inside
}

/// `bool` is 0 or 1, JSON parses.
fn check_values(column: &Column, array: &ArrayRef) -> Result<(), MapError> {
    let wrong = |what: String| MapError::Value { column: column.name.clone(), kind: column.kind.clone(), what };
    match &column.kind {
        Kind::Dense { dtype: Dtype::Bool, .. } | Kind::Ragged { dtype: Dtype::Bool, .. } => {
            let bytes = leaf_bytes(array).unwrap_or_default();
            match bytes.iter().find(|byte| **byte > 1) {
                Some(byte) => Err(wrong(format!("found the byte {byte}, expected 0 or 1"))),
                None => Ok(()),
            }
        }
        Kind::Json => {
            let texts = array.as_string_opt::<i32>();
            for (row, text) in texts.iter().flat_map(|texts| texts.iter().enumerate()) {
                serde_json::from_str::<serde::de::IgnoredAny>(text.unwrap_or_default())
                    .map_err(|error| wrong(format!("row {row} does not parse: {error}")))?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Whether the array's buffers start on 64 bytes and hold nothing but its own cells.
fn is_tight(array: &ArrayRef) -> bool {
    fn tight(data: &arrow::array::ArrayData) -> bool {
        data.offset() == 0
            && data.nulls().is_none()
            && data.buffers().iter().all(|b| (b.as_ptr() as usize).is_multiple_of(64) && b.ptr_offset() == 0)
            && data.child_data().iter().all(tight)
    }
    let starts_at_zero = offsets(array).is_none_or(|offsets| offsets.first() == Some(&0));
    let own_bytes: usize = array.to_data().get_slice_memory_size().unwrap_or(usize::MAX);
    let held = array.get_buffer_memory_size();
    // Builders round capacities up; a slice of something larger is copied instead of holding all of it.
    starts_at_zero && tight(&array.to_data()) && held <= own_bytes.saturating_mul(2).saturating_add(1024)
}
