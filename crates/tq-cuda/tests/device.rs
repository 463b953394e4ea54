//! Copies between a store and a device. Most of these need one: `cargo nextest run -p tq-cuda --run-ignored only` where there is.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use transferqueue::{
    Column, Definition, Dtype, Element, Kind, NewRow, Options, Outputs, PartitionId, Session, Store,
    catalog::definition::{Birth, Partition, Task},
    client::{self, Choice, Remote},
    server,
    store::Durability,
    transport::{Lens, View},
};

use tq_cuda::{Device, Error, Region, Traffic, Ways};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn device() -> Device {
    Device::open(0).expect("these tests need a CUDA device")
}

/// A partition of one column.
fn definition(kind: Kind) -> Definition {
    let columns = vec![Column::new("x", kind)];
    let jobs = Partition { name: "jobs".into(), columns, birth: Birth::Put { capacity: None } };
    let read = Task { reads: vec!["x".into()], ..Task::new("read", "jobs") };
    Definition { partitions: vec![jobs], tasks: vec![read], ..Definition::default() }
}

fn store(kind: Kind) -> Store {
    let options = Options { shared: true, arena_segment_bytes: 4 << 20, ..Options::default() };
    Store::create(definition(kind), options).unwrap()
}

fn serve(store: &Store) -> server::Server {
    server::serve(store, &server::Options::default()).unwrap()
}

fn connect(server: &server::Server, transport: Choice) -> Session {
    let options = client::Options { transport, ..client::Options::default() };
    Remote::connect(server.url(), server.token(), options).and_then(|remote| remote.session("there")).unwrap()
}

fn put(session: &Session, rows: usize, cells: Outputs) {
    session.put(PartitionId(0), vec![NewRow::default(); rows], cells, soon()).unwrap();
}

fn views(session: &Session) -> Vec<View> {
    session.read(PartitionId(0), None, &["x"]).unwrap().views("x").unwrap().to_vec()
}

/// Bytes that no zeros hide in.
fn noise(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn pinned(bytes: usize) -> Ways {
    Ways { pinned: bytes as u64, pageable: 0 }
}

fn pageable(bytes: usize) -> Ways {
    Ways { pinned: 0, pageable: bytes as u64 }
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let error = Device::open(999).unwrap_err();
    match &error {
        Error::NoDriver { ordinal: 999 } => {
            assert!(error.to_string().starts_with("CUDA device 999: no CUDA driver library"), "{error}");
        }
        Error::NoDevice { ordinal: 999, found } => {
            assert!(*found < 999 && error.to_string().contains("expected more than 999"), "{error}");
        }
        other => panic!("{other}"),
    }
}

/// Two rows of `rows`, there and back: uploaded from the first put, downloaded to a second.
fn there_and_back(device: &Device, session: &Session, cells: Outputs, lens: Lens<'_>, rows: usize) {
    put(session, rows, cells);
    let first = views(session);
    let expected: Vec<u8> = first.iter().flat_map(|view| view.values().to_vec()).collect();
    let memory = device.upload(&first).unwrap().wait(soon()).unwrap();
    assert_eq!(memory.len(), expected.len());
    let mut room = session.reserve(PartitionId(0), "x", lens).unwrap();
    assert!(room.is_in_place());
    room.values_mut().fill(0xaa);
    let (_, room) = device.download(memory, room).unwrap().wait(soon()).unwrap();
    put(session, rows, Outputs::new().room("x", room));
    let batch = session.read(PartitionId(0), None, &["x"]).unwrap();
    let second = batch.select(rows..2 * rows);
    assert_eq!(batch.select(0..rows).gather().unwrap(), second.gather().unwrap());
    let found: Vec<u8> = second.views("x").unwrap().iter().flat_map(|view| view.values().to_vec()).collect();
    assert_eq!(found, expected);
}

fn every_shape<T: Element>(device: &Device, values: &[T]) {
    let lens = [3, 0, 5];
    let parts = [&values[..3], &[], &values[3..8]];
    for there in [false, true] {
        let dense = store(Kind::Dense { dtype: T::DTYPE, shape: vec![4] });
        let ragged = store(Kind::Ragged { dtype: T::DTYPE, inner: vec![] });
        let servers = [&dense, &ragged].map(serve);
        let [a, b] = match there {
            true => servers.each_ref().map(|server| connect(server, Choice::Shm)),
            false => [&dense, &ragged].map(|store| store.session("here").unwrap()),
        };
        there_and_back(device, &a, Outputs::new().dense("x", &values[..8]), Lens::Equal(2), 2);
        there_and_back(device, &b, Outputs::new().ragged::<T>("x", parts), Lens::Each(&lens), 3);
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn every_dtype_goes_there_and_back_in_this_process_and_between_two_mappings() {
    let device = device();
    every_shape::<f64>(&device, &[0.5, -1.0, f64::MAX, 4.0, 3.0, f64::INFINITY, 7.0, 8.0]);
    every_shape::<f32>(&device, &[0.5, -1.0, f32::MAX, 4.0, 3.0, f32::INFINITY, 7.0, 8.0]);
    every_shape::<half::f16>(&device, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -8.0].map(half::f16::from_f32));
    every_shape::<half::bf16>(&device, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -8.0].map(half::bf16::from_f32));
    every_shape::<i64>(&device, &[1, -2, i64::MAX, i64::MIN, 5, 6, 7, 8]);
    every_shape::<i32>(&device, &[1, -2, i32::MAX, i32::MIN, 5, 6, 7, 8]);
    every_shape::<i16>(&device, &[1, -2, i16::MAX, i16::MIN, 5, 6, 7, 8]);
    every_shape::<i8>(&device, &[1, -2, i8::MAX, i8::MIN, 5, 6, 7, 8]);
    every_shape::<u64>(&device, &[1, 2, u64::MAX, 4, 5, 6, 7, 8]);
    every_shape::<u32>(&device, &[1, 2, u32::MAX, 4, 5, 6, 7, 8]);
    every_shape::<u16>(&device, &[1, 2, u16::MAX, 4, 5, 6, 7, 8]);
    every_shape::<u8>(&device, &[1, 2, 255, 4, 5, 6, 7, 8]);
    every_shape::<bool>(&device, &[true, false, true, true, false, true, false, true]);
    assert_eq!((device.traffic().uploads.pageable, device.traffic().downloads.pageable), (0, 0));
    let text = store(Kind::Utf8);
    let cells = Outputs::new().utf8("x", ["größer", "", "als"]);
    there_and_back(&device, &text.session("here").unwrap(), cells, Lens::Each(&[8, 0, 3]), 3);
}

#[test]
#[ignore = "needs a CUDA device"]
fn of_a_slice_only_its_own_cells_travel() {
    let (device, store) = (device(), store(Kind::Ragged { dtype: Dtype::U8, inner: vec![] }));
    let session = store.session("here").unwrap();
    put(&session, 3, Outputs::new().ragged::<u8>("x", [&[1, 2, 3][..], &[4], &[5, 6]]));
    let parts: Vec<View> = views(&session).iter().flat_map(|view| [view.slice(2, 1), view.slice(0, 1)]).collect();
    let memory = device.upload(&parts).unwrap().wait(soon()).unwrap();
    let mut found = vec![0; 5];
    device.copy_out(&memory, &mut found).unwrap();
    assert_eq!(found, [5, 6, 1, 2, 3]);
}

#[test]
#[ignore = "needs a CUDA device"]
fn lengths_that_differ_are_refused_and_nothing_is_copied() {
    let (device, store) = (device(), store(Kind::Dense { dtype: Dtype::U8, shape: vec![] }));
    let session = store.session("here").unwrap();
    put(&session, 10, Outputs::new().dense("x", [1_u8; 10]));
    let error = device.upload_into(&views(&session), device.allocate(9).unwrap()).unwrap_err();
    assert!(matches!(error, Error::Length { found: 10, expected: 9, .. }), "{error}");
    let room = session.reserve(PartitionId(0), "x", Lens::Equal(4)).unwrap();
    let error = device.download(device.allocate(5).unwrap(), room).unwrap_err();
    assert!(matches!(error, Error::Length { found: 5, expected: 4, .. }), "{error}");
    assert_eq!(device.traffic(), Traffic::default());
}

#[test]
#[ignore = "needs a CUDA device"]
fn what_a_copy_reads_stays_until_it_is_done_though_everyone_lets_go_of_it() {
    const BYTES: usize = 256 << 20;
    let (device, store) = (device(), store(Kind::Dense { dtype: Dtype::U8, shape: vec![BYTES] }));
    let (server, bytes) = (serve(&store), noise(BYTES));
    for there in [false, true] {
        let session = if there { connect(&server, Choice::Shm) } else { store.session("here").unwrap() };
        put(&session, 1, Outputs::new().dense("x", &bytes));
        let lease = session.claim("read", 1, soon()).unwrap().lease().unwrap();
        let batch = lease.batch().unwrap();
        let mut copy = device.upload(batch.views("x").unwrap()).unwrap();
        // The row is consumed, its views are gone, and the next one takes whatever room is free.
        drop(batch);
        lease.commit(Outputs::new()).unwrap();
        put(&session, 1, Outputs::new().dense("x", vec![0xee_u8; BYTES]));
        let memory = copy.wait(soon()).unwrap();
        let mut found = vec![0; BYTES];
        device.copy_out(&memory, &mut found).unwrap();
        assert!(found == bytes, "others were copied");
        session.claim("read", 1, soon()).unwrap().lease().unwrap().commit(Outputs::new()).unwrap();
    }
    // A copy that nobody waits for is done before its room is free again.
    let session = store.session("here").unwrap();
    let memory = device.allocate(BYTES).unwrap();
    let room = session.reserve(PartitionId(0), "x", Lens::Equal(1)).unwrap();
    drop(device.download(memory, room).unwrap());
    let mut room = session.reserve(PartitionId(0), "x", Lens::Equal(1)).unwrap();
    room.values_mut().copy_from_slice(&bytes);
    device.copy_out(&device.allocate(8).unwrap(), &mut [0; 8]).unwrap();
    assert!(room.values_mut() == bytes, "written to by a copy that should have ended");
}

#[test]
#[ignore = "needs a CUDA device"]
fn what_cannot_be_registered_is_copied_all_the_same_and_counted() {
    let kind = Kind::Dense { dtype: Dtype::U8, shape: vec![] };
    let (device, bytes) = (device(), noise(5000));
    let heap = Store::create(definition(kind), Options::default()).unwrap();
    let session = heap.session("here").unwrap();
    put(&session, 5000, Outputs::new().dense("x", &bytes));
    let memory = device.upload(&views(&session)).unwrap().wait(soon()).unwrap();
    let room = session.reserve(PartitionId(0), "x", Lens::Equal(5000)).unwrap();
    assert!(!room.is_in_place());
    let (_, mut room) = device.download(memory, room).unwrap().wait(soon()).unwrap();
    assert!(room.values_mut() == bytes);
    assert_eq!(device.traffic(), Traffic { uploads: pageable(5000), downloads: pageable(5000) });
}

/// Files of `durability`: on a disk, and in memory.
#[test]
#[ignore = "needs a CUDA device"]
fn arenas_of_files_are_registered_where_the_system_lets_them() {
    let device = device();
    for under in ["/tmp", "/dev/shm"] {
        let (dir, bytes) = (tempfile::tempdir_in(under).unwrap(), noise(100_000));
        let options = Options {
            dir: Some(dir.path().to_owned()),
            durability: Durability::Process,
            arena_segment_bytes: 4 << 20,
            ..Options::default()
        };
        let store = Store::create(definition(Kind::Dense { dtype: Dtype::U8, shape: vec![] }), options).unwrap();
        let server = serve(&store);
        for session in [store.session("here").unwrap(), connect(&server, Choice::Shm)] {
            let before = device.traffic();
            put(&session, bytes.len(), Outputs::new().dense("x", &bytes));
            let last = views(&session).pop().unwrap();
            let memory = device.upload(&[last]).unwrap().wait(soon()).unwrap();
            let room = session.reserve(PartitionId(0), "x", Lens::Equal(bytes.len())).unwrap();
            let (_, room) = device.download(memory, room).unwrap().wait(soon()).unwrap();
            put(&session, bytes.len(), Outputs::new().room("x", room));
            assert!(views(&session).last().unwrap().values() == bytes, "{under}");
            let after = device.traffic();
            println!(
                "{under}, {}: {} of {} bytes up and {} down were read and written by the device itself",
                session.name(),
                after.uploads.pinned - before.uploads.pinned,
                bytes.len(),
                after.downloads.pinned - before.downloads.pinned
            );
        }
    }
}

/// Bytes of this process that are registered with a device cannot be told from outside; what can: memory, mappings, descriptors.
fn held() -> [u64; 3] {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident = resident.split_whitespace().next().unwrap().parse().unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap().lines().count() as u64;
    [resident, maps, fs::read_dir("/proc/self/fd").unwrap().count() as u64]
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_thousand_segments_come_and_go_and_leave_nothing() {
    let (device, bytes) = (device(), noise(1 << 20));
    let kind = || Kind::Dense { dtype: Dtype::U8, shape: vec![1 << 20] };
    let cycle = || {
        let store = store(kind());
        let session = store.session("here").unwrap();
        put(&session, 1, Outputs::new().dense("x", &bytes));
        let shown = views(&session);
        let mapping = shown[0].mapping().unwrap();
        drop(device.upload(&shown).unwrap().wait(soon()).unwrap());
        let watched = Arc::downgrade(&mapping);
        drop((mapping, shown, session, store));
        // Its store may end in the background.
        let until = soon();
        while watched.strong_count() > 0 {
            assert!(Instant::now() < until, "60 s, and a segment is mapped still");
            std::thread::yield_now();
        }
    };
    (0..50).for_each(|_| cycle());
    let (before, free) = (held(), device.free_and_total().unwrap().0);
    (0..1000).for_each(|_| cycle());
    let (after, left) = (held(), device.free_and_total().unwrap().0);
    println!(
        "resident KiB, mappings, descriptors: {before:?}, then {after:?}; free on the device: {free}, then {left}"
    );
    assert_eq!(device.traffic().uploads, pinned(1050 << 20), "each was registered");
    assert!(after[0] < before[0] + (64 << 10), "memory grows: {before:?} {after:?}");
    assert!(
        after[1] < before[1] + 50 && after[2] < before[2] + 50,
        "mappings or descriptors stay: {before:?} {after:?}"
    );
    assert!(left + (64 << 20) > free, "device memory goes: {free} {left}");
}

/// What a library for tensors would hand over: part of memory that someone else owns.
struct Part {
    _owner: Arc<tq_cuda::Memory>,
    range: (u64, usize),
}

// SAFETY: the owner keeps the memory, and this test copies to each part once.
#[expect(unsafe_code, reason = "memory of another owner")]
unsafe impl Region for Part {
    fn range(&self) -> (u64, usize) {
        self.range
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn cells_are_fetched_to_memory_that_another_owner_has_on_the_device() {
    let (device, store) = (device(), store(Kind::Dense { dtype: Dtype::U8, shape: vec![1000] }));
    let (session, bytes) = (store.session("here").unwrap(), noise(2000));
    put(&session, 2, Outputs::new().dense("x", &bytes));
    let mut memory = device.allocate(3000).unwrap();
    device.copy_in(&vec![7; 3000], &mut memory).unwrap();
    let (address, _) = memory.range();
    let owner = Arc::new(memory);
    let part = Part { _owner: owner.clone(), range: (address + 500, 2000) };
    drop(device.upload_into(&views(&session), part).unwrap().wait(soon()).unwrap());
    let mut found = vec![0; 3000];
    device.copy_out(&owner, &mut found).unwrap();
    assert!(found[..500] == [7; 500] && found[500..2500] == bytes && found[2500..] == [7; 500]);
}
