//! Readers through UCX come and go; nothing of them stays open. Alone in its process, since it counts the process's descriptors.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    thread,
    time::{Duration, Instant},
};

use transferqueue::{
    Column, Definition, Dtype, Kind, NewRow, Options, Outputs, PartitionId, Store,
    catalog::definition::{Birth, Partition},
    client::{self, Choice, Remote},
    server::{self, Ucx, UcxReads, UcxTransport},
};

/// Readers in all, over both ways.
const READERS: usize = 1000;

fn open() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_readers_leave_no_descriptor_behind() {
    let column = Column::new("x", Kind::Dense { dtype: Dtype::U32, shape: vec![] });
    let jobs = Partition { name: "jobs".into(), columns: vec![column], birth: Birth::Put { capacity: None } };
    let definition = Definition { partitions: vec![jobs], ..Definition::default() };
    let store = Store::create(definition, Options { shared: true, ..Options::default() }).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let cells = Outputs::new().dense("x", Vec::from_iter(0..10_000_u32));
    store.session("feeder").unwrap().put(PartitionId(0), vec![NewRow::default(); 10_000], cells, deadline).unwrap();
    for (transport, reads) in [(UcxTransport::Shm, UcxReads::Fetched), (UcxTransport::Tcp, UcxReads::Sent)] {
        let devices = vec!["lo".to_owned()];
        let ucx = Ucx { transports: vec![transport], devices, reads: Some(reads), ..Ucx::default() };
        let server = server::serve(&store, &server::Options { ucx: Some(ucx), ..Default::default() }).unwrap();
        let visit = || {
            let options = client::Options { transport: Choice::Ucx, ..client::Options::default() };
            let remote = Remote::connect(server.url(), server.token(), options).unwrap();
            let batch = remote.session("visitor").unwrap().read(PartitionId(0), None, &["x"]).unwrap();
            assert_eq!(batch.dense::<u32>("x").unwrap().to_vec(), Vec::from_iter(0..10_000));
            assert_eq!(remote.traffic().gets.ucx, 1);
        };
        (0..5).for_each(|_| visit());
        let settled = || {
            // Connections end a moment after their last user.
            let (mut last, mut since) = (open(), Instant::now());
            while since.elapsed() < Duration::from_secs(1) {
                thread::park_timeout(Duration::from_millis(20));
                if open() != last {
                    (last, since) = (open(), Instant::now());
                }
            }
            last
        };
        let before = settled();
        (0..READERS / 2).for_each(|_| visit());
        let until = Instant::now() + Duration::from_secs(20);
        while open() > before {
            assert!(Instant::now() < until, "{transport:?}: {} descriptors are open, {before} were", open());
            thread::park_timeout(Duration::from_millis(20));
        }
    }
}
