//! Which file backs a range of memory: what another process of the host needs to see the same bytes.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::fd::AsRawFd,
    sync::{
        Arc, Mutex, RwLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Region, extent::Room};

/// The segments of one arena by their address in this process; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Places {
    by_address: Arc<RwLock<BTreeMap<usize, Weak<dyn Room>>>>,
}

/// A segment that backs some memory.
#[derive(Clone)]
pub(crate) struct Backed {
    room: Arc<dyn Room>,
    /// Where in the segment the memory begins.
    pub(crate) at: usize,
}

impl Places {
    /// A segment is mapped from now on.
    pub(super) fn add(&self, room: Arc<dyn Room>) {
        let start = room.mapping().start(0, 0).as_ptr() as usize;
        let mut by_address = self.by_address.write().expect("invariant: nothing panics under this lock");
        by_address.retain(|_, room| room.strong_count() > 0);
        by_address.insert(start, Arc::downgrade(&room));
    }

    /// The segment that some memory lies in, if it lies in one.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<Backed> {
        let address = bytes.as_ptr() as usize;
        let by_address = self.by_address.read().expect("invariant: nothing panics under this lock");
        let (start, room) = by_address.range(..=address).next_back()?;
        let (at, room) = (address - start, room.upgrade()?);
        (at + bytes.len() <= room.mapping().len()).then_some(Backed { room, at })
    }
}

impl Backed {
    pub(super) fn new(room: Arc<dyn Room>, at: usize) -> Self {
        Self { room, at }
    }

    /// Tells the segment from every other one of this process.
    pub(crate) fn id(&self) -> u64 {
        self.room.id()
    }

    /// Bytes of the segment.
    pub(crate) fn len(&self) -> usize {
        self.room.mapping().len()
    }

    /// The segment's file, opened to be read alone: whoever has it cannot write to the segment.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn readable(&self) -> io::Result<File> {
        File::open(format!("/proc/self/fd/{}", self.room.file().as_raw_fd()))
    }

    /// The segment's file, to be written to: for the one process that fills it.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn writable(&self) -> io::Result<File> {
        self.room.file().try_clone()
    }

    /// To ask later whether the segment is there still.
    pub(crate) fn watch(&self) -> Watch {
        Watch(Arc::downgrade(&self.room))
    }
}

#[cfg_attr(not(feature = "ucx"), allow(dead_code, reason = "UCX registers segments"))]
impl Backed {
    /// The whole segment, to be read by whoever is given leave.
    pub(crate) fn region(&self) -> Region {
        Region::over(self.room.mapping())
    }

    /// Calls `tell` when the segment goes.
    pub(crate) fn when_gone(&self, tell: impl FnOnce() + Send + 'static) {
        self.room.farewells().0.lock().expect(UNPOISONED).push(Box::new(tell));
    }
}

/// Who is to be told when a segment goes: it tells them as it is dropped.
#[derive(Default)]
pub(super) struct Farewells(Mutex<Vec<Box<dyn FnOnce() + Send>>>);

impl Drop for Farewells {
    fn drop(&mut self) {
        let all = self.0.get_mut().expect(UNPOISONED);
        std::mem::take(all).into_iter().for_each(|tell| tell());
    }
}

const UNPOISONED: &str = "invariant: nothing panics under this lock";

/// Knows a segment, and holds nothing of it.
pub(crate) struct Watch(Weak<dyn Room>);

impl Watch {
    /// Whether the segment is there still.
    pub(crate) fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// A number for a segment.
pub(super) fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
