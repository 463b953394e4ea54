//! Errors that cross the wire and come out as the same [`Error`] on the other side.

use bytes::Bytes;
use prost::Message;
use tonic::{Code, Status};

use super::{json, parse};
use crate::{error::Error, ids::ChunkId, transport::TransportError, unit::UnitError};

/// A text longer than this is cut before it is sent.
const MAX_TEXT: usize = 2_000;

/// Why a request was not served.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Failure {
    /// Which of them.
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<Kind>,
}

/// The alternatives of a [`Failure`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    /// JSON of the catalog's refusal.
    #[prost(bytes = "bytes", tag = "1")]
    Refused(Bytes),
    /// The run is being stopped, and why.
    #[prost(string, tag = "2")]
    Stopped(String),
    /// The store is unusable, and why.
    #[prost(string, tag = "3")]
    Broken(String),
    /// A cell is not there any more.
    #[prost(message, tag = "4")]
    Gone(Gone),
    /// Another store answers.
    #[prost(message, tag = "5")]
    Incarnation(Incarnation),
    /// Anything else.
    #[prost(string, tag = "6")]
    Other(String),
}

/// Cells that are not there any more.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Gone {
    /// Name of the column.
    #[prost(string, tag = "1")]
    pub column: String,
    /// Of which chunk.
    #[prost(uint64, tag = "2")]
    pub chunk: u64,
    /// The first slot that was asked for.
    #[prost(uint32, tag = "3")]
    pub slot: u32,
    /// The slot behind the last one.
    #[prost(uint32, tag = "4")]
    pub end: u32,
}

/// Two stores' numbers.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Incarnation {
    /// Of the store that the request is for.
    #[prost(uint64, tag = "1")]
    pub expected: u64,
    /// Of the store that answers.
    #[prost(uint64, tag = "2")]
    pub found: u64,
}

impl Failure {
    pub(crate) fn other(text: impl Into<String>) -> Self {
        Self { kind: Some(Kind::Other(shortened(text.into()))) }
    }

    pub(crate) fn incarnation(expected: u64, found: u64) -> Self {
        Self { kind: Some(Kind::Incarnation(Incarnation { expected, found })) }
    }

    /// What to send for an error.
    pub(crate) fn of(error: &Error) -> Self {
        let kind = match error {
            Error::Refused(refusal) => Kind::Refused(json(refusal)),
            Error::Stopped { reason } => Kind::Stopped(reason.clone()),
            Error::Broken { what } => Kind::Broken(what.clone()),
            Error::Log(error) => Kind::Broken(error.to_string()),
            Error::Transport(TransportError::Gone { column, gone: UnitError::Gone { chunk, slot, end } }) => {
                Kind::Gone(Gone { column: column.clone(), chunk: chunk.0, slot: *slot, end: *end })
            }
            other => return Self::other(other.to_string()),
        };
        Self { kind: Some(kind) }
    }

    /// The error it stands for, of the server at `url`.
    pub(crate) fn into_error(self, url: &str) -> Error {
        let server = |why: String| Error::Server { url: url.to_owned(), why };
        match self.kind {
            Some(Kind::Refused(refusal)) => match parse("refusal", &refusal) {
                Ok(refusal) => Error::Refused(refusal),
                Err(why) => server(why),
            },
            Some(Kind::Stopped(reason)) => Error::Stopped { reason },
            Some(Kind::Broken(what)) => Error::Broken { what },
            Some(Kind::Gone(Gone { column, chunk, slot, end })) => {
                let gone = UnitError::Gone { chunk: ChunkId(chunk), slot, end };
                Error::Transport(TransportError::Gone { column, gone })
            }
            Some(Kind::Incarnation(Incarnation { expected, found })) => {
                Error::Incarnation { url: url.to_owned(), expected, found }
            }
            Some(Kind::Other(why)) => server(why),
            None => server("refused the request without a reason this client knows".to_owned()),
        }
    }

    /// As a gRPC status: the same words for a stock client, the failure itself in the details.
    pub(crate) fn into_status(self, code: Code) -> Status {
        let text = match &self.kind {
            Some(Kind::Refused(_) | Kind::Gone(_) | Kind::Incarnation(_)) => {
                self.clone().into_error("this server").to_string()
            }
            Some(Kind::Stopped(text) | Kind::Broken(text) | Kind::Other(text)) => text.clone(),
            None => String::new(),
        };
        let details = self.encode_to_vec();
        // Details travel in a header, and headers have a limit: a long refusal keeps its words alone.
        let details = if details.len() > MAX_TEXT { Self::other(text.clone()).encode_to_vec() } else { details };
        Status::with_details(code, shortened(text), details.into())
    }
}

/// What a status says, for the caller of the server at `url`; `None` when the connection was lost (or the server is
/// going away), so that sending again is in order.
pub(crate) fn refused(status: &Status, url: &str) -> Option<Error> {
    if !status.details().is_empty()
        && let Ok(failure) = Failure::decode(status.details())
    {
        return Some(failure.into_error(url));
    }
    match status.code() {
        Code::Unavailable | Code::Cancelled | Code::Unknown | Code::Internal | Code::DeadlineExceeded => None,
        code => Some(Error::Server { url: url.to_owned(), why: format!("{} ({code:?})", status.message()) }),
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}
