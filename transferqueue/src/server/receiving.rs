//! Cells of a put, received where they are to lie: room is asked for by their lengths, which come first, and the pieces of HTTP's
//! body are copied there, once.

#[cfg(test)]
mod tests;

use arrow_flight::{FlightDescriptor, PutResult, error::FlightError};
use bytes::{BufMut, BytesMut};
use futures::stream;
use http::Response;
use http_body::Frame;
use http_body_util::StreamBody;
use prost::Message;
use tonic::{Code, Status, body::Body};

use super::{
    limits,
    service::{Service, invalid, status},
    writing::Destination,
};
use crate::{
    arrow_map,
    bulk::{
        incoming::{DATA_BODY, DESCRIPTOR, Incoming},
        outgoing,
    },
    error::Error,
    schema::Kind,
    transport::TransportError,
    unit::{
        UnitError,
        arena::{Filler, Layout},
    },
    wire::{self, decode},
};

/// Receives the one message of a put ([`wire::InPlace`]), and holds its cells for the session.
///
/// # Errors
/// A status that says what is wrong with it, or why there is no room.
pub(crate) async fn put(service: &Service, body: Body) -> Result<wire::Placed, Status> {
    let mut sent = Incoming::new(body, limits::PUT_BYTES.saturating_add(limits::ENTER_BYTES));
    let announced = announced(&mut sent).await.map_err(broken)?;
    let Some((descriptor, body)) = announced else { return Err(invalid("a put without a message")) };
    let wire::InPlace { put, rows, offsets, values } = decode("put", &descriptor).map_err(invalid)?;
    let refused = |error: Error| status(&error);
    let to = Destination::of(service, put.partition, put.column).map_err(refused)?;
    let layout = to.layout(rows, offsets, values).map_err(|error| refused(error.into()))?;
    if layout.offsets.checked_add(layout.values) != Some(body) {
        return Err(invalid(format!("{offsets} bytes of offsets and {values} of values, and {body} in the message")));
    }
    let _under_way = service.under_way(layout.bytes()).await?;
    let offsets = sent.gather(layout.offsets).await.map_err(broken)?;
    fits(service, &to, layout, &offsets)?;
    let units = service.store.units();
    let reserved = service.aside_for(layout.bytes(), || units.reserve(Filler::Store, to.column(), layout));
    let placed = match reserved.map_err(|error| refused(TransportError::Unit(error).into()))? {
        Some((unit, mut reserved)) => {
            reserved.fill_offsets(&offsets);
            sent.copy(reserved.values_mut()).await.map_err(broken)?;
            to.filled(service, put, &unit, reserved)
        }
        // On the heap it is the buffers themselves that are kept.
        None => {
            let values = sent.gather(layout.values).await.map_err(broken)?;
            let array = arrow_map::from_buffers(to.column(), layout.rows, offsets, values);
            let map = |error| TransportError::Unit(UnitError::Map(error));
            array.map_err(|error| map(error).into()).and_then(|array| to.brought(service, put, &array))
        }
    };
    placed.map_err(refused)
}

/// The command of a message's descriptor, and how many bytes of cells follow.
async fn announced(sent: &mut Incoming) -> Result<Option<(bytes::Bytes, usize)>, FlightError> {
    if !sent.begin().await? {
        return Ok(None);
    }
    let mut cmd = bytes::Bytes::new();
    while let Some((field, len)) = sent.field().await? {
        match field {
            DATA_BODY => return Ok(Some((cmd, len))),
            DESCRIPTOR if len <= limits::ENTER_BYTES => {
                let mut descriptor = vec![0; len];
                sent.copy(&mut descriptor).await?;
                let descriptor = FlightDescriptor::decode(descriptor.as_slice());
                cmd = descriptor.map_err(|error| FlightError::ProtocolError(error.to_string()))?.cmd;
            }
            _ => sent.pass(len).await?,
        }
    }
    Ok(Some((cmd, 0)))
}

fn broken(error: FlightError) -> Status {
    match error {
        FlightError::Tonic(status) => *status,
        error => invalid(error.to_string()),
    }
}

/// A cell that no message could bring back is not taken.
fn fits(service: &Service, to: &Destination, layout: Layout, offsets: &[u8]) -> Result<(), Status> {
    let (most, step) = (service.message_bytes, arrow_map::step_bytes(&to.column().kind));
    let largest = match to.column().kind {
        Kind::Dense { .. } if layout.rows > 0 => step,
        _ => {
            let ends: Vec<i64> = offsets
                .chunks_exact(4)
                .map(|end| i32::from_le_bytes([end[0], end[1], end[2], end[3]]).into())
                .collect();
            let steps = ends.windows(2).map(|cell| cell[1].saturating_sub(cell[0])).max().unwrap_or_default();
            usize::try_from(steps).unwrap_or_default().saturating_mul(step)
        }
    };
    if largest <= most {
        return Ok(());
    }
    let why = format!("a cell of {largest} bytes; a message has at most {most} (`message_bytes`)");
    Err(status(&TransportError::Travel { column: to.column().name.clone(), why }.into()))
}

/// Says where the cells of a put lie.
pub(super) fn answer(placed: &wire::Placed) -> Response<Body> {
    let result = PutResult { app_metadata: placed.encode_to_vec().into() };
    let mut message = BytesMut::new();
    message.put_u8(0);
    message.put_u32(result.encoded_len() as u32);
    result.encode(&mut message).expect("invariant: it grows");
    let frames = [Frame::data(message.freeze()), outgoing::trailers(Status::new(Code::Ok, ""))];
    outgoing::answer(Body::new(StreamBody::new(stream::iter(frames.map(Ok::<_, Status>)))))
}
