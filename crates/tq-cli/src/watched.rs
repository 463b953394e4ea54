//! A job that is asked again and again.

use std::path::{Path, PathBuf};

use anyhow::Result;
use transferqueue::inspect::{Client, InspectError};

use crate::find;

/// A connection that is made anew when it is lost: the socket lets a client go that asks nothing for two minutes.
pub(crate) struct Watched {
    socket: PathBuf,
    client: Client,
}

impl Watched {
    pub(crate) fn connect(socket: &Path) -> Result<Self> {
        Ok(Self { socket: socket.to_owned(), client: find::connect(socket)? })
    }

    /// What `ask` brings; `None` when nobody serves at the socket any more: the run has ended.
    pub(crate) fn ask<T>(&mut self, mut ask: impl FnMut(&mut Client) -> Result<T>) -> Result<Option<T>> {
        let mut again = true;
        loop {
            match ask(&mut self.client) {
                Err(error) if is_lost(&error) => {
                    let Ok(client) = Client::connect(&self.socket) else { return Ok(None) };
                    self.client = client;
                    if !std::mem::take(&mut again) {
                        return Err(error);
                    }
                }
                answer => return answer.map(Some),
            }
        }
    }
}

fn is_lost(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(InspectError::Io { .. } | InspectError::Protocol { .. }))
}
