//! One call that may have to wait. How its caller sleeps (a thread, a task) is the caller's business; the rules are here.

#[cfg(test)]
mod tests;

use event_listener::EventListener;

use super::{
    Durability, Store,
    core::{Attempt, Sender},
    held::{Cells, Refused, Spot},
};
use crate::{
    catalog::{
        Refusal,
        command::{Command, Reply, Request, Sizes},
        limits::SESSION_TIMEOUT_MS,
        wait::Wait,
    },
    error::Error,
    ids::SessionId,
};

/// What asking once brought.
pub(crate) enum Asked {
    Answered(Reply),
    /// Not now. Whatever could change that wakes the listener: sleep on it and ask again. `None`: the caller does not sleep.
    Later(Wait, Option<EventListener>),
}

impl Store {
    /// Asks once, ready to `sleep` when there is no answer yet; the listener of a call that has to wait was registered *before* the catalog was asked, so that no
    /// wake-up is lost.
    pub(crate) fn ask(&self, sender: Sender, request: &mut Request, sleep: bool) -> Result<Asked, Error> {
        // Mostly nothing has to be waited for, and no listener is needed.
        match self.shared.attempt(sender, request, false)? {
            Attempt::Answered(reply) => return Ok(Asked::Answered(reply)),
            Attempt::Later(wait) if !sleep => return Ok(Asked::Later(wait, None)),
            Attempt::Later(_) => {}
        }
        let listener = self.shared.waiters.listen(&request.command);
        Ok(match self.shared.attempt(sender, request, true)? {
            Attempt::Answered(reply) => Asked::Answered(reply),
            Attempt::Later(wait) => Asked::Later(wait, listener),
        })
    }

    /// Whether a call waits for the disk.
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.shared.durability == Durability::Host
    }

    /// Holds cells of a column for a session of another process until it names them, lets them go, or ends. `number`: the
    /// client's own for this put; one that came before counts, and where it lies is told.
    ///
    /// Whoever is told of it may count on the bytes ([`Store::promise_bytes`]).
    ///
    /// # Errors
    /// [`Error::Refused`] when the session has ended, or holds too many.
    pub(crate) fn hold(&self, session: SessionId, number: u64, cells: Cells) -> Result<(Spot, Sizes), Error> {
        let mut core = self.shared.lock()?;
        let core = &mut *core;
        if !core.catalog.state().has_session(session) {
            return Err(Refusal::SessionEnded { session, timeout_ms: SESSION_TIMEOUT_MS }.into());
        }
        let (partition, _) = cells.key;
        core.held.put(session, number, cells).map_err(|refused| {
            let described = core.catalog.state().describe(partition);
            let partition = described.map_or_else(|_| partition.to_string(), |described| described.name);
            let (found, expected) = match refused {
                Refused::Many(puts) => (
                    format!("session {session} has put {puts} arrays that no commit names"),
                    "a commit, or a release, before the next one",
                ),
                Refused::Large(bytes) => (
                    format!("session {session} has put {bytes} bytes that no commit names"),
                    "a commit, or a release, before more than that is put",
                ),
                Refused::Late => (
                    format!("put {number} of session {session} was named by a command or let go before"),
                    "a new number for a new put",
                ),
            };
            Refusal::Cells { partition, found, expected: expected.to_owned() }.into()
        })
    }

    /// Where a put lies that was sent before under the same number.
    pub(crate) fn held(&self, session: SessionId, number: u64) -> Result<Option<(Spot, Sizes)>, Error> {
        Ok(self.shared.lock()?.held.find(session, number))
    }

    /// Returns once the bytes of every put so far are on the disk, where calls wait for it.
    ///
    /// # Errors
    /// [`Error::Broken`] when they do not get there.
    pub(crate) fn promise_bytes(&self) -> Result<(), Error> {
        self.shared.bytes_to_disk()
    }

    /// Lets cells go that a session of another process has put: by place, and by number.
    pub(crate) fn let_go(
        &self,
        session: SessionId,
        spots: impl IntoIterator<Item = Spot>,
        puts: &[u64],
    ) -> Result<(), Error> {
        let mut core = self.shared.lock()?;
        core.held.let_go(session, spots);
        if !puts.is_empty() && core.catalog.state().has_session(session) {
            core.held.let_go_puts(session, puts);
        }
        Ok(())
    }

    /// Whether a call is a session's next one, rather than one that was answered before or will be refused.
    pub(crate) fn is_next(&self, caller: (SessionId, u64)) -> Result<bool, Error> {
        let request = Request { caller: Some(caller), command: Command::Heartbeat };
        Ok(self.shared.lock()?.catalog.is_new(&request))
    }
}
