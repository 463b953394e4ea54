//! Messages of Flight under gRPC's prefixes, in pieces: what lies in memory anyway is sent from there.

use arrow::array::ArrayRef;
use arrow_flight::{FlightData, FlightDescriptor};
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use http::{HeaderMap, HeaderValue, Response, header::CONTENT_TYPE};
use http_body::Frame;
use http_body_util::StreamBody;
use prost::Message;
use tonic::{Status, body::Body};

use crate::{arrow_map, unit::arena::Layout, wire};

/// Pieces below this are copied beside their neighbours: a frame of HTTP/2 for each would cost more.
pub(crate) const SMALL: usize = 4 << 10;

/// A part of an array, as long as it is sent.
struct Part {
    array: ArrayRef,
    of: fn(&ArrayRef) -> &[u8],
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        (self.of)(&self.array)
    }
}

/// The one message of a put to its place: offsets and values of an array, which are its own cells and no others
/// ([`arrow_map::plain`]).
///
/// # Errors
/// More bytes than gRPC has a length for.
pub(crate) fn put(put: wire::Put, array: &ArrayRef) -> Result<Body, Status> {
    let Layout { rows, offsets, values } = Layout::of(array);
    let cmd = wire::InPlace { put, rows: rows as u32, offsets: offsets as u64, values: values as u64 };
    let descriptor = FlightDescriptor::new_cmd(cmd.encode_to_vec());
    let mut small = BytesMut::new();
    head(&FlightData { flight_descriptor: Some(descriptor), ..FlightData::default() }, offsets + values, &mut small)?;
    let part = |of| Part { array: array.clone(), of };
    let parts =
        [part(|array| arrow_map::offset_bytes(array)), part(|array| arrow_map::leaf_bytes(array).unwrap_or_default())];
    let mut pieces = Vec::with_capacity(4);
    for part in parts {
        if part.as_ref().len() < SMALL {
            small.put_slice(part.as_ref());
        } else {
            pieces.extend([small.split().freeze(), Bytes::from_owner(part)]);
        }
    }
    pieces.push(small.freeze());
    Ok(pieces_of(pieces))
}

/// A body of pieces.
pub(crate) fn pieces_of(pieces: Vec<Bytes>) -> Body {
    let pieces = pieces.into_iter().filter(|piece| !piece.is_empty()).map(|piece| Ok::<_, Status>(Frame::data(piece)));
    Body::new(StreamBody::new(stream::iter(pieces.collect::<Vec<_>>())))
}

/// A gRPC answer with this body.
pub(crate) fn answer(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// What an answer says behind its messages.
pub(crate) fn trailers(status: Status) -> Frame<Bytes> {
    let mut headers = HeaderMap::new();
    status.add_header(&mut headers).expect("invariant: what a status says is encoded for headers");
    Frame::trailers(headers)
}

/// A message up to its body: `[0, length][fields][key and length of the body]`.
///
/// # Errors
/// More bytes than gRPC has a length for.
pub(crate) fn head(fields: &FlightData, body: usize, out: &mut BytesMut) -> Result<(), Status> {
    /// Field 1000, of bytes.
    const DATA_BODY: [u8; 2] = [0xc2, 0x3e];
    let key = if body == 0 { 0 } else { DATA_BODY.len() + prost::length_delimiter_len(body) };
    let len = fields.encoded_len() + key + body;
    let len = u32::try_from(len).map_err(|_| {
        Status::out_of_range(format!("a message of {len} bytes; gRPC's end at {}: store smaller cells", u32::MAX))
    })?;
    out.put_u8(0);
    out.put_u32(len);
    fields.encode(out).expect("invariant: it grows");
    if body > 0 {
        out.put_slice(&DATA_BODY);
        prost::encode_length_delimiter(body, out).expect("invariant: it grows");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_grpc_has_no_length_for_is_refused() {
        let fields = FlightData { data_header: vec![1; 10].into(), ..FlightData::default() };
        let mut out = BytesMut::new();
        let refused = head(&fields, 5 << 30, &mut out).unwrap_err();
        assert_eq!(refused.message(), "a message of 5368709139 bytes; gRPC's end at 4294967295: store smaller cells");
        head(&fields, 1 << 31, &mut out).unwrap();
        // The fields as protobuf writes them, but for the body itself.
        let small =
            FlightData { data_header: vec![1; 10].into(), data_body: vec![2; 300].into(), ..FlightData::default() };
        let mut out = BytesMut::new();
        head(&fields, 300, &mut out).unwrap();
        assert_eq!([&out[5..], &[2; 300]].concat(), small.encode_to_vec());
        assert_eq!(out[..5], [&[0], &(small.encoded_len() as u32).to_be_bytes()[..]].concat());
    }
}
