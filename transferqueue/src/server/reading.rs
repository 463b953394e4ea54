//! Tickets become record batches.

use std::{iter, ops::Range, sync::Arc};

use arrow::{
    array::{Array, ArrayRef, RecordBatch, RecordBatchOptions},
    datatypes::SchemaRef,
    error::ArrowError,
};
use tonic::{Code, Status};

use super::{
    limits,
    service::{Service, invalid, status},
};
use crate::{
    arrow_map,
    catalog::command::ColumnRef,
    error::Error,
    schema::Column,
    transport::{TransportError, View},
    wire::{Failure, Ticket, decode},
};

/// Pieces below this are gathered with their neighbours: a message for each would cost more than the copy.
const SMALL: usize = 1 << 20;

/// What a ticket names. The bytes are held until the last batch is made, and those of a batch as long as it is.
pub(crate) struct Selection {
    pub(crate) schema: SchemaRef,
    /// Each is made when it is asked for.
    pub(crate) batches: Batches,
}

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, Status>> + Send>;

/// The cells of a ticket. One column: its pieces as they lie, small ones gathered when their turn comes. Several: gathered side
/// by side, since their pieces end in different places.
pub(crate) fn select(service: &Service, ticket: &[u8]) -> Result<Selection, Status> {
    let ticket: Ticket = decode("ticket", ticket).map_err(invalid)?;
    if ticket.incarnation != service.incarnation {
        let refused = Failure::incarnation(ticket.incarnation, service.incarnation);
        return Err(refused.into_status(Code::FailedPrecondition));
    }
    let runs: usize = ticket.columns.iter().map(|column| column.runs.len()).sum();
    if ticket.columns.len() > limits::COLUMNS || runs > limits::RUNS {
        let (columns, most) = (limits::COLUMNS, limits::RUNS);
        return Err(invalid(format!("a ticket has at most {columns} columns and {most} runs of cells")));
    }
    let rows = ticket.rows;
    let mut columns: Vec<(Column, Vec<View>)> = Vec::with_capacity(ticket.columns.len());
    for pointer in ticket.columns {
        let pointer = ColumnRef::try_from(pointer).map_err(invalid)?;
        let named: u64 = pointer.runs.iter().map(|run| u64::from(run.len)).sum();
        if named != rows {
            return Err(invalid(format!("column `{}` names {named} cells of {rows} rows", pointer.name)));
        }
        columns.push(read(service, pointer).map_err(|error| status(&error))?);
    }
    let schema: SchemaRef = Arc::new(
        arrow_map::schema(columns.iter().map(|(column, _)| column)).map_err(|error| invalid(error.to_string()))?,
    );
    let batches = match <[_; 1]>::try_from(columns) {
        Ok([(column, views)]) => pieces(schema.clone(), column, views),
        Err(columns) => Box::new(slices(gathered(&schema, &columns, rows as usize)?).map(Ok)),
    };
    Ok(Selection { schema, batches })
}

/// A column under the reader's name, and views of its cells.
pub(super) fn read(service: &Service, pointer: ColumnRef) -> Result<(Column, Vec<View>), Error> {
    let description = (service.describe)(pointer.partition)?;
    let views = service.store.units().read(pointer.partition, pointer.column, &pointer.runs);
    let views = views.map_err(|error| TransportError::of(&pointer.name, error))?;
    let there = description.columns.get(usize::from(pointer.column.0));
    let column = there.ok_or_else(|| TransportError::Travel {
        column: pointer.name.clone(),
        why: format!("`{}` has no column at position {}", description.name, pointer.column),
    })?;
    Ok((Column { name: pointer.name, ..column.clone() }, views))
}

fn batch(schema: &SchemaRef, arrays: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch, ArrowError> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema.clone(), arrays, &options)
}

/// Several columns in one batch, all of it in memory at once: so much must fit.
fn gathered(schema: &SchemaRef, columns: &[(Column, Vec<View>)], rows: usize) -> Result<RecordBatch, Status> {
    let bytes: usize = columns.iter().flat_map(|(_, views)| views).map(size).fold(0, usize::saturating_add);
    if bytes > limits::GATHER_BYTES {
        let most = limits::GATHER_BYTES;
        return Err(invalid(format!(
            "the columns have {bytes} bytes together; at most {most} in one ticket: ask for them one by one"
        )));
    }
    let whole = |(column, views): &(Column, Vec<View>)| arrow_map::copy(column, views.iter().map(View::array));
    let arrays = columns.iter().map(whole).collect::<Result<_, _>>().map_err(|error| invalid(error.to_string()))?;
    batch(schema, arrays, rows).map_err(|error| invalid(error.to_string()))
}

/// Arrays that follow each other: large ones as they are, small neighbours joined. Each is made when it is asked for: a
/// ticket may name few bytes very often.
fn pieces(schema: SchemaRef, column: Column, views: Vec<View>) -> Batches {
    let together = together(&views);
    let made = together.into_iter().map(move |range| {
        let array = match &views[range] {
            [one] => one.array().clone(),
            many => {
                arrow_map::copy(&column, many.iter().map(View::array)).map_err(|error| invalid(error.to_string()))?
            }
        };
        let rows = array.len();
        batch(&schema, vec![array], rows).map_err(|error| invalid(error.to_string()))
    });
    Box::new(made.flat_map(|batch| -> Batches {
        match batch {
            Ok(batch) => Box::new(slices(batch).map(Ok)),
            Err(status) => Box::new(iter::once(Err(status))),
        }
    }))
}

/// A batch in parts of about [`limits::BATCH_BYTES`], and of a row at least; nothing is copied.
fn slices(batch: RecordBatch) -> impl Iterator<Item = RecordBatch> + Send {
    let bytes: usize = batch.columns().iter().map(bytes).fold(0, usize::saturating_add);
    let (rows, parts) = (batch.num_rows(), bytes.div_ceil(limits::BATCH_BYTES).max(1));
    let step = (rows / parts).max(1);
    (0..rows).step_by(step).map(move |from| batch.slice(from, step.min(rows - from)))
}

/// Which neighbours are sent as one batch.
fn together(views: &[View]) -> Vec<Range<usize>> {
    let (mut out, mut from, mut bytes) = (Vec::new(), 0, 0_usize);
    for (at, size) in views.iter().map(size).enumerate() {
        if size >= SMALL || bytes.saturating_add(size) > limits::BATCH_BYTES {
            out.push(from..at);
            (from, bytes) = (at, 0);
        }
        if size >= SMALL {
            out.push(at..at + 1);
            from = at + 1;
        } else {
            bytes += size;
        }
    }
    out.push(from..views.len());
    out.retain(|range| !range.is_empty());
    out
}

fn size(view: &View) -> usize {
    bytes(view.array())
}

fn bytes(array: &ArrayRef) -> usize {
    array.to_data().get_slice_memory_size().unwrap_or(usize::MAX)
}
