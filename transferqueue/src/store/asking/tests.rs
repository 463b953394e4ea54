//! Calls of sessions of other processes, as they come over the wire: numbered, and sent once more.

use std::{
    fs::File,
    io,
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::{
    catalog::command::{CellWrite, NewRow, Request},
    disk::Disk,
    ids::{ColumnId, PartitionId, RowId, Rows},
    link::Link,
    outputs::Outputs,
    store::{Options, options::Ground},
    testing::{self, training},
    transport::{Purpose, Target},
};

/// A session of another process.
fn opened(store: &Store) -> SessionId {
    let mut opening = Request { caller: None, command: Command::OpenSession { name: "source".into(), here: false } };
    let opened = store.ask(Sender::Wire { caller: None, attempt: None }, &mut opening, false).unwrap();
    let Asked::Answered(Reply::Session(session)) = opened else { panic!("no session") };
    session
}

/// One attempt of a session of another process.
fn sent(store: &Store, session: SessionId, number: u64, attempt: u64, command: &Command) -> Result<Reply, Error> {
    let sender = Sender::Wire { caller: Some((session, number)), attempt: Some(attempt) };
    let mut request = Request { caller: None, command: command.clone() };
    match store.ask(sender, &mut request, false)? {
        Asked::Answered(reply) => Ok(reply),
        Asked::Later(wait, _) => panic!("{wait}"),
    }
}

#[test]
fn a_put_that_left_no_record_is_answered_alike_by_the_next_life() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        dir: Some(dir.path().to_owned()),
        durability: Durability::Process,
        arena_segment_bytes: 1 << 20,
        ..Options::default()
    };
    let store = Store::create(training(1), options.clone()).unwrap();
    testing::run(&store, 1);
    let session = opened(&store);
    let (partition, id) = (PartitionId(0), ColumnId(0));
    let column = store.describe(partition).unwrap().columns[0].clone();
    let target = Target { partition, id, column: &column, purpose: Purpose::Final };
    let rows = Rows::run(RowId(0), 1);
    let (_, array) = Outputs::new()
        .ragged("prompt", [[1, 2]])
        .arrays("prompts", std::slice::from_ref(&column), &rows)
        .unwrap()
        .remove(0);
    let placed = store.units().write_for(Some((session, 1)), target, array).unwrap();
    let (chunk, slot, sizes) = (placed.chunk, placed.slot, placed.sizes.clone());
    store.hold(session, 1, Cells { key: (partition, id), rows: 1, bytes: 8, placed }).unwrap();
    let cells = vec![CellWrite { column: id, rows, chunk, slot, sizes, seal: true, replaces: None }];
    let put = Command::Put { partition, rows: vec![NewRow::default()], cells };
    // The run needs no more rows: nothing changes, and nothing is written down.
    let seq = store.with_state(|state, _| state.seq()).unwrap();
    assert_eq!(sent(&store, session, 1, 1, &put).unwrap(), Reply::Ended);
    assert_eq!(store.with_state(|state, _| state.seq()).unwrap(), seq);
    // The answer is lost with the store's process.
    drop(store);
    let (store, recovered) = Store::recover(&options, |_, _, _| {}).unwrap();
    assert_eq!((recovered.sessions, recovered.held), (1, 1));
    assert_eq!(sent(&store, session, 1, 2, &put).unwrap(), Reply::Ended);
    // What nothing names goes when its writer lets it go.
    store.let_go(session, [(chunk, slot)], &[]).unwrap();
    assert_eq!(store.with_state(|state, _| state.live_cells().filter(|run| run.chunk == chunk).count()).unwrap(), 0);
    assert!(!store.units().chunk_ids().contains(&chunk));
}

/// A disk that takes its time.
#[derive(Default)]
struct Slow {
    held: Mutex<bool>,
    let_go: Condvar,
    /// Somebody waits.
    waits: AtomicBool,
}

impl Slow {
    fn hold(&self, held: bool) {
        *self.held.lock().unwrap() = held;
        self.let_go.notify_all();
    }
}

impl Disk for Slow {
    fn sync(&self, file: &File, _: &Path) -> io::Result<()> {
        self.waits.store(true, Ordering::Relaxed);
        drop(self.let_go.wait_while(self.held.lock().unwrap(), |held| *held).unwrap());
        file.sync_data()
    }
}

#[test]
fn an_answer_that_is_given_once_more_waits_for_its_record_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { durability: Durability::Host, arena_segment_bytes: 1 << 20, ..Options::at(dir.path()) };
    let disk = Arc::new(Slow::default());
    let ground = Ground { disk: disk.clone(), ..Ground::machine() };
    let store = Store::begin(training(1), &options, ground).unwrap();
    let session = opened(&store);
    let close = Command::ClosePartition(PartitionId(0));
    let seq = store.with_state(|state, _| state.seq()).unwrap();
    disk.waits.store(false, Ordering::Relaxed);
    disk.hold(true);
    let (answer, answers) = mpsc::sync_channel(2);
    thread::scope(|scope| {
        let send = |attempt| {
            let (store, close, answer) = (&store, &close, answer.clone());
            scope.spawn(move || answer.send(sent(store, session, 1, attempt, close).unwrap()).unwrap());
        };
        send(1);
        let until = Instant::now() + Duration::from_secs(30);
        while !disk.waits.load(Ordering::Relaxed) {
            assert!(Instant::now() < until, "nobody asks for the record to be on the disk");
            thread::yield_now();
        }
        assert_eq!(store.with_state(|state, _| state.seq()).unwrap(), seq + 1);
        // The connection is lost, and the call is sent once more over another one.
        send(2);
        let early = answers.recv_timeout(Duration::from_millis(300));
        assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout), "answered before the record was on the disk");
        disk.hold(false);
        for _ in 0..2 {
            assert_eq!(answers.recv_timeout(Duration::from_secs(30)).unwrap(), Reply::Done);
        }
    });
    assert_eq!(store.with_state(|state, _| state.seq()).unwrap(), seq + 1);
}
