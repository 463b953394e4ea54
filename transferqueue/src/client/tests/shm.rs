//! Readers of the same host.

use std::{
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
};

use super::*;
use crate::{
    server::{
        limits,
        shm::{abstract_name, address},
    },
    transport::{Lens, Purpose, Target},
    wire::{
        self,
        shm::{Ask, Fill, Question, Reserve, Say, Word},
    },
};

fn served(shared: bool, numbers: u32) -> Served {
    super::served(shared, numbers, &server::Options::default())
}

fn connect(served: &Served, transport: Choice) -> Result<Remote, Error> {
    Remote::connect(served.server.url(), served.server.token(), Options { transport, ..Options::default() })
}

#[test]
fn no_byte_is_copied_and_the_store_keeps_what_is_read() {
    let served = served(true, 1000);
    let remote = connect(&served, Choice::Auto).unwrap();
    let session = remote.session("reader").unwrap();
    let paths = remote.paths(session.id());
    let views = paths.get(&served.pointer).unwrap();
    assert_eq!(numbers(&views), (0..1000).collect::<Vec<u32>>());
    assert_eq!((remote.traffic().gets, remote.bytes_received()), (Ways { shm: 1, ..Ways::default() }, 0));
    assert!(pinned(&served.store) >= 4000);
    // An array that outlives its view keeps the bytes as well.
    let array = views[0].array().slice(7, 1);
    drop(views);
    paths.settle();
    assert!(pinned(&served.store) >= 4000);
    drop(array);
    paths.settle();
    assert_eq!(pinned(&served.store), 0);
}

#[test]
fn bytes_that_cannot_be_mapped_come_over_flight_unless_that_is_not_allowed() {
    let served = served(false, 10);
    let remote = connect(&served, Choice::Auto).unwrap();
    assert_eq!(numbers(&remote.paths(SessionId(1)).get(&served.pointer).unwrap()), (0..10).collect::<Vec<u32>>());
    assert_eq!(remote.traffic().gets, Ways { flight: 1, ..Ways::default() });
    let error = connect(&served, Choice::Shm).unwrap_err().to_string();
    assert!(error.contains("shared memory is the only path allowed and cannot be had"), "{error}");
}

#[test]
fn a_reader_maps_what_the_writer_wrote_where_it_wrote_it() {
    let served = served(true, 1);
    let [writer, reader] = [0, 1].map(|_| connect(&served, Choice::Shm).unwrap());
    let session = writer.session("writer").unwrap();
    let rows = vec![NewRow::default(); 10_000];
    let cells = Outputs::new().dense("number", Vec::from_iter(5..10_005_u32));
    session.put(PartitionId(0), rows, cells, testing::soon()).unwrap();
    let (pointer, _) = served.store.resolve(PartitionId(0), None, &["number"]).unwrap();
    let pointer = &pointer.columns[0];
    let views = reader.paths(SessionId(9)).get(pointer).unwrap();
    assert_eq!(numbers(&views)[1..], Vec::from_iter(5..10_005));
    let (near, wrote) = (Ways { shm: 1, ..Ways::default() }, writer.traffic());
    assert_eq!((wrote.gets, wrote.puts, wrote.calls.flight), (Ways::default(), near, 0));
    assert_eq!((reader.traffic().gets, reader.traffic().puts), (near, Ways::default()));
    // The place that a reader is told is the one in the writer's own segment.
    let mut stream = raw(&served);
    let enter = Enter { token: served.server.token().into(), incarnation: reader.incarnation() };
    asked(&mut stream, Question::Enter(enter));
    asked(&mut stream, Question::Get(pointer.into()));
    let Word::Granted(granted) = heard(&mut stream) else { panic!("not granted") };
    let place = granted.pieces.last().unwrap().values.unwrap();
    let wrote = writer.paths(session.id()).shm.unwrap().wrote(place);
    assert_eq!(wrote, bytemuck::cast_slice::<u32, u8>(&Vec::from_iter(5..10_005)));
}

#[test]
fn a_session_fills_room_where_its_cells_are_read() {
    let served = served(true, 1);
    let writer = connect(&served, Choice::Auto).unwrap();
    let session = writer.session("writer").unwrap();
    let numbers = Vec::from_iter(5..10_005_u32);
    let mut room = session.reserve(PartitionId(0), "number", Lens::Equal(10_000)).unwrap();
    assert!(room.is_in_place() && crate::unit::Mapping::of(room.values_mut()).unwrap().is_writable());
    room.values_mut().copy_from_slice(bytemuck::cast_slice(&numbers));
    let outputs = Outputs::new().room("number", room);
    let put = |outputs| session.put(PartitionId(0), vec![NewRow::default(); 10_000], outputs, testing::soon());
    put(outputs.clone()).unwrap();
    let error = put(outputs).unwrap_err().to_string();
    assert!(error.contains("`number`: its room was put already"), "{error}");
    let ways = Ways { shm: 1, ..Ways::default() };
    assert_eq!((writer.traffic().puts, writer.traffic().rooms), (ways, ways));
    let (pointer, _) = served.store.resolve(PartitionId(0), None, &["number"]).unwrap();
    let pointer = &pointer.columns[0];
    let mut stream = raw(&served);
    let enter = Enter { token: served.server.token().into(), incarnation: writer.incarnation() };
    asked(&mut stream, Question::Enter(enter));
    asked(&mut stream, Question::Get(pointer.into()));
    let Word::Granted(granted) = heard(&mut stream) else { panic!("not granted") };
    let place = granted.pieces.last().unwrap().values.unwrap();
    let wrote = writer.paths(session.id()).shm.unwrap().wrote(place);
    assert_eq!(wrote, bytemuck::cast_slice::<u32, u8>(&numbers), "same segment, same offset");
}

#[test]
fn room_that_a_session_drops_is_free_at_once_and_room_of_a_lost_connection_is_refused() {
    let served = served(true, 1);
    let options = Options { patience: Duration::from_secs(5), transport: Choice::Shm, ..Options::default() };
    let remote = Remote::connect(served.server.url(), served.server.token(), options).unwrap();
    let session = remote.session("writer").unwrap();
    let (paths, unit) = (remote.paths(session.id()), served.store.units().iter().next().unwrap().clone());
    let reserve = |rows| session.reserve(PartitionId(0), "number", Lens::Equal(rows)).unwrap();
    let kept = reserve(100);
    let before = unit.memory().unwrap();
    let room = reserve(100_000);
    assert_eq!(unit.memory().unwrap().used, before.used + 400_000);
    drop(room);
    paths.settle();
    assert_eq!(unit.memory().unwrap().used, before.used);
    let few = session.put(
        PartitionId(0),
        vec![NewRow::default()],
        Outputs::new().room("number", reserve(2)),
        testing::soon(),
    );
    assert!(few.unwrap_err().to_string().contains("`number` has 2 rows, expected 1"));
    let other = connect(&served, Choice::Auto).unwrap();
    let elsewhere = other.session("other").unwrap().reserve(PartitionId(0), "number", Lens::Equal(1)).unwrap();
    let column = Column::new("number", Kind::Dense { dtype: Dtype::U32, shape: vec![] });
    let target = Target { partition: PartitionId(0), id: ColumnId(0), column: &column, purpose: Purpose::Final };
    let error = paths.put_room(target, elsewhere).unwrap_err().to_string();
    assert!(error.contains("reserved of another store, or over another connection"), "{error}");
    // Its bytes are the store's again: they are not sent another way as if they were still what was written.
    drop(served);
    let error = paths.put_room(target, kept).unwrap_err().to_string();
    assert!(error.contains("the cells went with the room they were in; reserve again"), "{error}");
}

#[test]
fn room_for_what_cannot_be_written_in_place_is_sent_and_counted() {
    let served = served(false, 1);
    let remote = connect(&served, Choice::Auto).unwrap();
    let session = remote.session("writer").unwrap();
    let mut room = session.reserve(PartitionId(0), "number", Lens::Equal(1)).unwrap();
    assert!(!room.is_in_place());
    room.values_mut().copy_from_slice(&77_u32.to_le_bytes());
    let cells = Outputs::new().room("number", room);
    session.put(PartitionId(0), vec![NewRow::default()], cells, testing::soon()).unwrap();
    let ways = Ways { flight: 1, ..Ways::default() };
    assert_eq!((remote.traffic().puts, remote.traffic().rooms), (ways, ways));
    let batch = session.read(PartitionId(0), None, &["number"]).unwrap();
    assert_eq!(batch.dense::<u32>("number").unwrap().to_vec(), [0, 77]);
}

#[test]
fn room_that_is_not_filled_is_free_when_its_writer_has_gone() {
    let served = served(true, 1);
    let reader = connect(&served, Choice::Shm).unwrap();
    let unit = served.store.units().iter().next().unwrap().clone();
    let before = unit.memory().unwrap();
    let mut stream = raw(&served);
    let enter = Enter { token: served.server.token().into(), incarnation: reader.incarnation() };
    asked(&mut stream, Question::Enter(enter));
    // As large as no chunk is: what was not put leaves nothing in the chunk of others.
    let reserve = Reserve { room: 7, partition: 0, column: 0, rows: 1 << 18, offsets: 0, values: 1 << 20 };
    assert!(matches!(asked(&mut stream, Question::Reserve(reserve)), Word::Segments(_)));
    assert!(matches!(heard(&mut stream), Word::Room(_)));
    assert_eq!(unit.memory().unwrap().used, before.used + (1 << 20));
    // What makes no sense is refused, and nothing of it stays.
    let put = wire::Put { session: 1, partition: 0, column: 0, number: 1, partial: false };
    let refused = |stream: &mut UnixStream, question| match asked(stream, question) {
        Word::Failure(failure) => failure.into_error("x").to_string(),
        other => panic!("{other:?}"),
    };
    let error = refused(&mut stream, Question::Reserve(Reserve { room: 8, column: 1, ..reserve }));
    assert!(error.contains("`jobs` has no such column"), "{error}");
    let error = refused(&mut stream, Question::Reserve(Reserve { room: 8, offsets: u64::MAX, ..reserve }));
    assert!(error.contains("expected at most 2147483647; put fewer rows"), "{error}");
    let error = refused(&mut stream, Question::Reserve(reserve));
    assert!(error.contains("room 7 is reserved and not filled"), "{error}");
    let error = refused(&mut stream, Question::Fill(Fill { room: 8, put }));
    assert!(error.contains("is not reserved by this process"), "{error}");
    assert_eq!(unit.memory().unwrap().used, before.used + (1 << 20));
    let ended = wire::Put { session: 4711, ..put };
    let error = refused(&mut stream, Question::Fill(Fill { room: 7, put: ended }));
    assert!(error.contains("session 4711"), "{error}");
    assert_eq!(unit.memory().unwrap().used, before.used);
    assert!(matches!(asked(&mut stream, Question::Reserve(reserve)), Word::Room(_)));
    drop(stream);
    until("the room is free", || unit.memory().unwrap() == before);
}

#[test]
fn a_worker_that_may_take_no_other_way_waits_for_the_store_s_next_life() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions {
        dir: Some(dir.path().to_owned()),
        durability: crate::store::Durability::Process,
        ..StoreOptions::default()
    };
    let store = Store::create(training(1), options.clone()).unwrap();
    let served = server::serve(&store, &server::Options::default()).unwrap();
    let (url, token) = (served.url().to_owned(), served.token().to_owned());
    let remote = Remote::connect(&url, &token, Options { transport: Choice::Shm, ..Options::default() }).unwrap();
    let session = remote.session("source").unwrap();
    testing::feed(&session, 0, 2);
    drop(served);
    drop(store);
    let row = Outputs::new().ragged("prompt", [vec![1; 8_192]]).json("truth", [serde_json::json!({})]);
    let feeding =
        std::thread::spawn(move || session.put(PartitionId(0), vec![NewRow::default()], row, testing::soon()));
    std::thread::park_timeout(Duration::from_millis(300));
    let (store, _) = Store::recover(&options, |_, _, _| {}).unwrap();
    let listen = url.strip_prefix("grpc://").unwrap().parse().unwrap();
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, &token).unwrap();
    std::fs::set_permissions(&token_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let options = server::Options { listen, token_file: Some(token_file), ..server::Options::default() };
    let _server = server::serve(&store, &options).unwrap();
    feeding.join().unwrap().unwrap();
    assert_eq!(store.born(PartitionId(0)).unwrap(), 3);
    // Small cells come along with their commands, which may have gone over the network meanwhile.
    let puts = remote.traffic().puts;
    assert!(puts.shm >= 5 && puts.shm + puts.flight == 6, "{puts:?}");
}

#[test]
fn what_a_reader_held_is_free_when_its_socket_ends_and_nobody_else_notices() {
    let served = served(true, 1000);
    let other = connect(&served, Choice::Shm).unwrap();
    let session = other.session("other").unwrap();
    let (mut stream, port) = (raw(&served), port(&served));
    assert!(matches!(asked(&mut stream, Question::Get((&served.pointer).into())), Word::Failure(_)), "not entered");
    let wrong = Enter { token: "wrong".into(), incarnation: other.incarnation() };
    assert!(matches!(asked(&mut stream, Question::Enter(wrong)), Word::Failure(_)));
    let right = Enter { token: served.server.token().into(), incarnation: other.incarnation() };
    assert!(matches!(asked(&mut stream, Question::Enter(right)), Word::Welcome(_)));
    assert!(matches!(asked(&mut stream, Question::Get((&served.pointer).into())), Word::Segments(_)));
    assert!(matches!(heard(&mut stream), Word::Granted(_)));
    assert!(pinned(&served.store) >= 4000);
    // No frame at all: what is granted stays granted as long as the reader may look at it.
    stream.write_all(&[0xff; 64]).unwrap();
    other.paths(session.id()).settle();
    assert!(pinned(&served.store) >= 4000);
    drop(stream);
    until("what its reader held is free", || pinned(&served.store) == 0);
    assert_eq!(numbers(&other.paths(SessionId(1)).get(&served.pointer).unwrap()).len(), 1000, "port {port}");
}

#[test]
fn each_way_is_proved_by_reading_what_lies_there() {
    let served = served(true, 50_000);
    let probes = || probe(served.server.url(), served.server.token(), &Options::default()).unwrap().unwrap();
    let found = probes();
    assert_eq!(found.iter().map(|probe| probe.way).collect::<Vec<_>>(), [Choice::Shm, Choice::Flight]);
    for Probe { way, outcome } in found {
        let speed = outcome.unwrap();
        assert_eq!((speed.column.as_str(), speed.bytes), ("jobs.number", 4 * 8_192), "{way}");
        assert!(speed.seconds > 0.0 && speed.limit.unwrap() > 0.0, "{way}: {speed:?}");
    }
    until("nothing is held", || pinned(&served.store) == 0);
    // A store whose bytes cannot be mapped offers one way.
    let heap = self::served(false, 10);
    let found = probe(heap.server.url(), heap.server.token(), &Options::default()).unwrap().unwrap();
    assert_eq!((found.len(), found[0].way), (1, Choice::Flight));
    assert_eq!(found[0].outcome.as_ref().unwrap().bytes, 40);
    let empty = self::served(true, 0);
    assert!(probe(empty.server.url(), empty.server.token(), &Options::default()).unwrap().is_none());
}

#[test]
fn who_has_not_shown_the_token_says_little_and_not_for_long() {
    let served = served(true, 1);
    let ended = |stream: &mut UnixStream| stream.read(&mut [0; 64]).is_ok_and(|read| read == 0);
    let (mut silent, mut long) = (raw(&served), raw(&served));
    long.write_all(&u32::to_le_bytes(1 << 20)).unwrap();
    let Word::Failure(failure) = heard(&mut long) else { panic!("a megabyte was awaited") };
    let error = failure.into_error("x").to_string();
    assert!(error.contains("1048576 bytes before the token, expected at most 4096"), "{error}");
    assert!(ended(&mut long), "it is not heard any further");
    let begun = Instant::now();
    silent.set_read_timeout(Some(2 * limits::SILENCE)).unwrap();
    assert!(ended(&mut silent) && begun.elapsed() < 2 * limits::SILENCE);
    // As many as are served at once, and one more.
    let served = super::served(true, 1, &server::Options { connections: 2, ..server::Options::default() });
    let mut some = [raw(&served), raw(&served), raw(&served)];
    let right = || Enter { token: served.server.token().into(), incarnation: incarnation(&served) };
    for stream in &mut some[..2] {
        assert!(matches!(asked(stream, Question::Enter(right())), Word::Welcome(_)));
    }
    assert!(ended(&mut some[2]), "closed unheard");
    let [first, ..] = some;
    drop(first);
    until("there is a place again", || {
        let frame = Ask { question: Some(Question::Enter(right())) }.encode_to_vec();
        let mut stream = raw(&served);
        let sent = stream.write_all(&(frame.len() as u32).to_le_bytes()).and_then(|()| stream.write_all(&frame));
        sent.is_ok() && stream.read(&mut [0; 64]).is_ok_and(|read| read > 0)
    });
}

#[test]
fn a_store_that_has_ended_leaves_what_was_read_as_it_was() {
    let served = served(true, 1000);
    let patience = Duration::from_millis(300);
    let options = Options { transport: Choice::Shm, patience, ..Options::default() };
    let remote = Remote::connect(served.server.url(), served.server.token(), options).unwrap();
    let views = remote.paths(SessionId(1)).get(&served.pointer).unwrap();
    let pointer = served.pointer.clone();
    drop(served);
    assert_eq!(numbers(&views), (0..1000).collect::<Vec<u32>>());
    let error = remote.paths(SessionId(1)).get(&pointer).unwrap_err().to_string();
    assert!(error.contains("shared memory is the only path allowed"), "{error}");
}

fn port(served: &Served) -> u16 {
    served.server.url().rsplit(':').next().unwrap().parse().unwrap()
}

fn incarnation(served: &Served) -> u64 {
    served.store.with_state(|state, _| state.incarnation()).unwrap()
}

fn raw(served: &Served) -> UnixStream {
    let address = address(incarnation(served), port(served));
    UnixStream::connect_addr(&abstract_name(&address).unwrap()).unwrap()
}

fn asked(stream: &mut UnixStream, question: Question) -> Word {
    let frame = Ask { question: Some(question) }.encode_to_vec();
    stream.write_all(&(frame.len() as u32).to_le_bytes()).unwrap();
    stream.write_all(&frame).unwrap();
    heard(stream)
}

fn heard(stream: &mut UnixStream) -> Word {
    let mut len = [0; 4];
    stream.read_exact(&mut len).unwrap();
    let mut frame = vec![0; u32::from_le_bytes(len) as usize];
    stream.read_exact(&mut frame).unwrap();
    Say::decode(frame.as_slice()).unwrap().word.unwrap()
}
