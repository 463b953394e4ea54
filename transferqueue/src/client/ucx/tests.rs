//! The transport's conformance through UCX, and what goes wrong on the way. (Peers that are killed: `tests/ucx`.)

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use super::*;
use crate::{
    Column, Definition, Dtype, Kind as ColumnKind, NewRow, Outputs, PartitionId, RowId, Rows,
    catalog::definition::{Birth, Partition},
    client::{
        self, Choice, Options, Remote, Ways,
        paths::Paths,
        tests::{OverTheWire, Served, Way, numbers, pinned, served, until},
    },
    ids::SessionId,
    link::Link,
    server::{self, Service, UcxReads, UcxTransport, limits::MESSAGE_BYTES},
    store::{Durability, Options as StoreOptions, Store},
    testing,
    transport::{Transport, conformance},
    wire::{Nothing, Welcome},
};

/// TCP over `lo`, since the peers of a test are its own process.
fn options(transport: UcxTransport, reads: UcxReads) -> server::Ucx {
    let devices = match transport {
        UcxTransport::Shm => Vec::new(),
        UcxTransport::Tcp => vec!["lo".to_owned()],
        UcxTransport::Rc => {
            vec![std::env::var("TQ_RDMA_STORE").expect("`make rdma` runs this, where there is a device")]
        }
    };
    server::Ucx { transports: vec![transport], devices, reads: Some(reads), insecure: true }
}

macro_rules! ways {
    ($($module:ident: $way:ident, $transport:ident, $reads:ident;)*) => {$(
        struct $way;

        impl Way for $way {
            const CHOICE: Choice = Choice::Ucx;

            fn ucx() -> Option<server::Ucx> {
                Some(options(UcxTransport::$transport, UcxReads::$reads))
            }
        }

        mod $module {
            use super::*;

            conformance::suite!(OverTheWire<$way>);
        }
    )*};
}

ways! {
    fetched_through_shared_memory: ShmFetched, Shm, Fetched;
    sent_through_shared_memory: ShmSent, Shm, Sent;
    fetched_over_tcp: TcpFetched, Tcp, Fetched;
    sent_over_tcp: TcpSent, Tcp, Sent;
}

#[cfg(feature = "rdma")]
ways! {
    fetched_over_rc: RcFetched, Rc, Fetched;
    sent_over_rc: RcSent, Rc, Sent;
}

const READS: [UcxReads; 2] = [UcxReads::Fetched, UcxReads::Sent];

fn shm(reads: UcxReads) -> server::Options {
    server::Options { ucx: Some(options(UcxTransport::Shm, reads)), ..server::Options::default() }
}

fn connect(served: &Served, transport: Choice) -> Remote {
    let patience = Duration::from_millis(500);
    let options = Options { transport, patience, ..Options::default() };
    Remote::connect(served.server.url(), served.server.token(), options).unwrap()
}

fn paths(remote: &Remote) -> Paths {
    remote.paths(SessionId(1))
}

fn through_ucx(gets: u64) -> Ways {
    Ways { ucx: gets, ..Ways::default() }
}

/// What the store says of the cells, to be told otherwise.
fn granted(remote: &Remote, pointer: &ColumnRef) -> (Arc<Entry>, Granted) {
    let client = &remote.inner;
    let trip = Trip { client, column: "number" };
    block_on(client.ucx.as_ref().unwrap().located(&trip, pointer)).ok().unwrap()
}

/// What becomes of a get that was told this.
fn got(remote: &Remote, pointer: &ColumnRef, entry: &Entry, granted: &Granted) -> Result<Vec<ArrayRef>, Otherwise> {
    let client = &remote.inner;
    let trip = Trip { client, column: "number" };
    block_on(client.ucx.as_ref().unwrap().got(&trip, entry, pointer, granted))
}

fn refused(got: Result<Vec<ArrayRef>, Otherwise>) -> String {
    match got {
        Err(Otherwise::Refused(error)) => error.to_string(),
        Err(Otherwise::Lost(why) | Otherwise::Elsewhere(why)) => panic!("not refused: {why}"),
        Ok(_) => panic!("it came"),
    }
}

fn lost(got: Result<Vec<ArrayRef>, Otherwise>) -> String {
    match got {
        Err(Otherwise::Lost(why)) => why,
        Err(Otherwise::Refused(error)) => panic!("refused: {error}"),
        Err(Otherwise::Elsewhere(why)) => panic!("elsewhere: {why}"),
        Ok(_) => panic!("it came"),
    }
}

#[test]
fn nothing_is_held_once_it_was_read_and_readers_leave_nothing() {
    for reads in READS {
        let served = served(true, 100_000, &shm(reads));
        let ucx = served.server.ucx.clone().unwrap();
        let remote = connect(&served, Choice::Ucx);
        assert_eq!(ucx.readers(), 1);
        let views = paths(&remote).get(&served.pointer).unwrap();
        assert_eq!(numbers(&views), (0..100_000).collect::<Vec<u32>>());
        assert_eq!(remote.traffic().gets, through_ucx(1));
        until("every message was sent", || ucx.on_the_way() == 0);
        assert_eq!(pinned(&served.store), 0, "{reads:?}");
        assert!(remote.bytes_received() >= 400_000);
        drop(views);
        assert_eq!(remote.bytes_received(), 0);
        // What was granted and not taken goes with its reader.
        let (entry, _) = granted(&remote, &served.pointer);
        assert!(pinned(&served.store) > 0);
        drop(entry);
        drop(remote);
        until("the reader has gone", || ucx.readers() == 0 && pinned(&served.store) == 0);
    }
}

#[test]
fn cells_of_a_slice_come_without_their_neighbours() {
    for reads in READS {
        let column = Column::new("text", ColumnKind::Ragged { dtype: Dtype::U64, inner: vec![] });
        let jobs = Partition { name: "jobs".into(), columns: vec![column], birth: Birth::Put { capacity: None } };
        let definition = Definition { partitions: vec![jobs], ..Definition::default() };
        let store = Store::create(definition, StoreOptions { shared: true, ..StoreOptions::default() }).unwrap();
        let server = server::serve(&store, &shm(reads)).unwrap();
        let cells: Vec<Vec<u64>> = (0..1000).map(|row| vec![row; row as usize]).collect();
        let outputs = Outputs::new().ragged("text", cells);
        let session = store.session("feeder").unwrap();
        session.put(PartitionId(0), vec![NewRow::default(); 1000], outputs, testing::soon()).unwrap();
        let (pointer, _) = store.resolve(PartitionId(0), None, &["text"]).unwrap();
        let mut pointer = pointer.columns[0].clone();
        (pointer.runs[0].slot, pointer.runs[0].len) = (pointer.runs[0].slot + 3, 2);
        pointer.runs.truncate(1);
        let options = Options { transport: Choice::Ucx, ..Options::default() };
        let remote = Remote::connect(server.url(), server.token(), options).unwrap();
        let views = paths(&remote).get(&pointer).unwrap();
        let values: &[u64] = bytemuck::cast_slice(arrow_map::leaf_bytes(views[0].array()).unwrap());
        assert_eq!(
            (values, arrow_map::offsets(views[0].array()).unwrap()),
            (&[3, 3, 3, 4, 4, 4, 4][..], &[0, 3, 7][..])
        );
    }
}

#[test]
fn a_segment_is_registered_once_and_for_as_long_as_it_is_there() {
    let served = served(true, 10, &shm(UcxReads::Fetched));
    let ucx = served.server.ucx.clone().unwrap();
    assert_eq!(ucx.registered(), 0, "nobody has read");
    // A segment that another process fills goes when that has left and the last cells of it are freed.
    let writer = connect(&served, Choice::Auto);
    let session = writer.session("writer").unwrap();
    let cells = Outputs::new().dense("number", Vec::from_iter(0..20_000_u32));
    let rows = session.put(PartitionId(0), vec![NewRow::default(); 20_000], cells, testing::soon()).unwrap();
    assert_eq!(writer.traffic().puts, Ways { shm: 1, ..Ways::default() });
    let (pointer, _) = served.store.resolve(PartitionId(0), Some(&rows), &["number"]).unwrap();
    let pointer = &pointer.columns[0];
    let readers = [(); 2].map(|()| connect(&served, Choice::Ucx));
    for reader in readers.iter().chain(&readers) {
        assert_eq!(numbers(&paths(reader).get(pointer).unwrap()), Vec::from_iter(0..20_000));
        assert_eq!(ucx.registered(), 1);
    }
    assert_eq!(numbers(&paths(&readers[0]).get(&served.pointer).unwrap()), Vec::from_iter(0..10));
    assert_eq!(ucx.registered(), 2);
    // Cells of one chunk are freed together; the store keeps a segment of its own for the next ones.
    session.drop_rows(PartitionId(0), &Rows::run(RowId(0), 20_010), "a_test").unwrap();
    drop((session, writer));
    until("the segment's registration is gone", || ucx.registered() == 1);
    assert!(paths(&readers[0]).get(pointer).unwrap_err().is_gone());
}

#[test]
fn what_was_not_held_until_it_was_read_is_thrown_away() {
    for reads in READS {
        let served = served(true, 1000, &shm(reads));
        let ucx = served.server.ucx.clone().unwrap();
        let remote = connect(&served, Choice::Ucx);
        // The store has lost the reader's connection, and with it what was granted.
        let (entry, told) = granted(&remote, &served.pointer);
        ucx.forget();
        assert_eq!(pinned(&served.store), 0);
        lost(got(&remote, &served.pointer, &entry, &told));
        drop(entry);
        // The grant alone is gone.
        drop(paths(&remote).get(&served.pointer).unwrap());
        let (entry, told) = granted(&remote, &served.pointer);
        let release = Question::Release(Release { reader: entry.reader, grant: told.grant });
        let trip = Trip { client: &remote.inner, column: "number" };
        for held in [true, false] {
            let (word, _) = block_on(trip.ask(release.clone())).ok().unwrap();
            assert_eq!(word, Word::Held(held));
        }
        assert!(lost(got(&remote, &served.pointer, &entry, &told)).contains("the store let go of what"));
        assert_eq!(numbers(&paths(&remote).get(&served.pointer).unwrap()).len(), 1000, "it enters again");
    }
}

#[test]
fn lengths_that_are_not_so_are_refused() {
    for reads in READS {
        let served = served(true, 1000, &shm(reads));
        let remote = connect(&served, Choice::Ucx);
        let told_otherwise = |change: &dyn Fn(&mut Granted)| {
            let (entry, mut told) = granted(&remote, &served.pointer);
            change(&mut told);
            refused(got(&remote, &served.pointer, &entry, &told))
        };
        let error = told_otherwise(&|told| told.pieces[0].rows -= 1);
        assert!(error.contains("4000 of values for 999 cells"), "{error}");
        let error = told_otherwise(&|told| told.pieces[0].values.as_mut().unwrap().len = u64::MAX);
        assert!(error.contains("18446744073709551615 of values for 1000 cells"), "{error}");
        // A store that sends, or has, less than it announced.
        let shorter = |told: &mut Granted| {
            told.pieces[0].rows -= 1;
            told.pieces[0].values.as_mut().unwrap().len -= 4;
        };
        let longer = |told: &mut Granted| {
            told.pieces[0].rows += 1;
            told.pieces[0].values.as_mut().unwrap().len += 4;
        };
        let error = told_otherwise(&shorter);
        let expected = match reads {
            UcxReads::Fetched => "999 cells came, 1000 were asked for",
            UcxReads::Sent => "found a longer message, expected at most 3996 bytes",
        };
        assert!(error.contains(expected), "{error}");
        let error = told_otherwise(&longer);
        let expected = match reads {
            UcxReads::Fetched => "1001 cells came, 1000 were asked for",
            UcxReads::Sent => "a message of 4000 bytes, 4004 were announced",
        };
        assert!(error.contains(expected), "{error}");
        if reads == UcxReads::Fetched {
            let error = told_otherwise(&|told| told.pieces[0].values.as_mut().unwrap().at = u64::MAX);
            assert!(error.contains("as a place in segment"), "{error}");
            let error = told_otherwise(&|told| told.pieces[0].values.as_mut().unwrap().segment = 4711);
            assert!(error.contains("whose key never came"), "{error}");
        }
        assert_eq!(numbers(&paths(&remote).get(&served.pointer).unwrap()).len(), 1000);
    }
}

#[test]
fn questions_that_make_no_sense_are_refused() {
    let served = served(true, 1000, &shm(UcxReads::Sent));
    let remote = connect(&served, Choice::Ucx);
    let (entry, told) = granted(&remote, &served.pointer);
    let trip = Trip { client: &remote.inner, column: "number" };
    let asked = |question| block_on(trip.ask(question)).map(|(word, _)| word);
    let send = |first, tags: usize| {
        Question::Send(Send { reader: entry.reader, grant: told.grant, first, tags: vec![1; tags] })
    };
    for question in [send(0, 2), send(1, 1), send(2, 0), send(u64::MAX, 1), Question::Enter(Bytes::from_static(b"x"))] {
        let Err(Otherwise::Lost(_) | Otherwise::Refused(_)) = asked(question) else { panic!("answered") };
    }
    let stranger = Question::Release(Release { reader: entry.reader ^ 1, grant: told.grant });
    assert_eq!(asked(stranger).ok().unwrap(), Word::Stranger(Nothing {}));
    assert_eq!(asked(send(0, 1)).ok().unwrap(), Word::Held(true));
    assert_eq!(asked(send(0, 1)).ok().unwrap(), Word::Held(false), "it went with its last place");
}

#[test]
fn where_shared_memory_does_not_reach_auto_takes_ucx_and_where_that_does_not_flight() {
    for reads in READS {
        let served = served(true, 1000, &shm(reads));
        let (url, token) = (served.server.url(), served.server.token());
        assert!(connect(&served, Choice::Auto).inner.ucx.is_none(), "shared memory reaches");
        let elsewhere = |welcome: Welcome| Welcome { shm: None, ..welcome };
        let far = Remote::connect_as(url, token, Options::default(), elsewhere).unwrap();
        assert_eq!(paths(&far).name(), "ucx");
        assert_eq!(numbers(&paths(&far).get(&served.pointer).unwrap()).len(), 1000);
        assert_eq!(far.traffic().gets, through_ucx(1));
        // Another transport is offered than this build knows.
        let strange = |mut welcome: Welcome| {
            welcome.ucx.as_mut().unwrap().transports = vec!["carrier".to_owned()];
            Welcome { shm: None, ..welcome }
        };
        let far = Remote::connect_as(url, token, Options::default(), strange).unwrap();
        assert_eq!(paths(&far).name(), "flight");
        let alone = Options { transport: Choice::Ucx, ..Options::default() };
        let error = Remote::connect_as(url, token, alone, strange).unwrap_err().to_string();
        assert!(error.contains("UCX is the only path allowed and cannot be had"), "{error}");
    }
}

#[test]
fn cells_on_the_heap_go_another_way_unless_that_is_not_allowed() {
    let heap = served(false, 10, &server::Options::default());
    let error = server::serve(&heap.store, &shm(UcxReads::Fetched)).err().unwrap().to_string();
    assert!(error.contains("UCX: the store's bytes lie on the heap"), "{error}");
    let error = Remote::connect(
        heap.server.url(),
        heap.server.token(),
        Options { transport: Choice::Ucx, ..Options::default() },
    );
    let error = error.unwrap_err().to_string();
    assert!(error.contains("the store gives nothing away through UCX"), "{error}");
    // A store that has some cells there.
    let incarnation = heap.store.with_state(|state, _| state.incarnation()).unwrap();
    let ucx = server::ucx::Ucx::start(&options(UcxTransport::Shm, UcxReads::Fetched)).unwrap();
    let service = Service { ucx: Some(ucx), ..Service::over(&heap.store, incarnation, MESSAGE_BYTES) };
    let server = server::start(service, &server::Options::default()).unwrap();
    let heap = Served { server, ..heap };
    let remote = connect(&heap, Choice::Auto);
    assert_eq!(numbers(&paths(&remote).get(&heap.pointer).unwrap()), Vec::from_iter(0..10));
    assert_eq!(remote.traffic().gets, Ways { flight: 1, ..Ways::default() });
    let error = paths(&connect(&heap, Choice::Ucx)).get(&heap.pointer).unwrap_err().to_string();
    assert!(error.contains("lie outside of shared memory; UCX is the only path allowed"), "{error}");
}

#[test]
fn a_reader_that_may_take_no_other_way_waits_for_the_store_s_next_life() {
    for reads in READS {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            dir: Some(dir.path().to_owned()),
            durability: Durability::Process,
            ..StoreOptions::default()
        };
        let store = Store::create(testing::training(1), options.clone()).unwrap();
        let server = server::serve(&store, &shm(reads)).unwrap();
        let (url, token) = (server.url().to_owned(), server.token().to_owned());
        let client = Options { transport: Choice::Ucx, ..Options::default() };
        let remote = Remote::connect(&url, &token, client).unwrap();
        let session = remote.session("source").unwrap();
        testing::feed(&session, 0, 2);
        let prompts = move || session.read(PartitionId(0), None, &["prompt"]).unwrap().len();
        assert_eq!(prompts(), 2);
        drop(server);
        drop(store);
        let reading = std::thread::spawn(prompts);
        std::thread::park_timeout(Duration::from_millis(300));
        let (store, _) = Store::recover(&options, |_, _, _| {}).unwrap();
        let listen = url.strip_prefix("grpc://").unwrap().parse().unwrap();
        let token_file = dir.path().join("token");
        fs::write(&token_file, &token).unwrap();
        fs::set_permissions(&token_file, fs::Permissions::from_mode(0o600)).unwrap();
        let options = server::Options { listen, token_file: Some(token_file), ..shm(reads) };
        let _server = server::serve(&store, &options).unwrap();
        assert_eq!(reading.join().unwrap(), 2);
        assert_eq!(remote.traffic().gets, through_ucx(2), "{reads:?}");
    }
}

#[test]
fn the_way_is_proved_like_the_others() {
    let served = served(true, 1000, &shm(UcxReads::Fetched));
    let found = client::probe(served.server.url(), served.server.token(), &Options::default()).unwrap().unwrap();
    assert_eq!(found.iter().map(|probe| probe.way).collect::<Vec<_>>(), [Choice::Shm, Choice::Ucx, Choice::Flight]);
    assert_eq!(found[1].outcome.as_ref().unwrap().bytes, 4000);
}

#[test]
fn a_store_that_has_ended_is_an_error_in_time() {
    for reads in READS {
        let served = served(true, 1000, &shm(reads));
        let remote = connect(&served, Choice::Ucx);
        let views = paths(&remote).get(&served.pointer).unwrap();
        let pointer = served.pointer.clone();
        drop(served);
        assert_eq!(numbers(&views), (0..1000).collect::<Vec<u32>>());
        let error = paths(&remote).get(&pointer).unwrap_err().to_string();
        assert!(error.contains("UCX is the only path allowed"), "{error}");
    }
}
