//! The way to one peer, and its memory.

use std::{fmt, sync::Arc};

use super::line::{Command, Line, Work};
use crate::{
    Error, Filled, Key, Pending, Space,
    request::{self, pending},
};

/// The way to another worker; clones are the same one. It is closed when the last of them, and the last key that it has opened,
/// are gone.
#[derive(Clone)]
pub struct Endpoint {
    inner: Arc<Inner>,
}

struct Inner {
    number: u64,
    line: Arc<Line>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.line.ask(Command::Close { number: self.line.next(), endpoint: self.number });
    }
}

impl Endpoint {
    /// One that is to be connected.
    pub(super) fn new(line: &Arc<Line>) -> Self {
        Self { inner: Arc::new(Inner { number: line.next(), line: line.clone() }) }
    }

    pub(super) fn number(&self) -> u64 {
        self.inner.number
    }

    /// Opens memory that the peer has shared.
    ///
    /// Errors of the answer: [`Error::Ucx`] when no transport of this endpoint reads it.
    pub fn open(&self, key: &Key) -> Pending<RemoteKey> {
        let number = self.inner.line.next();
        let remote = Opened { number, endpoint: self.clone(), start: key.start, len: key.len };
        let (remote, key) = (RemoteKey { opened: Arc::new(remote) }, key.clone());
        self.request(format!("opening a {key:?}"), |promise| Work::Open { remote, key, promise })
    }

    /// Sends a message to whoever waits for this tag there. The answer says that the bytes are not needed here any more, not
    /// that they have arrived.
    ///
    /// Errors of the answer: [`Error::PeerGone`] when the peer has gone meanwhile.
    pub fn send(&self, tag: u64, bytes: impl AsRef<[u8]> + Send + 'static) -> Pending<()> {
        let bytes = Box::new(bytes);
        let what = format!("sending {} bytes with tag {tag:#x}", (*bytes).as_ref().len());
        self.request(what, |promise| Work::Send { tag, bytes, promise })
    }

    /// Waits for a message with this tag, for as long as this peer is there. (Whoever sends it: tags are for the two to agree on.)
    ///
    /// Errors of the answer: [`Error::PeerGone`] when the peer is gone before it has come; [`Error::Refused`] when it is longer
    /// than the space.
    pub fn receive(&self, tag: u64, into: Space) -> Pending<Filled> {
        let what = format!("receiving up to {} bytes with tag {tag:#x}", into.len());
        self.request(what, |promise| Work::Receive { tag, space: into, promise })
    }

    fn request<T>(&self, what: String, work: impl FnOnce(request::Promise<T>) -> Work) -> Pending<T> {
        self.inner.line.request(self.inner.number, what, work)
    }
}

/// Memory of a peer, to be read; clones are the same.
#[derive(Clone)]
pub struct RemoteKey {
    opened: Arc<Opened>,
}

struct Opened {
    number: u64,
    endpoint: Endpoint,
    start: u64,
    len: u64,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.endpoint.inner.line.ask(Command::Forget(self.number));
    }
}

impl RemoteKey {
    pub(super) fn number(&self) -> u64 {
        self.opened.number
    }

    /// Bytes that can be read.
    pub fn len(&self) -> u64 {
        self.opened.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.opened.len == 0
    }

    /// Reads bytes from `at` on until the space is full.
    ///
    /// Errors of the answer: [`Error::Refused`] when they are not all inside (nothing travels then); [`Error::PeerGone`] when the
    /// peer has gone meanwhile; [`Error::Ucx`] when it does not share them any more.
    pub fn get(&self, at: u64, into: Space) -> Pending<Filled> {
        let Opened { number, endpoint, start, len } = &*self.opened;
        let wanted = into.len() as u64;
        let what = format!("reading {wanted} bytes at {at} of a peer's {len}");
        if at.checked_add(wanted).is_none_or(|end| end > *len) {
            let (promise, answer) = pending(what.clone(), None);
            promise.keep(Err(Error::refused(what, "a range that ends beyond", "one inside")));
            return answer;
        }
        let (key, from) = (*number, start.wrapping_add(at));
        endpoint.request(what, |promise| Work::Get { key, from, space: into, promise })
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "endpoint {}", self.inner.number)
    }
}

impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes behind {:?}", self.opened.len, self.opened.endpoint)
    }
}
