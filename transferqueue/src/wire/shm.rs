//! Package `tq.v1` on one host: messages on a Unix socket, with segments of the store's memory beside them.
//!
//! A frame is its length (u32, little-endian) and one message: [`Ask`] from the client, [`Say`] from the server. The server
//! answers a question with one message; before it, [`Segments`] bring the segments that this connection has not seen, their
//! descriptors in the order of the message. A release is not answered.
//!
//! What was granted is held until it is released or the connection ends. A put is two questions: [`Question::Reserve`] is
//! answered with a place in a segment that this connection alone may write to, and once the cells lie there, [`Question::Fill`]
//! with where they count as put. Room that is not filled is free again when it is released or the connection ends. A command that
//! does not wait is a question as well; cells of a few bytes come along with it ([`Along`](super::Along)).

use super::{Answer, Call, Failure, Nothing, Placed, Pointer, Put};

/// A client numbers the rooms that it may release from here on; grants, which the server numbers from 1, do not come here.
pub(crate) const FIRST_ROOM: u64 = 1 << 63;

/// Descriptors that travel with one frame, at most.
pub(crate) const DESCRIPTORS: usize = 64;

/// From the client.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ask {
    /// Which of them.
    #[prost(oneof = "Question", tags = "1, 2, 3, 4, 5, 7")]
    pub question: Option<Question>,
}

/// The alternatives of an [`Ask`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Question {
    /// The first word: may I?
    #[prost(message, tag = "1")]
    Enter(Enter),
    /// Where do these cells lie?
    #[prost(message, tag = "2")]
    Get(Pointer),
    /// This grant, or this room (from [`FIRST_ROOM`] on), is not needed any more.
    #[prost(uint64, tag = "3")]
    Release(u64),
    /// Where shall these cells lie?
    #[prost(message, tag = "4")]
    Reserve(Reserve),
    /// They lie there.
    #[prost(message, tag = "5")]
    Fill(Fill),
    /// A command; its `wait_ms` does not count: nobody is woken here.
    #[prost(message, tag = "7")]
    Call(Call),
}

/// Cells of a column that are about to be put.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Reserve {
    /// Of which partition.
    #[prost(uint32, tag = "1")]
    pub partition: u32,
    /// The column's position there.
    #[prost(uint32, tag = "2")]
    pub column: u32,
    /// How many cells.
    #[prost(uint32, tag = "3")]
    pub rows: u32,
    /// Bytes of their offsets; 0 for dense columns. The values begin at the next multiple of 64 behind them.
    #[prost(uint64, tag = "4")]
    pub offsets: u64,
    /// Bytes of their values.
    #[prost(uint64, tag = "5")]
    pub values: u64,
    /// The client's own number for the room. It uses each once, on all of its connections.
    #[prost(uint64, tag = "6")]
    pub room: u64,
}

/// Reserved room is filled.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Fill {
    /// The room's number.
    #[prost(uint64, tag = "1")]
    pub room: u64,
    /// Who puts what, as over Flight; the column is the one that the room was reserved for.
    #[prost(message, required, tag = "2")]
    pub put: Put,
}

/// Who asks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Enter {
    /// The token of the store's server.
    #[prost(string, tag = "1")]
    pub token: String,
    /// The store that is meant.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
}

/// From the server.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Say {
    /// Which of them.
    #[prost(oneof = "Word", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub word: Option<Word>,
}

/// The alternatives of a [`Say`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Word {
    /// Come in.
    #[prost(message, tag = "1")]
    Welcome(Nothing),
    /// Segments that the next answer speaks of.
    #[prost(message, tag = "2")]
    Segments(Segments),
    /// Cells, by place.
    #[prost(message, tag = "3")]
    Granted(Granted),
    /// Some of the cells lie, or would lie, where no other process can map them, and why.
    #[prost(string, tag = "4")]
    Elsewhere(String),
    /// Refused.
    #[prost(message, tag = "5")]
    Failure(Failure),
    /// Room, by place.
    #[prost(message, tag = "6")]
    Room(Room),
    /// Where cells count as put.
    #[prost(message, tag = "7")]
    Placed(Placed),
    /// What a command brings.
    #[prost(message, tag = "8")]
    Answer(Answer),
}

/// Segments, in the order of the descriptors beside them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Segments {
    /// Their numbers.
    #[prost(uint64, repeated, tag = "1")]
    pub ids: Vec<u64>,
    /// Bytes of each.
    #[prost(uint64, repeated, tag = "2")]
    pub bytes: Vec<u64>,
    /// Whether the descriptors are those of segments that this connection fills. (The others can only be read.)
    #[prost(bool, tag = "3")]
    pub to_fill: bool,
}

/// Room for the cells of a put.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Room {
    /// Where it lies.
    #[prost(message, required, tag = "1")]
    pub place: Place,
    /// Segments that are gone, as in [`Granted`].
    #[prost(uint64, repeated, tag = "2")]
    pub gone: Vec<u64>,
}

/// Cells in the order of the pointer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Granted {
    /// The number to release.
    #[prost(uint64, tag = "1")]
    pub grant: u64,
    /// JSON of the column.
    #[prost(bytes = "bytes", tag = "2")]
    pub column: bytes::Bytes,
    /// Arrays, one after the other.
    #[prost(message, repeated, tag = "3")]
    pub pieces: Vec<Piece>,
    /// Segments that are gone: this connection hears of them no more.
    #[prost(uint64, repeated, tag = "4")]
    pub gone: Vec<u64>,
}

/// An array.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Piece {
    /// How many cells.
    #[prost(uint32, tag = "1")]
    pub rows: u32,
    /// Their offsets; absent for dense columns.
    #[prost(message, optional, tag = "2")]
    pub offsets: Option<Place>,
    /// The values, where offsets count from; absent when there are none.
    #[prost(message, optional, tag = "3")]
    pub values: Option<Place>,
}

/// A range of a segment.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Place {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
    /// First byte.
    #[prost(uint64, tag = "2")]
    pub at: u64,
    /// Bytes.
    #[prost(uint64, tag = "3")]
    pub len: u64,
}
