//! What a reader of a batch can have got wrong.

use crate::{arrow_map::MapError, schema::Kind};

/// A column was asked for that the batch does not have, or as something it is not.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum BatchError {
    /// No such column.
    #[error("the batch has no column `{column}`; it has {}", list(.have))]
    Unknown { column: String, have: Vec<String> },
    /// Another kind or dtype.
    #[error("column `{column}` is {found}, asked for as {asked}; read it with `{with}`")]
    Kind { column: String, found: Kind, asked: String, with: String },
    /// A transport brought bytes that cannot be looked at as the dtype.
    #[error(
        "column `{column}` is {found}, but its bytes are not aligned or not legal values of it: the transport broke them"
    )]
    Layout { column: String, found: Kind },
    /// A transport brought another number of cells than the pointer names.
    #[error("column `{column}` has {found} cells for {expected} rows: the transport lost or repeated some")]
    Rows { column: String, found: usize, expected: usize },
    /// Mini-batch sizes that do not cover the batch.
    #[error("sizes {sizes:?} add up to {}, the batch has {rows} rows", .sizes.iter().sum::<usize>())]
    Split { sizes: Vec<usize>, rows: usize },
    /// A JSON document is not what the reader wants.
    #[error("column `{column}`, row {row} of the batch: {error}")]
    Json { column: String, row: usize, error: serde_json::Error },
    /// The gathered array would not fit.
    #[error(transparent)]
    Map(#[from] MapError),
}

fn list(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}
