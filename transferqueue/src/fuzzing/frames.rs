//! Bytes as a stream of Flight messages: `[header length u16][body length u16][header][body]`, repeated, the last one as
//! long as bytes are left. The first byte of all says what the descriptor of the put of rows is.

use std::convert::Infallible;

use arrow_flight::{FlightData, FlightDescriptor};
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::StreamBody;
use prost::Message;
use tonic::body::Body;

use crate::bulk::incoming::Incoming;

/// The largest message that is taken.
const LIMIT: usize = 16 << 20;

pub(super) struct Frames<'a> {
    descriptor: Option<FlightDescriptor>,
    left: &'a [u8],
}

impl<'a> Frames<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        let Some((&kind, left)) = bytes.split_first() else { return Self { descriptor: None, left: bytes } };
        let descriptor = match kind {
            32 => FlightDescriptor::new_path(vec!["bare".to_owned()]),
            _ => FlightDescriptor::new_path(vec!["all".to_owned()]),
        };
        Self { descriptor: Some(descriptor), left }
    }

    fn cut(&mut self, len: usize) -> Bytes {
        let (taken, left) = self.left.split_at(len.min(self.left.len()));
        self.left = left;
        Bytes::copy_from_slice(taken)
    }
}

impl Iterator for Frames<'_> {
    type Item = FlightData;

    fn next(&mut self) -> Option<FlightData> {
        let (&[a, b, c, d], left) = self.left.split_first_chunk()?;
        self.left = left;
        let data_header = self.cut(u16::from_le_bytes([a, b]).into());
        let data_body = self.cut(u16::from_le_bytes([c, d]).into());
        Some(FlightData { flight_descriptor: self.descriptor.take(), data_header, data_body, ..FlightData::default() })
    }
}

/// A message as gRPC frames it.
pub(super) fn prefixed(message: &FlightData) -> Vec<u8> {
    let len = message.encoded_len() as u32;
    [&[0], &len.to_be_bytes()[..], &message.encode_to_vec()].concat()
}

/// An answer of these bytes in pieces, whose server says that all is well.
pub(super) fn body(bytes: &[u8], piece: usize) -> Body {
    let pieces = bytes.chunks(piece).map(|piece| Frame::data(Bytes::copy_from_slice(piece)));
    let trailers = HeaderMap::from_iter([(tonic::Status::GRPC_STATUS, HeaderValue::from_static("0"))]);
    let frames: Vec<_> = pieces.chain([Frame::trailers(trailers)]).map(Ok::<_, Infallible>).collect();
    Body::new(StreamBody::new(stream::iter(frames)))
}

pub(super) fn incoming(body: Body) -> Incoming {
    Incoming::new(body, LIMIT)
}

/// The inverse of [`Frames`], for seeds.
#[cfg(test)]
pub(super) fn written(kind: u8, messages: &[FlightData]) -> Vec<u8> {
    let mut out = vec![kind];
    for FlightData { data_header, data_body, .. } in messages {
        for part in [data_header, data_body] {
            out.extend_from_slice(&u16::try_from(part.len()).unwrap().to_le_bytes());
        }
        out.extend_from_slice(data_header);
        out.extend_from_slice(data_body);
    }
    out
}
