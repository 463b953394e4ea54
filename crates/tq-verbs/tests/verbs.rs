//! Two processes with an RDMA link between them, which `make rdma` makes: what is read, what is refused, what ends.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/peer.rs"]
mod peer;

use std::{
    env,
    net::SocketAddr,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use tq_verbs::{Connection, Error, Key, Listener, Read};

use crate::peer::{Peer, addresses, held, pattern, soon};

const MIB: usize = 1 << 20;
/// Bytes that are many where the device and the processor are emulated.
const MANY: usize = 2 * MIB;
/// Much longer than such a read takes there, and much shorter than a wait that has no end.
const DEADLINE: Duration = Duration::from_secs(20);
/// This program again, as a reader that reads on and on: the address, the ticket's guest and the key.
const READS: &str = "TQ_VERBS_READS";

fn read(connection: &mut Connection, key: Key, at: usize, len: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0xee; len];
    connection.read(&mut [Read { key, at: at as u64, into: &mut bytes }], soon())?;
    Ok(bytes)
}

#[test]
fn ranges_of_a_peers_memory_are_read_and_nothing_beyond() {
    let mut peer = Peer::start();
    let (guest, mut connection) = peer.guest();
    let all = 9 * MIB + 7;
    let key = peer.share(guest, all);
    let expected = pattern(all);
    for (at, len) in [(0, all), (0, 1), (4095, 2), (MIB + 3, MIB + 1), (all - 1, 1), (all, 0)] {
        assert!(read(&mut connection, key, at, len).unwrap() == expected[at..at + len], "{len} bytes at {at}");
    }
    for (at, len) in [(all, 1), (0, all + 1), (usize::MAX, 2)] {
        let error = read(&mut connection, key, at, len).unwrap_err().to_string();
        assert!(error.contains("found a range that ends beyond, expected one inside"), "{error}");
    }
    // A refusal has ended nothing.
    assert_eq!(read(&mut connection, key, 5, 5).unwrap(), expected[5..10]);
}

#[test]
fn many_reads_are_under_way_at_once() {
    let mut peer = Peer::start();
    let (guest, mut connection) = peer.guest();
    let keys = [peer.share(guest, 100_000), peer.share(guest, 70_000)];
    let expected = pattern(100_000);
    let mut buffers = vec![[0xee_u8; 131]; 500];
    let places = |i: usize| (keys[i % 2], i * 137);
    let reads = buffers.iter_mut().enumerate().map(|(i, into)| {
        let (key, at) = places(i);
        Read { key, at: at as u64, into }
    });
    connection.read(&mut reads.collect::<Vec<_>>(), soon()).unwrap();
    for (i, buffer) in buffers.iter().enumerate() {
        assert!(buffer[..] == expected[places(i).1..][..131], "read {i}");
    }
}

#[test]
fn a_key_that_was_revoked_opens_nothing() {
    let mut peer = Peer::start();
    let (guest, mut connection) = peer.guest();
    let (key, other) = (peer.share(guest, 10_000), peer.share(guest, 10_000));
    assert_eq!(read(&mut connection, key, 0, 10_000).unwrap(), pattern(10_000));
    let before = peer.held().pinned;
    assert!(peer.revoke(guest, &key) && !peer.revoke(guest, &key));
    assert!(peer.held().pinned < before, "the device has let go of it");
    assert_eq!(read(&mut connection, other, 0, 10_000).unwrap(), pattern(10_000));
    let mut bytes = vec![0xee; 10_000];
    let refused = connection.read(&mut [Read { key, at: 0, into: &mut bytes }], soon()).unwrap_err();
    assert!(matches!(refused, Error::NotShared { .. }), "{refused}");
    assert_eq!(bytes, vec![0xee; 10_000], "not a byte has come");
    // That has ended the connection; another works.
    let ended = read(&mut connection, other, 0, 1).unwrap_err();
    assert!(matches!(ended, Error::Ended { .. }), "{ended}");
    let (guest, mut connection) = peer.guest();
    let key = peer.share(guest, 77);
    assert_eq!(read(&mut connection, key, 0, 77).unwrap(), pattern(77));
}

#[test]
fn a_key_is_its_guests_alone_and_goes_with_it() {
    let mut peer = Peer::start();
    let nothing = peer.held().pinned;
    let (one, mut first) = peer.guest();
    let key = peer.share(one, MANY);
    assert_eq!(read(&mut first, key, 0, 100).unwrap(), pattern(100));
    // Somebody else knows it, while it opens the same bytes for its owner.
    let (_, mut second) = peer.guest();
    let refused = read(&mut second, key, 0, 100).unwrap_err();
    assert!(matches!(refused, Error::NotShared { .. }), "{refused}");
    assert_eq!(read(&mut first, key, 0, 100).unwrap(), pattern(100));
    // A guest that is sent away reads no more.
    peer.dismiss(one);
    assert_eq!(peer.held().pinned, nothing);
    let error = read(&mut first, key, 0, 100).unwrap_err();
    assert!(error.is_peer_gone(), "{error}");
    // One that leaves takes its keys along.
    let (two, third) = peer.guest();
    peer.share(two, MANY);
    assert!(peer.held().pinned > nothing && peer.is_here(two));
    drop(third);
    until("its keys are gone", || peer.held().pinned == nothing && !peer.is_here(two));
}

#[test]
fn nobody_comes_in_without_a_ticket_or_twice_with_one() {
    let mut peer = Peer::start();
    let guest = peer.invite();
    let refused = |entered: Result<Connection, Error>| {
        let error = entered.unwrap_err();
        assert!(error.is_peer_gone() && error.to_string().contains("lets this one not in"), "{error}");
    };
    refused(peer.enter(guest + 1, soon()));
    let mut connection = peer.enter(guest, soon()).unwrap();
    refused(peer.enter(guest, soon()));
    let key = peer.share(guest, 10);
    assert_eq!(read(&mut connection, key, 0, 10).unwrap(), pattern(10));
    // A ticket that was taken back.
    let guest = peer.invite();
    peer.dismiss(guest);
    refused(peer.enter(guest, soon()));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let [there, here] = addresses();
    let listener = Listener::start(SocketAddr::new(there, 0)).unwrap();
    let guest = listener.invite([1; 16]).unwrap();
    let twice = listener.invite([1; 16]).unwrap_err().to_string();
    assert!(twice.contains("found a ticket that somebody has"), "{twice}");
    let early = guest.share(std::sync::Arc::new([1u8])).unwrap_err().to_string();
    assert!(early.contains("found a guest that has not come yet"), "{early}");
    let taken = Listener::start(listener.address()).unwrap_err();
    assert!(matches!(taken, Error::System { .. }), "{taken}");
    let _connection = Connection::connect(listener.address(), Some(here), &[1; 16], soon()).unwrap();
    let nothing = guest.share(std::sync::Arc::new([0u8; 0])).unwrap_err().to_string();
    assert!(nothing.contains("found no byte"), "{nothing}");
    let nowhere = Listener::start("198.51.100.7:0".parse().unwrap()).unwrap_err();
    assert!(matches!(nowhere, Error::System { .. }), "{nowhere}");
}

/// Reads on and on until it fails, and always what was shared. `then` happens in the middle of a read.
fn reads_until(mut connection: Connection, key: Key, deadline: Duration, then: impl FnOnce()) -> Error {
    let expected = pattern(MANY);
    let (tell, told) = mpsc::sync_channel(1000);
    let reading = thread::spawn(move || {
        let mut bytes = vec![0; MANY];
        loop {
            bytes.fill(0xee);
            let until = Instant::now() + deadline;
            match connection.read(&mut [Read { key, at: 0, into: &mut bytes }], until) {
                Ok(()) => {
                    assert!(bytes == expected);
                    // Nobody counts beyond three.
                    let _ = tell.try_send(());
                }
                Err(error) => return error,
            }
        }
    });
    (0..3).for_each(|_| told.recv().unwrap());
    then();
    reading.join().unwrap()
}

#[test]
fn a_peer_that_is_killed_in_the_middle_of_a_read_fails_it() {
    let mut peer = Peer::start();
    let (guest, connection) = peer.guest();
    let key = peer.share(guest, MANY);
    let error = reads_until(connection, key, soon() - Instant::now(), || peer.kill());
    assert!(error.is_peer_gone(), "{error}");
    let error = peer.enter(guest, soon()).unwrap_err();
    assert!(error.is_peer_gone(), "{error}");
}

/// Not a test: a reader in a process of its own.
#[test]
#[ignore = "started by the other tests"]
fn reader() {
    let Ok(said) = env::var(READS) else { return };
    let words: Vec<&str> = said.split(' ').collect();
    let mut ticket = [0x5a; 16];
    ticket[..8].copy_from_slice(&words[1].parse::<usize>().unwrap().to_le_bytes());
    let _connection = Connection::connect(words[0].parse().unwrap(), Some(addresses()[1]), &ticket, soon()).unwrap();
    thread::park();
}

#[test]
fn a_guest_that_is_killed_holds_nothing() {
    let mut peer = Peer::start();
    let nothing = peer.held().pinned;
    let guest = peer.invite();
    let mut reader = Command::new(env::current_exe().unwrap())
        .args(["reader", "--exact", "--ignored"])
        .env(READS, format!("{} {guest}", peer.address()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until("the reader has come in", || peer.is_here(guest));
    peer.share(guest, MANY);
    assert!(peer.held().pinned > nothing);
    reader.kill().unwrap();
    reader.wait().unwrap();
    until("nothing is held for it", || peer.held().pinned == nothing && !peer.is_here(guest));
}

/// A link that is down until this is dropped.
struct Cut;

impl Cut {
    fn new() -> Self {
        link("down");
        Self
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        link("up");
    }
}

fn link(word: &str) {
    let program = env::var("TQ_RDMA_LINK").expect("`make rdma` runs this, where there is a link to be cut");
    let status = Command::new(&program).arg(word).status().unwrap();
    assert!(status.success(), "{program} {word}: {status}");
}

#[test]
fn a_link_that_is_cut_in_the_middle_of_a_read_fails_it_at_its_deadline() {
    let mut peer = Peer::start();
    let (guest, connection) = peer.guest();
    let key = peer.share(guest, MANY);
    let (mut cut, mut begun) = (None, Instant::now());
    let error = reads_until(connection, key, DEADLINE, || {
        begun = Instant::now();
        cut = Some(Cut::new());
    });
    assert!(matches!(error, Error::Late { .. }) || error.is_peer_gone(), "{error}");
    // The read that the cut comes into has one deadline; the rest is for a machine that has other things to do.
    assert!(begun.elapsed() < 3 * DEADLINE, "{:?}", begun.elapsed());
    // Nobody comes in meanwhile. (That the device is down is what the system may say at once.)
    let next = peer.invite();
    peer.enter(next, Instant::now() + Duration::from_secs(2)).unwrap_err();
    drop(cut);
    let until = soon();
    let (guest, mut connection) = loop {
        let guest = peer.invite();
        match peer.enter(guest, Instant::now() + DEADLINE) {
            Ok(connection) => break (guest, connection),
            Err(error) => assert!(Instant::now() < until, "the link is up again: {error}"),
        }
    };
    let key = peer.share(guest, MANY);
    assert!(read(&mut connection, key, 0, MANY).unwrap() == pattern(MANY));
}

#[test]
fn guests_that_come_and_go_leave_no_descriptor_and_no_page() {
    let mut peer = Peer::start();
    let visit = |peer: &mut Peer| {
        let (guest, mut connection) = peer.guest();
        let key = peer.share(guest, 50_000);
        assert_eq!(read(&mut connection, key, 1000, 100).unwrap(), pattern(1100)[1000..]);
        drop(connection);
        peer.dismiss(guest);
    };
    (0..3).for_each(|_| visit(&mut peer));
    let (here, there) = (held(), peer.held());
    (0..100).for_each(|_| visit(&mut peer));
    until("as much is held as before", || held() == here && peer.held() == there);
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let until = soon();
    while !is() {
        assert!(Instant::now() < until, "not in time: {what}");
        thread::park_timeout(Duration::from_millis(10));
    }
}
