//! Some rows, cell by cell: absent cells are shown as absent, long ones are shortened.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    batch::{Batch, BatchError},
    catalog::{
        Refusal,
        command::{RowHead, Tag, Tags},
    },
    error::Error,
    ids::{NotRows, PartitionId, RowId, Rows},
    link::Link,
    schema::{Dtype, Kind},
    store::Store,
};

/// Rows shown at most.
const MAX_ROWS: usize = 64;
/// Tags of a row shown at most.
const MAX_TAGS: usize = 32;
/// Elements, characters or bytes of a cell shown at most.
const MAX_ELEMENTS: usize = 32;

/// Rows of a partition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peek {
    /// Its name.
    pub partition: String,
    /// The columns shown.
    pub columns: Vec<String>,
    /// The rows, at most 64.
    pub rows: Vec<PeekedRow>,
    /// Rows that were asked for and are not shown.
    pub more: u64,
}

/// A row and its cells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeekedRow {
    /// What the catalog knows of it.
    #[serde(flatten)]
    pub head: RowHead,
    /// By column; a cell that is not sealed, or freed, is absent.
    pub cells: BTreeMap<String, Cell>,
}

/// A cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Elements, characters or bytes it has.
    pub len: u64,
    /// The first of them: numbers, text (JSON documents as text), or bytes in hexadecimal.
    pub value: Value,
}

/// `Err` inside: what was asked for cannot be shown, in words for the person who asked.
pub(super) fn peek(
    store: &Store,
    partition: &str,
    rows: Option<&str>,
    columns: &[String],
) -> Result<Result<Peek, String>, Error> {
    let id = match store.partition(partition) {
        Ok(id) => id,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let description = store.describe(id)?;
    let wanted: Rows = match rows.map(|text| parse(text, u64::MAX)) {
        Some(Ok(rows)) => rows,
        Some(Err(what)) => return Ok(Err(what)),
        None => store.with_state(|state, _| state.rows(id))??,
    };
    let shown: Rows = wanted.iter().take(MAX_ROWS).collect();
    let columns = match columns {
        [] => description.columns.iter().map(|column| column.name.clone()).collect(),
        columns => columns.to_vec(),
    };
    let heads = match store.with_state(|state, _| state.heads(id, &shown))? {
        Ok(heads) => heads,
        Err(refusal) => return Ok(Err(refusal.to_string())),
    };
    let shortened = |mut head: RowHead| {
        shorten(&mut head.tags);
        PeekedRow { head, cells: BTreeMap::new() }
    };
    let mut rows: Vec<PeekedRow> = heads.into_iter().map(shortened).collect();
    for name in &columns {
        for row in &mut rows {
            match one(store, id, row.head.row, name) {
                Ok(Some(cell)) => drop(row.cells.insert(name.clone(), cell)),
                Ok(None) => {}
                Err(Error::Refused(refusal)) => return Ok(Err(refusal.to_string())),
                Err(error) => return Err(error),
            }
        }
    }
    let more = wanted.len() - shown.len();
    Ok(Ok(Peek { partition: partition.to_owned(), columns, rows, more }))
}

/// Rows that a person named, at most so many.
pub(super) fn parse(text: &str, most: u64) -> Result<Rows, String> {
    let rows: Rows = text.parse().map_err(|error: NotRows| error.to_string())?;
    // The sum may be more than any number holds: ranges may repeat.
    let named = rows.runs().iter().try_fold(0_u64, |sum, (_, len)| sum.checked_add(*len));
    match named {
        Some(named) if named <= most => Ok(rows),
        _ => Err(format!("`{text}` names too many rows; expected at most {most}")),
    }
}

/// Keeps the tags of one row short: nothing bounds what a writer puts there.
pub(super) fn shorten(tags: &mut Tags) {
    while tags.len() > MAX_TAGS {
        tags.pop_last();
    }
    for tag in tags.values_mut() {
        if let Tag::Text(text) = tag
            && let Some((end, _)) = text.char_indices().nth(4 * MAX_ELEMENTS)
        {
            text.truncate(end);
            text.push('…');
        }
    }
}

/// One cell; `None` when it is not sealed, freed, or gone since.
pub(super) fn one(store: &Store, partition: PartitionId, row: RowId, column: &str) -> Result<Option<Cell>, Error> {
    match store.read(partition, Some(&Rows::run(row, 1)), &[column]) {
        Ok(batch) => Ok(Some(cell(&batch, column)?)),
        Err(Error::Refused(Refusal::Cell { .. } | Refusal::NoRow { .. })) => Ok(None),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The cell of a batch with one row.
fn cell(batch: &Batch, column: &str) -> Result<Cell, BatchError> {
    macro_rules! numbers {
        ($dtype:expr, $shape:ident, $($variant:ident => $rust:ty as $shown:ty),*) => {
            match $dtype {
                $(Dtype::$variant => {
                    let elements = batch.$shape::<$rust>(column)?.row(0);
                    let first = elements.iter().take(MAX_ELEMENTS).map(|e| Value::from(<$shown>::from(*e)));
                    Cell { len: elements.len() as u64, value: Value::Array(first.collect()) }
                })*
            }
        };
    }
    macro_rules! any {
        ($dtype:expr, $shape:ident) => {
            numbers!($dtype, $shape, F64 => f64 as f64, F32 => f32 as f32, F16 => half::f16 as f32,
                Bf16 => half::bf16 as f32, I64 => i64 as i64, I32 => i32 as i32, I16 => i16 as i16, I8 => i8 as i8,
                U64 => u64 as u64, U32 => u32 as u32, U16 => u16 as u16, U8 => u8 as u8, Bool => bool as bool)
        };
    }
    let text = |text: &str| Cell {
        len: text.chars().count() as u64,
        value: Value::from(text.chars().take(4 * MAX_ELEMENTS).collect::<String>()),
    };
    Ok(match batch.kind(column)? {
        Kind::Dense { dtype, shape } => {
            let cell = any!(dtype, dense);
            match (shape.is_empty(), cell.value) {
                (true, Value::Array(mut scalar)) => Cell { len: 1, value: scalar.pop().unwrap_or_default() },
                (_, value) => Cell { value, ..cell },
            }
        }
        Kind::Ragged { dtype, .. } => any!(dtype, ragged),
        Kind::Utf8 => text(batch.utf8(column)?.row(0)),
        Kind::Json => text(batch.json(column)?.text(0)),
        Kind::Binary => {
            let bytes = batch.binary(column)?.row(0);
            let first: String = bytes.iter().take(MAX_ELEMENTS).map(|byte| format!("{byte:02x}")).collect();
            Cell { len: bytes.len() as u64, value: Value::from(first) }
        }
    })
}
