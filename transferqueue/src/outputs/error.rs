//! Why outputs do not fit the partition.

use crate::{arrow_map::MapError, ids::RowId, schema::Kind};

/// Outputs that do not fit, by the column's name.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum OutputError {
    /// No such column.
    #[error("partition `{partition}` has no column `{column}`; it has {have}")]
    Unknown { partition: String, column: String, have: String },
    /// The same column twice.
    #[error("column `{column}` is given twice; give each column once a commit")]
    Twice { column: String },
    /// Another kind or dtype.
    #[error("column `{column}` is {expected}, the output is {found}")]
    Kind { column: String, expected: Kind, found: String },
    /// Another number of rows.
    #[error("column `{column}` has {found} rows, expected {expected}: one for each row in order")]
    Rows { column: String, found: usize, expected: usize },
    /// Elements that do not fill whole cells.
    #[error("column `{column}` is {kind}: {found} elements do not fill {rows} rows of {width}")]
    Elements { column: String, kind: Kind, found: usize, rows: usize, width: usize },
    /// A ragged row that does not fill its inner axes.
    #[error("column `{column}` is {kind}: row {row} has {found} elements, not a multiple of {inner}")]
    Inner { column: String, kind: Kind, row: usize, found: usize, inner: usize },
    /// A document that JSON cannot say.
    #[error("column `{column}`: row {row} cannot be written as json: {why}")]
    Unwritable { column: String, row: usize, why: String },
    /// Open cells together with a finished column.
    #[error("column `{column}`: row {row} was appended to and is also given as an output; use one of the two")]
    OpenAndGiven { column: String, row: RowId },
    /// Only ragged columns grow.
    #[error("column `{column}` is {kind}: only ragged columns can be appended to")]
    NotRagged { column: String, kind: Kind },
    /// What a call cannot take.
    #[error("{what}")]
    Misplaced { what: String },
    /// The array does not fit the mapping.
    #[error(transparent)]
    Map(#[from] MapError),
}
