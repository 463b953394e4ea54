//! The transport's conformance, and a run over the wire against the same run in one process.

mod shm;

use std::{
    collections::HashMap,
    marker::PhantomData,
    sync::{Arc, Mutex},
};

use super::*;
use crate::{
    Outputs,
    catalog::{
        command::{ColumnRef, NewRow},
        definition::{Birth, Partition},
    },
    ids::{ChunkId, ColumnId, PartitionId},
    link::Link,
    schema::{Column, Dtype, Kind},
    server::{self, Service},
    store::{Options as StoreOptions, Store},
    testing::{self, training},
    transport::{
        View,
        conformance::{self, Fixture},
    },
};

type Declared = Arc<Mutex<HashMap<PartitionId, Arc<Partition>>>>;

/// Which way the bytes of a fixture go.
pub(super) trait Way: Sync + Send + 'static {
    /// Whether the store's bytes lie where other processes can map them.
    const SHARED: bool = true;
    const CHOICE: Choice;

    /// What the server offers through UCX.
    fn ucx() -> Option<server::Ucx> {
        None
    }
}

struct ByFlight;
struct BySharedMemory;

impl Way for ByFlight {
    const SHARED: bool = false;
    const CHOICE: Choice = Choice::Flight;
}

impl Way for BySharedMemory {
    const CHOICE: Choice = Choice::Shm;
}

/// A unit behind a server, with its bytes read over one path; what a catalog would know of its columns is declared by the
/// suite.
pub(super) struct OverTheWire<W> {
    store: Store,
    remote: Remote,
    transport: Paths,
    declared: Declared,
    _session: Session,
    #[cfg_attr(not(feature = "ucx"), expect(dead_code, reason = "it is dropped with the fixture"))]
    server: server::Server,
    way: PhantomData<W>,
}

impl<W: Way> OverTheWire<W> {
    /// Lets the store know of what was dropped here, and waits for messages of which nobody hears that they were sent.
    fn settle(&self) {
        self.transport.settle();
        #[cfg(feature = "ucx")]
        if let Some(ucx) = &self.server.ucx {
            until("every message was sent", || ucx.on_the_way() == 0);
        }
    }
}

impl<W: Way> Fixture for OverTheWire<W> {
    fn new(capacity: usize) -> Self {
        let options = StoreOptions { chunk_bytes: capacity, shared: W::SHARED, ..StoreOptions::default() };
        let store = Store::create(Definition::default(), options).unwrap();
        let declared = Declared::default();
        let known = declared.clone();
        let incarnation = store.with_state(|state, _| state.incarnation()).unwrap();
        let service = Service {
            describe: Arc::new(move |id| Ok(known.lock().unwrap()[&id].clone())),
            ..Service::over(&store, incarnation, MESSAGE_BYTES)
        };
        let server = server::start(service, &server::Options { ucx: W::ucx(), ..server::Options::default() }).unwrap();
        let options = Options { transport: W::CHOICE, ..Options::default() };
        let remote = Remote::connect(server.url(), server.token(), options).unwrap();
        let session = remote.session("writer").unwrap();
        let transport = remote.paths(session.id());
        Self { store, remote, transport, declared, _session: session, server, way: PhantomData }
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
        self.settle();
        self.store.units().free(chunk);
    }

    fn bytes_held(&self) -> u64 {
        self.settle();
        let total = self.store.units().stats().total();
        total.live + total.lingering + total.unsettled + self.remote.bytes_received()
    }
}

conformance::suite!(OverTheWire<ByFlight>);

mod through_shared_memory {
    use super::*;

    conformance::suite!(OverTheWire<BySharedMemory>);
}

#[cfg(not(feature = "ucx"))]
#[test]
fn a_build_without_ucx_refuses_it_and_says_how_to_get_it() {
    let served = served(true, 10, &server::Options::default());
    let options = Options { transport: Choice::Ucx, ..Options::default() };
    let error = Remote::connect(served.server.url(), served.server.token(), options).unwrap_err().to_string();
    assert!(error.contains("cannot be had: this build has no UCX; build it with the feature `ucx`"), "{error}");
    let ucx = server::Options { ucx: Some(server::Ucx::default()), ..server::Options::default() };
    let error = server::serve(&served.store, &ucx).err().unwrap().to_string();
    assert!(error.contains("UCX: this build has no UCX; build it with the feature `ucx`"), "{error}");
}

#[test]
fn a_run_over_the_wire_ends_as_the_same_run_in_one_process() {
    for shared in [false, true] {
        a_run_ends_as_in_one_process(shared);
    }
}

/// `mapped`: bytes lie where workers of the host can map them, and commands go over the socket beside that.
fn a_run_ends_as_in_one_process(mapped: bool) {
    let embedded = Store::create(training(3), StoreOptions::default()).unwrap();
    testing::run(&embedded, 3);
    let shared = Store::create(training(3), StoreOptions { shared: mapped, ..StoreOptions::default() }).unwrap();
    let server = server::serve(&shared, &server::Options::default()).unwrap();
    let remote = Remote::connect(server.url(), server.token(), Options::default()).unwrap();
    testing::run_over(&|name| remote.session(name).unwrap(), 3);
    let calls = remote.traffic().calls;
    assert_eq!((calls.shm > 0, calls.flight > 0), if mapped { (true, calls.flight > 0) } else { (false, true) });
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
    for shared in [false, true] {
        let store = Store::create(training(1), StoreOptions { shared, ..StoreOptions::default() }).unwrap();
        let server = server::serve(&store, &server::Options::default()).unwrap();
        let remote = Remote::connect(server.url(), server.token(), Options::default()).unwrap();
        let session = remote.session("worker").unwrap();
        let waiting = {
            let session = session.clone();
            std::thread::spawn(move || session.pin("policy", Some(0), testing::soon()).unwrap().version().version)
        };
        let begun = Instant::now();
        while remote.traffic().calls.flight == 0 {
            assert!(begun.elapsed() < Duration::from_secs(10), "who waits is woken over the network");
            std::thread::yield_now();
        }
        testing::feed(&session, 0, 4);
        testing::publish(&session, None, 0);
        assert_eq!(waiting.join().unwrap(), 0);
        assert_eq!(session.born(PartitionId(0)).unwrap(), 4);
        assert_eq!(remote.traffic().calls.shm > 3, shared, "{:?}", remote.traffic());
    }
}

#[test]
fn a_small_put_is_one_question_and_a_large_one_says_first_where_its_cells_lie() {
    for (choice, shared) in [(Choice::Shm, true), (Choice::Flight, false)] {
        let served = served(shared, 10, &server::Options::default());
        let options = Options { transport: choice, ..Options::default() };
        let remote = Remote::connect(served.server.url(), served.server.token(), options).unwrap();
        let session = remote.session("feeder").unwrap();
        let asked = |traffic: Traffic| if shared { traffic.calls.shm } else { traffic.calls.flight };
        let put = |traffic: Traffic| if shared { traffic.puts.shm } else { traffic.puts.flight };
        let before = remote.traffic();
        for (first, count) in [(10_u32, 1), (11, 4_096), (4_107, 4_097)] {
            let values = Outputs::new().dense("number", Vec::from_iter(first..first + count));
            session.put(PartitionId(0), vec![NewRow::default(); count as usize], values, testing::soon()).unwrap();
        }
        let after = remote.traffic();
        assert_eq!((asked(after) - asked(before), put(after) - put(before)), (3, 3), "{after:?}");
        let (pointer, _) = served.store.resolve(PartitionId(0), None, &["number"]).unwrap();
        assert_eq!(numbers(&remote.paths(session.id()).get(&pointer.columns[0]).unwrap()), Vec::from_iter(0..8_204));
        assert_eq!(served.store.units().stats().total().unsettled, 0, "what came along is named");
    }
}

pub(super) fn until(what: &str, mut there: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !there() {
        assert!(Instant::now() < until, "10 s and not yet so: {what}");
        std::thread::yield_now();
    }
}

pub(super) struct Served {
    pub(super) store: Store,
    pub(super) server: server::Server,
    pub(super) pointer: ColumnRef,
}

/// A store with the numbers 0, 1, 2, … in one column.
pub(super) fn served(shared: bool, numbers: u32, options: &server::Options) -> Served {
    let column = Column::new("number", Kind::Dense { dtype: Dtype::U32, shape: vec![] });
    let jobs = Partition { name: "jobs".into(), columns: vec![column], birth: Birth::Put { capacity: None } };
    let definition = Definition { partitions: vec![jobs], ..Definition::default() };
    let store = Store::create(definition, StoreOptions { shared, ..StoreOptions::default() }).unwrap();
    let server = server::serve(&store, options).unwrap();
    let session = store.session("feeder").unwrap();
    let rows = vec![NewRow::default(); numbers as usize];
    session
        .put(PartitionId(0), rows, Outputs::new().dense("number", Vec::from_iter(0..numbers)), testing::soon())
        .unwrap();
    let (pointer, _) = store.resolve(PartitionId(0), None, &["number"]).unwrap();
    Served { store, server, pointer: pointer.columns[0].clone() }
}

pub(super) fn numbers(views: &[View]) -> Vec<u32> {
    let of = |view: &View| bytemuck::cast_slice(crate::arrow_map::leaf_bytes(view.array()).unwrap()).to_vec();
    views.iter().flat_map(of).collect()
}

pub(super) fn pinned(store: &Store) -> u64 {
    store.units().stats().total().pinned
}
