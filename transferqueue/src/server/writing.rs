//! Cells that come in: of one column for a session that will name them, or whole rows from a stock client.

use std::{sync::Arc, time::Instant};

use arrow::{
    array::{Array, ArrayRef, RecordBatch},
    buffer::Buffer,
};
use arrow_flight::{FlightData, FlightDescriptor, PutResult, flight_descriptor::DescriptorType};
use futures::{Stream, StreamExt, stream};
use tonic::Status;

use super::{
    limits,
    service::{Answers, Service, invalid, status},
};
use crate::{
    arrow_map,
    catalog::{
        command::{CellWrite, Command, NewRow, Reply, Request},
        definition::Partition,
    },
    error::Error,
    ids::{ColumnId, PartitionId, RowId, Rows, SessionId},
    ipc::Messages,
    link::Link,
    outputs,
    schema::Column,
    store::{asking::Asked, core::Sender, held::Cells},
    transport::{Placed, Purpose, Target, TransportError, room::misfit},
    unit::{
        Unit, UnitError, Writer,
        arena::{Layout, Reserved},
    },
    wire,
};

pub(crate) async fn put(
    service: &Service,
    mut sent: impl Stream<Item = Result<FlightData, Status>> + Send + Unpin,
) -> Result<Answers<PutResult>, Status> {
    let first = sent.next().await.ok_or_else(|| invalid("nothing was sent"))??;
    let descriptor = first.flight_descriptor.clone().unwrap_or_default();
    let mut batches = Batches { sent: stream::iter([Ok(first)]).chain(sent), messages: Messages::default() };
    match descriptor.r#type() {
        DescriptorType::Cmd => Err(invalid(format!("a put by command comes with the header `{}`", wire::IN_PLACE))),
        DescriptorType::Path => {
            let partition = partition(service, &descriptor)?;
            let mut results = Vec::new();
            while let Some(batch) = batches.next().await? {
                let rows = whole_rows(service, partition, &batch).await.map_err(|error| status(&error))?;
                let said = serde_json::json!({ "rows": rows.to_string() }).to_string();
                results.push(Ok(PutResult { app_metadata: said.into() }));
            }
            Ok(stream::iter(results).boxed())
        }
        DescriptorType::Unknown => Err(invalid("a put needs a descriptor: the path [partition]")),
    }
}

/// The record batches of a stream of messages.
struct Batches<S> {
    sent: S,
    messages: Messages,
}

impl<S: Stream<Item = Result<FlightData, Status>> + Unpin> Batches<S> {
    async fn next(&mut self) -> Result<Option<RecordBatch>, Status> {
        while let Some(data) = self.sent.next().await {
            let FlightData { data_header, data_body, .. } = data?;
            let taken = self.messages.take(&data_header, &data_body).map_err(|error| invalid(error.to_string()))?;
            if taken.is_some() {
                return Ok(taken);
            }
        }
        Ok(None)
    }
}

/// The partition that a path names alone.
fn partition(service: &Service, descriptor: &FlightDescriptor) -> Result<PartitionId, Status> {
    let [name] = descriptor.path.as_slice() else {
        return Err(invalid(format!("the path {:?}; expected [partition]", descriptor.path)));
    };
    service.store.partition(name).map_err(|error| status(&error))
}

/// Stores the few cells that come along with a command, and says in it where they lie. A call that was answered before has let go
/// of its cells, and hears the same answer.
///
/// Where calls wait for the disk, the cells are there before the command is carried out: its record may get to the disk by itself,
/// and must not name what is not.
pub(crate) fn along(
    service: &Service,
    caller: (SessionId, u64),
    command: &mut Command,
    along: &[wire::Along],
) -> Result<(), Error> {
    if along.is_empty() || !service.store.is_next(caller)? {
        return Ok(());
    }
    for brought in along {
        let wire::Along { cell, put, rows, offsets, values } = brought;
        let to = Destination::of(service, put.partition, put.column)?;
        let refused = |why| TransportError::Travel { column: to.column().name.clone(), why };
        let named = command.cells_mut().get_mut(*cell as usize).filter(|_| put.session == caller.0.0);
        let Some(named) = named else {
            let why = format!("put {} came along with a command that does not name it", put.number);
            return Err(refused(why).into());
        };
        let [offsets, values] = [offsets, values].map(|bytes| Buffer::from(bytes.as_ref()));
        let map = |error| TransportError::Unit(UnitError::Map(error));
        let array = arrow_map::from_buffers(to.column(), *rows as usize, offsets, values).map_err(map)?;
        let placed = to.stored(service, *put, &array)?;
        let (chunk, slot, sizes) = placed.read(array.len()).map_err(refused)?;
        (named.chunk, named.slot, named.sizes) = (chunk, slot, sizes);
    }
    service.aside(|| service.store.promise_bytes())
}

/// The column that a put brings cells of.
pub(super) struct Destination {
    description: Arc<Partition>,
    partition: PartitionId,
    id: ColumnId,
}

impl Destination {
    pub(super) fn of(service: &Service, partition: u32, column: u32) -> Result<Self, Error> {
        let partition = PartitionId(partition);
        let description = (service.describe)(partition)?;
        let position = usize::try_from(column).ok().filter(|at| *at < description.columns.len());
        let position = position.ok_or_else(|| TransportError::Travel {
            column: format!("at position {column}"),
            why: format!("`{}` has no such column", description.name),
        })?;
        Ok(Self { description, partition, id: ColumnId(position as u16) })
    }

    pub(super) fn column(&self) -> &Column {
        &self.description.columns[usize::from(self.id.0)]
    }

    /// Whether a put is for this column.
    pub(super) fn is_of(&self, put: &wire::Put) -> bool {
        (self.partition.0, u32::from(self.id.0)) == (put.partition, put.column)
    }

    /// The layout that a put announces.
    ///
    /// # Errors
    /// More bytes than a put may have.
    pub(super) fn layout(&self, rows: u32, offsets: u64, values: u64) -> Result<Layout, TransportError> {
        let (bytes, most) = (offsets.saturating_add(values), limits::PUT_BYTES);
        if bytes > most as u64 {
            let why = format!("a put of {bytes} bytes, expected at most {most}; put fewer rows");
            return Err(TransportError::Travel { column: self.column().name.clone(), why });
        }
        Ok(Layout { rows: rows as usize, offsets: offsets as usize, values: values as usize })
    }

    /// Stores cells that have come in an array: one copy, unless they are kept as they are.
    fn stored(&self, service: &Service, put: wire::Put, array: &ArrayRef) -> Result<wire::Placed, Error> {
        self.once(service, put, array.len() as u64, |writer, target| {
            place(service, Some(writer), target, array.clone())
        })
    }

    /// The same, promised.
    pub(super) fn brought(&self, service: &Service, put: wire::Put, array: &ArrayRef) -> Result<wire::Placed, Error> {
        let placed = self.stored(service, put, array)?;
        service.aside(|| service.store.promise_bytes())?;
        Ok(placed)
    }

    /// Stores, and promises, cells that lie where room was reserved for them: they are looked at, and held for the session that has put them.
    pub(super) fn filled(
        &self,
        service: &Service,
        put: wire::Put,
        unit: &Unit,
        reserved: Reserved,
    ) -> Result<wire::Placed, Error> {
        let Layout { rows, .. } = reserved.layout();
        let bytes = reserved.layout().bytes();
        let placed = service.aside_for(bytes, || {
            self.once(service, put, rows as u64, |writer, target| {
                let placed = unit.write_filled(Some(writer), target, reserved).map_err(TransportError::Unit)?;
                Ok((placed, bytes as u64))
            })
        })?;
        service.aside(|| service.store.promise_bytes())?;
        Ok(placed)
    }

    /// Stores the cells of a put, unless the same put came before, and holds them for its session. `store` says where they lie,
    /// and how many bytes that takes.
    pub(super) fn once(
        &self,
        service: &Service,
        put: wire::Put,
        rows: u64,
        store: impl FnOnce(Writer, Target<'_>) -> Result<(Placed, u64), TransportError>,
    ) -> Result<wire::Placed, Error> {
        let (session, column) = (SessionId(put.session), self.column());
        if let Some(((chunk, slot), sizes)) = service.store.held(session, put.number)? {
            return Ok(wire::Placed::new(chunk, slot, &sizes));
        }
        let purpose = if put.partial { Purpose::Partial } else { Purpose::Final };
        let target = Target { partition: self.partition, id: self.id, column, purpose };
        let (placed, bytes) = store((session, put.number), target)?;
        // The same put may have come over two connections at once: the place that counts is told.
        let cells = Cells { key: (self.partition, self.id), rows, bytes, placed };
        let ((chunk, slot), sizes) = service.store.hold(session, put.number, cells)?;
        Ok(wire::Placed::new(chunk, slot, &sizes))
    }
}

/// Stores the cells of an array. Says where they lie, and how many bytes that takes.
fn place(
    service: &Service,
    writer: Option<Writer>,
    target: Target<'_>,
    array: ArrayRef,
) -> Result<(Placed, u64), TransportError> {
    arrow_map::check(target.column, &array).map_err(misfit)?;
    let bytes = array.get_buffer_memory_size() as u64;
    let placed = service.store.units().write_for(writer, target, array);
    placed.map(|placed| (placed, bytes)).map_err(TransportError::Unit)
}

/// Puts rows as a stock client sends them: columns by name, every row new.
async fn whole_rows(service: &Service, partition: PartitionId, batch: &RecordBatch) -> Result<Rows, Error> {
    let description = (service.describe)(partition)?;
    let paid = batch.get_array_memory_size().saturating_add(limits::FREE_ROWS);
    let most = limits::PUT_ROWS.min(paid);
    if batch.num_rows() > most {
        let found = batch.num_rows();
        let why = format!("a batch of {found} rows for `{}`; put at most {most} at once", description.name);
        return Err(TransportError::Travel { column: "*".to_owned(), why }.into());
    }
    let positions = Rows::run(RowId(0), batch.num_rows() as u64);
    let (mut cells, mut holds) = (Vec::new(), Vec::new());
    for (field, array) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        let columns = &description.columns;
        let position = columns.iter().position(|column| &column.name == field.name());
        let position = position.ok_or_else(|| outputs::unknown(&description.name, columns, field.name()))?;
        if array.is_empty() {
            continue;
        }
        let id = ColumnId(position as u16);
        let target = Target { partition, id, column: &columns[position], purpose: Purpose::Final };
        let (placed, _) = place(service, None, target, arrow_map::copy(target.column, [array]).map_err(misfit)?)?;
        cells.push(CellWrite {
            column: id,
            rows: positions.clone(),
            chunk: placed.chunk,
            slot: placed.slot,
            sizes: placed.sizes.clone(),
            seal: true,
            replaces: None,
        });
        holds.push(placed);
    }
    let rows = vec![NewRow::default(); batch.num_rows()];
    let reply = patiently(service, Command::Put { partition, rows, cells }).await;
    // Until here the holds have kept the cells.
    drop(holds);
    match reply? {
        Reply::Put(rows) => Ok(rows),
        Reply::Ended => Err(Error::Ended { partition }),
        other => Err(Error::Protocol { command: "put", found: format!("{other:?}") }),
    }
}

/// A command of the server itself that may have to wait for room.
async fn patiently(service: &Service, command: Command) -> Result<Reply, Error> {
    let deadline = Instant::now() + limits::STOCK_WAIT;
    let mut request = Request { caller: None, command };
    loop {
        let sleep = Instant::now() < deadline;
        match service.ask(Sender::Here(None), &mut request, sleep)? {
            Asked::Answered(reply) => return Ok(reply),
            Asked::Later(_, Some(listener)) => drop(tokio::time::timeout_at(deadline.into(), listener).await),
            Asked::Later(wait, None) => return Err(Error::Deadline(Box::new(wait))),
        }
    }
}
