//! Who may come in: the token, the store that is meant, and the number of connections. Asked before a message is read.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use tonic::{Code, Request, Status, service::Interceptor};

use super::{ServerError, socket::Admission};
use crate::{
    random,
    wire::{Failure, INCARNATION},
};

/// 32 random bytes in hexadecimal.
pub(super) fn token() -> io::Result<String> {
    Ok(random::bytes::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The token that a killed server has left in its file, if nobody else can have read or written it.
pub(super) fn left(path: &Path) -> Option<String> {
    let mut file = fs::File::open(path).ok()?;
    let found = file.metadata().ok()?;
    // A process may only rename over what is its own user's, and 0600 says that nobody else reads it.
    let ours = found.is_file()
        && found.permissions().mode() & 0o777 == 0o600
        && found.uid() == rustix::process::geteuid().as_raw();
    let mut token = String::new();
    file.read_to_string(&mut token).ok()?;
    (ours && token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(token)
}

/// Writes the token where only this user can read it; under another name first, so that nobody reads half of it.
pub(super) fn write(path: &Path, token: &str) -> Result<(), ServerError> {
    let draft = path.with_extension(format!("{}.token", std::process::id()));
    let written = || {
        drop(fs::remove_file(&draft));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(token.as_bytes())?;
        fs::rename(&draft, path)
    };
    written().map_err(|error| ServerError::Token { path: path.to_owned(), error })
}

#[derive(Clone)]
pub(crate) struct Gate {
    expected: String,
    incarnation: u64,
    connections: usize,
}

impl Gate {
    pub(crate) fn new(token: &str, incarnation: u64, connections: usize) -> Self {
        Self { expected: format!("Bearer {token}"), incarnation, connections }
    }
}

impl Interceptor for Gate {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        if request.extensions().get::<Admission>() == Some(&Admission::Over) {
            let text = format!("{} connections are open already; close one", self.connections);
            return Err(Failure::other(text).into_status(Code::ResourceExhausted));
        }
        let metadata = request.metadata();
        let sent = metadata.get("authorization").map(|value| value.as_bytes()).unwrap_or_default();
        if !same(sent, self.expected.as_bytes()) {
            let text = "no valid token: send `authorization: Bearer TOKEN` with the content of the server's token file";
            return Err(Failure::other(text).into_status(Code::Unauthenticated));
        }
        if let Some(sent) = metadata.get(INCARNATION) {
            let expected = sent.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or_default();
            if expected != self.incarnation {
                let refused = Failure::incarnation(expected, self.incarnation);
                return Err(refused.into_status(Code::FailedPrecondition));
            }
        }
        Ok(request)
    }
}

/// Compares in a time that does not tell how much is right.
pub(super) fn same(sent: &[u8], expected: &[u8]) -> bool {
    sent.len() == expected.len() && sent.iter().zip(expected).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}
