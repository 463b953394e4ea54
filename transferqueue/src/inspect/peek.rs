//! Some rows, cell by cell: absent cells are shown as absent, long ones are shortened.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    batch::{Batch, BatchError},
    catalog::{Refusal, command::RowHead},
    error::Error,
    ids::Rows,
    link::Link,
    schema::{Dtype, Kind},
    store::Store,
};

/// Rows shown at most.
const MAX_ROWS: usize = 64;
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
    let wanted: Rows = match rows.map(str::parse) {
        Some(Ok(rows)) => rows,
        Some(Err(error)) => return Ok(Err(format!("{error}"))),
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
    let mut rows: Vec<PeekedRow> = heads.into_iter().map(|head| PeekedRow { head, cells: BTreeMap::new() }).collect();
    for name in &columns {
        for row in &mut rows {
            let one = Rows::run(row.head.row, 1);
            match store.read(id, Some(&one), &[name]) {
                Ok(batch) => drop(row.cells.insert(name.clone(), cell(&batch, name)?)),
                // Not sealed, freed, or gone since: shown as absent.
                Err(Error::Refused(Refusal::Cell { .. } | Refusal::NoRow { .. })) => {}
                Err(error) if error.is_gone() => {}
                Err(Error::Refused(refusal)) => return Ok(Err(refusal.to_string())),
                Err(error) => return Err(error),
            }
        }
    }
    let more = wanted.len() - shown.len();
    Ok(Ok(Peek { partition: partition.to_owned(), columns, rows, more }))
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
