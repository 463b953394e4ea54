//! What a worker is asked: commands in their order, and a descriptor that wakes it.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::{read, write},
};

use super::endpoint::{Endpoint, RemoteKey};
use crate::{
    Address, Error, Filled, Key, Pending, Space,
    request::{Promise, pending},
};

/// Bytes that somebody sends.
pub(super) type Bytes = Box<dyn AsRef<[u8]> + Send>;

/// The way to a worker's thread.
pub(super) struct Line {
    /// `None` once the worker has ended.
    commands: Mutex<Option<VecDeque<Command>>>,
    wake: OwnedFd,
    numbers: AtomicU64,
}

/// What is to be done.
pub(super) enum Command {
    Start(Request),
    /// Nobody waits for this request any more.
    Cancel(u64),
    /// Nobody has this key any more.
    Forget(u64),
    /// Nobody has this endpoint any more. With a number for the request that waits for what was asked of it.
    Close {
        number: u64,
        endpoint: u64,
    },
    /// The worker is to end.
    Stop,
}

/// Something that an endpoint does, and that is answered.
pub(super) struct Request {
    pub(super) number: u64,
    pub(super) endpoint: u64,
    pub(super) work: Work,
}

/// What a request is, with its buffers.
pub(super) enum Work {
    Connect {
        endpoint: Endpoint,
        address: Address,
        promise: Promise<Endpoint>,
    },
    Open {
        remote: RemoteKey,
        key: Key,
        promise: Promise<RemoteKey>,
    },
    Get {
        key: u64,
        from: u64,
        space: Space,
        promise: Promise<Filled>,
    },
    Send {
        tag: u64,
        bytes: Bytes,
        promise: Promise<()>,
    },
    Receive {
        tag: u64,
        space: Space,
        promise: Promise<Filled>,
    },
    /// The end of what was asked of an endpoint that nobody has any more.
    Close,
    /// The end of an endpoint.
    Cut,
}

impl Work {
    /// In words.
    pub(super) fn what(&self) -> &str {
        match self {
            Self::Connect { promise, .. } => promise.what(),
            Self::Open { promise, .. } => promise.what(),
            Self::Get { promise, .. } | Self::Receive { promise, .. } => promise.what(),
            Self::Send { promise, .. } => promise.what(),
            Self::Close | Self::Cut => "closing an endpoint",
        }
    }

    /// Answers that it failed.
    pub(super) fn fail(self, error: Error) {
        match self {
            Self::Connect { promise, .. } => promise.keep(Err(error)),
            Self::Open { promise, .. } => promise.keep(Err(error)),
            Self::Get { promise, .. } | Self::Receive { promise, .. } => promise.keep(Err(error)),
            Self::Send { promise, .. } => promise.keep(Err(error)),
            Self::Close | Self::Cut => tracing::debug!(%error, "an endpoint was closed"),
        }
    }
}

impl Line {
    pub(super) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { commands: Mutex::new(Some(VecDeque::new())), wake, numbers: AtomicU64::new(1) })
    }

    /// A number that nothing else of this worker has.
    pub(super) fn next(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks for something, and gives what brings the answer.
    pub(super) fn request<T>(
        self: &Arc<Self>,
        endpoint: u64,
        what: String,
        work: impl FnOnce(Promise<T>) -> Work,
    ) -> Pending<T> {
        let (number, line) = (self.next(), self.clone());
        let cancel = move || line.ask(Command::Cancel(number));
        let (promise, answer) = pending(what, Some(Box::new(cancel)));
        self.ask(Command::Start(Request { number, endpoint, work: work(promise) }));
        answer
    }

    /// Puts a command on the line. What comes after the worker's end is dropped, and answered so.
    pub(super) fn ask(&self, command: Command) {
        // Not dropped under the lock: endpoints that go with it ask for their closing.
        let mut late = None;
        match self.lock().as_mut() {
            Some(commands) => commands.push_back(command),
            None => late = Some(command),
        }
        if late.is_none() {
            // A counter that is full wakes as well.
            let _ = write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// What was asked since the last time.
    pub(super) fn take(&self) -> VecDeque<Command> {
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Nothing is asked from now on.
    pub(super) fn end(&self) {
        let left = self.lock().take();
        drop(left);
    }

    /// Readable when something was asked.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes it unreadable again.
    pub(super) fn hush(&self) {
        // Nothing to read is what is wanted.
        let _ = read(&self.wake, &mut [0; 8]);
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<Command>>> {
        self.commands.lock().expect("invariant: nothing panics under this lock")
    }
}
