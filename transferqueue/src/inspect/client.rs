//! The other end of the control socket.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{InspectError, Reply, Request};

const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a served store.
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// [`InspectError::Io`] when nobody serves there.
    pub fn connect(path: &Path) -> Result<Self, InspectError> {
        let stream = UnixStream::connect(path).map_err(InspectError::io(path, "connect"))?;
        let timeouts = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        timeouts.map_err(InspectError::io(path, "set timeouts"))?;
        Ok(Self { path: path.to_owned(), stream: BufReader::new(stream) })
    }

    /// Asks.
    ///
    /// # Errors
    /// [`InspectError::Io`] when the other side is gone or does not answer, [`InspectError::Refused`] with its words,
    /// [`InspectError::Protocol`] when it speaks another protocol.
    pub fn get(&mut self, request: &Request) -> Result<Reply, InspectError> {
        let mut line = serde_json::to_vec(request).expect("invariant: requests are plain values");
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).map_err(InspectError::io(&self.path, "ask"))?;
        let mut text = String::new();
        let read = self.stream.read_line(&mut text).map_err(InspectError::io(&self.path, "hear the answer"))?;
        if read == 0 {
            return Err(InspectError::Protocol {
                path: self.path.clone(),
                found: "no answer: the run has ended".to_owned(),
            });
        }
        match serde_json::from_str(&text) {
            Ok(Reply::Error(what)) => Err(InspectError::Refused { what }),
            Ok(reply) => Ok(reply),
            Err(error) => Err(InspectError::Protocol { path: self.path.clone(), found: error.to_string() }),
        }
    }
}
