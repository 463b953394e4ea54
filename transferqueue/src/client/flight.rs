//! Bytes over Arrow Flight.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use arrow::{
    array::{Array, ArrayData, ArrayRef},
    datatypes::SchemaRef,
};
use arrow_flight::{PutResult, error::FlightError};

use super::{Inner, channel::Attempts, lane::Lane, runtime::block_on};
use crate::{
    arrow_map,
    bulk::{
        incoming::Incoming,
        outgoing,
        pool::{Block, Pool},
    },
    catalog::command::ColumnRef,
    error::Error,
    ids::{ColumnId, PartitionId, SessionId},
    ipc::Messages,
    schema::Column,
    transport::{Placed, Purpose, Target, Transport, TransportError, View},
    unit::{OpenCell, UnitError, arena::Layout},
    wire::{self, ALONG, Along, Pointer, Spot, Ticket},
};

/// Cells of no more bytes than these come along with the command that names them: one question instead of two or three, and a
/// worker with little to put has no segment of its own.
const ALONG_BYTES: usize = 16 << 10;

/// The transport of one session.
pub(super) struct Flight {
    pub(super) client: Arc<Inner>,
    session: SessionId,
}

/// Views of one get: counts their bytes while any of them is open.
pub(super) struct Received {
    total: Arc<AtomicU64>,
    bytes: u64,
}

impl Received {
    /// What has come to memory of the pool.
    pub(super) fn views(client: &Inner, arrays: Vec<ArrayRef>) -> Vec<View> {
        let bytes = arrays.iter().map(|array| array.get_buffer_memory_size() as u64).sum();
        let total = client.received.clone();
        total.fetch_add(bytes, Ordering::Relaxed);
        let received = Arc::new(Self { total, bytes });
        arrays.into_iter().map(|array| View::new(array, received.clone())).collect()
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Cells that a put has stored: let go when the writer drops this, unless a call has named them first.
struct Hold {
    lane: Arc<Lane>,
    spot: Spot,
}

/// The same for cells that come along with a call.
struct Kept {
    lane: Arc<Lane>,
    slot: u32,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.lane.release(self.spot);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.lane.leave(self.slot);
    }
}

impl Flight {
    pub(super) fn new(client: Arc<Inner>, session: SessionId) -> Self {
        Self { client, session }
    }

    /// Lets the server know of holds that were dropped, without waiting for the next call.
    #[cfg(test)]
    pub(super) fn settle(&self) -> Result<(), Error> {
        block_on(self.client.call(Some(self.session), &crate::catalog::command::Command::Heartbeat, None, None))
            .map(drop)
    }

    pub(super) fn attempts(&self) -> Attempts {
        Attempts::new(Instant::now() + self.client.channels.options().patience)
    }

    async fn get_once(&self, ticket: &Ticket) -> Result<(Option<SchemaRef>, Vec<ArrayRef>), FlightError> {
        received(self.client.channels.get(ticket).await?, &self.client.pool).await
    }

    async fn put_once(&self, put: wire::Put, array: &ArrayRef) -> Result<PutResult, FlightError> {
        Ok(self.client.channels.put(outgoing::put(put, array)?).await?)
    }

    /// Repeats what may be repeated while the connection is lost.
    async fn repeated<T, F: Future<Output = Result<T, FlightError>>>(
        &self,
        column: &str,
        what: &str,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, TransportError> {
        let channels = &self.client.channels;
        let travel = |why: String| TransportError::Travel { column: column.to_owned(), why };
        let mut attempts = self.attempts();
        loop {
            let why = match tokio::time::timeout_at(attempts.until(), attempt()).await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(FlightError::Tonic(status))) => match channels.lost(&status) {
                    Ok(why) => why,
                    Err(Error::Transport(TransportError::Gone { gone, .. })) => {
                        return Err(TransportError::Gone { column: column.to_owned(), gone });
                    }
                    Err(error) => return Err(travel(error.to_string())),
                },
                Ok(Err(error)) => return Err(travel(error.to_string())),
                Err(_) => "no answer came".to_owned(),
            };
            if !attempts.again().await {
                return Err(travel(channels.unreachable(what, &attempts, why).to_string()));
            }
        }
    }
}

/// What a server sends for a ticket of one column.
pub(crate) async fn received(
    mut sent: Incoming,
    pool: &Pool,
) -> Result<(Option<SchemaRef>, Vec<ArrayRef>), FlightError> {
    let (mut messages, mut arrays) = (Messages::default(), Vec::new());
    while let Some(message) = sent.next(pool).await? {
        let taken = messages.take(&message.header, &message.body);
        let Some(batch) = taken.map_err(|error| FlightError::ProtocolError(error.to_string()))? else { continue };
        let [array] = batch.columns() else {
            return Err(FlightError::ProtocolError(format!("{} columns came, 1 was asked", batch.num_columns())));
        };
        if !array.is_empty() {
            arrays.push(array.clone());
        }
    }
    Ok((messages.schema().cloned(), arrays))
}

/// The arrays of a column as its reader may have them: as many cells as were asked for, checked and aligned.
pub(crate) fn checked(schema: Option<SchemaRef>, arrays: &[ArrayRef], rows: u64) -> Result<Vec<ArrayRef>, String> {
    let schema = schema.ok_or_else(|| "no schema came".to_owned())?;
    let [field] = &schema.fields()[..] else {
        return Err(format!("a schema of {} columns came, 1 was asked for", schema.fields().len()));
    };
    let column = arrow_map::column(field).map_err(|error| error.to_string())?;
    let found: usize = arrays.iter().map(|array| array.len()).sum();
    if found as u64 != rows {
        return Err(format!("{found} cells came, {rows} were asked for"));
    }
    arrays.iter().map(|array| aligned(&column, array)).collect::<Result<_, _>>().map_err(|error| error.to_string())
}

/// A put that may be sent again, whichever way.
pub(super) struct Begun<'a> {
    pub(super) column: &'a Column,
    pub(super) array: ArrayRef,
    pub(super) numbered: Numbered<'a>,
}

/// A put that has its number.
pub(super) struct Numbered<'a> {
    pub(super) put: wire::Put,
    column: &'a Column,
    lane: Arc<Lane>,
}

impl Begun<'_> {
    /// Keeps few cells for the command that will name them; `None`: they are to be put before.
    pub(super) fn along(&mut self) -> Result<Option<Placed>, TransportError> {
        let Numbered { put, column, lane } = &self.numbered;
        let map = |error| TransportError::Unit(UnitError::Map(error));
        self.array = arrow_map::plain(column, &self.array).map_err(map)?;
        if Layout::of(&self.array).bytes() > ALONG_BYTES {
            return Ok(None);
        }
        let sizes = arrow_map::sizes(column, &self.array).map_err(map)?;
        let Some(slot) = lane.keep(Along::new(*put, &self.array)) else { return Ok(None) };
        let hold = Box::new(Kept { lane: lane.clone(), slot });
        Ok(Some(Placed { chunk: ALONG, slot, sizes, hold }))
    }

    /// The cells lie where the store says.
    pub(super) fn end(self, placed: wire::Placed) -> Result<Placed, TransportError> {
        self.numbered.end(placed, self.array.len())
    }
}

impl Numbered<'_> {
    /// So many cells lie where the store says.
    pub(super) fn end(self, placed: wire::Placed, rows: usize) -> Result<Placed, TransportError> {
        let travel = |why| TransportError::Travel { column: self.column.name.clone(), why };
        let (chunk, slot, sizes) = placed.read(rows).map_err(travel)?;
        let hold = Hold { lane: self.lane, spot: Spot { chunk: chunk.0, slot } };
        Ok(Placed { chunk, slot, sizes, hold: Box::new(hold) })
    }
}

impl Flight {
    /// Memory for so many bytes that are to be sent.
    pub(super) fn memory(&self, len: usize) -> Block {
        self.client.pool.take(len)
    }

    /// Begins a put. Refuses cells as the unit would, before a byte travels.
    pub(super) fn begin<'a>(&self, target: Target<'a>, array: ArrayRef) -> Result<Begun<'a>, TransportError> {
        arrow_map::check(target.column, &array).map_err(|error| TransportError::Unit(UnitError::Map(error)))?;
        Ok(Begun { column: target.column, array, numbered: self.number(target)? })
    }

    /// Numbers a put.
    pub(super) fn number<'a>(&self, target: Target<'a>) -> Result<Numbered<'a>, TransportError> {
        let column = target.column;
        let travel = |error: Error| TransportError::Travel { column: column.name.clone(), why: error.to_string() };
        let lane = self.client.lane(self.session).map_err(travel)?;
        let put = wire::Put {
            session: self.session.0,
            partition: target.partition.0,
            column: target.id.0.into(),
            number: lane.put(),
            partial: target.purpose == Purpose::Partial,
        };
        Ok(Numbered { put, column, lane })
    }

    /// Sends the cells of a put.
    pub(super) fn send(&self, begun: &Begun<'_>) -> Result<wire::Placed, TransportError> {
        let Begun { column, array, numbered } = begun;
        let map = |error| TransportError::Unit(UnitError::Map(error));
        let travel = |why: String| TransportError::Travel { column: column.name.clone(), why };
        let array = arrow_map::plain(column, array).map_err(map)?;
        let result = block_on(self.repeated(&column.name, "a put", || self.put_once(numbered.put, &array)))?;
        wire::decode("place", &result.app_metadata).map_err(travel)
    }
}

impl Transport for Flight {
    fn name(&self) -> &'static str {
        "flight"
    }

    fn put(&self, target: Target<'_>, array: ArrayRef) -> Result<Placed, TransportError> {
        let begun = self.begin(target, array)?;
        let placed = self.send(&begun)?;
        begun.end(placed)
    }

    fn get(&self, pointer: &ColumnRef) -> Result<Vec<View>, TransportError> {
        let rows: u64 = pointer.runs.iter().map(|run| u64::from(run.len)).sum();
        let incarnation = self.client.channels.incarnation();
        let ticket = Ticket { incarnation, columns: vec![Pointer::from(pointer)], rows };
        let (schema, arrays) = block_on(self.repeated(&pointer.name, "a get", || self.get_once(&ticket)))?;
        let travel = |why: String| TransportError::Travel { column: pointer.name.clone(), why };
        let arrays = checked(schema, &arrays, rows).map_err(travel)?;
        Ok(Received::views(&self.client, arrays))
    }

    fn open(&self, partition: PartitionId, id: ColumnId) -> OpenCell {
        self.client.open.open(partition, id)
    }
}

/// A received array, checked; copied only when a buffer of it does not start on 64 bytes.
fn aligned(column: &Column, array: &ArrayRef) -> Result<ArrayRef, arrow_map::MapError> {
    fn on_64(data: &ArrayData) -> bool {
        let starts =
            |buffer: &arrow::buffer::Buffer| buffer.is_empty() || (buffer.as_ptr() as usize).is_multiple_of(64);
        data.buffers().iter().all(starts) && data.child_data().iter().all(on_64)
    }
    arrow_map::check(column, array)?;
    if on_64(&array.to_data()) { Ok(array.clone()) } else { arrow_map::copy(column, [array]) }
}
