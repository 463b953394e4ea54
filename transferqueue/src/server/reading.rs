//! Tickets become streams of record batches.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, RecordBatch, RecordBatchOptions},
    datatypes::SchemaRef,
};
use arrow_flight::{FlightData, encode::FlightDataEncoderBuilder};
use futures::{StreamExt, TryStreamExt, stream};
use tonic::{Code, Status};

use super::{
    limits,
    service::{Answers, Service, invalid, status},
};
use crate::{
    arrow_map,
    catalog::command::ColumnRef,
    error::Error,
    schema::Column,
    transport::{TransportError, View},
    unit::UnitError,
    wire::{Failure, Incarnation, Kind, Ticket, decode},
};

/// Pieces below this are gathered with their neighbours: a message for each would cost more than the copy.
const SMALL: usize = 1 << 20;

/// The cells of a ticket. One column: its pieces as they lie, small ones gathered. Several: gathered side by side, since
/// their pieces end in different places. The bytes are held until the stream has ended.
pub(super) fn stream(service: &Service, ticket: &[u8]) -> Result<Answers<FlightData>, Status> {
    let ticket: Ticket = decode("ticket", ticket).map_err(invalid)?;
    if ticket.incarnation != service.incarnation {
        let kind = Kind::Incarnation(Incarnation { expected: ticket.incarnation, found: service.incarnation });
        return Err(Failure { kind: Some(kind) }.into_status(Code::FailedPrecondition));
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
    let (schema, batches) = batches(&columns, rows as usize).map_err(|error| invalid(error.to_string()))?;
    let held = columns;
    let batches = stream::iter(batches).map(move |batch| {
        let _ = &held;
        Ok(batch)
    });
    let encoded = FlightDataEncoderBuilder::new()
        .with_schema(schema)
        .with_max_flight_data_size(limits::BATCH_BYTES)
        .build(batches);
    Ok(encoded.map_err(Status::from).boxed())
}

/// A column under the reader's name, and views of its cells.
fn read(service: &Service, pointer: ColumnRef) -> Result<(Column, Vec<View>), Error> {
    let description = (service.describe)(pointer.partition)?;
    let views = service.store.unit().read(&pointer.runs);
    let gone = |gone: UnitError| TransportError::Gone { column: pointer.name.clone(), gone };
    let views = views.map_err(gone)?;
    let there = description.columns.get(usize::from(pointer.column.0));
    let column = there.ok_or_else(|| TransportError::Travel {
        column: pointer.name.clone(),
        why: format!("`{}` has no column at position {}", description.name, pointer.column),
    })?;
    Ok((Column { name: pointer.name, ..column.clone() }, views))
}

type Batches = (SchemaRef, Vec<RecordBatch>);

fn batches(columns: &[(Column, Vec<View>)], rows: usize) -> Result<Batches, arrow_map::MapError> {
    let schema: SchemaRef = Arc::new(arrow_map::schema(columns.iter().map(|(column, _)| column))?);
    let batch = |arrays: Vec<ArrayRef>, rows: usize| {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(schema.clone(), arrays, &options)
            .expect("invariant: the unit stores arrays of the columns' own types, and their lengths were counted")
    };
    let made = match columns {
        [(column, views)] => pieces(column, views)?
            .into_iter()
            .map(|piece| (piece.len(), vec![piece]))
            .map(|(n, p)| batch(p, n))
            .collect(),
        _ => {
            let whole = |(column, views): &(Column, Vec<View>)| arrow_map::copy(column, views.iter().map(View::array));
            vec![batch(columns.iter().map(whole).collect::<Result<_, _>>()?, rows)]
        }
    };
    Ok((schema, made))
}

/// Arrays that follow each other: large ones as they are, small neighbours joined.
fn pieces(column: &Column, views: &[View]) -> Result<Vec<ArrayRef>, arrow_map::MapError> {
    let (mut out, mut small, mut bytes): (Vec<ArrayRef>, Vec<&ArrayRef>, usize) = (Vec::new(), Vec::new(), 0);
    let join = |small: &mut Vec<&ArrayRef>, out: &mut Vec<ArrayRef>| {
        match small.as_slice() {
            [] => {}
            [one] => out.push(ArrayRef::clone(one)),
            many => out.push(arrow_map::copy(column, many.iter().copied())?),
        }
        small.clear();
        Ok::<_, arrow_map::MapError>(())
    };
    for view in views {
        let size = view.array().to_data().get_slice_memory_size().unwrap_or(usize::MAX);
        if size >= SMALL || bytes.saturating_add(size) > limits::BATCH_BYTES {
            join(&mut small, &mut out)?;
            bytes = 0;
        }
        if size >= SMALL {
            out.push(view.array().clone());
        } else {
            small.push(view.array());
            bytes += size;
        }
    }
    join(&mut small, &mut out)?;
    Ok(out)
}
