//! A session in the store's own process: it holds rows for a while, and ends with the process.

use super::random::Random;
use crate::{
    Store,
    catalog::command::{Command, Reply, Request},
    ids::{LeaseId, Rows, SessionId, TaskId},
    store::{asking::Asked, core::Sender},
};

#[derive(Default)]
pub(super) struct Guest {
    session: Option<SessionId>,
    lease: Option<(LeaseId, Rows)>,
}

impl Guest {
    /// Once a second: comes, takes rows, gives them back, shows life. In the end it goes.
    pub(super) fn act(&mut self, store: &Store, random: &mut Random, leaving: bool) {
        let Some(session) = self.session else {
            if !leaving && random.chance(20) {
                let open = Command::OpenSession { name: "guest".to_owned(), here: true };
                if let Some(Reply::Session(session)) = Self::ask(store, None, open) {
                    self.session = Some(session);
                }
            }
            return;
        };
        let lease = self.lease.take_if(|_| random.chance(50));
        let command = match lease {
            _ if leaving => Command::CloseSession,
            Some((lease, rows)) => Command::Release { lease, rows },
            None if self.lease.is_none() && random.chance(20) => {
                Command::Claim { task: TaskId(random.below(3) as u32), limit: 2 }
            }
            _ => Command::Heartbeat,
        };
        match Self::ask(store, Some(session), command) {
            Some(Reply::Claimed(claimed)) => self.lease = Some((claimed.lease, claimed.batch.rows)),
            // Refused when it had ended before.
            Some(Reply::Done) | None if leaving => *self = Self::default(),
            _ => {}
        }
    }

    /// Its process has ended.
    pub(super) fn forget(&mut self, ended: &mut u64) {
        *ended += u64::from(self.session.is_some());
        *self = Self::default();
    }

    fn ask(store: &Store, session: Option<SessionId>, command: Command) -> Option<Reply> {
        let mut request = Request { caller: None, command };
        match store.ask(Sender::Here(session), &mut request, false) {
            Ok(Asked::Answered(reply)) => Some(reply),
            _ => None,
        }
    }
}
