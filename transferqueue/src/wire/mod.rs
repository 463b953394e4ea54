//! Package `tq.v1`: what travels between a client and a server beside Arrow's own messages.
//!
//! Control is Flight's `DoAction`: an action's name, one message of this module as its body, and one or more
//! [`Answer`]s. Bulk is `DoGet` (the ticket is a [`Ticket`]) and `DoPut` (with the header `tq-in-place`: the
//! descriptor's command is an [`InPlace`], the body offsets and values, the answer's metadata a [`Placed`]). The messages are written here by hand as `prost` reads them, so that building needs
//! no `protoc`; the tags are the contract. **Only additions are made**: a tag keeps its meaning and its type for ever,
//! a new field gets a new tag and is optional, a field that is dropped leaves its tag unused. What changes meaning gets
//! another [`PROTOCOL`], and both sides say at the handshake which one they speak.
//!
//! Commands, replies, refusals and waits travel as the JSON that the event log writes (`docs/decisions/0006`): one
//! description of each, one set of rules for adding to it.
//!
//! ```
//! use prost::Message;
//! use transferqueue::wire::Hello;
//! let hello = Hello { protocol: 1, features: vec!["flight".into()] };
//! assert_eq!(Hello::decode(hello.encode_to_vec().as_slice())?, hello);
//! # Ok::<(), prost::DecodeError>(())
//! ```

mod convert;
mod failure;
pub mod shm;
#[cfg(test)]
mod tests;
pub(crate) mod tls;
pub mod ucx;

use bytes::Bytes;

use crate::ids::ChunkId;

pub use self::failure::{Failure, Gone, Incarnation, Kind};
pub(crate) use self::{
    convert::{decode, json, parse, rows, runs},
    failure::refused,
};

/// The protocol of this build.
pub const PROTOCOL: u32 = 2;

/// Metadata with the incarnation of the store that a request is for.
pub(crate) const INCARNATION: &str = "tq-incarnation";

/// The method that cells come by.
pub(crate) const DO_GET: &str = "/arrow.flight.protocol.FlightService/DoGet";

/// The method that cells go by.
pub(crate) const DO_PUT: &str = "/arrow.flight.protocol.FlightService/DoPut";

/// The header of a `DoPut` whose one message is an [`InPlace`] and the bytes themselves.
pub(crate) const IN_PLACE: &str = "tq-in-place";

/// Names of the actions.
pub mod action {
    /// [`Hello`](super::Hello) → [`Welcome`](super::Welcome) in [`Answer::reply`](super::Answer).
    pub const HANDSHAKE: &str = "tq.handshake";
    /// [`Call`](super::Call) → a reply; or *later* and, once it is worth asking again, *woken*.
    pub const CALL: &str = "tq.call";
    /// [`Resolve`](super::Resolve) → [`Resolved`](super::Resolved).
    pub const RESOLVE: &str = "tq.resolve";
    /// [`Name`](super::Name) → [`Number`](super::Number).
    pub const PARTITION: &str = "tq.partition";
    /// [`Number`](super::Number) → JSON of the partition's description.
    pub const DESCRIBE: &str = "tq.describe";
    /// [`Number`](super::Number) of a model → JSON of where it stands.
    pub const NEWEST: &str = "tq.newest";
    /// [`Number`](super::Number) of a partition → [`Number`](super::Number) of rows ever born in it.
    pub const BORN: &str = "tq.born";
    /// Nothing → JSON of the definition.
    pub const DEFINITION: &str = "tq.definition";
    /// [`Name`](super::Name) with the reason → nothing.
    pub const STOP: &str = "tq.stop";
    /// JSON of an inspection request → JSON of its reply.
    pub const INSPECT: &str = "tq.inspect";
    /// [`Meet`](super::Meet) → [`Met`](super::Met), or *later*: some rank has not come within `wait_ms`.
    pub const MEET: &str = "tq.meet";
    /// [`ucx::Ask`](super::ucx::Ask) → [`ucx::Say`](super::ucx::Say); an entry is answered by a stream that lasts.
    pub const UCX: &str = "tq.ucx";
    /// A message between the program's own processes; the store carries it and does not look inside.
    pub const PROGRAM: &str = "tq.program";
    /// All of them, with what they do, for `ListActions`.
    pub const ALL: [(&str, &str); 13] = [
        (HANDSHAKE, "protocol, incarnation, features"),
        (CALL, "a numbered command of a session"),
        (RESOLVE, "a pointer to rows and columns"),
        (PARTITION, "the live partition of a name"),
        (DESCRIBE, "a partition's description"),
        (NEWEST, "where a model stands"),
        (BORN, "rows ever born in a partition"),
        (DEFINITION, "what the run declared"),
        (STOP, "stop the run for everyone"),
        (INSPECT, "status, tasks, columns, ledger, partitions, sessions, versions, peek"),
        (MEET, "a round of a gang: sums of vectors, messages of each rank"),
        (UCX, "cells that are read through UCX"),
        (PROGRAM, "a message between the program's own processes"),
    ];
}

/// The client's first word.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// The protocol it speaks.
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// What it can do beyond the least.
    #[prost(string, repeated, tag = "2")]
    pub features: Vec<String>,
}

/// The server's first word.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Welcome {
    /// The protocol it speaks.
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// Tells this store from others, and from its life before a restore. Sent back with every request as metadata
    /// `tq-incarnation`; another store then refuses the request.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// What it can do beyond the least.
    #[prost(string, repeated, tag = "3")]
    pub features: Vec<String>,
    /// Largest message it takes, in bytes.
    #[prost(uint64, tag = "4")]
    pub message_bytes: u64,
    /// Where readers on the same host find its memory (the name of an abstract Unix socket), if it can be mapped.
    #[prost(string, optional, tag = "5")]
    pub shm: Option<String>,
    /// How it gives bytes away through UCX, if it does.
    #[prost(message, optional, tag = "6")]
    pub ucx: Option<ucx::Offer>,
}

/// A command.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Call {
    /// Whose; absent when a session is opened.
    #[prost(uint64, optional, tag = "1")]
    pub session: Option<u64>,
    /// The number of its last answered call plus 1; the same number again is answered with the same reply.
    #[prost(uint64, tag = "2")]
    pub seq: u64,
    /// JSON of the command.
    #[prost(bytes = "bytes", tag = "3")]
    pub command: Bytes,
    /// How long to wait for the moment when asking again is worth it, in milliseconds; absent: do not wait.
    #[prost(uint64, optional, tag = "4")]
    pub wait_ms: Option<u64>,
    /// Cells that were put and that no command will name.
    #[prost(message, repeated, tag = "5")]
    pub released: Vec<Spot>,
    /// Grows with every call of the session, whatever its number; the same call sent again keeps it. A call that is older
    /// than one the server has seen is refused: an unanswered call's number may have been used again since. Absent: no check.
    #[prost(uint64, optional, tag = "6")]
    pub attempt: Option<u64>,
    /// Small cells that it names, and that come along with it.
    #[prost(message, repeated, tag = "7")]
    pub along: Vec<Along>,
    /// Numbers of puts that came, or would have come, along with a call, and that no command will name.
    #[prost(uint64, repeated, tag = "8")]
    pub unwanted: Vec<u64>,
}

/// What a server can that takes them.
pub(crate) const FEATURE_ALONG: &str = "along";

/// Where a command says that cells lie which come along with it, until the store has put them.
pub(crate) const ALONG: ChunkId = ChunkId(u64::MAX);

/// A put of few bytes that comes along with the command that names it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Along {
    /// Position among the cells that the command names.
    #[prost(uint32, tag = "1")]
    pub cell: u32,
    /// Who puts what.
    #[prost(message, required, tag = "2")]
    pub put: Put,
    /// How many cells.
    #[prost(uint32, tag = "3")]
    pub rows: u32,
    /// Their offsets (i32, little-endian, from 0); none for dense columns.
    #[prost(bytes = "bytes", tag = "4")]
    pub offsets: Bytes,
    /// Their values.
    #[prost(bytes = "bytes", tag = "5")]
    pub values: Bytes,
}

/// What an action brings.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Answer {
    /// Which of them.
    #[prost(oneof = "Outcome", tags = "1, 2, 3, 4")]
    pub outcome: Option<Outcome>,
}

/// The alternatives of an [`Answer`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Outcome {
    /// The reply: JSON, or the message that the action names.
    #[prost(bytes = "bytes", tag = "1")]
    Reply(Bytes),
    /// Not now: JSON of what is waited for. The number is free again; `Woken` follows if `wait_ms` was given.
    #[prost(bytes = "bytes", tag = "2")]
    Later(Bytes),
    /// Ask again: something changed, or the time is up.
    #[prost(message, tag = "3")]
    Woken(Nothing),
    /// Refused; nothing changed, and the number is free again.
    #[prost(message, tag = "4")]
    Failure(Failure),
}

/// No content.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Nothing {}

/// A name, or a reason.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Name {
    /// It.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// An id, or a count.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Number {
    /// It.
    #[prost(uint64, tag = "1")]
    pub number: u64,
}

/// Consecutive rows, or slots.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Run {
    /// The first.
    #[prost(uint64, tag = "1")]
    pub first: u64,
    /// How many.
    #[prost(uint64, tag = "2")]
    pub len: u64,
}

/// Which pointer is wanted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Resolve {
    /// Of which partition.
    #[prost(uint64, tag = "1")]
    pub partition: u64,
    /// Which rows; ignored with `all`.
    #[prost(message, repeated, tag = "2")]
    pub rows: Vec<Run>,
    /// All live rows.
    #[prost(bool, tag = "3")]
    pub all: bool,
    /// Which columns.
    #[prost(string, repeated, tag = "4")]
    pub columns: Vec<String>,
}

/// A pointer, and what is known of its rows.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Resolved {
    /// JSON of the pointer.
    #[prost(bytes = "bytes", tag = "1")]
    pub pointer: Bytes,
    /// JSON of one entry a row.
    #[prost(bytes = "bytes", tag = "2")]
    pub heads: Bytes,
}

/// A rank comes to a round of its gang. Sent again it does nothing twice.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Meet {
    /// Whose rank.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// Of which task.
    #[prost(uint32, tag = "2")]
    pub task: u32,
    /// Which life of the gang.
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    /// Which round of it, from 1.
    #[prost(uint64, tag = "4")]
    pub number: u64,
    /// Whether vectors are added up; otherwise every rank hears what each has brought.
    #[prost(bool, tag = "5")]
    pub sum: bool,
    /// What it brings.
    #[prost(message, optional, tag = "6")]
    pub values: Option<Vector>,
    /// How long to wait for the others, in milliseconds.
    #[prost(uint64, tag = "7")]
    pub wait_ms: u64,
}

/// A vector of one type, or a message.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Vector {
    /// 0: plain bytes; 1: f32; 2: f64; both little-endian.
    #[prost(uint32, tag = "1")]
    pub dtype: u32,
    /// Its elements.
    #[prost(bytes = "bytes", tag = "2")]
    pub data: Bytes,
}

/// What came of a round: one sum, or what each rank brought, in the order of ranks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Met {
    /// It.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Vector>,
}

/// A ticket: columns of the same rows, by pointer. Identity, not permission.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ticket {
    /// The store that made it.
    #[prost(uint64, tag = "1")]
    pub incarnation: u64,
    /// The columns, all of as many cells.
    #[prost(message, repeated, tag = "2")]
    pub columns: Vec<Pointer>,
    /// How many rows.
    #[prost(uint64, tag = "3")]
    pub rows: u64,
}

/// Where a column of a batch lies.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pointer {
    /// Its name as the reader knows it.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The partition that stores it.
    #[prost(uint32, tag = "2")]
    pub partition: u32,
    /// Its position there.
    #[prost(uint32, tag = "3")]
    pub column: u32,
    /// Its cells.
    #[prost(message, repeated, tag = "4")]
    pub runs: Vec<Cells>,
}

/// Consecutive cells of a chunk.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Cells {
    /// The chunk.
    #[prost(uint64, tag = "1")]
    pub chunk: u64,
    /// Its generation when the pointer was made.
    #[prost(uint32, tag = "2")]
    pub generation: u32,
    /// First slot.
    #[prost(uint32, tag = "3")]
    pub slot: u32,
    /// Number of cells.
    #[prost(uint32, tag = "4")]
    pub len: u32,
}

/// Which column a `DoPut` brings cells of.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Put {
    /// For whom they are held until a call names them.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// Of which partition.
    #[prost(uint32, tag = "2")]
    pub partition: u32,
    /// Its position there.
    #[prost(uint32, tag = "3")]
    pub column: u32,
    /// The client's own number for it: sent a second time, the cells are not stored a second time.
    #[prost(uint64, tag = "4")]
    pub number: u64,
    /// They are saved, unfinished work.
    #[prost(bool, tag = "5")]
    pub partial: bool,
}

/// What a `DoPut` brings: the cells' offsets (i32, little-endian, from 0), and behind them their values.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct InPlace {
    /// For whom, and of which column.
    #[prost(message, required, tag = "1")]
    pub put: Put,
    /// How many cells.
    #[prost(uint32, tag = "2")]
    pub rows: u32,
    /// Bytes of offsets; 0 for dense columns.
    #[prost(uint64, tag = "3")]
    pub offsets: u64,
    /// Bytes of values.
    #[prost(uint64, tag = "4")]
    pub values: u64,
}

/// Where cells were put.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Placed {
    /// Chunk and first slot.
    #[prost(message, optional, tag = "1")]
    pub spot: Option<Spot>,
    /// Payload bytes of every cell, when all are the same.
    #[prost(uint32, optional, tag = "2")]
    pub uniform: Option<u32>,
    /// Payload bytes of each cell otherwise.
    #[prost(uint32, repeated, tag = "3")]
    pub each: Vec<u32>,
}

/// A cell's place.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Spot {
    /// The chunk.
    #[prost(uint64, tag = "1")]
    pub chunk: u64,
    /// The slot.
    #[prost(uint32, tag = "2")]
    pub slot: u32,
}
