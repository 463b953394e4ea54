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

/// Ways, and how many readers come on each.
#[cfg(not(feature = "rdma"))]
const WAYS: &[(UcxTransport, UcxReads, usize)] =
    &[(UcxTransport::Shm, UcxReads::Fetched, 500), (UcxTransport::Tcp, UcxReads::Sent, 500)];
/// Fewer: where this is tested (`make rdma`), the network card and the processor are emulated.
#[cfg(feature = "rdma")]
const WAYS: &[(UcxTransport, UcxReads, usize)] = &[(UcxTransport::Rc, UcxReads::Fetched, 50)];

fn open() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Memory that network cards may read or write, in KiB.
fn pinned() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let pinned = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    pinned.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Where a store is that readers come to over this transport.
fn devices(transport: UcxTransport) -> Vec<String> {
    match transport {
        UcxTransport::Shm => Vec::new(),
        UcxTransport::Tcp => vec!["lo".to_owned()],
        UcxTransport::Rc => {
            vec![std::env::var("TQ_RDMA_STORE").expect("`make rdma` runs this, where there is a device")]
        }
    }
}

#[test]
fn readers_that_come_and_go_leave_no_descriptor_and_no_page_behind() {
    let column = Column::new("x", Kind::Dense { dtype: Dtype::U32, shape: vec![] });
    let jobs = Partition { name: "jobs".into(), columns: vec![column], birth: Birth::Put { capacity: None } };
    let definition = Definition { partitions: vec![jobs], ..Definition::default() };
    let store = Store::create(definition, Options { shared: true, ..Options::default() }).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let cells = Outputs::new().dense("x", Vec::from_iter(0..10_000_u32));
    store.session("feeder").unwrap().put(PartitionId(0), vec![NewRow::default(); 10_000], cells, deadline).unwrap();
    for &(transport, reads, readers) in WAYS {
        let (devices, insecure) = (devices(transport), transport == UcxTransport::Rc);
        let ucx = Ucx { transports: vec![transport], devices, reads: Some(reads), insecure };
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
        let (before, pinned_before) = (settled(), pinned());
        (0..readers).for_each(|_| visit());
        let until = Instant::now() + Duration::from_secs(20);
        while open() > before || pinned() > pinned_before {
            let (open, pinned) = (open(), pinned());
            let now = format!("{open} descriptors are open and {pinned} KiB pinned");
            assert!(Instant::now() < until, "{transport:?}: {now}, {before} and {pinned_before} KiB were");
            thread::park_timeout(Duration::from_millis(20));
        }
    }
}
