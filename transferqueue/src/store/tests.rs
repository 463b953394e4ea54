use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use super::*;
use crate::{
    catalog::{
        command::{NewRow, Span, Tag, Tags},
        definition::{Birth, Partition, Poison, Task},
    },
    ids::{PartitionId, RowId, Rows},
    outputs::Outputs,
    schema::{Column, Dtype, Kind},
    session::Claim,
    testing::{self, soon, training},
};

/// Jobs with a payload; `work` squares it, `check` reads the square.
fn jobs() -> Definition {
    let payload = Column::new("payload", Kind::Dense { dtype: Dtype::I64, shape: vec![] });
    let square = Column::new("square", Kind::Dense { dtype: Dtype::I64, shape: vec![] });
    let trace = Column::new("trace", Kind::Ragged { dtype: Dtype::F32, inner: vec![] });
    Definition {
        partitions: vec![Partition {
            name: "jobs".into(),
            columns: vec![payload, square, trace],
            birth: Birth::Put { capacity: None },
        }],
        tasks: vec![
            Task {
                reads: vec!["payload".into()],
                writes: vec!["square".into(), "trace".into()],
                ..Task::new("work", "jobs")
            },
            Task { reads: vec!["square".into(), "trace".into()], ..Task::new("check", "jobs") },
        ],
        ..Definition::default()
    }
}

fn store() -> Store {
    Store::create(jobs(), Options::default()).unwrap()
}

fn put(session: &Session, payloads: &[i64]) -> Rows {
    let rows = vec![NewRow::default(); payloads.len()];
    session.put(PartitionId(0), rows, Outputs::new().dense("payload", payloads), soon()).unwrap()
}

fn lease(session: &Session, task: &str, limit: u64) -> crate::Lease {
    session.claim(task, limit, soon()).unwrap().lease().expect("the stream goes on")
}

/// Does what `work` does for a lease.
fn work(lease: crate::Lease) {
    let batch = lease.batch().unwrap();
    let payload = batch.dense::<i64>("payload").unwrap().to_vec();
    let squares: Vec<i64> = payload.iter().map(|p| p * p).collect();
    let traces = payload.iter().map(|p| vec![*p as f32; *p as usize % 3]);
    lease.commit(Outputs::new().dense("square", squares).ragged("trace", traces)).unwrap();
}

fn held(store: &Store) -> u64 {
    let total = store.units().stats().total();
    total.live + total.pinned + total.unsettled + total.open
}

#[test]
fn a_row_is_put_claimed_committed_read_and_freed() {
    let store = store();
    let (feeder, worker, checker) =
        (store.session("feeder").unwrap(), store.session("worker").unwrap(), store.session("checker").unwrap());
    assert_eq!(put(&feeder, &[3, 4, 5]).to_string(), "0-2");
    work(lease(&worker, "work", 2));
    let checking = lease(&checker, "check", 10);
    assert_eq!(checking.rows().to_string(), "0-1");
    let batch = checking.batch().unwrap();
    assert_eq!(batch.dense::<i64>("square").unwrap().to_vec(), [9, 16]);
    assert_eq!(batch.ragged::<f32>("trace").unwrap().lens(), [0, 1]);
    checking.commit(Outputs::new()).unwrap();
    assert_eq!(batch.dense::<i64>("square").unwrap().scalar(1), 16, "an open batch keeps its bytes");
    drop(batch);
    feeder.close_partition(PartitionId(0)).unwrap();
    work(lease(&worker, "work", 10));
    lease(&checker, "check", 10).commit(Outputs::new()).unwrap();
    assert!(matches!(worker.claim("work", 1, soon()).unwrap(), Claim::Ended));
    assert!(matches!(checker.claim("check", 1, soon()).unwrap(), Claim::Ended));
    assert_eq!(held(&store), 0);
    for entry in store.with_state(|state, _| state.ledger()).unwrap() {
        assert_eq!((entry.owed, entry.consumed, entry.live), (3, 3, 0), "{entry:?}");
    }
}

#[test]
fn a_waiting_claim_is_woken_by_the_write_that_completes_it() {
    let store = store();
    let (feeder, worker) = (store.session("feeder").unwrap(), store.session("worker").unwrap());
    let waiting = {
        let checker = store.session("checker").unwrap();
        thread::spawn(move || lease(&checker, "check", 1).rows().clone())
    };
    put(&feeder, &[1]);
    work(lease(&worker, "work", 1));
    assert_eq!(waiting.join().unwrap().to_string(), "0");
}

#[test]
fn no_wake_up_is_lost_between_two_workers_that_wait_for_each_other() {
    let store = store();
    let feeder = store.session("feeder").unwrap();
    let rounds = 500;
    let checking = {
        let checker = store.session("checker").unwrap();
        thread::spawn(move || {
            for _ in 0..rounds {
                lease(&checker, "check", 1).commit(Outputs::new()).unwrap();
                put(&feeder, &[2]);
            }
        })
    };
    let worker = store.session("worker").unwrap();
    put(&worker, &[2]);
    (0..rounds).for_each(|_| work(lease(&worker, "work", 1)));
    checking.join().unwrap();
}

#[test]
fn one_worker_serves_several_tasks_in_their_order_until_all_have_ended() {
    let store = store();
    let session = store.session("worker").unwrap();
    let none = session.claim_any(&["check", "work"], 1, Instant::now()).unwrap_err();
    assert!(none.is_deadline() && none.to_string().contains("task `check` wants"), "{none}");
    let waiting = {
        let session = session.clone();
        thread::spawn(move || session.claim_any(&["check", "work"], 1, soon()).unwrap().lease().unwrap())
    };
    put(&session, &[2, 3]);
    let first = waiting.join().unwrap();
    assert_eq!(first.task(), "work");
    work(first);
    let mut served = Vec::new();
    session.close_partition(PartitionId(0)).unwrap();
    while let Claim::Lease(lease) = session.claim_any(&["check", "work"], 1, soon()).unwrap() {
        served.push(lease.task().to_owned());
        if lease.task() == "work" { work(lease) } else { lease.commit(Outputs::new()).unwrap() }
    }
    assert_eq!(served, ["check", "work", "check"]);
}

#[test]
fn a_worker_that_cannot_go_on_stops_the_others_waits() {
    let store = store();
    let session = store.session("worker").unwrap();
    let waiting = {
        let session = session.clone();
        thread::spawn(move || session.claim_any(&["check", "work"], 1, soon()).map(drop))
    };
    session.stop_store("stage `work` failed: no memory");
    let error = waiting.join().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the store is stopping: stage `work` failed: no memory");
    assert_eq!(session.born(PartitionId(0)).unwrap(), 0);
}

#[test]
fn a_deadline_says_what_is_waited_for_and_who_holds_it() {
    let store = store();
    let worker = store.session("reward-0").unwrap();
    put(&worker, &[1, 2]);
    let _holding = lease(&worker, "work", 2);
    let error = worker.claim("check", 2, Instant::now()).unwrap_err();
    assert!(error.is_deadline());
    let said = error.to_string();
    for part in ["deadline passed: task `check` wants", "`work`", "under lease", "reward-0"] {
        assert!(said.contains(part), "{said} should contain {part}");
    }
}

#[test]
fn what_a_lost_worker_held_goes_to_the_next() {
    let store = store();
    let feeder = store.session("feeder").unwrap();
    put(&feeder, &[1, 2, 3]);
    let (gone, next) = (store.session("gone").unwrap(), store.session("next").unwrap());
    let leases = store.with_state(|state, now| state.tasks(now)[0].leases.len());
    let lost = lease(&gone, "work", 3);
    assert_eq!((leases.unwrap(), lost.rows().len()), (0, 3));
    let waiting = thread::spawn(move || lease(&next, "work", 3).rows().clone());
    drop(gone); // the lease still holds the session
    drop(lost);
    assert_eq!(waiting.join().unwrap().len(), 3);
}

#[test]
fn a_closed_sessions_leases_return_and_its_late_results_are_refused() {
    let store = store();
    let feeder = store.session("feeder").unwrap();
    put(&feeder, &[7]);
    let slow = store.session("slow").unwrap();
    let late = lease(&slow, "work", 1);
    slow.close().unwrap();
    let again = lease(&feeder, "work", 1);
    assert_eq!(again.rows(), late.rows());
    let error = late.commit(Outputs::new().dense("square", [1i64]).ragged::<f32>("trace", [[]])).unwrap_err();
    assert!(matches!(error, Error::Refused(_)) && error.to_string().contains("ended"), "{error}");
    work(again);
    assert_eq!(store.units().stats().total().unsettled, 0, "refused bytes are gone");
}

#[test]
fn a_panicking_worker_fails_its_rows_and_poison_stops_the_run() {
    let mut definition = jobs();
    definition.tasks[0].attempts = 2;
    definition.tasks[0].on_poison = Poison::Stop;
    let store = Store::create(definition, Options::default()).unwrap();
    let session = store.session("worker").unwrap();
    put(&session, &[1]);
    for _ in 0..2 {
        let session = session.clone();
        let worker = thread::spawn(move || {
            let _lease = lease(&session, "work", 1);
            panic!("a wrong turn (this test panics on purpose)");
        });
        assert!(worker.join().is_err());
    }
    let error = session.claim("work", 1, soon()).unwrap_err().to_string();
    assert!(error.contains("row 0") && error.contains("the worker panicked"), "{error}");
}

#[test]
fn stopping_wakes_every_wait_and_lets_held_work_finish() {
    let store = store();
    let session = store.session("worker").unwrap();
    put(&session, &[3]);
    let held = lease(&session, "work", 1);
    let waiting: Vec<_> = ["work", "check"]
        .map(|task| {
            let session = store.session(task).unwrap();
            thread::spawn(move || session.claim(task, 1, soon()).map(drop))
        })
        .into();
    store.stop("interrupted");
    for waiter in waiting {
        let error = waiter.join().unwrap().unwrap_err();
        assert!(error.is_stopped(), "{error}");
    }
    let refused = session.claim("work", 1, soon()).unwrap_err();
    assert_eq!(refused.to_string(), "the store is stopping: interrupted");
    work(held);
    assert_eq!(store.stopped().as_deref(), Some("interrupted"));
}

#[test]
fn outputs_are_checked_by_column_and_a_refused_commit_changes_nothing() {
    let store = store();
    let session = store.session("worker").unwrap();
    put(&session, &[1, 2]);
    let mut leased = lease(&session, "work", 2);
    let rows = leased.rows().clone();
    let cases = [
        (Outputs::new().dense("square", [1i64]), "column `square` has 1 rows, expected 2"),
        (Outputs::new().dense("sqare", [1i64, 4]), "partition `jobs` has no column `sqare`"),
        (Outputs::new().dense("square", [1f32, 4.0]), "is dense i64[], the output is dense f32"),
        (Outputs::new().dense("square", [1i64, 4]), "column `trace` is not sealed"),
        (Outputs::new().dense("payload", [1i64, 4]), "does not declare column `payload`"),
    ];
    for (outputs, expected) in cases {
        let error = leased.commit_rows(&rows, outputs).unwrap_err().to_string();
        assert!(error.contains(expected), "{error} should contain {expected}");
        assert_eq!((leased.rows(), store.units().stats().total().unsettled), (&rows, 0));
    }
    let unread = leased.batch_of(&["trace"]).unwrap_err().to_string();
    assert!(unread.contains("`trace`") && unread.contains("not sealed"), "{unread}");
    work(leased);
}

#[test]
fn rows_are_committed_one_by_one_written_early_and_dropped() {
    let store = store();
    let session = store.session("worker").unwrap();
    put(&session, &[1, 2, 3, 4]);
    let mut leased = lease(&session, "work", 4);
    let one = Rows::run(RowId(2), 1);
    leased.commit_rows(&one, Outputs::new().dense("square", [9i64]).ragged::<f32>("trace", [[0.5]])).unwrap();
    assert_eq!(leased.rows().to_string(), "0-1,3");
    leased.write(Outputs::for_rows(one_row(0)).dense("square", [1i64])).unwrap();
    let tags = Tags::from([("level".to_owned(), Tag::Int(2))]);
    let outputs = Outputs::for_rows(one_row(1))
        .dense("square", [4i64])
        .note(RowId(1), tags.clone(), Some(Span { first: 0, last: 0 }))
        .drop_rows(one_row(3), "empty");
    leased.write(Outputs::for_rows("0-1".parse().unwrap()).ragged::<f32>("trace", [vec![], vec![1.0, 2.0]])).unwrap();
    leased.commit(outputs).unwrap();
    let checking = lease(&session, "check", 9);
    assert_eq!(checking.rows().to_string(), "0-2");
    assert_eq!((&checking.heads()[1].tags, checking.heads()[1].span), (&tags, Some(Span { first: 0, last: 0 })));
    let batch = checking.batch_of(&["trace", "square"]).unwrap();
    assert_eq!(batch.columns().collect::<Vec<_>>(), ["trace", "square"]);
    assert_eq!(batch.dense::<i64>("square").unwrap().to_vec(), [1, 4, 9]);
    assert_eq!(batch.ragged::<f32>("trace").unwrap().lens(), [0, 2, 1]);
    let ledger = store.with_state(|state, _| state.ledger()).unwrap();
    assert_eq!(ledger[0].dropped, BTreeMap::from([("empty".to_owned(), 1)]));
}

fn one_row(row: u64) -> Rows {
    Rows::run(RowId(row), 1)
}

#[test]
fn appended_cells_are_sealed_by_the_commit_of_their_row_and_forgotten_with_the_lease() {
    let store = store();
    let session = store.session("worker").unwrap();
    put(&session, &[1, 2]);
    let mut leased = lease(&session, "work", 2);
    leased.append(RowId(1), "trace", &[1.0f32]).unwrap();
    leased.append(RowId(0), "trace", &[5.0f32]).unwrap();
    leased.append(RowId(1), "trace", &[2.0f32, 3.0]).unwrap();
    assert_eq!(store.units().stats().total().open, 16);
    let wrong = leased.append(RowId(0), "trace", &[1i64]).unwrap_err().to_string();
    assert!(wrong.contains("`trace` is ragged f32, the output is ragged i64"), "{wrong}");
    let dense = leased.append(RowId(0), "square", &[1i64]).unwrap_err().to_string();
    assert!(dense.contains("only ragged columns"), "{dense}");
    let both = Outputs::new().dense("square", [4i64]).ragged::<f32>("trace", [[0.0]]);
    assert!(leased.commit_rows(&one_row(1), both).unwrap_err().to_string().contains("use one of the two"));
    leased.commit_rows(&one_row(1), Outputs::new().dense("square", [4i64])).unwrap();
    assert_eq!(store.units().stats().total().open, 4);
    let checking = lease(&session, "check", 1);
    assert_eq!(checking.batch().unwrap().ragged::<f32>("trace").unwrap().row(0), [1.0, 2.0, 3.0]);
    drop(leased);
    assert_eq!(store.units().stats().total().open, 0);
    work(lease(&session, "work", 1));
}

#[test]
fn many_threads_consume_every_row_exactly_once() {
    let store = store();
    let (rows, workers) = (2000u64, 8);
    let seen: Vec<AtomicU64> = (0..rows).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        let feeder = store.session("feeder").unwrap();
        scope.spawn(move || {
            for first in (0..rows as i64).step_by(50) {
                put(&feeder, &(first..first + 50).collect::<Vec<_>>());
            }
            feeder.close_partition(PartitionId(0)).unwrap();
        });
        for worker in 0..workers {
            let (session, seen) = (store.session(format!("worker-{worker}")).unwrap(), &seen);
            scope.spawn(move || {
                let task = if worker % 2 == 0 { "work" } else { "check" };
                let mut round = 0;
                while let Claim::Lease(lease) = session.claim(task, 7, soon()).unwrap() {
                    round += 1;
                    match (task, round % 5) {
                        (_, 0) => drop(lease), // a worker that gives up: others must get the rows
                        ("work", _) => work(lease),
                        (_, _) => {
                            let batch = lease.batch().unwrap();
                            let squares = batch.dense::<i64>("square").unwrap();
                            for (i, row) in lease.rows().iter().enumerate() {
                                assert_eq!(squares.scalar(i), (row.0 * row.0) as i64);
                            }
                            let rows = lease.rows().clone();
                            lease.commit(Outputs::new()).unwrap();
                            for row in rows.iter() {
                                seen[row.0 as usize].fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                }
            });
        }
    });
    assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    assert_eq!(held(&store), 0);
}

#[test]
fn the_replayed_log_gives_the_state_that_wrote_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 2000, ..Options::at(dir.path()) };
    let store = Store::create(jobs(), options).unwrap();
    let session = store.session("worker").unwrap();
    put(&session, &[1, 2, 3]);
    work(lease(&session, "work", 2));
    let _held = lease(&session, "work", 1);
    lease(&session, "check", 1).commit(Outputs::new()).unwrap();
    let state = store.with_state(|state, _| state.clone()).unwrap();
    assert_eq!(log::replay(&dir.path().join("events")).unwrap().state(), &state);
    assert!(dir.path().join("events/000001.jsonl").exists(), "segments were rotated");
    let second = Store::create(jobs(), Options::at(dir.path())).err().unwrap().to_string();
    assert!(second.contains("earlier run"), "{second}");
}

#[test]
fn a_training_run_publishes_and_frees_all_but_the_weights() {
    let store = Store::create(training(3), Options::default()).unwrap();
    let published = Arc::new(Mutex::new(Vec::new()));
    let (heard, definition) = (published.clone(), store.definition());
    let hook = move |publication: &Publication<'_>| {
        let consumed = publication.consumed;
        let lines = crate::audit::lines(consumed, &definition, consumed.cycle.map_or(0, |cycle| cycle + 1));
        assert_eq!(publication.state.version(), consumed.version);
        heard.lock().unwrap().push((consumed.cycle, consumed.version, lines));
    };
    store.on_publication(hook).unwrap();
    testing::run(&store, 3);
    let published = published.lock().unwrap();
    assert_eq!(
        published.iter().map(|(cycle, version, _)| (*cycle, *version)).collect::<Vec<_>>(),
        [(None, 0), (Some(0), 1), (Some(1), 2), (Some(2), 3)]
    );
    for (cycle, version, lines) in &published[1..] {
        assert_eq!(lines.len(), 8);
        assert!(lines.iter().all(|line| line.task == "actor" && line.lag == 0 && line.version == version - 1));
        assert!(lines.iter().all(|line| Some(line.step - 1) == *cycle && line.lineage == 0));
    }
    for entry in store.with_state(|state, _| state.ledger()).unwrap() {
        let dropped: u64 = entry.dropped.values().sum();
        assert_eq!((entry.owed, entry.live), (entry.consumed + dropped, 0), "{entry:?}");
    }
    let session = store.session("reader").unwrap();
    let pinned = session.pin("policy", None, soon()).unwrap();
    assert_eq!(pinned.version().version, 3);
    assert_eq!(pinned.read(&["data"]).unwrap().binary("data").unwrap().row(0), b"weights 3");
    let weights = store.units().stats();
    let samples = session.partition("samples").unwrap();
    assert!(weights.columns.keys().all(|(partition, _)| *partition != samples), "{weights:?}");
}

#[test]
fn a_pin_waits_for_its_version_and_unpins_when_dropped() {
    let store = Store::create(training(1), Options::default()).unwrap();
    let session = store.session("rollout").unwrap();
    let waiting = thread::spawn(move || session.pin("policy", Some(0), soon()).unwrap());
    testing::publish(&store.session("trainer").unwrap(), None, 0);
    let pinned = waiting.join().unwrap();
    assert_eq!((pinned.version().version, pinned.read(&["data"]).unwrap().len()), (0, 1));
    let pins = |store: &Store| store.with_state(|state, _| state.versions_alive()[0].pinned_by.clone()).unwrap();
    assert_eq!(pins(&store), ["rollout"]);
    drop(pinned);
    assert_eq!(pins(&store), [""; 0]);
}

#[test]
fn a_store_ends_with_its_last_handle() {
    let store = store();
    let session = store.session("worker").unwrap();
    let shared = Arc::downgrade(&store.shared);
    drop(store);
    put(&session, &[1]);
    assert!(shared.upgrade().is_some(), "a session keeps the store");
    drop(session);
    assert!(shared.upgrade().is_none());
}

#[test]
fn a_store_that_cannot_log_is_broken_and_says_so() {
    let store = store();
    store.shared.lock().unwrap().break_for_test("event log: disk full");
    let error = store.session("worker").unwrap_err().to_string();
    assert_eq!(error, "the store is broken: event log: disk full; restore the last snapshot");
}
