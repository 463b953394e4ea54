//! Commands are checked against the state and become events; nothing is changed here.
//!
//! [`decide`] answers one command. [`due`] finds what follows by itself: admissions, cuts, ends of stream, superfluous
//! versions and chunks. The catalog applies both in one record.

mod admission;
mod claim;
mod cut;
mod gang;
mod leases;
mod outputs;
mod partitions;
mod publish;
mod save;
mod settle;
mod spill;
mod write;

pub(crate) use self::{
    claim::{could_serve, servable},
    settle::due,
};
use super::{
    command::{Command, Reply},
    event::Event,
    refusal::Refusal,
    state::State,
};
use crate::ids::{Millis, SessionId};

/// What a command does.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// To be applied in order, all or none.
    pub events: Vec<Event>,
    /// The answer, true once they are applied.
    pub reply: Reply,
}

impl Decision {
    fn new(events: Vec<Event>, reply: Reply) -> Self {
        Self { events, reply }
    }

    fn done(events: Vec<Event>) -> Self {
        Self::new(events, Reply::Done)
    }

    fn nothing(reply: Reply) -> Self {
        Self::new(Vec::new(), reply)
    }
}

/// Decides one command of a caller at a store time. `caller`: `None` for the store itself.
///
/// # Errors
/// A [`Refusal`] says what is wrong with the call; the state is as before.
pub fn decide(state: &State, command: &Command, caller: Option<SessionId>, now: Millis) -> Result<Decision, Refusal> {
    let session = || caller.ok_or(Refusal::NoSession);
    match command {
        Command::OpenSession { name, here } => Ok(leases::open_session(state, name, *here, now)),
        Command::Heartbeat => session().map(|_| Decision::nothing(Reply::Done)),
        Command::CloseSession => Ok(Decision::done(leases::end_session(state, session()?, false))),
        Command::CreatePartition(partition) => partitions::create(state, partition, caller),
        Command::DeletePartition(id) => partitions::delete(state, *id),
        Command::ClosePartition(id) => partitions::close(state, *id),
        Command::Put { partition, rows, cells } => partitions::put(state, *partition, rows, cells),
        Command::Drop { partition, rows } => write::drop_outside(state, *partition, rows),
        Command::Claim { task, limit } => claim::claim(state, *task, *limit, session()?, now),
        Command::Join { task, rank } => gang::join(state, *task, *rank, session()?),
        Command::ClaimAny { tasks, limit } => claim::any(state, tasks, *limit, session()?, now),
        Command::Renew { lease, progress } => leases::renew(state, *lease, *progress, session()?, now),
        Command::Write { lease, cells, notes } => write::write(state, *lease, cells, notes, session()?),
        Command::Save { lease, cells, rows } => save::save(state, *lease, cells, rows, session()?),
        Command::Forget { partition, rows } => Ok(Decision::done(save::forget(state, *partition, rows))),
        Command::Commit { lease, rows, cells, notes, drops } => {
            let outputs = write::Outputs { cells, notes, drops };
            write::commit(state, *lease, rows, outputs, session()?)
        }
        Command::Release { lease, rows } => leases::release(state, *lease, rows, session()?),
        Command::Fail { lease, rows, error } => leases::fail(state, *lease, rows, error, session()?),
        Command::Offer { model, cycle, weights, state: trainer } => {
            publish::offer(state, *model, *cycle, (*weights, *trainer), caller)
        }
        Command::EndSchedule { cycle } => session().and_then(|_| publish::end_schedule(state, *cycle)),
        Command::Pin { model, version } => publish::pin(state, *model, *version, session()?),
        Command::Unpin { model, version } => publish::unpin(state, *model, *version, session()?),
        Command::Lose(session) if state.has_session(*session) => {
            Ok(Decision::done(leases::end_session(state, *session, true)))
        }
        Command::Lose(_) => Ok(Decision::nothing(Reply::Done)),
        Command::Spill { partition, file, chunks } => {
            Ok(Decision::done(spill::spill(state, *partition, *file, chunks)))
        }
        Command::Tick => Ok(Decision::done(leases::tick(state, now))),
        Command::Settle => Ok(Decision::done(due(state))),
    }
}
