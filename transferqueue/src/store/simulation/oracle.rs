//! What must be true after every step, told from the log's own lines.

use std::collections::BTreeSet;

use super::{disk::Drive, random::Random};
use crate::{
    Store,
    catalog::{
        Catalog,
        event::{Event, Record},
    },
    ids::{ChunkId, RowId, SessionId, TaskId},
    log::line,
};

pub(super) struct Oracle {
    drive: Drive,
    read: usize,
    records: Vec<Record>,
    /// Calls that had an effect.
    calls: BTreeSet<(SessionId, u64)>,
    consumed: BTreeSet<(TaskId, RowId)>,
    pub(super) lost_sessions: u64,
    pub(super) expired: u64,
}

impl Oracle {
    pub(super) fn new(drive: Drive) -> Self {
        let (records, calls, consumed) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        Self { drive, read: 0, records, calls, consumed, lost_sessions: 0, expired: 0 }
    }

    pub(super) fn consumed(&self) -> u64 {
        self.consumed.len() as u64
    }

    /// Looks at what a step changed.
    pub(super) fn look(&mut self, store: &Store, puts_under_way: bool) {
        self.read_on(store);
        store.with_state(|state, _| state.verify()).unwrap().unwrap_or_else(|error| panic!("{error}"));
        if puts_under_way {
            return;
        }
        let core = store.shared.lock().unwrap();
        let mut named: BTreeSet<ChunkId> = core.catalog.state().live_cells().map(|run| run.chunk).collect();
        named.extend(core.held.chunks());
        assert_eq!(store.unit().chunk_ids(), named, "the unit holds what is named or held, and nothing else");
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
            // A training task's rows are consumed by the publication, which counts them itself.
            Event::RowsCommitted { task, rows, .. } if store.definition().tasks[task.0 as usize].trains.is_none() => {
                rows.iter().for_each(|row| self.consume(*task, row));
            }
            Event::SessionEnded { lost: true, .. } => self.lost_sessions += 1,
            Event::RowsReturned { why: crate::catalog::event::Returned::Expired, .. } => self.expired += 1,
            _ => {}
        }
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
        let bytes = self.drive.bytes();
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
