//! The link between a store and its reader, cut and mended. (Not the connection over which they agree: that is on `lo`.)

use std::{
    env,
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    peer::{Over, Peer, Reader, soon},
    reads_until,
};

/// A program that is told `down` or `up`.
const LINK: &str = "TQ_RDMA_LINK";
/// Longer than what a get may take over the ways that are tried for it, and much shorter than a wait that has no end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A link that is down.
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
    let program = env::var(LINK).expect("`make rdma` runs this, where there is a link to be cut");
    let status = Command::new(&program).arg(word).status().unwrap();
    assert!(status.success(), "{program} {word}: {status}");
}

pub(crate) fn a_link_that_is_cut_in_the_middle_of_a_get_fails_it(over: Over) {
    let mut store = Peer::store(over);
    let (url, token) = store.door();
    let reader = Reader::connect(over, &url, &token);
    let (mut cut, mut begun) = (None, Instant::now());
    let (error, gets) = reads_until(reader, || {
        begun = Instant::now();
        cut = Some(Cut::new());
    });
    assert!(error.to_string().contains("UCX is the only path allowed"), "{error}");
    assert!(gets.flight == 0 && gets.shm == 0, "{gets:?}");
    assert!(begun.elapsed() < PATIENCE, "it took {:?}", begun.elapsed());
    // Nobody comes in meanwhile.
    let Err(error) = Reader::try_connect(over, &url, &token) else { panic!("connected over a link that is cut") };
    assert!(error.to_string().contains("UCX is the only path allowed"), "{error}");
    drop(cut);
    let until = soon();
    let again = loop {
        match Reader::try_connect(over, &url, &token) {
            Ok(reader) => break reader,
            Err(error) => assert!(Instant::now() < until, "the link is up again: {error}"),
        }
    };
    again.read().unwrap();
}
