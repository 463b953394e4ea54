//! What a stage hands back: cells by column, notes on rows, rows to drop.
//!
//! Outputs know nothing of the schema; they are checked against it, column by column, when they are committed or put.
//! Values are copied once, here, into aligned buffers that the unit takes over as they are.
//!
//! ```
//! use transferqueue::{Outputs, RowId, Rows};
//! let outputs = Outputs::new()
//!     .dense::<f32>("reward", [1.0, 0.25])
//!     .utf8("judgement", ["right", "half right"])
//!     .drop_rows(Rows::run(RowId(7), 1), "empty");
//! assert_eq!(outputs.columns().collect::<Vec<_>>(), ["reward", "judgement"]);
//! ```

mod encode;
mod error;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};

use arrow::{
    array::ArrayRef,
    buffer::{Buffer, MutableBuffer},
};
use serde::Serialize;

pub(crate) use encode::{Encoded, unknown};
pub use error::OutputError;

use crate::{
    catalog::command::{DropRows, RowNote, Span, Tags},
    element::Element,
    ids::{RowId, Rows},
    schema::{Dtype, Kind},
    transport::Room,
};

/// Cells, notes and drops to commit. Built by chaining.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    pub(crate) rows: Option<Rows>,
    columns: Vec<(String, Data)>,
    pub(crate) notes: Vec<RowNote>,
    pub(crate) drops: Vec<DropRows>,
}

/// Cells of one column, as they were given.
#[derive(Clone, Debug)]
enum Data {
    Ragged {
        dtype: Dtype,
        lens: Vec<usize>,
        values: Buffer,
    },
    Dense {
        dtype: Dtype,
        elements: usize,
        values: Buffer,
    },
    /// Utf8, binary or json.
    Bytes {
        kind: Kind,
        lens: Vec<usize>,
        values: Buffer,
    },
    Array(ArrayRef),
    /// Cells where they are to lie, until they are put.
    Room(Arc<Mutex<Option<Room>>>),
    /// A value that could not be written as JSON: which row, and why. Refused when it is committed.
    Unwritable {
        row: usize,
        why: String,
    },
}

impl Outputs {
    /// For every row of the lease (of a put: every new row), in order.
    pub fn new() -> Self {
        Self::default()
    }

    /// For exactly these rows, in their order.
    pub fn for_rows(rows: Rows) -> Self {
        Self { rows: Some(rows), ..Self::default() }
    }

    /// A ragged column: the elements of each row, further axes flattened.
    pub fn ragged<T: Element>(
        self,
        column: impl Into<String>,
        rows: impl IntoIterator<Item = impl AsRef<[T]>>,
    ) -> Self {
        let (mut lens, mut values) = (Vec::new(), MutableBuffer::new(0));
        for row in rows {
            lens.push(row.as_ref().len());
            values.extend_from_slice(T::bytes(row.as_ref()));
        }
        self.with(column, Data::Ragged { dtype: T::DTYPE, lens, values: values.into() })
    }

    /// A dense column: the elements of all rows, row-major.
    pub fn dense<T: Element>(self, column: impl Into<String>, elements: impl AsRef<[T]>) -> Self {
        let elements = elements.as_ref();
        let mut values = MutableBuffer::new(size_of_val(elements));
        values.extend_from_slice(T::bytes(elements));
        self.with(column, Data::Dense { dtype: T::DTYPE, elements: elements.len(), values: values.into() })
    }

    /// A text column.
    pub fn utf8(self, column: impl Into<String>, rows: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.bytes(column, Kind::Utf8, rows.into_iter().map(Str))
    }

    /// A column of bytes.
    pub fn binary(self, column: impl Into<String>, rows: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        self.bytes(column, Kind::Binary, rows)
    }

    /// A column of JSON documents, from anything that serializes.
    pub fn json(self, column: impl Into<String>, rows: impl IntoIterator<Item = impl Serialize>) -> Self {
        let mut texts = Vec::new();
        for (row, document) in rows.into_iter().enumerate() {
            match serde_json::to_vec(&document) {
                Ok(text) => texts.push(text),
                Err(error) => {
                    return self.with(column, Data::Unwritable { row, why: error.to_string() });
                }
            }
        }
        self.bytes(column, Kind::Json, texts)
    }

    /// An array that is of the column's Arrow type already (see `arrow_map`). It is copied once, to where it is to lie; on the
    /// heap it is taken over as it is when its buffers start on 64 bytes and hold nothing else.
    pub fn array(self, column: impl Into<String>, array: ArrayRef) -> Self {
        self.with(column, Data::Array(array))
    }

    /// Cells that room of the session was filled with ([`Session::reserve`](crate::Session::reserve)): they are not copied. A room is
    /// put once: clones of these outputs share it, and when the store refuses what it came with, it is gone.
    pub fn room(self, column: impl Into<String>, room: Room) -> Self {
        self.with(column, Data::Room(Arc::new(Mutex::new(Some(room)))))
    }

    /// Sets tags of a row (others stay) and the weight versions its tokens were sampled with.
    pub fn note(mut self, row: RowId, tags: Tags, span: Option<Span>) -> Self {
        self.notes.push(RowNote { row, tags, span });
        self
    }

    /// Rows that leave with the commit; `reason` is one lower-case word, kept in the ledger. They need no cells.
    pub fn drop_rows(mut self, rows: Rows, reason: impl Into<String>) -> Self {
        self.drops.push(DropRows { rows, reason: reason.into() });
        self
    }

    /// Columns under other names, as the partition knows them; a column without a new name is left out.
    #[must_use]
    pub fn rename(mut self, name: impl Fn(&str) -> Option<String>) -> Self {
        self.columns = self.columns.into_iter().filter_map(|(old, data)| Some((name(&old)?, data))).collect();
        self
    }

    /// Names of the columns so far.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    fn bytes(self, column: impl Into<String>, kind: Kind, rows: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        let (mut lens, mut values) = (Vec::new(), MutableBuffer::new(0));
        for row in rows {
            lens.push(row.as_ref().len());
            values.extend_from_slice(row.as_ref());
        }
        self.with(column, Data::Bytes { kind, lens, values: values.into() })
    }

    fn with(mut self, column: impl Into<String>, data: Data) -> Self {
        self.columns.push((column.into(), data));
        self
    }
}

/// Text as its bytes.
struct Str<S>(S);

impl<S: AsRef<str>> AsRef<[u8]> for Str<S> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().as_bytes()
    }
}
