//! What can go wrong, by what the caller can do about it.

use std::{io, time::Duration};

/// Why something did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum Error {
    /// The other side has ended, or cannot be reached, or does not let this one in.
    #[error("{what}: the peer is gone or cannot be reached ({why}); connect again once it is there")]
    PeerGone { what: String, why: String },
    /// The key opens nothing over this connection: it was revoked, or is another guest's.
    #[error("{what}: the peer does not share these bytes with this connection, or not any more")]
    NotShared { what: String },
    /// The deadline came first. The connection has ended with it.
    #[error("{what}: not done after {waited:?}")]
    Late { what: String, waited: Duration },
    /// A read has failed before, and the connection has ended with it.
    #[error("{what}: the connection has ended when an earlier read failed; connect again")]
    Ended { what: String },
    /// More was asked than there is, or there is nobody to ask.
    #[error("{what}: found {found}, expected {expected}")]
    Refused { what: String, found: String, expected: String },
    /// The system, or the device, refuses.
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

    /// What the last call has left in `errno`.
    pub(crate) fn last(what: &str) -> Self {
        let error = io::Error::last_os_error();
        let hint = match error.raw_os_error() {
            Some(libc::ENODEV) => "; there is no RDMA device at that address (`rdma link` lists those of this host)",
            Some(libc::ENOMEM) => "; the limit of locked memory may be too low (`ulimit -l`)",
            _ => "",
        };
        Self::system(what, format!("{error}{hint}"))
    }

    pub(crate) fn gone(what: &str, why: impl Into<String>) -> Self {
        Self::PeerGone { what: what.to_owned(), why: why.into() }
    }

    /// Whether the peer is gone: another connection may help, another try over this one does not.
    pub fn is_peer_gone(&self) -> bool {
        matches!(self, Self::PeerGone { .. })
    }
}

/// A call that gives 0, or -1 and the reason.
pub(crate) fn check(what: &str, result: libc::c_int) -> Result<(), Error> {
    if result == 0 { Ok(()) } else { Err(Error::last(what)) }
}
