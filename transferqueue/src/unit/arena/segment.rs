//! One file of an arena, mapped shared, and its index. The file is ours alone; a range of it is never written again.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::fs::{FallocateFlags, fallocate};

use super::{
    ArenaError, Disk, PAGE,
    extent::{ALIGN, Room},
    index::{self, Entry},
    mapping::Mapping,
    places::{self, Farewells},
};

pub(super) const DATA: &str = "data";
pub(super) const INDEX: &str = "index";

pub(super) struct Segment {
    number: u64,
    id: u64,
    mapping: Arc<Mapping>,
    data: File,
    data_path: PathBuf,
    disk: Arc<dyn Disk>,
    state: Mutex<State>,
    index_path: PathBuf,
    /// Nothing is added any more: the last payload takes the files with it.
    sealed: AtomicBool,
    /// Set while what is let go is to stay in the file.
    closing: Arc<AtomicBool>,
    farewells: Farewells,
}

struct State {
    end: usize,
    payloads: usize,
    /// Where payloads begin whose room is taken and that are not noted yet.
    pending: BTreeSet<usize>,
    index: File,
    /// Bytes of the index.
    lines: u64,
}

impl Segment {
    pub(super) fn create(
        disk: &Arc<dyn Disk>,
        closing: &Arc<AtomicBool>,
        dir: &Path,
        number: u64,
        bytes: usize,
    ) -> Result<Arc<Self>, ArenaError> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
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
        Self::map((disk, closing), number, (data, data_path), (index, index_path), 0)
    }

    /// A segment of an earlier life, sealed, and its entries.
    pub(super) fn open(
        disk: &Arc<dyn Disk>,
        closing: &Arc<AtomicBool>,
        dir: &Path,
        number: u64,
    ) -> Result<(Arc<Self>, Vec<Entry>), ArenaError> {
        let (data_path, index_path) = paths(dir, number);
        let entries = index::read(&index_path)?;
        let open =
            |path: &Path| OpenOptions::new().read(true).write(true).open(path).map_err(ArenaError::io(path, "open it"));
        let (data, index) = (open(&data_path)?, open(&index_path)?);
        let segment = Self::map((disk, closing), number, (data, data_path), (index, index_path), entries.len())?;
        for entry in &entries {
            let end =
                entry.place.at.checked_add(entry.place.bytes()).filter(|end| *end <= segment.mapping.len() as u64);
            if end.is_none() || !entry.place.at.is_multiple_of(ALIGN as u64) {
                let found = format!("an entry for {} bytes at {}", entry.place.bytes(), entry.place.at);
                return Err(ArenaError::Damaged { path: segment.index_path.clone(), found });
            }
        }
        Ok((segment, entries))
    }

    fn map(
        (disk, closing): (&Arc<dyn Disk>, &Arc<AtomicBool>),
        number: u64,
        (data, data_path): (File, PathBuf),
        (index, index_path): (File, PathBuf),
        payloads: usize,
    ) -> Result<Arc<Self>, ArenaError> {
        let mapping = Mapping::over(&data, false).map_err(ArenaError::io(&data_path, "map it"))?;
        let end = if payloads > 0 { mapping.len() } else { 0 };
        let state = Mutex::new(State { end, payloads, pending: BTreeSet::new(), index, lines: 0 });
        let (disk, closing, sealed) = (disk.clone(), closing.clone(), AtomicBool::new(false));
        Ok(Arc::new(Self {
            number,
            id: places::next(),
            mapping,
            data,
            data_path,
            disk,
            state,
            index_path,
            sealed,
            closing,
            farewells: Farewells::default(),
        }))
    }

    pub(super) fn len(&self) -> usize {
        self.mapping.len()
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn path(&self) -> &Path {
        &self.data_path
    }

    /// Takes room at the end for one payload; `None` when there is not enough.
    pub(super) fn take(&self, bytes: usize) -> Option<usize> {
        // An empty payload takes some: each has a place of its own.
        let bytes = bytes.max(1);
        let mut state = self.lock();
        let at = state.end;
        let end = at.checked_add(bytes)?.checked_next_multiple_of(ALIGN)?;
        if bytes > self.mapping.len() - at || self.sealed.load(Ordering::Acquire) {
            return None;
        }
        state.end = end.min(self.mapping.len());
        state.payloads += 1;
        state.pending.insert(at);
        Some(at)
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
        state.pending.remove(&(entry.place.at as usize));
        Ok(())
    }

    /// Whether every payload that room was taken for is noted.
    pub(super) fn is_noted(&self) -> bool {
        self.lock().pending.is_empty()
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

impl Room for Segment {
    fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    fn farewells(&self) -> &Farewells {
        &self.farewells
    }

    fn file(&self) -> &File {
        &self.data
    }

    fn id(&self) -> u64 {
        self.id
    }

    /// Its whole pages go back.
    fn release(&self, at: usize, len: usize) {
        if self.closing.load(Ordering::Acquire) {
            return;
        }
        if let Err(error) = super::punch(&self.data, at, len, PAGE) {
            // The pages go back with the segment.
            tracing::debug!(file = %self.data_path.display(), %error, "no hole");
        }
        let mut state = self.lock();
        state.payloads -= 1;
        // Room that nothing was put into after all.
        state.pending.remove(&at);
        self.delete_if_empty(state.payloads);
    }
}

fn paths(dir: &Path, number: u64) -> (PathBuf, PathBuf) {
    (dir.join(format!("{number:06}.{DATA}")), dir.join(format!("{number:06}.{INDEX}")))
}
