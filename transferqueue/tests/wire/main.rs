//! A store that is shared over the wire, and what goes wrong with wires: lost replies, dead clients, garbage, wrong
//! tokens, other stores.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "a test binary exports nothing")]

mod encrypted;
mod faults;
mod gangs;
mod garbage;
mod gates;
#[path = "../wire_support/office.rs"]
mod office;
mod proxy;

use std::time::{Duration, Instant};

use transferqueue::{
    Column, Definition, Kind, Options, Store,
    catalog::definition::{Birth, Partition, Task},
    client::{self, Remote},
    server::{self, Server},
};

/// Far enough away that only a defect reaches it.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A table of jobs without columns, which `take` works under leases of 300 ms, and a table of papers with a text.
fn store() -> Store {
    let table = |name: &str, columns| Partition { name: name.into(), columns, birth: Birth::Put { capacity: None } };
    let partitions = vec![table("jobs", vec![]), table("papers", vec![Column::new("text", Kind::Binary)])];
    let tasks = vec![
        Task { lease_ms: 300, ..Task::new("take", "jobs") },
        Task { reads: vec!["text".into()], ..Task::new("read", "papers") },
    ];
    let definition = Definition { partitions, tasks, ..Definition::default() };
    Store::create(definition, Options::default()).unwrap()
}

fn serve(store: &Store) -> Server {
    server::serve(store, &server::Options::default()).unwrap()
}

fn connect(server: &Server) -> Remote {
    Remote::connect(server.url(), server.token(), client::Options::default()).unwrap()
}
