//! Rounds of a gang, asked once. Who may come is the catalog's to say: a rank of a life that has ended is sent back.

use event_listener::EventListener;

use super::{Store, meeting::Outcome};
use crate::{
    catalog::wait::{Cause, Wait},
    error::Error,
    gang::Brought,
    ids::{SessionId, TaskId},
};

/// What coming to a round brought.
pub(crate) enum Met {
    All(Outcome),
    /// Some rank has not come. Whatever could change that wakes the listener.
    Later(Wait, EventListener),
}

impl Store {
    /// A session comes to a round of its gang, or looks again.
    ///
    /// # Errors
    /// [`Error::Refused`]: the gang has ended (begin again), the session is none of its ranks, or the ranks disagree.
    /// [`Error::Stopped`].
    pub(crate) fn come(&self, session: SessionId, task: TaskId, brought: &mut Brought) -> Result<Met, Error> {
        // Registered first: a gang that ends, or a rank that comes, from here on wakes it.
        let listener = self.shared.waiters.listen_gangs();
        let (seat, name, sessions) = {
            let core = self.shared.lock()?;
            if let Some(reason) = &core.stopped {
                return Err(Error::Stopped { reason: reason.clone() });
            }
            let state = core.catalog.state();
            let seat = state.seat(task, session, brought.epoch)?;
            (seat, state.definition().tasks[task.0 as usize].name.clone(), state.workers(task))
        };
        let ranks = sessions.len() as u32;
        let present = self.shared.meetings.come((task, &name), (brought.epoch, seat, ranks), brought)?;
        if let Some(outcome) = present.outcome {
            if present.last {
                self.shared.waiters.wake_gangs();
            }
            return Ok(Met::All(outcome));
        }
        let cause = |rank: &u32| Cause {
            task: format!("rank {rank}"),
            rows: 0,
            lease: None,
            holder: sessions[*rank as usize].clone().map(|worker| format!("worker {worker}")),
            for_ms: present.for_ms,
            note: "has not come".to_owned(),
        };
        let wait = Wait {
            who: format!("round {} of the gang of `{name}` (epoch {})", brought.number, brought.epoch),
            wants: format!("{ranks} ranks"),
            have: format!("{} there", ranks as usize - present.missing.len()),
            causes: present.missing.iter().map(cause).collect(),
        };
        Ok(Met::Later(wait, listener))
    }
}
