//! `make connections`: many clients at once, and clients that come and go. Alone in its process, since it counts
//! descriptors and memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use transferqueue::{
    Column, Definition, Kind, NewRow, Options, Outputs, Store,
    catalog::definition::{Birth, Partition, Task},
    client::{self, Remote},
    server,
};

const ROW_BYTES: usize = 2 << 10;

fn store() -> Store {
    let text = Column::new("text", Kind::Binary);
    let papers = Partition { name: "papers".into(), columns: vec![text], birth: Birth::Put { capacity: None } };
    let read = Task { reads: vec!["text".into()], ..Task::new("read", "papers") };
    Store::create(
        Definition { partitions: vec![papers], tasks: vec![read], ..Definition::default() },
        Options::default(),
    )
    .unwrap()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Bytes in memory, as the kernel counts them.
fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited for a minute: {what}");
        thread::park_timeout(Duration::from_millis(50));
    }
}

/// 4,096 clients with a connection for control and one for bytes each: 8,192 connections, all open while all write. The first put
/// of a client is too large to come along with its command, and opens the other one.
#[test]
#[ignore = "a minute, 16,500 descriptors: make connections"]
fn eight_thousand_connections_lose_no_row() {
    let (threads, each, rounds, first) = (64, 64, 4, 9);
    let store = store();
    let options = server::Options { connections: 10_000, ..server::Options::default() };
    let server = server::serve(&store, &options).unwrap();
    let (before, begun, all_open) = (descriptors(), Instant::now(), Barrier::new(threads + 1));
    let most = thread::scope(|scope| {
        for thread in 0..threads {
            let (server, all_open) = (&server, &all_open);
            scope.spawn(move || {
                let options = client::Options { connections: 1, ..client::Options::default() };
                let sessions: Vec<_> = (0..each)
                    .map(|_| Remote::connect(server.url(), server.token(), options.clone()).unwrap())
                    .map(|remote| remote.session("writer").unwrap())
                    .collect();
                let put = |round: usize, i: usize| {
                    let session = &sessions[i];
                    let client = (thread * each + i) * (first + rounds - 1);
                    let numbers = if round == 0 { 0..first } else { first + round - 1..first + round };
                    let text = numbers.map(|number| {
                        let mut text = vec![(client + number) as u8; ROW_BYTES];
                        text[..8].copy_from_slice(&((client + number) as u64).to_le_bytes());
                        text
                    });
                    let (papers, text) = (session.partition("papers").unwrap(), Vec::from_iter(text));
                    let deadline = Instant::now() + Duration::from_secs(60);
                    let rows = vec![NewRow::default(); text.len()];
                    session.put(papers, rows, Outputs::new().binary("text", text), deadline).unwrap();
                };
                (0..each).for_each(|i| put(0, i));
                all_open.wait();
                (1..rounds).for_each(|round| (0..each).for_each(|i| put(round, i)));
                all_open.wait();
            });
        }
        all_open.wait();
        let most = (descriptors() - before, resident());
        all_open.wait();
        most
    });
    let rows = threads * each * (first + rounds - 1);
    println!(
        "{} connections wrote {rows} rows of {ROW_BYTES} bytes in {:?}; {} MiB in memory with all open, both ends",
        most.0 / 2,
        begun.elapsed(),
        most.1 >> 20
    );
    assert!(most.0 >= 2 * 2 * threads * each, "{} descriptors were open at once", most.0);
    let papers = store.with_state(|state, _| state.partition("papers")).unwrap().unwrap();
    let batch = store.read(papers, None, &["text"]).unwrap();
    let text = batch.binary("text").unwrap();
    let mut numbers: Vec<u64> = (0..batch.len())
        .map(|row| {
            let number = u64::from_le_bytes(text.row(row)[..8].try_into().unwrap());
            assert!(text.row(row)[8..].iter().all(|byte| *byte == number as u8), "row of {number} is mixed up");
            number
        })
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..rows as u64).collect::<Vec<_>>());
    until("descriptors", || descriptors() <= before + 3);
    assert_eq!(store.with_state(|state, now| state.sessions(now).len()).unwrap(), 0);
}

#[test]
#[ignore = "minutes: make connections"]
fn a_hundred_thousand_visits_leave_nothing_behind() {
    let visits: usize = std::env::var("TQ_VISITS").map_or(100_000, |text| text.parse().unwrap());
    let store = store();
    let server = server::serve(&store, &server::Options::default()).unwrap();
    let visit = || {
        let options = client::Options { connections: 1, ..client::Options::default() };
        let remote = Remote::connect(server.url(), server.token(), options).unwrap();
        drop(remote.session("visitor").unwrap());
    };
    (0..1_000).for_each(|_| visit());
    let (before, memory, begun) = (descriptors(), resident(), Instant::now());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..visits / 4).for_each(|_| visit()));
        }
    });
    let took = begun.elapsed();
    until("descriptors", || descriptors() <= before + 3);
    let grown = resident().saturating_sub(memory);
    println!(
        "{visits} visits in {took:?}: memory grew by {} KiB, {} bytes a visit",
        grown >> 10,
        grown / visits as u64
    );
    assert_eq!(store.with_state(|state, now| state.sessions(now).len()).unwrap(), 0);
    assert!(grown < 64 << 20, "memory grew by {grown} bytes");
}
