//! What must be true after every step, told from the log's own lines.

use std::collections::{BTreeMap, BTreeSet};

use super::{disk::Drive, random::Random};
use crate::{
    Recovered, Store,
    catalog::{
        Catalog, Trained,
        command::Sizes,
        event::{Event, Record},
    },
    ids::{ChunkId, PartitionId, RowId, SessionId, TaskId},
    log::line,
    store::held::Spot,
    wire,
};

/// Puts that are held, by session and number.
type Puts = BTreeMap<(SessionId, u64), (Spot, Sizes)>;

pub(super) struct Oracle {
    drive: Drive,
    read: usize,
    records: Vec<Record>,
    /// Calls that had an effect.
    calls: BTreeSet<(SessionId, u64)>,
    consumed: BTreeSet<(TaskId, RowId)>,
    /// Commits of rows that are used several times.
    uses: BTreeMap<(TaskId, RowId), u32>,
    /// The log's position behind the last call that was answered.
    heard: u64,
    /// Puts whose place somebody was told, and that nothing has named yet.
    placed: BTreeMap<(SessionId, u64), (Spot, PartitionId)>,
    pub(super) lost_sessions: u64,
    pub(super) expired: u64,
}

impl Oracle {
    pub(super) fn new(drive: Drive) -> Self {
        let (records, calls, consumed) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        let (uses, heard, placed) = (BTreeMap::new(), 0, BTreeMap::new());
        Self { drive, read: 0, records, calls, consumed, uses, heard, placed, lost_sessions: 0, expired: 0 }
    }

    pub(super) fn consumed(&self) -> u64 {
        self.consumed.len() as u64
    }

    pub(super) fn used_again(&self) -> u64 {
        self.uses.values().map(|uses| u64::from(uses - 1)).sum()
    }

    /// A call was answered: what it did outlives the store's process from now on.
    pub(super) fn answered(&mut self, store: &Store) {
        self.heard = store.with_state(|state, _| state.seq()).unwrap();
    }

    /// Somebody was told where a put lies.
    pub(super) fn placed(&mut self, put: &wire::Put, placed: &wire::Placed) {
        if let Some(spot) = placed.spot {
            let place = ((ChunkId(spot.chunk), spot.slot), PartitionId(put.partition));
            self.placed.insert((SessionId(put.session), put.number), place);
        }
    }

    /// What is held, of which the next life must hold all that was promised.
    pub(super) fn puts(store: &Store) -> Puts {
        store.shared.core.lock().unwrap().held.puts()
    }

    /// The next life: everything is told anew, from what the log still holds.
    pub(super) fn restarted(&mut self, store: &Store, recovered: &Recovered, before: &Puts, trained: &[Trained]) {
        assert!(recovered.seq >= self.heard, "position {} was answered, {} is recovered", self.heard, recovered.seq);
        let mut told = Self::new(self.drive.clone());
        (told.heard, told.placed) = (self.heard, std::mem::take(&mut self.placed));
        *self = told;
        trained.iter().for_each(|one| self.consume(one.task, one.row));
        self.read_on(store);
        let state = store.with_state(|state, _| state.clone()).unwrap();
        assert!(state.sessions.values().all(|session| !session.here), "sessions of the former process are there");
        let after = Self::puts(store);
        // Named by now are those, too, whose record was written when the process failed under it.
        let promised = |(put, _): &(&(SessionId, u64), _)| {
            let lives = |partition| state.describe(partition).is_ok() && state.has_session(put.0);
            self.placed.get(*put).is_some_and(|(_, partition)| lives(*partition))
        };
        for (put, place) in before.iter().filter(promised) {
            assert_eq!(after.get(put), Some(place), "put {put:?} is held no more");
        }
    }

    /// Looks at what a step changed.
    pub(super) fn look(&mut self, store: &Store) {
        self.read_on(store);
        store.with_state(|state, _| state.verify()).unwrap().unwrap_or_else(|error| panic!("{error}"));
        let core = store.shared.lock().unwrap();
        let mut named: BTreeSet<ChunkId> = core.catalog.state().live_cells().map(|run| run.chunk).collect();
        named.extend(core.held.chunks());
        assert_eq!(store.units().chunk_ids(), named, "the unit holds what is named or held, and nothing else");
    }

    pub(super) fn read_on(&mut self, store: &Store) {
        let fresh = self.drive.from(self.read);
        for found in fresh.split_inclusive(|byte| *byte == b'\n') {
            let Some(whole) = found.strip_suffix(b"\n") else { break };
            self.read += found.len();
            let record = line::parse(whole).unwrap();
            if let Some(call) = record.call {
                assert!(self.calls.insert(call), "call {call:?} has two effects");
            }
            record.events.iter().for_each(|event| self.happen(store, event));
            self.records.push(record);
        }
    }

    fn happen(&mut self, store: &Store, event: &Event) {
        match event {
            Event::RowsPut { cells, .. } | Event::CellsWritten { cells, .. } | Event::RowsSaved { cells, .. } => {
                let named = |spot| cells.iter().any(|cell| (cell.chunk, cell.slot) == spot);
                self.placed.retain(|_, (spot, _)| !named(*spot));
            }
            // A training task's rows are consumed by the publication, which counts them itself.
            Event::RowsCommitted { task, rows, .. } if store.definition().tasks[task.0 as usize].trains.is_none() => {
                let reuse = store.definition().tasks[task.0 as usize].reuse;
                rows.iter().for_each(|row| self.count(*task, row, reuse));
            }
            Event::SessionEnded { lost: true, .. } => self.lost_sessions += 1,
            Event::RowsReturned { why: crate::catalog::event::Returned::Expired, .. } => self.expired += 1,
            _ => {}
        }
    }

    /// A row was committed; the last use consumes it, and one more would be one too many.
    fn count(&mut self, task: TaskId, row: RowId, reuse: u32) {
        if reuse > 1 {
            let uses = self.uses.entry((task, row)).or_insert(0);
            *uses += 1;
            assert!(*uses <= reuse, "row {row} is used {uses} times of {reuse} by task {task}");
            if *uses < reuse {
                return;
            }
        }
        self.consume(task, row);
    }

    pub(super) fn consume(&mut self, task: TaskId, row: RowId) {
        assert!(self.consumed.insert((task, row)), "row {row} is consumed twice by task {task}");
    }

    /// The log leads to the state; what a crash leaves leads to a former one, from which the rest follows.
    pub(super) fn replays(&self, store: &Store, random: &mut Random) {
        let state = {
            let core = store.shared.core.lock().unwrap();
            core.catalog.state().clone()
        };
        let mut replayed = Catalog::open(&self.records[0]).unwrap();
        let bytes = self.drive.from(0);
        // A torn tail: anything from what was flushed to all of it.
        let torn = random.range(self.drive.synced() as u64, bytes.len() as u64) as usize;
        let whole = bytes[..torn].iter().filter(|byte| **byte == b'\n').count();
        for (at, record) in self.records.iter().enumerate().skip(1) {
            if at == whole {
                replayed.state().verify().unwrap();
            }
            replayed.replay(record).unwrap();
        }
        if state.seq() == self.records.len() as u64 {
            assert!(replayed.state() == &state, "the log leads to another state");
        } else {
            // The disk failed under the last record: whoever asked was told so.
            assert_eq!(state.seq(), self.records.len() as u64 + 1);
            assert!(store.with_state(|_, _| ()).is_err(), "the store does not go on");
        }
    }
}
