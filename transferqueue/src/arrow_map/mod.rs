//! Columns as Arrow: which Arrow type stores which [`Kind`], and back.
//!
//! | kind | Arrow type | marks on the column's own field |
//! |---|---|---|
//! | dense, shape `[]` | the primitive itself (what pyarrow reads as a plain array) | |
//! | dense, other shapes | `FixedSizeList(item, product of the axes)` | extension `arrow.fixed_shape_tensor`, metadata `{"shape":[…]}` |
//! | ragged | `List(item)`; further axes nest as `FixedSizeList`, outermost first | |
//! | utf8, binary | `Utf8`, `Binary` | |
//! | json | `Utf8` | extension `arrow.json` |
//!
//! Arrow has no bfloat16, and pyarrow's tensors take no bits: `bf16` is stored as `UInt16` and `bool` as `UInt8`, one byte
//! each, with `tq.dtype` in the metadata of the column's field (not of the item field, which list readers drop).
//! Attributes travel as `tq.attributes`, a JSON object. No cell is null: absent cells are the catalog's business.
//!
//! ```
//! use transferqueue::{arrow_map, schema::{Column, Dtype, Kind}};
//! let tokens = Column::new("tokens", Kind::Ragged { dtype: Dtype::I32, inner: vec![] });
//! let field = arrow_map::field(&tokens)?;
//! assert!(matches!(field.data_type(), arrow::datatypes::DataType::List(_)));
//! assert_eq!(arrow_map::column(&field)?, tokens);
//! # Ok::<(), arrow_map::MapError>(())
//! ```

mod build;
mod cells;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc};

use arrow::datatypes::{DataType, Field, Schema};

pub(crate) use build::{bytes_array, dense_array, from_buffers, offset_buffer, ragged_array};
pub use cells::sizes;
pub(crate) use cells::{
    check, copy, inner_len, is_plain, leaf_bytes, offset_bytes, offsets, own_bytes, plain, step_bytes, tight,
};

use crate::schema::{Column, Dtype, Kind};

const EXTENSION: &str = "ARROW:extension:name";
const EXTENSION_METADATA: &str = "ARROW:extension:metadata";
const TENSOR: &str = "arrow.fixed_shape_tensor";
const JSON: &str = "arrow.json";
const DTYPE: &str = "tq.dtype";
const ATTRIBUTES: &str = "tq.attributes";

/// A schema or array that does not fit the mapping.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum MapError {
    /// The kind cannot be stored.
    #[error("column `{column}` is {kind}: an axis of length 0 holds nothing; leave it out")]
    EmptyAxis { column: String, kind: Kind },
    /// The Arrow type stands for no kind.
    #[error(
        "column `{column}` has the arrow type {found}, which is not stored; use a primitive, FixedSizeList, List, Utf8 or Binary"
    )]
    Unsupported { column: String, found: DataType },
    /// A mark on the field contradicts its type.
    #[error("column `{column}`: field metadata `{key}` is `{found}`, expected {expected}")]
    Metadata { column: String, key: &'static str, found: String, expected: String },
    /// The array is of another type than the column.
    #[error("column `{column}` is {kind}, stored as {expected}; the array is {found}")]
    Type { column: String, kind: Kind, expected: DataType, found: DataType },
    /// A cell is null.
    #[error("column `{column}`: {nulls} cells or elements are null; leave rows without a value out of the write")]
    Null { column: String, nulls: usize },
    /// Arrow's 32-bit offsets do not reach that far.
    #[error("column `{column}`: {found} elements or bytes in one array, at most {limit} fit; write fewer rows at once")]
    TooLarge { column: String, found: usize, limit: usize },
    /// A value that its dtype does not have.
    #[error("column `{column}` is {kind}: {what}")]
    Value { column: String, kind: Kind, what: String },
}

/// The Arrow type that stores a kind.
pub fn storage(kind: &Kind) -> DataType {
    match kind {
        Kind::Dense { dtype, shape } if shape.is_empty() => primitive(*dtype),
        Kind::Dense { dtype, shape } => fixed(primitive(*dtype), shape.iter().product()),
        Kind::Ragged { dtype, inner } => {
            let item = inner.iter().rev().fold(primitive(*dtype), |item, &axis| fixed(item, axis));
            DataType::List(Arc::new(Field::new("item", item, true)))
        }
        Kind::Utf8 | Kind::Json => DataType::Utf8,
        Kind::Binary => DataType::Binary,
    }
}

/// The Arrow field of a column, with the marks that [`column()`] and stock readers know it by.
///
/// # Errors
/// [`MapError::EmptyAxis`] for a shape with an axis of length 0.
pub fn field(column: &Column) -> Result<Field, MapError> {
    let mut marks = HashMap::new();
    let mut mark = |key: &str, value: String| marks.insert(key.to_owned(), value);
    match &column.kind {
        Kind::Dense { shape: axes, .. } | Kind::Ragged { inner: axes, .. } if axes.contains(&0) => {
            return Err(MapError::EmptyAxis { column: column.name.clone(), kind: column.kind.clone() });
        }
        Kind::Dense { shape, .. } if !shape.is_empty() => {
            // Written out by hand: some readers refuse the optional keys when they are there and null.
            mark(EXTENSION, TENSOR.to_owned());
            mark(EXTENSION_METADATA, format!("{{\"shape\":{}}}", serde_json::json!(shape)));
        }
        Kind::Json => {
            mark(EXTENSION, JSON.to_owned());
            mark(EXTENSION_METADATA, String::new());
        }
        _ => {}
    }
    if let Kind::Dense { dtype, .. } | Kind::Ragged { dtype, .. } = &column.kind
        && matches!(dtype, Dtype::Bf16 | Dtype::Bool)
    {
        mark(DTYPE, dtype.to_string());
    }
    if !column.attributes.is_empty() {
        mark(ATTRIBUTES, serde_json::json!(column.attributes).to_string());
    }
    Ok(Field::new(&column.name, storage(&column.kind), false).with_metadata(marks))
}

/// The Arrow schema of some columns, in their order.
///
/// # Errors
/// As [`field`].
pub fn schema<'a>(columns: impl IntoIterator<Item = &'a Column>) -> Result<Schema, MapError> {
    Ok(Schema::new(columns.into_iter().map(field).collect::<Result<Vec<_>, _>>()?))
}

/// The column that an Arrow field stands for: the inverse of [`field`], and the door for tables written elsewhere.
///
/// # Errors
/// [`MapError::Unsupported`] and [`MapError::Metadata`].
pub fn column(field: &Field) -> Result<Column, MapError> {
    let name = field.name();
    let unsupported = || MapError::Unsupported { column: name.clone(), found: field.data_type().clone() };
    let wrong = |key, found: &str, expected: String| MapError::Metadata {
        column: name.clone(),
        key,
        found: found.to_owned(),
        expected,
    };
    let marks = field.metadata();
    let dtype = |stored: &DataType| {
        let stored = dtype_of(stored).ok_or_else(unsupported)?;
        match (marks.get(DTYPE).map(String::as_str), stored) {
            (None, stored) => Ok(stored),
            (Some("bf16"), Dtype::U16) => Ok(Dtype::Bf16),
            (Some("bool"), Dtype::U8) => Ok(Dtype::Bool),
            (Some(found), stored) => {
                Err(wrong(DTYPE, found, format!("bf16 over u16 or bool over u8, not over {stored}")))
            }
        }
    };
    let kind = match field.data_type() {
        DataType::Utf8 if marks.get(EXTENSION).map(String::as_str) == Some(JSON) => Kind::Json,
        DataType::Utf8 => Kind::Utf8,
        DataType::Binary => Kind::Binary,
        DataType::List(item) => {
            let (inner, leaf) = axes(item.data_type());
            Kind::Ragged { dtype: dtype(leaf)?, inner }
        }
        stored @ DataType::FixedSizeList(..) => {
            let (found, leaf) = axes(stored);
            let shape = match (marks.get(EXTENSION).map(String::as_str), marks.get(EXTENSION_METADATA)) {
                (Some(TENSOR), Some(text)) => tensor_shape(text)
                    .filter(|shape| elements(shape).is_some() && elements(shape) == elements(&found))
                    .ok_or_else(|| {
                        wrong(EXTENSION_METADATA, text, format!("a shape of {found:?} elements, row-major"))
                    })?,
                _ => found,
            };
            Kind::Dense { dtype: dtype(leaf)?, shape }
        }
        stored => Kind::Dense { dtype: dtype(stored)?, shape: vec![] },
    };
    if kind.unit_bytes().is_none() {
        return Err(unsupported());
    }
    let attributes = match marks.get(ATTRIBUTES) {
        None => Default::default(),
        Some(text) => {
            serde_json::from_str(text).map_err(|_| wrong(ATTRIBUTES, text, "a JSON object of strings".to_owned()))?
        }
    };
    Ok(Column { attributes, ..Column::new(name, kind) })
}

fn fixed(item: DataType, len: usize) -> DataType {
    DataType::FixedSizeList(Arc::new(Field::new("item", item, true)), len as i32)
}

fn primitive(dtype: Dtype) -> DataType {
    match dtype {
        Dtype::F64 => DataType::Float64,
        Dtype::F32 => DataType::Float32,
        Dtype::F16 => DataType::Float16,
        Dtype::I64 => DataType::Int64,
        Dtype::I32 => DataType::Int32,
        Dtype::I16 => DataType::Int16,
        Dtype::I8 => DataType::Int8,
        Dtype::U64 => DataType::UInt64,
        Dtype::U32 => DataType::UInt32,
        Dtype::U16 | Dtype::Bf16 => DataType::UInt16,
        Dtype::U8 | Dtype::Bool => DataType::UInt8,
    }
}

fn dtype_of(stored: &DataType) -> Option<Dtype> {
    Some(match stored {
        DataType::Float64 => Dtype::F64,
        DataType::Float32 => Dtype::F32,
        DataType::Float16 => Dtype::F16,
        DataType::Int64 => Dtype::I64,
        DataType::Int32 => Dtype::I32,
        DataType::Int16 => Dtype::I16,
        DataType::Int8 => Dtype::I8,
        DataType::UInt64 => Dtype::U64,
        DataType::UInt32 => Dtype::U32,
        DataType::UInt16 => Dtype::U16,
        DataType::UInt8 => Dtype::U8,
        _ => return None,
    })
}

/// Nested fixed axes, outermost first, and the type inside them.
fn axes(mut stored: &DataType) -> (Vec<usize>, &DataType) {
    let mut axes = Vec::new();
    while let DataType::FixedSizeList(item, len) = stored {
        axes.push(usize::try_from(*len).unwrap_or(usize::MAX));
        stored = item.data_type();
    }
    (axes, stored)
}

/// The product of some axes; `None` when it runs over.
fn elements(axes: &[usize]) -> Option<usize> {
    axes.iter().try_fold(1_usize, |product, axis| product.checked_mul(*axis))
}

/// The shape in a fixed-shape tensor's metadata; `None` if it is no such text or is permuted.
fn tensor_shape(text: &str) -> Option<Vec<usize>> {
    #[derive(serde::Deserialize)]
    struct Tensor {
        shape: Vec<usize>,
        #[serde(default)]
        permutation: Option<Vec<usize>>,
    }
    let tensor: Tensor = serde_json::from_str(text).ok()?;
    let straight = tensor.permutation.is_none_or(|p| p.iter().copied().eq(0..p.len()));
    straight.then_some(tensor.shape)
}
