//! Package `tq.v1` for cells that come through UCX: the bodies of the action `tq.ucx`, [`Ask`] and [`Say`].
//!
//! A reader enters with its worker's address and hears the server's; the answer to [`Question::Enter`] is a stream that says
//! nothing more and lasts as long as the reader is there. [`Question::Get`] is answered with places, as on one host
//! ([`shm`](super::shm)), which are granted: held until they are released or the stream ends. Then either the reader
//! fetches the places one-sidedly, with the keys that came with them, and releases the grant: the answer says whether it was
//! held until then, and what was read is worth nothing otherwise. Or it waits for messages, each with a tag that it has drawn at
//! random, and asks for them with [`Question::Send`]; the grant goes with the last place that is sent.
//!
//! The places of an array with offsets are its own cells' alone: its values begin with the one that its first offset names.

use bytes::Bytes;

use super::{Nothing, Pointer, shm::Granted};

/// What a server says of UCX at the handshake.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Offer {
    /// What it speaks: `shm`, `tcp`.
    #[prost(string, repeated, tag = "1")]
    pub transports: Vec<String>,
    /// Its network devices by name; all when empty.
    #[prost(string, repeated, tag = "2")]
    pub devices: Vec<String>,
    /// Readers fetch one-sidedly; otherwise they are sent what they ask for.
    #[prost(bool, tag = "3")]
    pub fetched: bool,
}

/// From the client.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ask {
    /// Which of them.
    #[prost(oneof = "Question", tags = "1, 2, 3, 4")]
    pub question: Option<Question>,
}

/// The alternatives of an [`Ask`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Question {
    /// The address of the reader's worker (`tq_ucx::Address`).
    #[prost(bytes = "bytes", tag = "1")]
    Enter(Bytes),
    /// Where do these cells lie?
    #[prost(message, tag = "2")]
    Get(Get),
    /// Send them.
    #[prost(message, tag = "3")]
    Send(Send),
    /// They have been fetched.
    #[prost(message, tag = "4")]
    Release(Release),
}

/// Which cells.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Get {
    /// Whose question.
    #[prost(fixed64, tag = "1")]
    pub reader: u64,
    /// They.
    #[prost(message, required, tag = "2")]
    pub pointer: Pointer,
}

/// Places of a grant that are to be sent, a message each.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Send {
    /// Whose question.
    #[prost(fixed64, tag = "1")]
    pub reader: u64,
    /// Of which grant.
    #[prost(uint64, tag = "2")]
    pub grant: u64,
    /// The first of the places: each piece has one for its offsets, if there are any, then one for its values.
    #[prost(uint64, tag = "3")]
    pub first: u64,
    /// The tag of the message with that place, with the next one, and so on.
    #[prost(fixed64, repeated, tag = "4")]
    pub tags: Vec<u64>,
}

/// A grant is not needed any more.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Release {
    /// Whose question.
    #[prost(fixed64, tag = "1")]
    pub reader: u64,
    /// Its number.
    #[prost(uint64, tag = "2")]
    pub grant: u64,
}

/// From the server.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Say {
    /// Which of them.
    #[prost(oneof = "Word", tags = "1, 2, 3, 4, 5")]
    pub word: Option<Word>,
}

/// The alternatives of a [`Say`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Word {
    /// Come in.
    #[prost(message, tag = "1")]
    Welcome(Entered),
    /// Cells, by place.
    #[prost(message, tag = "2")]
    Located(Located),
    /// Some of the cells lie where UCX cannot give them away, or there is no way to this reader; and why.
    #[prost(string, tag = "3")]
    Elsewhere(String),
    /// Whether the grant was held until now.
    #[prost(bool, tag = "4")]
    Held(bool),
    /// No such reader is here: enter first.
    #[prost(message, tag = "5")]
    Stranger(Nothing),
}

/// A reader is there.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Entered {
    /// Its number, drawn at random: another life of the server knows nothing of it.
    #[prost(fixed64, tag = "1")]
    pub reader: u64,
    /// The address of the server's worker.
    #[prost(bytes = "bytes", tag = "2")]
    pub address: Bytes,
}

/// Cells, and what opens the segments that they lie in.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Located {
    /// The cells. Keys of segments that are `gone` open nothing any more.
    #[prost(message, required, tag = "1")]
    pub granted: Granted,
    /// Keys that this reader has not been told, where it is to fetch.
    #[prost(message, repeated, tag = "2")]
    pub keys: Vec<SegmentKey>,
}

/// What opens a segment.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SegmentKey {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
    /// The key (`tq_ucx::Key`).
    #[prost(bytes = "bytes", tag = "2")]
    pub key: Bytes,
}
