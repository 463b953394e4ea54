//! What is there again: rows, leases, answers, puts without a name; and what is not: sessions of the process that ended.

use std::{net::SocketAddr, path::Path, thread, time::Duration};

use transferqueue::{
    Error, NewRow, Outputs, Recovered, Session, Store,
    client::{self, Remote},
    server::{self, Server},
};

use crate::{copy, definition, options, soon, two};

/// A store that is served at one address, life after life.
struct Host<'a> {
    dir: &'a Path,
    address: SocketAddr,
    up: Option<(Store, Server)>,
}

impl<'a> Host<'a> {
    fn new(dir: &'a Path) -> Self {
        let store = Store::create(definition(), options(dir)).unwrap();
        let mut host = Self { dir, address: SocketAddr::from(([127, 0, 0, 1], 0)), up: None };
        host.serve(store);
        host
    }

    fn serve(&mut self, store: Store) {
        let token_file = Some(self.dir.join("token"));
        let options = server::Options { listen: self.address, token_file, ..server::Options::default() };
        let server = server::serve(&store, &options).unwrap();
        self.address = server.url().strip_prefix("grpc://").unwrap().parse().unwrap();
        self.up = Some((store, server));
    }

    fn store(&self) -> &Store {
        &self.up.as_ref().unwrap().0
    }

    fn connect(&self) -> Remote {
        let server = &self.up.as_ref().unwrap().1;
        Remote::connect(server.url(), server.token(), client::Options::default()).unwrap()
    }

    /// Ends this life; its token file stays, as after a kill.
    fn down(&mut self) {
        let token = std::fs::read(self.dir.join("token")).unwrap();
        let (store, server) = self.up.take().unwrap();
        drop(server);
        drop(store);
        let path = self.dir.join("token");
        std::fs::write(&path, token).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn recover(&mut self) -> Recovered {
        let (store, recovered) = Store::recover(&options(self.dir), |_, _, _| {}).unwrap();
        self.serve(store);
        recovered
    }
}

/// Puts rows `from..to`: numbers, and texts of them.
fn feed(session: &Session, from: i64, to: i64) {
    let jobs = session.partition("jobs").unwrap();
    let rows = vec![NewRow::default(); (to - from) as usize];
    let outputs = Outputs::new()
        .dense("number", (from..to).collect::<Vec<i64>>())
        .utf8("text", (from..to).map(|number| number.to_string()).collect::<Vec<_>>());
    session.put(jobs, rows, outputs, soon()).unwrap();
}

fn square(session: &Session, limit: u64) -> u64 {
    let lease = session.claim("square", limit, soon()).unwrap().lease().unwrap();
    let numbers = lease.batch().unwrap().dense::<i64>("number").unwrap().to_vec();
    lease.commit(Outputs::new().dense("square", numbers.iter().map(|n| n * n).collect::<Vec<i64>>())).unwrap();
    numbers.len() as u64
}

fn sum(session: &Session, limit: u64) -> Vec<(i64, String)> {
    let lease = session.claim("sum", limit, soon()).unwrap().lease().unwrap();
    let batch = lease.batch().unwrap();
    let squares = batch.dense::<i64>("square").unwrap().to_vec();
    let texts: Vec<String> = batch.utf8("text").unwrap().iter().map(str::to_owned).collect();
    lease.commit(Outputs::new()).unwrap();
    squares.into_iter().zip(texts).collect()
}

#[test]
fn a_client_goes_on_with_its_session_its_lease_and_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(dir.path());
    let remote = host.connect();
    let worker = remote.session("worker").unwrap();
    feed(&worker, 0, 300);
    assert_eq!(square(&worker, 100), 100);
    let lease = worker.claim("square", 50, soon()).unwrap().lease().unwrap();
    let before = host.store().with_state(|state, _| state.ledger()).unwrap();
    host.down();
    let recovered = host.recover();
    assert_eq!((recovered.sessions, recovered.held), (1, 0));
    assert_eq!(host.store().with_state(|state, _| state.ledger()).unwrap(), before);
    // The pointer, the lease and the session are those of the life before.
    let numbers = lease.batch().unwrap().dense::<i64>("number").unwrap().to_vec();
    assert_eq!(numbers, (100..150).collect::<Vec<i64>>());
    lease.commit(Outputs::new().dense("square", numbers.iter().map(|n| n * n).collect::<Vec<i64>>())).unwrap();
    assert_eq!(square(&worker, 1_000), 150);
    let read = sum(&worker, 300);
    assert_eq!(read, (0..300).map(|n| (n * n, n.to_string())).collect::<Vec<_>>());
    assert_eq!(host.store().units().stats().total().live, 0);
}

#[test]
fn a_call_whose_answer_was_lost_with_the_store_is_answered_by_the_next_life_and_done_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(dir.path());
    let remote = host.connect();
    let worker = remote.session("worker").unwrap();
    feed(&worker, 0, 10);
    // The claim waits for rows that do not exist, the store goes, and comes back with the same wait to serve.
    square(&worker, 10);
    let waiting = thread::spawn(move || worker.claim("square", 4, soon()).unwrap().lease().unwrap().rows().clone());
    thread::park_timeout(Duration::from_millis(200));
    host.down();
    host.recover();
    let feeder = host.connect().session("feeder").unwrap();
    feed(&feeder, 10, 14);
    assert_eq!(waiting.join().unwrap().to_string(), "10-13");
}

#[test]
fn sessions_of_the_process_that_ended_are_gone_and_what_they_held_is_free_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::new(dir.path());
    let here = host.store().session("here").unwrap();
    feed(&here, 0, 5);
    let lease = here.claim("square", 5, soon()).unwrap().lease().unwrap();
    // As a kill would leave it: without a goodbye of theirs.
    let left = tempfile::tempdir().unwrap();
    copy(dir.path(), left.path());
    let (store, recovered) = Store::recover(&options(left.path()), |_, _, _| {}).unwrap();
    assert_eq!(recovered.sessions, 0);
    let next = store.session("next").unwrap();
    assert_eq!(square(&next, 5), 5);
    drop(lease);
}

#[test]
fn a_store_is_recovered_again_and_again_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(dir.path());
    let remote = host.connect();
    let worker = remote.session("worker").unwrap();
    for life in 0..12 {
        feed(&worker, life * 100, life * 100 + 100);
        assert_eq!(square(&worker, 70), 70);
        host.down();
        let recovered = host.recover();
        assert!(recovered.bytes > 0, "life {life}: {recovered:?}");
        assert_eq!(square(&worker, 30), 30);
        let squares = sum(&worker, 100);
        assert_eq!(squares[7].0, (life * 100 + 7) * (life * 100 + 7));
    }
    assert_eq!(host.store().units().stats().total().live, 0);
    host.down();
    let recovered = host.recover();
    assert_eq!(recovered.bytes, 0);
    let left = std::fs::read_dir(dir.path().join("arena")).unwrap().count();
    assert_eq!(left, 2, "only meta.json and lock");
}

#[test]
fn a_store_whose_calls_wait_for_the_disk_is_recovered_the_same_way() {
    let dir = tempfile::tempdir().unwrap();
    let lasting = transferqueue::Options { durability: transferqueue::Durability::Host, ..options(dir.path()) };
    let store = Store::create(definition(), lasting.clone()).unwrap();
    let server = server::serve(&store, &server::Options::default()).unwrap();
    // Four clients at once, so that flushes are shared.
    thread::scope(|scope| {
        for client in 0..4 {
            let remote = Remote::connect(server.url(), server.token(), client::Options::default()).unwrap();
            scope.spawn(move || {
                let session = remote.session(format!("client-{client}")).unwrap();
                for step in 0..10 {
                    feed(&session, client * 1_000 + step * 10, client * 1_000 + step * 10 + 10);
                    square(&session, 10);
                }
            });
        }
    });
    drop(server);
    drop(store);
    let (store, _) = Store::recover(&lasting, |_, _, _| {}).unwrap();
    let session = store.session("sum").unwrap();
    let mut texts: Vec<i64> = sum(&session, 1_000).into_iter().map(|(_, text)| text.parse().unwrap()).collect();
    texts.sort_unstable();
    assert_eq!(texts, (0..4).flat_map(|client| client * 1_000..client * 1_000 + 100).collect::<Vec<_>>());
    drop(session);
    assert_eq!(store.units().stats().total().live, 0, "freed once its end is on the disk");
}

#[test]
fn a_snapshot_restored_into_a_lasting_store_can_be_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(dir.path());
    let worker = host.store().session("worker").unwrap();
    feed(&worker, 0, 40);
    square(&worker, 20);
    let snapshot = dir.path().join("snapshot");
    host.store().snapshot(&snapshot).unwrap();
    square(&worker, 20);
    drop(worker);
    host.down();
    // Back to the snapshot, some work, and a kill: what is restored lies in the arena, too.
    let store = Store::restore(&snapshot, options(dir.path())).unwrap();
    let worker = store.session("worker").unwrap();
    feed(&worker, 40, 50);
    drop(worker);
    drop(store);
    host.recover();
    let worker = host.store().session("worker").unwrap();
    assert_eq!(square(&worker, 100), 30);
    assert_eq!(sum(&worker, 100).len(), 50);
}

#[test]
fn durability_without_a_folder_and_recovery_without_an_arena_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let homeless = transferqueue::Options { dir: None, ..options(dir.path()) };
    let error = Store::create(definition(), homeless).err().unwrap().to_string();
    assert_eq!(error, "durability `process` needs a folder for events and bytes; found `dir: None`");
    let fleeting = transferqueue::Options { durability: transferqueue::Durability::None, ..options(dir.path()) };
    drop(Store::create(definition(), fleeting).unwrap());
    let error = Store::recover(&options(dir.path()), |_, _, _| {}).err().unwrap();
    assert!(matches!(error, Error::Arena(_)) && error.to_string().contains("none there"), "{error}");
}

#[test]
fn a_store_of_two_units_goes_on_and_another_number_is_refused_with_both() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(definition(), two(dir.path())).unwrap();
    let worker = store.session("worker").unwrap();
    feed(&worker, 0, 300);
    assert_eq!(square(&worker, 100), 100);
    drop(worker);
    let live: Vec<u64> = store.units().iter().map(|unit| unit.stats().total().live).collect();
    assert!(live.iter().all(|bytes| *bytes > 0), "{live:?}");
    drop(store);
    for units in [1, 3] {
        let wrong = transferqueue::Options { units, ..options(dir.path()) };
        assert!(Store::is_left(&wrong), "it is there, and is not as asked for");
        let error = Store::recover(&wrong, |_, _, _| {}).err().unwrap().to_string();
        let expected = format!("has 2 units, found `units: {units}`; recover it with `units: 2`");
        assert!(error.contains(&expected), "{error}");
    }
    let (store, recovered) = Store::recover(&two(dir.path()), |_, _, _| {}).unwrap();
    assert_eq!(recovered.bytes, live.iter().sum::<u64>());
    assert_eq!(store.units().iter().map(|unit| unit.stats().total().live).collect::<Vec<_>>(), live);
    let worker = store.session("worker").unwrap();
    assert_eq!(square(&worker, 1_000), 200);
    assert_eq!(sum(&worker, 300), (0..300).map(|n| (n * n, n.to_string())).collect::<Vec<_>>());
    assert_eq!(store.units().stats().total().live, 0);
}

#[test]
fn a_snapshot_restored_into_another_number_of_units_leaves_nothing_of_the_former_ones() {
    let dir = tempfile::tempdir().unwrap();
    let with = |units| transferqueue::Options { units, ..options(dir.path()) };
    let store = Store::create(definition(), with(1)).unwrap();
    let worker = store.session("worker").unwrap();
    feed(&worker, 0, 200);
    drop(worker);
    let snapshot = dir.path().join("snapshot");
    store.snapshot(&snapshot).unwrap();
    drop(store);
    for units in [3, 2, 1] {
        drop(Store::restore(&snapshot, with(units)).unwrap());
        let (store, _) = Store::recover(&with(units), |_, _, _| {}).unwrap();
        let jobs = store.with_state(|state, _| state.partition("jobs")).unwrap().unwrap();
        let batch = store.read(jobs, None, &["number", "text"]).unwrap();
        assert_eq!(batch.dense::<i64>("number").unwrap().to_vec(), (0..200).collect::<Vec<i64>>());
        assert!(batch.utf8("text").unwrap().iter().map(str::to_owned).eq((0..200).map(|n| n.to_string())));
        let mut names: Vec<String> = std::fs::read_dir(dir.path().join("arena"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("unit_") || name == "meta.json")
            .collect();
        names.sort();
        let expected: Vec<String> = (0..units).map(|unit| format!("unit_{unit}")).collect();
        assert_eq!(names, if units == 1 { vec!["meta.json".to_owned()] } else { expected });
    }
}

#[test]
fn a_number_of_units_beyond_the_limits_is_refused() {
    for units in [0, 65] {
        let wrong = transferqueue::Options { units, ..transferqueue::Options::default() };
        let error = Store::create(definition(), wrong).err().unwrap().to_string();
        assert_eq!(error, format!("a store has 1 to 64 units; found `units: {units}`"));
    }
}
