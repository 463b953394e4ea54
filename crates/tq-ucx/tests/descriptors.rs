//! Peers come and go; nothing of them stays open. Alone in its process, since it counts the process's descriptors.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/peer.rs"]
mod peer;

use std::{thread, time::Instant};

use tq_ucx::{Context, Space, Transport, Worker};

use crate::peer::{Peer, descriptors, options, pattern, soon};

const MIB: usize = 1 << 20;

#[test]
fn a_thousand_connections_leave_none() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let worker = Worker::start(&Context::new(&options(transport)).unwrap()).unwrap();
        let mut peer = Peer::start(transport);
        cycles(&worker, &mut peer, 10);
        let (here, there) = (descriptors(), peer.descriptors());
        cycles(&worker, &mut peer, 1000);
        let until = soon();
        while descriptors() > here || peer.descriptors() > there {
            let (now, then) = (descriptors(), peer.descriptors());
            assert!(Instant::now() < until, "{transport}: {now} and {then} descriptors, {here} and {there} before");
            thread::yield_now();
        }
    }
}

/// Both sides connect, both send, both leave.
fn cycles(worker: &Worker, peer: &mut Peer, times: usize) {
    for _ in 0..times {
        let endpoint = worker.connect(&peer.address()).wait(soon()).unwrap();
        peer.connect(worker.address());
        // Large enough to be fetched by its receiver.
        let sending = endpoint.send(1, pattern(MIB));
        assert_eq!(peer.receive(1, MIB), MIB);
        sending.wait(soon()).unwrap();
        let waiting = endpoint.receive(2, Space::new(100));
        peer.tell("send 2 100");
        assert_eq!(waiting.wait(soon()).unwrap()[..], pattern(100)[..]);
        peer.tell("disconnect");
    }
}
