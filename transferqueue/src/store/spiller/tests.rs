//! A run beside a reader that never comes, with just enough memory for a cycle and a fifth.

use std::{fs, path::Path, thread};

use crate::{
    catalog::definition::{Definition, Task},
    error::Error,
    ids::PartitionId,
    session::Claim,
    store::{Durability, Options, Store},
    testing::{self, soon, training},
};

const CYCLES: u64 = 6;
/// The largest response, reward and advantages of a row: two tokens, one score, two numbers.
const ROW: u64 = 8 + 4 + 8;
/// 4 groups of 2 rows.
const CYCLE: u64 = 8 * ROW;

/// The usual run, and `exporter`, which reads responses and rewards whenever it comes.
fn exported() -> Definition {
    let mut definition = training(CYCLES);
    for (column, bytes) in definition.partitions[1].columns.iter_mut().zip([8, 4, 8]) {
        column.max_bytes = Some(bytes);
    }
    let reads = vec!["response".to_owned(), "reward".to_owned()];
    definition.tasks.push(Task { reads, external: true, ..Task::new("exporter", "samples") });
    definition.budget = Some(CYCLE * 6 / 5);
    definition
}

fn options(dir: &Path, spill: bool) -> Options {
    Options { spill: spill.then(|| dir.join("spill")), starved_ms: 1_000, ..Options::at(dir) }
}

/// The usual stages, all in threads; what they hear when the store is stopped.
fn run(store: &Store) -> Vec<Error> {
    testing::publish(&store.session("trainer").unwrap(), None, 0);
    let stage = |task: &'static str| {
        let session = store.session(task).unwrap();
        move || loop {
            match session.claim(task, 3, soon()) {
                Ok(Claim::Lease(lease)) => testing::work(&session, task, lease),
                Ok(Claim::Ended) => return None,
                Err(error) => return Some(error),
            }
        }
    };
    thread::scope(|scope| {
        let stages = ["rollout", "reward", "advantage", "actor"].map(|task| scope.spawn(stage(task)));
        let feeder = store.session("feeder").unwrap();
        let fed = scope.spawn(move || {
            let mut fed = Ok(());
            for i in 0..4 * CYCLES as i32 {
                fed = fed.and_then(|()| testing::try_feed(&feeder, i));
            }
            fed.err()
        });
        stages.into_iter().chain([fed]).filter_map(|stage| stage.join().unwrap()).collect()
    })
}

fn files(dir: &Path) -> usize {
    fs::read_dir(dir.join("spill")).map_or(0, |entries| {
        entries.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "arrow")).count()
    })
}

/// What `exporter` reads, by row: the response's first token and the reward.
fn export(store: &Store) -> Vec<(u64, i32, f32)> {
    let session = store.session("exporter-0").unwrap();
    let mut found = Vec::new();
    while let Claim::Lease(lease) = session.claim("exporter", 1_000, soon()).unwrap() {
        let batch = lease.batch().unwrap();
        let (responses, rewards) = (batch.ragged::<i32>("response").unwrap(), batch.dense::<f32>("reward").unwrap());
        let rewards = rewards.to_vec();
        found.extend((0..batch.len()).map(|i| (lease.heads()[i].row.0, responses.row(i)[0], rewards[i])));
        drop(batch);
        lease.commit(crate::Outputs::new()).unwrap();
    }
    found.sort_by_key(|(row, _, _)| *row);
    found
}

fn expected() -> Vec<(u64, i32, f32)> {
    (0..8 * CYCLES).map(|row| (row, row as i32 / 2 * 2, 1.0)).collect()
}

#[test]
fn a_reader_that_never_comes_costs_files_and_not_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(exported(), options(dir.path(), true)).unwrap();
    assert_eq!(run(&store).len(), 0, "every stage ended by itself");
    let owed = store.with_state(|state, _| (state.owed_outside(), state.verify())).unwrap();
    let (rows, spilled) = (owed.0[0].rows, owed.0[0].spilled);
    assert_eq!((rows, owed.1), (8 * CYCLES, Ok(())));
    let held = 8 * CYCLES * (8 + 4);
    assert!(spilled >= held - CYCLE * 6 / 5 && spilled <= held, "{spilled} of {held} bytes are in files");
    let total = store.units().stats().total();
    assert!(total.spilled > 0 && files(dir.path()) > 0);
    assert_eq!(export(&store), expected(), "what lies in files is what was written");
    let stats = store.units().stats();
    assert!(stats.columns.keys().all(|(partition, _)| *partition != PartitionId(1)), "{stats:?}");
    assert_eq!((stats.total().spilled, files(dir.path())), (0, 0), "files go with their chunks");
    store.with_state(|state, _| state.verify()).unwrap().unwrap();
}

#[test]
fn without_files_the_run_stops_and_names_the_reader_and_its_columns() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(exported(), options(dir.path(), false)).unwrap();
    let errors = run(&store);
    assert!(errors.iter().all(Error::is_stopped) && !errors.is_empty(), "{errors:?}");
    let why = store.stopped().unwrap();
    for part in [
        "`exporter`, which reads from outside the run",
        "`response`, `reward` of ",
        "rows of `samples`",
        "budget of 192 bytes",
    ] {
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(files(dir.path()), 0);
}

#[test]
fn a_folder_that_takes_no_file_stops_the_run_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(exported(), options(dir.path(), true)).unwrap();
    fs::remove_dir_all(dir.path().join("spill")).unwrap();
    assert!(!run(&store).is_empty());
    let why = store.stopped().unwrap();
    assert!(why.contains("spilling failed: spill file") && why.contains("cannot create it"), "{why}");
}

#[test]
fn a_reader_that_keeps_up_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(exported(), options(dir.path(), false)).unwrap();
    let found = thread::scope(|scope| {
        let exporter = scope.spawn(|| export(&store));
        assert_eq!(run(&store).len(), 0);
        exporter.join().unwrap()
    });
    assert_eq!(found, expected());
}

#[test]
fn a_view_outlives_the_move_to_a_file_and_a_pointer_finds_the_cells_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(exported(), options(dir.path(), true)).unwrap();
    let session = store.session("all").unwrap();
    testing::publish(&session, None, 0);
    testing::feed(&session, 0, 8);
    for (task, times) in [("rollout", 8), ("reward", 8), ("advantage", 4)] {
        let claim = || session.claim(task, 1, soon()).unwrap().lease().unwrap();
        (0..times).for_each(|_| testing::work(&session, task, claim()));
    }
    let exporter = store.session("exporter-0").unwrap();
    let lease = exporter.claim("exporter", 8, soon()).unwrap().lease().unwrap();
    let before = lease.batch().unwrap();
    let (view, pointer) = (before.ragged::<i32>("response").unwrap(), lease.reference().clone());
    // The last batches of the cycle: from now on only `exporter` wants these rows, and bytes are short.
    (0..2).for_each(|_| testing::work(&session, "actor", session.claim("actor", 3, soon()).unwrap().lease().unwrap()));
    store.shared.spill().unwrap();
    let spilled = store.with_state(|state, _| state.owed_outside()[0].spilled).unwrap();
    assert_eq!(spilled, 8 * 8, "the responses: without them there is room for the next cycle");
    assert_eq!((view.row(7), view.len()), ([6, 8].as_slice(), 8), "what was read stays as it is");
    let response = pointer.columns.iter().find(|column| column.name == "response").unwrap();
    let again = store.shared.transport.get(response).unwrap();
    assert_eq!(again.iter().map(crate::transport::View::len).sum::<usize>(), 8);
    let responses = store.units().stats().column(PartitionId(1), crate::ColumnId(0));
    assert_eq!((responses.spilled, responses.pinned), (responses.live, responses.live));
    assert_eq!(lease.batch().unwrap().ragged::<i32>("response").unwrap().row(7), [6, 8]);
}

#[test]
fn a_store_that_is_killed_finds_its_files_again_and_refuses_damaged_ones() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        Options { durability: Durability::Process, arena_segment_bytes: 4 << 10, ..options(dir.path(), true) };
    let store = Store::create(exported(), options.clone()).unwrap();
    assert_eq!(run(&store).len(), 0);
    let before = store.with_state(|state, _| state.owed_outside()).unwrap();
    drop(store);
    assert!(files(dir.path()) > 0 && before[0].spilled > 0, "files stay with the arena");
    fs::write(dir.path().join("spill/000999.arrow"), b"of no event").unwrap();

    let (store, _) = Store::recover(&options, |_, _, _| {}).unwrap();
    assert_eq!(store.with_state(|state, _| state.owed_outside()).unwrap(), before);
    assert!(!dir.path().join("spill/000999.arrow").exists());
    assert!(store.units().stats().total().spilled > 0);
    drop(store);

    let without = Options { spill: None, ..options.clone() };
    let error = Store::recover(&without, |_, _, _| {}).err().unwrap().to_string();
    assert!(error.contains("spill: None") && error.contains("`samples`"), "{error}");

    let mut paths = fs::read_dir(dir.path().join("spill")).unwrap().map(|entry| entry.unwrap().path());
    let path = paths.find(|path| path.extension().is_some_and(|e| e == "arrow")).unwrap();
    let whole = fs::read(&path).unwrap();
    for damaged in [whole[..whole.len() - 1].to_vec(), {
        let mut bytes = whole.clone();
        bytes[700] ^= 4;
        bytes
    }] {
        fs::write(&path, damaged).unwrap();
        let error = Store::recover(&options, |_, _, _| {}).err().unwrap().to_string();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("is damaged"), "{error}");
    }
    fs::write(&path, whole).unwrap();
    let (store, _) = Store::recover(&options, |_, _, _| {}).unwrap();
    assert_eq!(export(&store), expected());
}

#[test]
fn a_snapshot_holds_what_was_spilled_and_brings_it_back_to_memory() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(exported(), options(dir.path(), true)).unwrap();
    assert_eq!(run(&store).len(), 0);
    store.snapshot(&dir.path().join("state")).unwrap();
    drop(store);
    let restored = Store::restore(&dir.path().join("state"), Options::default()).unwrap();
    restored.with_state(|state, _| state.verify()).unwrap().unwrap();
    assert_eq!(restored.units().stats().total().spilled, 0);
    assert_eq!(export(&restored), expected());
}
