//! Gets through UCX between two processes, of which one is killed or stopped in the middle.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(feature = "rdma")]
mod link;
mod peer;

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use transferqueue::{Error, client::Ways};

use crate::peer::{Over, Peer, Reader, Served, soon};

/// Gets that must have come before the other side is stopped: the next one is under way then.
const BEFORE: usize = 3;

/// Reads on and on until it fails. `then` happens in the middle of a get.
fn reads_until(reader: Reader, then: impl FnOnce()) -> (Error, Ways) {
    let (tell, told) = mpsc::sync_channel(1000);
    let reading = thread::spawn(move || {
        loop {
            match reader.read() {
                // Nobody counts beyond three.
                Ok(()) => drop(tell.try_send(())),
                Err(error) => return (error, reader.gets()),
            }
        }
    });
    (0..BEFORE).for_each(|_| told.recv().unwrap());
    then();
    reading.join().unwrap()
}

fn a_store_that_is_killed_in_the_middle_of_a_get_fails_it(over: Over) {
    let mut store = Peer::store(over);
    let (url, token) = store.door();
    let reader = Reader::connect(over, &url, &token);
    let (error, gets) = reads_until(reader, || store.kill());
    assert!(error.to_string().contains("UCX is the only path allowed"), "{error}");
    assert!(gets.ucx >= BEFORE as u64 && gets.flight == 0 && gets.shm == 0, "{gets:?}");
}

#[test]
fn a_store_that_is_killed_in_the_middle_of_a_get_fails_it_as_it_is_fetched_through_shared_memory() {
    a_store_that_is_killed_in_the_middle_of_a_get_fails_it(Over::ShmFetched);
}

#[test]
fn a_store_that_is_killed_in_the_middle_of_a_get_fails_it_as_it_is_sent_over_tcp() {
    a_store_that_is_killed_in_the_middle_of_a_get_fails_it(Over::TcpSent);
}

#[test]
fn a_store_that_is_stopped_is_waited_for_no_longer_than_a_get_may_take_and_goes_on_later() {
    let over = Over::TcpSent;
    let mut store = Peer::store(over);
    let (url, token) = store.door();
    let reader = Reader::connect(over, &url, &token);
    reader.read().unwrap();
    store.signal(Signal::STOP);
    let begun = Instant::now();
    let error: Error = reader.read().unwrap_err();
    assert!(error.to_string().contains("did not come within 1s"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    store.signal(Signal::CONT);
    let until = soon();
    while let Err(error) = reader.read() {
        assert!(Instant::now() < until, "{error}");
    }
}

fn a_reader_that_is_killed_in_the_middle_of_a_get_holds_nothing(over: Over) {
    let served = Served::new(over);
    let mut reader = Peer::reader(over, served.url(), served.token());
    (0..BEFORE).for_each(|_| reader.hear("read"));
    reader.kill();
    let until = soon();
    while served.pinned() > 0 {
        assert!(Instant::now() < until, "{} bytes are held for a reader that was killed", served.pinned());
        thread::yield_now();
    }
    // Others are served.
    let other = Reader::connect(over, served.url(), served.token());
    other.read().unwrap();
}

#[test]
fn a_reader_that_is_killed_in_the_middle_of_a_get_holds_nothing_that_it_fetched_through_shared_memory() {
    a_reader_that_is_killed_in_the_middle_of_a_get_holds_nothing(Over::ShmFetched);
}

#[test]
fn a_reader_that_is_killed_in_the_middle_of_a_get_holds_nothing_that_it_was_sent_over_tcp() {
    a_reader_that_is_killed_in_the_middle_of_a_get_holds_nothing(Over::TcpSent);
}

/// The same over a network card, and a link that is cut. They need two devices: `make rdma` brings them.
#[cfg(feature = "rdma")]
mod over_rc {
    use super::*;

    #[test]
    fn a_store_that_is_killed_in_the_middle_of_a_get_fails_it_as_it_is_fetched() {
        a_store_that_is_killed_in_the_middle_of_a_get_fails_it(Over::RcFetched);
    }

    #[test]
    fn a_store_that_is_killed_in_the_middle_of_a_get_fails_it_as_it_is_sent() {
        a_store_that_is_killed_in_the_middle_of_a_get_fails_it(Over::RcSent);
    }

    #[test]
    fn a_reader_that_is_killed_in_the_middle_of_a_get_holds_nothing_that_it_fetched() {
        a_reader_that_is_killed_in_the_middle_of_a_get_holds_nothing(Over::RcFetched);
    }

    #[test]
    fn a_reader_that_is_killed_in_the_middle_of_a_get_holds_nothing_that_it_was_sent() {
        a_reader_that_is_killed_in_the_middle_of_a_get_holds_nothing(Over::RcSent);
    }

    #[test]
    fn a_link_that_is_cut_in_the_middle_of_a_get_fails_it_as_it_is_fetched() {
        link::a_link_that_is_cut_in_the_middle_of_a_get_fails_it(Over::RcFetched);
    }

    #[test]
    fn a_link_that_is_cut_in_the_middle_of_a_get_fails_it_as_it_is_sent() {
        link::a_link_that_is_cut_in_the_middle_of_a_get_fails_it(Over::RcSent);
    }
}
