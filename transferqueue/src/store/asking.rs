//! One call that may have to wait. How its caller sleeps (a thread, a task) is the caller's business; the rules are here.

use event_listener::EventListener;

use super::{
    Durability, Store,
    core::{Attempt, Sender},
    held::{MAX_HELD, Spot},
};
use crate::{
    catalog::{
        Refusal,
        command::{Reply, Request, Sizes},
        limits::SESSION_TIMEOUT_MS,
        wait::Wait,
    },
    error::Error,
    ids::SessionId,
    transport::Placed,
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
        match self.shared.attempt(sender, request)? {
            Attempt::Answered(reply) => return Ok(Asked::Answered(reply)),
            Attempt::Later(wait) if !sleep => return Ok(Asked::Later(wait, None)),
            Attempt::Later(_) => {}
        }
        let listener = self.shared.waiters.listen(&request.command);
        Ok(match self.shared.attempt(sender, request)? {
            Attempt::Answered(reply) => Asked::Answered(reply),
            Attempt::Later(wait) => Asked::Later(wait, listener),
        })
    }

    /// Whether a call waits for the disk.
    pub(crate) fn waits_for_disk(&self) -> Result<bool, Error> {
        Ok(self.shared.lock()?.durability == Durability::Host)
    }

    /// Holds cells for a session of another process until it names them, lets them go, or ends. `number`: the client's
    /// own for this put.
    ///
    /// # Errors
    /// [`Error::Refused`] when the session has ended, or holds too many.
    pub(crate) fn hold(&self, session: SessionId, number: u64, placed: Placed) -> Result<(), Error> {
        let mut core = self.shared.lock()?;
        if !core.catalog.state().has_session(session) {
            return Err(Refusal::SessionEnded { session, timeout_ms: SESSION_TIMEOUT_MS }.into());
        }
        let full = |placed: Placed| Refusal::Cells {
            partition: format!("{placed:?}"),
            found: format!("session {session} has put {MAX_HELD} arrays that no commit names"),
            expected: "a commit, or a release".to_owned(),
        };
        Ok(core.held.put(session, number, placed).map_err(full)?)
    }

    /// Where a put lies that was sent before under the same number.
    pub(crate) fn held(&self, session: SessionId, number: u64) -> Result<Option<(Spot, Sizes)>, Error> {
        Ok(self.shared.lock()?.held.find(session, number))
    }

    /// Lets cells go that a session of another process has put.
    pub(crate) fn let_go(&self, session: SessionId, spots: impl IntoIterator<Item = Spot>) -> Result<(), Error> {
        self.shared.lock()?.held.let_go(session, spots);
        Ok(())
    }
}
