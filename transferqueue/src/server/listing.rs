//! What stock clients ask first: which partitions there are, of what schema, and a ticket to their rows.

use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::{
    FlightDescriptor, FlightEndpoint, FlightInfo, SchemaAsIpc, SchemaResult, Ticket, flight_descriptor::DescriptorType,
};
use prost::Message;
use tonic::Status;

use super::service::{Service, invalid, status};
use crate::{arrow_map, catalog::command::BatchRef, error::Error, ids::PartitionId, link::Link, schema::Column, wire};

/// Every live partition.
pub(crate) fn all(service: &Service) -> Result<Vec<FlightInfo>, Status> {
    let partitions = service.store.with_state(|state, _| state.partitions()).map_err(|error| status(&error))?;
    let mut infos = Vec::with_capacity(partitions.len());
    for partition in partitions {
        match describe(service, partition.id, &partition.name, &[]) {
            Ok(info) => infos.push(info),
            // Deleted in between.
            Err(Error::Refused(_)) => {}
            Err(error) => return Err(status(&error)),
        }
    }
    Ok(infos)
}

/// The path `[partition]` (every column that all its rows have now) or `[partition, column, …]` (these columns).
pub(crate) fn info(service: &Service, descriptor: &FlightDescriptor) -> Result<FlightInfo, Status> {
    let (name, columns) = path(descriptor)?;
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let found = service.store.partition(name).and_then(|id| describe(service, id, name, &columns));
    found.map_err(|error| status(&error))
}

/// All own columns of the partition that the path names, whether there are cells or not.
pub(crate) fn schema(service: &Service, descriptor: &FlightDescriptor) -> Result<SchemaResult, Status> {
    let (name, _) = path(descriptor)?;
    let described = service.store.partition(name).and_then(|id| service.store.describe(id));
    let description = described.map_err(|error| status(&error))?;
    let schema = arrow_map::schema(&description.columns).map_err(|error| invalid(error.to_string()))?;
    SchemaAsIpc::new(&schema, &IpcWriteOptions::default()).try_into().map_err(|error| invalid(format!("{error}")))
}

fn path(descriptor: &FlightDescriptor) -> Result<(&str, &[String]), Status> {
    match (descriptor.r#type(), descriptor.path.as_slice()) {
        (DescriptorType::Path, [name, columns @ ..]) => Ok((name, columns)),
        _ => Err(invalid("a descriptor is a path here: [partition], or [partition, column, …]")),
    }
}

/// A pointer to all live rows of this moment, as a ticket.
fn describe(service: &Service, id: PartitionId, name: &str, columns: &[&str]) -> Result<FlightInfo, Error> {
    let pointer = match columns {
        [] => service.store.with_state(|state, _| {
            let rows = state.rows(id)?;
            let own = state.describe(id)?.columns;
            let readable = own.iter().map(|column| column.name.as_str());
            let readable: Vec<&str> = readable.filter(|name| state.refer(id, &rows, &[*name]).is_ok()).collect();
            state.refer(id, &rows, &readable)
        })??,
        columns => service.store.resolve(id, None, columns)?.0,
    };
    let schema = arrow_map::schema(&described(service, &pointer)?);
    let schema = schema.map_err(|error| Error::Batch(error.into()))?;
    let ticket = wire::Ticket::from(&pointer);
    let mut path = vec![name.to_owned()];
    path.extend(columns.iter().map(|column| (*column).to_owned()));
    let said = serde_json::json!({ "partition": id, "rows": pointer.rows.to_string() }).to_string();
    // No location: the bytes are where the question was asked.
    let info = FlightInfo::new()
        .with_descriptor(FlightDescriptor::new_path(path))
        .with_endpoint(FlightEndpoint::new().with_ticket(Ticket::new(ticket.encode_to_vec())))
        .with_total_records(ticket.rows as i64)
        .with_app_metadata(said);
    info.try_with_schema(&schema).map_err(|error| Error::Protocol { command: "schema", found: error.to_string() })
}

/// The columns of a pointer, under its names.
fn described(service: &Service, pointer: &BatchRef) -> Result<Vec<Column>, Error> {
    let column = |found: &crate::catalog::command::ColumnRef| {
        let description = service.store.describe(found.partition)?;
        Ok(Column { name: found.name.clone(), ..description.columns[usize::from(found.column.0)].clone() })
    };
    pointer.columns.iter().map(column).collect()
}
