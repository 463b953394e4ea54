//! Clients come and go; nothing of them stays open. Alone in its process, since it counts the process's descriptors.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use transferqueue::{
    Definition, NewRow, Options, Outputs, Store,
    catalog::definition::{Birth, Partition, Task},
    client::{self, Remote},
    server,
};

fn open() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn two_hundred_clients_leave_no_descriptor_behind() {
    let jobs = Partition { name: "jobs".into(), columns: vec![], birth: Birth::Put { capacity: None } };
    let definition =
        Definition { partitions: vec![jobs], tasks: vec![Task::new("take", "jobs")], ..Definition::default() };
    let store = Store::create(definition, Options::default()).unwrap();
    let server = server::serve(&store, &server::Options::default()).unwrap();
    let visit = || {
        let remote = Remote::connect(server.url(), server.token(), client::Options::default()).unwrap();
        let session = remote.session("visitor").unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        session.put(session.partition("jobs").unwrap(), vec![NewRow::default()], Outputs::new(), deadline).unwrap();
    };
    visit();
    let before = open();
    (0..200).for_each(|_| visit());
    // Connections end a moment after their last user.
    let begun = Instant::now();
    while open() > before + 3 && begun.elapsed() < Duration::from_secs(20) {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert!(open() <= before + 3, "{} descriptors are open, {before} were", open());
    assert_eq!(store.with_state(|state, now| state.sessions(now).len()).unwrap(), 0);
}
