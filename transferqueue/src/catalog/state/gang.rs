//! The ranks of a training task: who sits where, and shares that were cut and not taken yet.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{
    super::{
        command::{Share, Totals},
        event::ShareCut,
        refusal::Refusal,
    },
    State,
    cursor::Cursor,
};
use crate::ids::{SessionId, TaskId};

/// The ranks that train one task together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gang {
    /// How often it has ended: what belongs to one life is never mistaken for another's.
    pub(crate) epoch: u64,
    /// The session of each rank that has joined.
    pub(crate) seats: Vec<Option<SessionId>>,
    /// Shares that some rank has yet to take.
    pub(crate) cut: Option<Cut>,
    /// The cycle whose last batch this life was given: what remains of it is rank 0's offer.
    pub(crate) closing: Option<u64>,
    /// Why it ended last.
    pub(crate) ended: Option<String>,
    /// Sessions that were ranks of lives that ended and live on: they have yet to hear of it.
    #[serde(default)]
    pub(crate) unseated: BTreeSet<SessionId>,
}

/// Batches cut into shares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cut {
    pub(crate) cycle: u64,
    pub(crate) index: u64,
    pub(crate) last: bool,
    /// One entry a rank.
    pub(crate) shares: Vec<ShareCut>,
    pub(crate) totals: Vec<Totals>,
    /// Which ranks have heard of theirs.
    pub(crate) taken: Vec<bool>,
}

impl Gang {
    pub(crate) fn new(ranks: u32) -> Self {
        let (seats, unseated) = (vec![None; ranks as usize], BTreeSet::new());
        Self { epoch: 0, seats, cut: None, closing: None, ended: None, unseated }
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.seats.len() as u32
    }

    /// The rank that a session has in this life.
    pub(crate) fn rank_of(&self, session: SessionId) -> Option<u32> {
        self.seats.iter().position(|seat| *seat == Some(session)).map(|rank| rank as u32)
    }

    /// Ranks that have not joined.
    pub(crate) fn missing(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.seats).filter(|(_, seat)| seat.is_none()).map(|(rank, _)| rank)
    }

    /// Ranks that have not taken their share of the last cut.
    pub(crate) fn behind(&self) -> impl Iterator<Item = u32> + '_ {
        let taken = self.cut.iter().flat_map(|cut| &cut.taken);
        (0..).zip(taken).filter(|(_, taken)| !**taken).map(|(rank, _)| rank)
    }

    /// The next life begins, without ranks.
    pub(crate) fn end(&mut self, why: &str) {
        self.epoch += 1;
        self.unseated.extend(self.seats.iter_mut().filter_map(Option::take));
        (self.cut, self.closing, self.ended) = (None, None, Some(why.to_owned()));
    }
}

impl State {
    /// The rank that a session has in this life of a task's gang.
    ///
    /// # Errors
    /// [`Refusal::GangEnded`] when that life is over; [`Refusal::Gang`] for a session that never joined, or a task
    /// without a gang.
    pub(crate) fn seat(&self, task: TaskId, session: SessionId, epoch: u64) -> Result<u32, Refusal> {
        let cursor = self.cursor(task)?;
        let name = || cursor.def.name.clone();
        let Some(gang) = &cursor.gang else {
            let (found, hint) = ("the task declares none".to_owned(), "a worker of it claims alone".to_owned());
            return Err(Refusal::Gang { task: name(), found, hint });
        };
        let rank = seat(cursor, gang, session)?;
        if epoch != gang.epoch {
            let why = gang.ended.clone().unwrap_or_default();
            return Err(Refusal::GangEnded { task: name(), why: format!("{why} (epoch {epoch}, now {})", gang.epoch) });
        }
        Ok(rank)
    }

    /// The worker on each rank of a task's gang.
    pub(crate) fn workers(&self, task: TaskId) -> Vec<Option<String>> {
        let gang = self.cursors.get(task.0 as usize).and_then(|cursor| cursor.gang.as_ref());
        let worker = |seat: &Option<SessionId>| Some(self.sessions.get(&(*seat)?)?.name.clone());
        gang.map_or_else(Vec::new, |gang| gang.seats.iter().map(worker).collect())
    }
}

/// The rank of a caller; an error that tells it to begin again once the gang it belonged to has ended.
pub(crate) fn seat(cursor: &Cursor, gang: &Gang, session: SessionId) -> Result<u32, Refusal> {
    let task = || cursor.def.name.clone();
    gang.rank_of(session).ok_or_else(|| match &gang.ended {
        Some(why) => Refusal::GangEnded { task: task(), why: why.clone() },
        None => Refusal::Gang {
            task: task(),
            found: format!("session {session} is none of its {} ranks", gang.ranks()),
            hint: "join it first".to_owned(),
        },
    })
}

/// That the gang a session belonged to has ended, if one has: whatever it held of its task went back with it.
pub(crate) fn unseated(state: &State, session: SessionId) -> Option<Refusal> {
    state.cursors.iter().find_map(|cursor| {
        let gang = cursor.gang.as_ref().filter(|gang| gang.unseated.contains(&session))?;
        Some(Refusal::GangEnded { task: cursor.def.name.clone(), why: gang.ended.clone().unwrap_or_default() })
    })
}

impl Cut {
    /// What a rank is told beside its rows.
    pub(crate) fn share(&self, gang: &Gang, rank: u32) -> Share {
        Share { rank, ranks: gang.ranks(), epoch: gang.epoch, totals: self.totals.clone() }
    }
}
