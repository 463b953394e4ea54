//! Two processes, with shared memory and with TCP between them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/peer.rs"]
mod peer;

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use tq_ucx::{Address, Context, Endpoint, Error, Filled, Key, Memory, Options, Space, Transport, Worker};

use crate::peer::{Peer, options, pattern, soon};

const MIB: usize = 1 << 20;

/// This side of a connection, and the other.
struct Two {
    worker: Worker,
    endpoint: Endpoint,
    peer: Peer,
}

impl Two {
    fn over(transport: Transport) -> Self {
        let worker = Worker::start(&Context::new(&options(transport)).unwrap()).unwrap();
        let mut peer = Peer::start(transport);
        let endpoint = worker.connect(&peer.address()).wait(soon()).unwrap();
        peer.connect(worker.address());
        Self { worker, endpoint, peer }
    }

    fn receive(&mut self, tag: u64, len: usize, room: usize) -> Result<Filled, Error> {
        let waiting = self.endpoint.receive(tag, Space::new(room));
        self.peer.tell(&format!("send {tag} {len}"));
        waiting.wait(soon())
    }
}

/// Bytes that are many over this transport. (Over a network card the tests run where that and the processor are emulated.)
fn many(transport: Transport) -> usize {
    if transport == Transport::Rc { 4 * MIB } else { 16 * MIB }
}

fn ranges_of_a_peers_memory_are_read_and_nothing_beyond(transport: Transport) {
    let mut two = Two::over(transport);
    let all = many(transport);
    let key = two.peer.share(all);
    let remote = two.endpoint.open(&key).wait(soon()).unwrap();
    assert_eq!(remote.len(), all as u64);
    let expected = pattern(all);
    let ranges = [(0, all), (0, 1), (4095, 2), (all / 2 - MIB + 3, MIB + 1), (all - 1, 1), (all, 0)];
    for (at, len) in ranges {
        let read = remote.get(at as u64, Space::new(len)).wait(soon()).unwrap();
        assert!(read[..] == expected[at..at + len], "{len} bytes at {at}");
    }
    for (at, len) in [(all as u64, 1), (0, all + 1), (u64::MAX, 2)] {
        let error = remote.get(at, Space::new(len)).wait(soon()).unwrap_err().to_string();
        assert!(error.contains("found a range that ends beyond, expected one inside"), "{error}");
    }
}

#[test]
fn ranges_of_a_peers_memory_are_read_through_shared_memory() {
    ranges_of_a_peers_memory_are_read_and_nothing_beyond(Transport::Shm);
}

#[test]
fn ranges_of_a_peers_memory_are_read_over_tcp() {
    ranges_of_a_peers_memory_are_read_and_nothing_beyond(Transport::Tcp);
}

#[test]
fn many_reads_are_under_way_at_once() {
    let mut two = Two::over(Transport::Shm);
    let key = two.peer.share(MIB);
    let remote = two.endpoint.open(&key).wait(soon()).unwrap();
    let reads: Vec<_> = (0..1000).map(|i| remote.get(i * 1000, Space::new(1000))).collect();
    // Their keys, their endpoint: all of it may go while they are under way.
    drop((remote, two.endpoint));
    let expected = pattern(MIB);
    for (i, read) in reads.into_iter().enumerate() {
        assert!(read.wait(soon()).unwrap()[..] == expected[i * 1000..][..1000], "read {i}");
    }
}

fn messages_go_both_ways(transport: Transport) {
    let mut two = Two::over(transport);
    for (tag, len) in [0, 1, 100, 64 << 10, many(transport) + 5].into_iter().enumerate() {
        let tag = tag as u64;
        let came = two.receive(tag, len, len).unwrap();
        assert!(came[..] == pattern(len)[..], "{len} bytes");
        let sent = two.endpoint.send(tag, pattern(len));
        assert_eq!(two.peer.receive(tag, len), len, "the peer has seen the pattern");
        sent.wait(soon()).unwrap();
    }
    // Room for more than comes is no error, room for less is.
    assert_eq!(two.receive(77, 10, 4096).unwrap()[..], pattern(10)[..]);
    let error = two.receive(78, 4096, 10).unwrap_err().to_string();
    assert!(error.contains("found a longer message, expected at most 10 bytes"), "{error}");
    // Memory of what came is used again.
    let again = two.receive(79, 1000, 1000).unwrap().into_space(100);
    let waiting = two.endpoint.receive(80, again);
    two.peer.tell("send 80 100");
    assert_eq!(waiting.wait(soon()).unwrap()[..], pattern(100)[..]);
}

#[test]
fn messages_go_both_ways_through_shared_memory() {
    messages_go_both_ways(Transport::Shm);
}

#[test]
fn messages_go_both_ways_over_tcp() {
    messages_go_both_ways(Transport::Tcp);
}

/// What waits for a peer, what is on the way to it, and what is asked after its end.
fn a_killed_peer_fails_what_is_under_way(transport: Transport) {
    let mut two = Two::over(transport);
    let waiting = two.endpoint.receive(1, Space::new(64));
    // Nobody takes it there: it cannot be done before the peer is killed.
    let sending = two.endpoint.send(2, vec![0; 64 * MIB]);
    two.peer.kill();
    let gone = |error: Error| assert!(error.is_peer_gone(), "{error}");
    gone(waiting.wait(soon()).unwrap_err());
    gone(sending.wait(soon()).unwrap_err());
    gone(two.endpoint.send(3, [1]).wait(soon()).unwrap_err());
    gone(two.endpoint.receive(4, Space::new(1)).wait(soon()).unwrap_err());
    gone(two.worker.connect(&two.peer.address()).wait(soon()).unwrap_err());
    // The worker goes on with others.
    let mut other = Peer::start(transport);
    let endpoint = two.worker.connect(&other.address()).wait(soon()).unwrap();
    other.connect(two.worker.address());
    let waiting = endpoint.receive(5, Space::new(9));
    other.tell("send 5 9");
    assert_eq!(waiting.wait(soon()).unwrap()[..], pattern(9)[..]);
}

#[test]
fn a_killed_peer_fails_what_is_under_way_through_shared_memory() {
    a_killed_peer_fails_what_is_under_way(Transport::Shm);
}

#[test]
fn a_killed_peer_fails_what_is_under_way_over_tcp() {
    a_killed_peer_fails_what_is_under_way(Transport::Tcp);
}

fn reads_of_a_peer_that_is_killed_meanwhile_are_right_or_fail(transport: Transport) {
    let mut two = Two::over(transport);
    let all = many(transport);
    let key = two.peer.share(all);
    let remote = two.endpoint.open(&key).wait(soon()).unwrap();
    let expected = pattern(all);
    let (tell, told) = mpsc::sync_channel(1000);
    let reader = thread::spawn(move || {
        let mut space = Space::new(all);
        loop {
            match remote.get(0, space).wait(soon()) {
                Ok(read) => {
                    assert!(read[..] == expected[..]);
                    // Nobody counts beyond three.
                    let _ = tell.try_send(());
                    space = read.into_space(all);
                }
                Err(error) => return error,
            }
        }
    });
    (0..3).for_each(|_| told.recv().unwrap());
    two.peer.kill();
    let error = reader.join().unwrap();
    assert!(error.is_peer_gone(), "{error}");
}

#[test]
fn reads_through_shared_memory_of_a_peer_that_is_killed_meanwhile_are_right_or_fail() {
    reads_of_a_peer_that_is_killed_meanwhile_are_right_or_fail(Transport::Shm);
}

#[test]
fn a_message_whose_sender_is_killed_in_the_middle_fails() {
    let mut two = Two::over(Transport::Tcp);
    let key = two.peer.share(1);
    // It is too large to be sent before somebody takes it: what is sent is that there is one.
    two.peer.tell(&format!("send_slowly 1 {}", 64 * MIB));
    // This one overtakes nothing: the other has been announced when it is there.
    assert_eq!(two.receive(2, 3, 3).unwrap()[..], pattern(3)[..]);
    // From here on the message cannot become whole, whoever runs when.
    two.peer.stop();
    let waiting = two.endpoint.receive(1, Space::new(64 * MIB));
    // Commands are obeyed in their order: the message is being taken when this is answered.
    two.endpoint.open(&key).wait(soon()).unwrap();
    two.peer.kill();
    let error = waiting.wait(soon()).unwrap_err();
    assert!(error.is_peer_gone(), "{error}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let tcp = Context::new(&Options::over([Transport::Tcp])).unwrap();
    let error = Memory::share(&tcp, vec![1u8]).unwrap_err().to_string();
    assert!(error.contains("found a context with messages alone, expected one with `one_sided`"), "{error}");
    let shm = Context::new(&options(Transport::Shm)).unwrap();
    let error = Memory::share(&shm, Vec::<u8>::new()).unwrap_err().to_string();
    assert!(error.contains("found no byte"), "{error}");
    let error = Context::new(&Options { devices: vec!["nowhere0".into()], ..options(Transport::Tcp) }).unwrap_err();
    assert!(matches!(error, Error::Ucx { .. }), "{error}");
    let worker = Worker::start(&shm).unwrap();
    let mut bytes = worker.address().to_bytes();
    assert_eq!(&Address::from_bytes(&bytes).unwrap(), worker.address());
    bytes.pop();
    assert!(Address::from_bytes(&bytes).unwrap_err().to_string().starts_with("a worker's address: found"));
    Key::from_bytes(&worker.address().to_bytes()).unwrap_err();
    // No transport of one leads to the other.
    let other = Worker::start(&tcp).unwrap();
    assert!(worker.connect(other.address()).wait(soon()).unwrap_err().is_peer_gone());
}

#[test]
fn a_deadline_ends_the_waiting_and_not_the_endpoint() {
    let mut two = Two::over(Transport::Tcp);
    let error = two.endpoint.receive(1, Space::new(8)).wait(Instant::now() + Duration::from_millis(20)).unwrap_err();
    assert!(matches!(&error, Error::Late { .. }), "{error}");
    // What was given up takes nothing away from who comes after it.
    assert_eq!(two.receive(1, 8, 8).unwrap()[..], pattern(8)[..]);
}

#[test]
fn handles_outlive_their_worker_and_say_so() {
    let mut two = Two::over(Transport::Shm);
    let key = two.peer.share(MIB);
    let remote = two.endpoint.open(&key).wait(soon()).unwrap();
    let waiting = two.endpoint.receive(1, Space::new(1));
    drop(two.worker);
    let ended = |error: Error| assert!(matches!(error, Error::Ended { .. } | Error::Cancelled { .. }), "{error}");
    ended(waiting.wait(soon()).unwrap_err());
    ended(remote.get(0, Space::new(1)).wait(soon()).unwrap_err());
    ended(two.endpoint.send(1, [0]).wait(soon()).unwrap_err());
}

/// Over a network card: `make rdma` brings two, and runs this.
#[cfg(feature = "rdma")]
mod over_rc {
    use super::*;

    #[test]
    fn ranges_of_a_peers_memory_are_read() {
        ranges_of_a_peers_memory_are_read_and_nothing_beyond(Transport::Rc);
    }

    #[test]
    fn messages_go_both_ways() {
        super::messages_go_both_ways(Transport::Rc);
    }

    #[test]
    fn a_killed_peer_fails_what_is_under_way() {
        super::a_killed_peer_fails_what_is_under_way(Transport::Rc);
    }

    #[test]
    fn reads_of_a_peer_that_is_killed_meanwhile_are_right_or_fail() {
        super::reads_of_a_peer_that_is_killed_meanwhile_are_right_or_fail(Transport::Rc);
    }
}
