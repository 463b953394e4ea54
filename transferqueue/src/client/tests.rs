//! The transport's conformance, and a run over the wire against the same run in one process.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use super::*;
use crate::{
    catalog::definition::{Birth, Partition},
    ids::{ChunkId, ColumnId, PartitionId},
    link::Link,
    schema::{Column, Dtype, Kind},
    server::{self, Service},
    store::{Options as StoreOptions, Store},
    testing::{self, training},
    transport::conformance::{self, Fixture},
};

type Declared = Arc<Mutex<HashMap<PartitionId, Arc<Partition>>>>;

/// A unit behind a server; what a catalog would know of its columns is declared by the suite.
struct OverTheWire {
    store: Store,
    remote: Remote,
    transport: Flight,
    declared: Declared,
    _session: Session,
    _server: server::Server,
}

impl Fixture for OverTheWire {
    fn new(capacity: usize) -> Self {
        let options = StoreOptions { chunk_bytes: capacity, ..StoreOptions::default() };
        let store = Store::create(Definition::default(), options).unwrap();
        let declared = Declared::default();
        let known = declared.clone();
        let service = Service {
            store: store.clone(),
            describe: Arc::new(move |id| Ok(known.lock().unwrap()[&id].clone())),
            program: None,
            incarnation: store.with_state(|state, _| state.incarnation()).unwrap(),
            message_bytes: MESSAGE_BYTES,
        };
        let server = server::start(service, &server::Options::default()).unwrap();
        let remote = Remote::connect(server.url(), server.token(), Options::default()).unwrap();
        let session = remote.session("writer").unwrap();
        let transport = Flight::new(remote.inner.clone(), session.id());
        Self { store, remote, transport, declared, _session: session, _server: server }
    }

    fn transport(&self) -> &dyn Transport {
        &self.transport
    }

    fn declare(&self, partition: PartitionId, id: ColumnId, column: &Column) {
        let filler = |i: usize| Column::new(format!("column {i}"), Kind::Dense { dtype: Dtype::U8, shape: vec![] });
        let mut columns: Vec<Column> = (0..usize::from(id.0)).map(filler).collect();
        columns.push(column.clone());
        let description = Partition { name: "declared".into(), columns, birth: Birth::Put { capacity: None } };
        self.declared.lock().unwrap().insert(partition, Arc::new(description));
    }

    fn committed(&self, chunk: ChunkId) {
        self.store.units().committed(chunk);
    }

    fn free(&self, chunk: ChunkId) {
        // The call that named the cells would have let their holds go.
        self.transport.settle().unwrap();
        self.store.units().free(chunk);
    }

    fn bytes_held(&self) -> u64 {
        self.transport.settle().unwrap();
        let total = self.store.units().stats().total();
        total.live + total.lingering + total.unsettled + self.remote.bytes_received()
    }
}

conformance::suite!(OverTheWire);

#[test]
fn a_run_over_the_wire_ends_as_the_same_run_in_one_process() {
    let embedded = Store::create(training(3), StoreOptions::default()).unwrap();
    testing::run(&embedded, 3);
    let shared = Store::create(training(3), StoreOptions::default()).unwrap();
    let server = server::serve(&shared, &server::Options::default()).unwrap();
    let remote = Remote::connect(server.url(), server.token(), Options::default()).unwrap();
    testing::run_over(&|name| remote.session(name).unwrap(), 3);
    let ledger = |store: &Store| store.with_state(|state, _| state.ledger()).unwrap();
    assert_eq!(ledger(&shared), ledger(&embedded));
    assert!(ledger(&shared).iter().all(|entry| entry.balanced()));
    let weights = |open: Session| {
        let pinned = open.pin("policy", None, testing::soon()).unwrap();
        assert_eq!(pinned.version().version, 3);
        pinned.read(&["data"]).unwrap().binary("data").unwrap().row(0).to_vec()
    };
    assert_eq!(weights(remote.session("reader").unwrap()), weights(embedded.session("reader").unwrap()));
    assert_eq!(remote.bytes_received(), 0, "every view is closed");
    assert_eq!(shared.units().stats().total().unsettled, 0, "every put is named or let go");
    assert_eq!(remote.definition(), shared.definition());
    assert_eq!(remote.newest(crate::ModelId(0)).unwrap(), shared.newest(crate::ModelId(0)).unwrap());
}

#[test]
fn several_threads_share_a_session_while_one_of_them_waits() {
    let store = Store::create(training(1), StoreOptions::default()).unwrap();
    let server = server::serve(&store, &server::Options::default()).unwrap();
    let remote = Remote::connect(server.url(), server.token(), Options::default()).unwrap();
    let session = remote.session("worker").unwrap();
    let waiting = {
        let session = session.clone();
        std::thread::spawn(move || session.pin("policy", Some(0), testing::soon()).unwrap().version().version)
    };
    testing::feed(&session, 0, 4);
    testing::publish(&session, None, 0);
    assert_eq!(waiting.join().unwrap(), 0);
    assert_eq!(session.born(PartitionId(0)).unwrap(), 4);
}
