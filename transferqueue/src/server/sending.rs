//! What a ticket names, sent from where it lies.
//!
//! tonic wants a message in one piece: a copy out of the unit, and another into its send buffer. Here a message is its small
//! parts (gRPC's prefix, the fields before the body, Arrow's header) and then the Arrow buffers themselves. HTTP/2 asks for the next
//! piece when its reader's window has room, and until then nothing is encoded or gathered: a reader that stops reading holds
//! one batch here, most of which is the store's own memory.

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use arrow::{
    buffer::Buffer,
    error::ArrowError,
    ipc::{root_as_message, writer::StreamEncoder},
};
use arrow_flight::{FlightData, Ticket, flight_service_server::FlightServiceServer};
use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::Frame;
use tonic::{Status, Streaming, body::Body, codec::BufferSettings, server::NamedService};
use tonic_prost::ProstDecoder;

use super::{
    reading::{self, Selection},
    receiving,
    service::{Service, invalid},
};
use crate::{
    bulk::outgoing::{SMALL, answer, head, trailers},
    wire,
};

/// All methods of Flight; `DoGet`, and `DoPut` of cells to their place, are answered here, the others by tonic.
#[derive(Clone)]
pub(super) struct Sending {
    service: Service,
    others: FlightServiceServer<Service>,
}

impl Sending {
    pub(super) fn new(service: Service) -> Self {
        let others = FlightServiceServer::new(service.clone())
            .max_decoding_message_size(service.message_bytes)
            .max_encoding_message_size(usize::MAX);
        Self { service, others }
    }
}

impl NamedService for Sending {
    const NAME: &'static str = <FlightServiceServer<Service> as NamedService>::NAME;
}

impl tower_service::Service<Request<Body>> for Sending {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let in_place = request.uri().path() == wire::DO_PUT && request.headers().contains_key(wire::IN_PLACE);
        if request.uri().path() != wire::DO_GET && !in_place {
            return self.others.call(request);
        }
        let service = self.service.clone();
        if in_place {
            return Box::pin(async move {
                let placed = receiving::put(&service, request.into_body()).await;
                Ok(placed.map_or_else(Status::into_http, |placed| receiving::answer(&placed)))
            });
        }
        Box::pin(async move {
            let selected = selected(&service, request.into_body()).await;
            let answer = selected.and_then(|selection| Outgoing::new(selection).map_err(|error| failed(&error)));
            Ok(answer.map_or_else(Status::into_http, Outgoing::into_response))
        })
    }
}

/// The cells that a request asks for.
async fn selected(service: &Service, body: Body) -> Result<Selection, Status> {
    let limit = Some(service.message_bytes);
    let mut sent = Streaming::<Ticket>::new_request(ProstDecoder::new(BufferSettings::default()), body, None, limit);
    let ticket = sent.message().await?.ok_or_else(|| invalid("a get without a ticket"))?;
    reading::select(service, &ticket.ticket)
}

/// The body of an answer: messages of Flight under gRPC's prefixes, and the status behind them.
pub(crate) struct Outgoing {
    selection: Selection,
    /// Until all messages are made.
    encoder: Option<StreamEncoder>,
    ready: VecDeque<Bytes>,
    /// Until it is sent.
    status: Option<Status>,
}

impl Outgoing {
    pub(crate) fn new(selection: Selection) -> Result<Self, ArrowError> {
        let encoder = Some(StreamEncoder::try_new(&selection.schema)?);
        Ok(Self { selection, encoder, ready: VecDeque::new(), status: Some(Status::ok("")) })
    }

    fn into_response(self) -> Response<Body> {
        answer(Body::new(self))
    }

    /// Makes the next messages.
    fn advance(&mut self, mut encoder: StreamEncoder) -> Result<(), Status> {
        let encoded = match self.selection.batches.next().transpose()? {
            Some(batch) => {
                let encoded = encoder.encode(&batch);
                self.encoder = Some(encoder);
                encoded
            }
            None => encoder.finish(),
        };
        frame(encoded.map_err(|error| failed(&error))?, &mut self.ready)
    }
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let answer = self.get_mut();
        while answer.ready.is_empty()
            && let Some(encoder) = answer.encoder.take()
        {
            if let Err(status) = answer.advance(encoder) {
                (answer.encoder, answer.status) = (None, Some(status));
            }
        }
        let piece = answer.ready.pop_front().map(Frame::data);
        Poll::Ready(piece.or_else(|| answer.status.take().map(trailers)).map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.status.is_none()
    }
}

fn failed(error: &ArrowError) -> Status {
    Status::internal(format!("cannot encode what was asked for: {error}"))
}

/// Messages of an Arrow stream, `[mark, length][header][body]`, as messages of Flight under gRPC's prefixes:
/// `[0, length][fields, header][key and length of the body][body]`. Large buffers of a body stay what they are.
fn frame(stream: Vec<Buffer>, ready: &mut VecDeque<Bytes>) -> Result<(), Status> {
    let torn = || Status::internal("Arrow's encoder has made a message that ends early");
    let (mut parts, mut small) = (stream.into_iter(), BytesMut::new());
    while let Some(mark) = parts.next() {
        let len = mark.get(4..).and_then(|len| Some(u32::from_le_bytes(len.try_into().ok()?))).ok_or_else(torn)?;
        let mut header = Vec::with_capacity(len as usize);
        while header.len() < len as usize {
            header.extend_from_slice(&parts.next().ok_or_else(torn)?);
        }
        if header.is_empty() {
            // The mark of the stream's end, which Flight does without.
            break;
        }
        let mut left = root_as_message(&header).map_or(-1, |message| message.bodyLength());
        let body = usize::try_from(left).map_err(|_| torn())?;
        head(&FlightData { data_header: header.into(), ..FlightData::default() }, body, &mut small)?;
        while left > 0 {
            let part = parts.next().ok_or_else(torn)?;
            left -= part.len() as i64;
            if part.len() < SMALL {
                small.put_slice(&part);
            } else {
                ready.extend([small.split().freeze(), part.into()]);
            }
        }
    }
    if !small.is_empty() {
        ready.push_back(small.freeze());
    }
    Ok(())
}
