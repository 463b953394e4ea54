//! Messages taken out of the pieces of an HTTP body as they come: cells are copied once, to where they will be read
//! (`super::pool`), or where they are to lie. What is not there yet is waited for; what cannot be a message is refused by what
//! is wrong with it.

#[cfg(test)]
mod tests;

use arrow::buffer::{Buffer, MutableBuffer};
use arrow_flight::error::FlightError;
use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use tonic::{Status, body::Body};

use super::pool::Pool;

/// gRPC's prefix: whether it is compressed, and the message's length.
const PREFIX: usize = 5;
/// Fields of a Flight message.
pub(crate) const DESCRIPTOR: u64 = 1;
pub(crate) const DATA_HEADER: u64 = 2;
pub(crate) const DATA_BODY: u64 = 1000;
/// Protobuf's kinds of fields.
const VARINT: u64 = 0;
const EIGHT_BYTES: u64 = 1;
const BYTES: u64 = 2;
const FOUR_BYTES: u64 = 5;

/// Messages under way.
pub(crate) struct Incoming {
    body: Body,
    /// What has come and is not looked at yet.
    piece: Bytes,
    /// Bytes that are left of the message.
    left: usize,
    /// Bytes of the largest message that is taken.
    limit: usize,
}

/// What a message of Flight carries of Arrow: a header (a flatbuffer), and a body that begins on 64 bytes.
#[derive(Default)]
pub(crate) struct Message {
    pub(crate) header: Vec<u8>,
    pub(crate) body: Bytes,
}

fn refuse<T>(why: impl Into<String>) -> Result<T, FlightError> {
    Err(FlightError::ProtocolError(why.into()))
}

impl Incoming {
    pub(crate) fn new(body: Body, limit: usize) -> Self {
        Self { body, piece: Bytes::new(), left: 0, limit }
    }

    /// The next message; `None` behind the last one, if the server says that all is well.
    ///
    /// # Errors
    /// The server's status, a connection that ends before there is one, or what is wrong with the message.
    pub(crate) async fn next(&mut self, pool: &Pool) -> Result<Option<Message>, FlightError> {
        if !self.begin().await? {
            return Ok(None);
        }
        let mut message = Message::default();
        while let Some((field, len)) = self.field().await? {
            match field {
                DATA_HEADER => {
                    message.header = vec![0; len];
                    self.copy(&mut message.header).await?;
                }
                DATA_BODY => {
                    let mut block = pool.take(len);
                    self.copy(block.bytes()).await?;
                    message.body = block.freeze();
                }
                _ => self.pass(len).await?,
            }
        }
        Ok(Some(message))
    }

    /// Begins the next message; `false`: there is none.
    pub(crate) async fn begin(&mut self) -> Result<bool, FlightError> {
        if !self.more().await? {
            return Ok(false);
        }
        self.left = PREFIX;
        let [compressed, len @ ..] = self.array::<PREFIX>().await?;
        if compressed != 0 {
            return refuse(format!("a message whose first byte is {compressed}; it is 0, since nothing is compressed"));
        }
        let (len, limit) = (u32::from_be_bytes(len) as usize, self.limit);
        if len > limit {
            return refuse(format!("a message of {len} bytes, at most {limit} are taken (`message_bytes`)"));
        }
        self.left = len;
        Ok(true)
    }

    /// The next field of bytes of the message, and how many there are, which are then to be taken; `None` at its end. What is not of bytes is passed over.
    pub(crate) async fn field(&mut self) -> Result<Option<(u64, usize)>, FlightError> {
        while self.left > 0 {
            let key = self.varint().await?;
            match (key >> 3, key & 7) {
                (field, BYTES) => return Ok(Some((field, self.length().await?))),
                (field @ (DATA_HEADER | DATA_BODY), kind) => {
                    return refuse(format!("field {field} of a message is of kind {kind}, expected bytes"));
                }
                (_, kind) => self.skip(kind).await?,
            }
        }
        Ok(None)
    }

    /// Whether there is another byte, once that is known. Not to be asked again behind the end.
    async fn more(&mut self) -> Result<bool, FlightError> {
        while self.piece.is_empty() {
            let Some(frame) = self.body.frame().await else {
                return Err(Status::unavailable("the messages broke off").into());
            };
            match frame?.into_data() {
                Ok(piece) => self.piece = piece,
                Err(frame) => {
                    let Ok(trailers) = frame.into_trailers() else { continue };
                    return status(&trailers).map(|()| false).map_err(FlightError::from);
                }
            }
        }
        Ok(true)
    }

    /// The next bytes of the message. The copy of a get, and of a put.
    pub(crate) async fn copy(&mut self, mut into: &mut [u8]) -> Result<(), FlightError> {
        self.take(into.len())?;
        while !into.is_empty() {
            let len = self.come().await?.min(into.len());
            let (now, later) = into.split_at_mut(len);
            self.piece.copy_to_slice(now);
            into = later;
        }
        Ok(())
    }

    /// The next bytes of the message, into memory that grows as they come: for lengths that are not believed.
    pub(crate) async fn gather(&mut self, len: usize) -> Result<Buffer, FlightError> {
        self.take(len)?;
        let mut memory = MutableBuffer::new(0);
        while memory.len() < len {
            let now = self.come().await?.min(len - memory.len());
            memory.extend_from_slice(&self.piece.split_to(now));
        }
        Ok(memory.into())
    }

    async fn skip(&mut self, kind: u64) -> Result<(), FlightError> {
        match kind {
            VARINT => self.varint().await.map(drop),
            EIGHT_BYTES => self.pass(8).await,
            FOUR_BYTES => self.pass(4).await,
            kind => refuse(format!("a field of kind {kind}, which protobuf does not have")),
        }
    }

    /// Passes over the next bytes of the message.
    pub(crate) async fn pass(&mut self, mut len: usize) -> Result<(), FlightError> {
        self.take(len)?;
        while len > 0 {
            let now = self.come().await?.min(len);
            self.piece.advance(now);
            len -= now;
        }
        Ok(())
    }

    /// Waits for bytes of the message; how many there are.
    async fn come(&mut self) -> Result<usize, FlightError> {
        match self.more().await? {
            true => Ok(self.piece.len()),
            false => refuse("the answer ends in the middle of a message, and says that all is well"),
        }
    }

    /// Counts bytes that are to be read as the message's.
    fn take(&mut self, len: usize) -> Result<(), FlightError> {
        match self.left.checked_sub(len) {
            Some(left) => self.left = left,
            None => return refuse(format!("a field of {len} bytes where {} are left of its message", self.left)),
        }
        Ok(())
    }

    async fn array<const N: usize>(&mut self) -> Result<[u8; N], FlightError> {
        let mut bytes = [0; N];
        self.copy(&mut bytes).await?;
        Ok(bytes)
    }

    async fn varint(&mut self) -> Result<u64, FlightError> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = self.array().await?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        refuse("a number of more than ten bytes")
    }

    /// The length of a field of bytes.
    async fn length(&mut self) -> Result<usize, FlightError> {
        let (found, left) = (self.varint().await?, self.left);
        match usize::try_from(found) {
            Ok(len) if len <= left => Ok(len),
            _ => refuse(format!("a field of {found} bytes where {left} are left of its message")),
        }
    }
}

/// What headers or trailers say of a call.
///
/// # Errors
/// Any status but that all is well; that there is none.
pub(crate) fn status(headers: &http::HeaderMap) -> Result<(), Status> {
    match Status::from_header_map(headers) {
        Some(status) if status.code() == tonic::Code::Ok => Ok(()),
        Some(status) => Err(status),
        None => Err(Status::unavailable("the answer ended without a status")),
    }
}
