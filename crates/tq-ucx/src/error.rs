//! What can go wrong, by what the caller can do about it.

use std::time::Duration;

/// Why something did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum Error {
    /// The other side has ended, or cannot be reached. What was under way on its endpoint is lost.
    #[error("{what}: the peer is gone or cannot be reached ({status}); connect again once it is there")]
    PeerGone { what: String, status: &'static str },
    /// The caller's deadline came first. The request goes on owning its buffer, and nobody hears of its end.
    #[error("{what}: not done after {waited:?}")]
    Late { what: String, waited: Duration },
    /// Its endpoint was dropped.
    #[error("{what}: cancelled, its endpoint was closed")]
    Cancelled { what: String },
    /// The worker was dropped.
    #[error("{what}: the worker has ended; endpoints do not outlive it")]
    Ended { what: String },
    /// More was asked or sent than there is room for.
    #[error("{what}: found {found}, expected {expected}")]
    Refused { what: String, found: String, expected: String },
    /// UCX refuses, for reasons of its own.
    #[error("{what}: UCX says: {status}")]
    Ucx { what: String, status: &'static str },
    /// The system refuses.
    #[error("{what}: {error}")]
    System { what: String, error: String },
}

impl Error {
    pub(crate) fn refused(what: impl Into<String>, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Refused { what: what.into(), found: found.into(), expected: expected.into() }
    }

    pub(crate) fn system(what: &str, error: impl std::fmt::Display) -> Self {
        Self::System { what: what.to_owned(), error: error.to_string() }
    }

    /// Whether the peer is gone: another connection may help, another try does not.
    pub fn is_peer_gone(&self) -> bool {
        matches!(self, Self::PeerGone { .. })
    }
}
