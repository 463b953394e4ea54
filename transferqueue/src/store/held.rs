//! Cells that another process has put and not named yet: held for its session, so that a worker that dies between
//! bytes and commit leaves nothing behind.

use std::{any::Any, collections::BTreeMap};

use crate::{
    catalog::command::{CellWrite, Command, Sizes},
    ids::{ChunkId, SessionId},
    transport::Placed,
};

/// Where a held cell lies: its chunk and first slot.
pub(crate) type Spot = (ChunkId, u32);

/// Puts of one session that may be unnamed at once.
pub(crate) const MAX_HELD: usize = 65_536;

/// Puts by session.
#[derive(Default)]
pub(super) struct Held {
    sessions: BTreeMap<SessionId, Puts>,
}

/// A put's number, and what keeps its bytes.
type Hold = (u64, Box<dyn Any + Send>);

#[derive(Default)]
struct Puts {
    /// By the client's number, which says that a put is sent a second time.
    numbers: BTreeMap<u64, (Spot, Sizes)>,
    /// By place. (A put without cells has the place of the next one: hence the list.)
    spots: BTreeMap<Spot, Vec<Hold>>,
}

impl Held {
    /// Holds cells for a session; gives them back when it holds too many already.
    pub(super) fn put(&mut self, session: SessionId, number: u64, placed: Placed) -> Result<(), Placed> {
        let puts = self.sessions.entry(session).or_default();
        if puts.numbers.len() >= MAX_HELD {
            return Err(placed);
        }
        let spot = (placed.chunk, placed.slot);
        puts.numbers.insert(number, (spot, placed.sizes));
        puts.spots.entry(spot).or_default().push((number, placed.hold));
        Ok(())
    }

    /// Where a put of that number lies, if it is held.
    pub(super) fn find(&self, session: SessionId, number: u64) -> Option<(Spot, Sizes)> {
        self.sessions.get(&session)?.numbers.get(&number).cloned()
    }

    /// A command was answered: what it names is the catalog's now.
    pub(super) fn named(&mut self, session: SessionId, command: &Command) {
        let cells: &[CellWrite] = match command {
            Command::Put { cells, .. } | Command::Write { cells, .. } | Command::Commit { cells, .. } => cells,
            _ => return,
        };
        self.let_go(session, cells.iter().map(|cell| (cell.chunk, cell.slot)));
    }

    /// The writer does not want these any more.
    pub(super) fn let_go(&mut self, session: SessionId, spots: impl IntoIterator<Item = Spot>) {
        let Some(puts) = self.sessions.get_mut(&session) else { return };
        for (number, hold) in spots.into_iter().filter_map(|spot| puts.spots.remove(&spot)).flatten() {
            puts.numbers.remove(&number);
            drop(hold);
        }
    }

    /// The session has ended.
    pub(super) fn end(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }
}
