//! Why a store is not served.

use std::{io, net::SocketAddr, path::PathBuf};

use crate::error::Error;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum ServerError {
    /// The operating system refused.
    #[error("server at {address}: cannot {what}: {error}")]
    Io { address: SocketAddr, what: &'static str, error: io::Error },
    /// Nothing is encrypted, so only this host may connect.
    #[error(
        "server at {address}: not a loopback address, and nothing is encrypted; give `tls`, or say `insecure` to listen there all the same"
    )]
    Insecure { address: SocketAddr },
    /// The certificates cannot be used.
    #[error("server at {address}: TLS: {why}")]
    Tls { address: SocketAddr, why: String },
    /// Nothing can be given away through UCX.
    #[error("server at {address}: UCX: {why}")]
    Ucx { address: SocketAddr, why: String },
    /// The token cannot be written down.
    #[error("token file {}: {error}", .path.display())]
    Token { path: PathBuf, error: io::Error },
    /// The store cannot be looked at.
    #[error(transparent)]
    Store(#[from] Error),
}
