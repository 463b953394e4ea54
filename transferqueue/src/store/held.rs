//! Cells that another process has put and not named yet: held for its session, so that a worker that dies between
//! bytes and commit leaves nothing behind, and so that a command names only what its own session has put.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    catalog::command::{CellWrite, Command, Sizes},
    ids::{ChunkId, ColumnId, PartitionId, SessionId},
    server::limits::HELD_BYTES,
    transport::Placed,
};

/// Where a held cell lies: its chunk and first slot.
pub(crate) type Spot = (ChunkId, u32);

/// Which column it is of.
pub(crate) type Key = (PartitionId, ColumnId);

/// Puts of one session that may be unnamed at once.
pub(crate) const MAX_HELD: usize = 65_536;

/// Puts by session.
#[derive(Default)]
pub(super) struct Held {
    sessions: BTreeMap<SessionId, Puts>,
}

/// Cells of one put.
pub(crate) struct Cells {
    pub(crate) key: Key,
    pub(crate) rows: u64,
    /// Of their buffers.
    pub(crate) bytes: u64,
    pub(crate) placed: Placed,
}

struct Hold {
    number: u64,
    key: Key,
    rows: u64,
    bytes: u64,
    sizes: Sizes,
    /// What keeps the bytes.
    _hold: Box<dyn Any + Send>,
}

/// Puts of one session.
#[derive(Default)]
pub(super) struct Puts {
    /// By the client's number, which says that a put is sent a second time.
    numbers: BTreeMap<u64, (Spot, Sizes)>,
    /// By place. (A put without cells has the place of the next one: hence the list.)
    spots: BTreeMap<Spot, Vec<Hold>>,
    /// Bytes of all of them.
    bytes: u64,
    finished: Finished,
}

/// Numbers of puts that a command has named, or the client has let go. They rise, so nearly all lie below one number.
struct Finished {
    below: u64,
    beyond: BTreeSet<u64>,
}

impl Default for Finished {
    /// Clients count from 1.
    fn default() -> Self {
        Self { below: 1, beyond: BTreeSet::new() }
    }
}

impl Finished {
    fn insert(&mut self, number: u64) {
        if number >= self.below {
            self.beyond.insert(number);
        }
        while self.beyond.remove(&self.below) {
            self.below = self.below.saturating_add(1);
        }
        // A client that leaves gaps may not fill the memory: what lies far below the last ones is over as well.
        while self.beyond.len() > MAX_HELD {
            self.below = self.beyond.pop_first().map_or(self.below, |first| first.saturating_add(1));
        }
    }

    fn contains(&self, number: u64) -> bool {
        number < self.below || self.beyond.contains(&number)
    }
}

/// Why a put is not held.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// So many puts are unnamed.
    Many(usize),
    /// So many bytes are.
    Large(u64),
    /// It was named, or let go, before this copy of it came.
    Late,
}

impl Held {
    /// Holds cells for a session and says where they count as put: where they lie, or where the same put lies that came
    /// before.
    pub(super) fn put(&mut self, session: SessionId, number: u64, cells: Cells) -> Result<(Spot, Sizes), Refused> {
        let puts = self.sessions.entry(session).or_default();
        if let Some(before) = puts.numbers.get(&number) {
            return Ok(before.clone());
        }
        let Cells { key, rows, bytes, placed } = cells;
        let sum = puts.bytes.saturating_add(bytes);
        match () {
            () if puts.finished.contains(number) => return Err(Refused::Late),
            () if puts.numbers.len() >= MAX_HELD => return Err(Refused::Many(puts.numbers.len())),
            // One put alone is bounded by the server; the sum of them is here.
            () if sum > HELD_BYTES && !puts.numbers.is_empty() => return Err(Refused::Large(puts.bytes)),
            () => {}
        }
        let place = ((placed.chunk, placed.slot), placed.sizes.clone());
        let hold = Hold { number, key, rows, bytes, sizes: placed.sizes, _hold: placed.hold };
        puts.bytes = sum;
        puts.numbers.insert(number, place.clone());
        puts.spots.entry(place.0).or_default().push(hold);
        Ok(place)
    }

    /// Where a put of that number lies, if it is held.
    pub(super) fn find(&self, session: SessionId, number: u64) -> Option<(Spot, Sizes)> {
        self.sessions.get(&session)?.numbers.get(&number).cloned()
    }

    /// The first cells a command names that the session has not put so, or names twice.
    pub(super) fn stranger<'a>(
        &self,
        session: SessionId,
        partition: PartitionId,
        cells: &'a [CellWrite],
    ) -> Option<&'a CellWrite> {
        let puts = self.sessions.get(&session);
        let mut named = BTreeSet::new();
        cells.iter().find(|cell| {
            let holds = puts.and_then(|puts| puts.spots.get(&(cell.chunk, cell.slot)));
            let rows = cell.rows.len();
            let put =
                |hold: &Hold| hold.key == (partition, cell.column) && hold.rows == rows && hold.sizes == cell.sizes;
            let theirs = holds.is_some_and(|holds| holds.iter().any(put));
            !theirs || (rows > 0 && !named.insert((cell.chunk, cell.slot)))
        })
    }

    /// A command was answered, and the log says so: what it names is the catalog's now.
    pub(super) fn named(&mut self, session: SessionId, command: &Command) {
        self.let_go(session, command.cells().iter().map(|cell| (cell.chunk, cell.slot)));
    }

    /// The writer does not want these any more.
    pub(super) fn let_go(&mut self, session: SessionId, spots: impl IntoIterator<Item = Spot>) {
        let Some(puts) = self.sessions.get_mut(&session) else { return };
        for hold in spots.into_iter().filter_map(|spot| puts.spots.remove(&spot)).flatten() {
            puts.numbers.remove(&hold.number);
            puts.finished.insert(hold.number);
            puts.bytes -= hold.bytes;
        }
    }

    /// The same by the numbers of puts; one that has not come yet is not wanted when it comes.
    pub(super) fn let_go_puts(&mut self, session: SessionId, numbers: &[u64]) {
        let puts = self.sessions.entry(session).or_default();
        let spots = numbers.iter().filter_map(|number| Some(puts.numbers.get(number)?.0));
        let spots: Vec<Spot> = spots.collect();
        numbers.iter().for_each(|number| puts.finished.insert(*number));
        self.let_go(session, spots);
    }

    /// Chunks with cells that are held.
    #[cfg(test)]
    pub(super) fn chunks(&self) -> impl Iterator<Item = ChunkId> + '_ {
        self.sessions.values().flat_map(|puts| puts.spots.keys().map(|(chunk, _)| *chunk))
    }

    /// The session has ended; what it held goes with what is returned.
    pub(super) fn end(&mut self, session: SessionId) -> Option<Puts> {
        self.sessions.remove(&session)
    }

    /// Where every put lies that is held, by session and number.
    #[cfg(test)]
    pub(super) fn puts(&self) -> BTreeMap<(SessionId, u64), (Spot, Sizes)> {
        let of = |(session, puts): (&SessionId, &Puts)| {
            let session = *session;
            puts.numbers.iter().map(move |(number, place)| ((session, *number), place.clone())).collect::<Vec<_>>()
        };
        self.sessions.iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(bytes: u64, slot: u32) -> Cells {
        let placed = Placed { chunk: ChunkId(1), slot, sizes: Sizes::Uniform(4), hold: Box::new(()) };
        Cells { key: (PartitionId(0), ColumnId(0)), rows: 1, bytes, placed }
    }

    #[test]
    fn what_a_session_holds_is_bounded_by_bytes_and_free_again_when_it_lets_go() {
        let (mut held, session) = (Held::default(), SessionId(1));
        assert!(held.put(session, 1, cells(HELD_BYTES - 10, 0)).is_ok());
        assert!(held.put(session, 2, cells(10, 1)).is_ok());
        assert_eq!(held.put(session, 3, cells(1, 2)), Err(Refused::Large(HELD_BYTES)));
        assert!(held.put(SessionId(2), 1, cells(1, 3)).is_ok(), "each session has its own account");
        held.let_go(session, [(ChunkId(1), 0)]);
        assert!(held.put(session, 3, cells(1, 2)).is_ok());
    }

    #[test]
    fn finished_numbers_take_no_memory_when_they_rise() {
        let mut finished = Finished::default();
        [3, 1, 2, 7].into_iter().for_each(|number| finished.insert(number));
        assert_eq!((finished.below, finished.beyond.len()), (4, 1));
        assert!(finished.contains(2) && finished.contains(7) && !finished.contains(5));
        (1..3 * MAX_HELD as u64).for_each(|number| finished.insert(2 * number + 100));
        assert!(finished.beyond.len() <= MAX_HELD);
        finished.insert(u64::MAX);
    }
}
