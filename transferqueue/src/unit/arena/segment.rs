//! One file of an arena, mapped shared, and its index.
//!
//! The only unsafe code of the arena: a range of the mapping belongs to its writer until it is filled, and is never written
//! again. The file is ours alone and never shortened.
#![expect(unsafe_code, reason = "reads and writes memory that a file backs")]

use std::{
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
    ptr::{self, NonNull},
    slice,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, fallocate};

use super::{
    ArenaError, Disk,
    index::{self, Entry},
};

pub(super) const DATA: &str = "data";
pub(super) const INDEX: &str = "index";
/// Payloads begin on cache lines, as Arrow wants it.
pub(super) const ALIGN: usize = 64;
const PAGE: usize = 4096;

pub(super) struct Segment {
    number: u64,
    map: MmapRaw,
    data: File,
    data_path: PathBuf,
    disk: Arc<dyn Disk>,
    state: Mutex<State>,
    index_path: PathBuf,
    /// Nothing is added any more: the last payload takes the files with it.
    sealed: AtomicBool,
}

struct State {
    end: usize,
    payloads: usize,
    /// Payloads whose room is taken and that are not noted yet.
    pending: usize,
    index: File,
    /// Bytes of the index.
    lines: u64,
}

impl Segment {
    pub(super) fn create(disk: &Arc<dyn Disk>, dir: &Path, number: u64, bytes: usize) -> Result<Arc<Self>, ArenaError> {
        // Whole pages: an empty payload may begin at the very end, and that is on a boundary too.
        let bytes = bytes.next_multiple_of(PAGE);
        let (data_path, index_path) = paths(dir, number);
        let fresh = |how: &mut OpenOptions, path: &Path| {
            how.read(true).create_new(true).open(path).map_err(ArenaError::io(path, "begin a segment"))
        };
        let data = fresh(OpenOptions::new().write(true), &data_path)?;
        let reserved = fallocate(&data, FallocateFlags::empty(), 0, bytes as u64);
        if let Err(error) = reserved {
            // Nothing of it may stay: the name is taken otherwise.
            drop(fs::remove_file(&data_path));
            return Err(ArenaError::io(&data_path, "reserve room for a segment")(error.into()));
        }
        let index = fresh(OpenOptions::new().append(true), &index_path)?;
        Self::map(disk, number, (data, data_path), (index, index_path), 0)
    }

    /// A segment of an earlier life, sealed, and its entries.
    pub(super) fn open(disk: &Arc<dyn Disk>, dir: &Path, number: u64) -> Result<(Arc<Self>, Vec<Entry>), ArenaError> {
        let (data_path, index_path) = paths(dir, number);
        let entries = index::read(&index_path)?;
        let open =
            |path: &Path| OpenOptions::new().read(true).write(true).open(path).map_err(ArenaError::io(path, "open it"));
        let (data, index) = (open(&data_path)?, open(&index_path)?);
        let segment = Self::map(disk, number, (data, data_path), (index, index_path), entries.len())?;
        for entry in &entries {
            let end = entry.place.at.checked_add(entry.place.bytes()).filter(|end| *end <= segment.map.len() as u64);
            if end.is_none() || !entry.place.at.is_multiple_of(ALIGN as u64) {
                let found = format!("an entry for {} bytes at {}", entry.place.bytes(), entry.place.at);
                return Err(ArenaError::Damaged { path: segment.index_path.clone(), found });
            }
        }
        Ok((segment, entries))
    }

    fn map(
        disk: &Arc<dyn Disk>,
        number: u64,
        (data, data_path): (File, PathBuf),
        (index, index_path): (File, PathBuf),
        payloads: usize,
    ) -> Result<Arc<Self>, ArenaError> {
        let map = MmapOptions::new().map_raw(&data).map_err(ArenaError::io(&data_path, "map it"))?;
        let end = if payloads > 0 { map.len() } else { 0 };
        let state = Mutex::new(State { end, payloads, pending: 0, index, lines: 0 });
        let (disk, sealed) = (disk.clone(), AtomicBool::new(false));
        Ok(Arc::new(Self { number, map, data, data_path, disk, state, index_path, sealed }))
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn path(&self) -> &Path {
        &self.data_path
    }

    /// Takes room at the end for one payload; `None` when there is not enough.
    pub(super) fn take(&self, bytes: usize) -> Option<usize> {
        let mut state = self.lock();
        let at = state.end;
        let end = at.checked_add(bytes)?.checked_next_multiple_of(ALIGN)?;
        if bytes > self.map.len() - at || self.sealed.load(Ordering::Acquire) {
            return None;
        }
        state.end = end.min(self.map.len());
        state.payloads += 1;
        state.pending += 1;
        Some(at)
    }

    /// Writes into a range that its caller has taken and nobody reads yet.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.map.len() && bytes.len() <= self.map.len() - at, "invariant: inside the segment");
        // SAFETY: the range lies inside the mapping (checked above), was given to this caller alone by `take`, and no
        // slice of it exists before the payload is complete.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(at), bytes.len()) }
    }

    /// A range that is complete. It does not change as long as its extent is held.
    pub(super) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: `start` checked the range; it was written before its extent was shared, and is not written again.
        unsafe { slice::from_raw_parts(self.start(at, len).as_ptr(), len) }
    }

    /// Where a range begins in memory.
    pub(super) fn start(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(at <= self.map.len() && len <= self.map.len() - at, "invariant: inside the segment");
        // SAFETY: the offset is inside the mapping (checked above).
        let start = unsafe { self.map.as_mut_ptr().add(at) };
        NonNull::new(start).expect("invariant: a mapping does not begin at null")
    }

    /// Adds a line to the index.
    pub(super) fn note(&self, entry: &Entry) -> Result<(), ArenaError> {
        let line = index::line(entry);
        let mut state = self.lock();
        if let Err(error) = self.disk.append(&state.index, &self.index_path, &line) {
            // Half a line in the middle of an index would be damage to whoever reads it.
            drop(state.index.set_len(state.lines));
            return Err(ArenaError::io(&self.index_path, "note a payload")(error));
        }
        state.lines += line.len() as u64;
        state.pending -= 1;
        Ok(())
    }

    /// Whether every payload that room was taken for is noted.
    pub(super) fn is_noted(&self) -> bool {
        self.lock().pending == 0
    }

    pub(super) fn sync(&self) -> Result<(), ArenaError> {
        self.disk.sync(&self.data, &self.data_path).map_err(ArenaError::io(&self.data_path, "flush it"))?;
        let state = self.lock();
        self.disk.sync(&state.index, &self.index_path).map_err(ArenaError::io(&self.index_path, "flush it"))
    }

    /// Nothing is added any more.
    pub(super) fn seal(&self) {
        let state = self.lock();
        self.sealed.store(true, Ordering::Release);
        self.delete_if_empty(state.payloads);
    }

    /// A payload is nobody's any more: its whole pages go back.
    pub(super) fn release(&self, at: usize, len: usize) {
        let first = at.next_multiple_of(PAGE);
        let last = (at + len) / PAGE * PAGE;
        if last > first {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if let Err(error) = fallocate(&self.data, flags, first as u64, (last - first) as u64) {
                // The pages go back with the segment.
                tracing::debug!(file = %self.data_path.display(), %error, "no hole");
            }
        }
        let mut state = self.lock();
        state.payloads -= 1;
        self.delete_if_empty(state.payloads);
    }

    fn delete_if_empty(&self, payloads: usize) {
        if payloads > 0 || !self.sealed.load(Ordering::Acquire) {
            return;
        }
        for path in [&self.index_path, &self.data_path] {
            if let Err(error) = fs::remove_file(path) {
                tracing::warn!(file = %path.display(), %error, "an empty segment stays");
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("invariant: nothing panics under this lock")
    }
}

fn paths(dir: &Path, number: u64) -> (PathBuf, PathBuf) {
    (dir.join(format!("{number:06}.{DATA}")), dir.join(format!("{number:06}.{INDEX}")))
}
