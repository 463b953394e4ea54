//! Cells that lie in files rather than in memory: Arrow IPC files (`crate::cells_file`), mapped, so that reading them brings
//! back just the pages that are touched.
//!
//! A file holds chunks of one column. It is written while they are in memory still; once the catalog's event says so their
//! pieces are views of the mapping. It goes with the last of its chunks.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use arrow::{array::ArrayRef, error::ArrowError};

use super::arena;
use crate::{
    catalog::command::SpillFile,
    cells_file::{self, Live, Stored, Summed, Unreadable},
    ids::ChunkId,
    ipc,
    schema::Column,
};

const EXTENSION: &str = "arrow";

/// Why cells are not spilled, or not found again.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum SpillError {
    /// The file system refused.
    #[error("spill file {}: cannot {what}: {error}", .path.display())]
    Io { path: PathBuf, what: &'static str, error: io::Error },
    /// Arrow refused to write.
    #[error("spill file {}: {error}", .path.display())]
    Arrow { path: PathBuf, error: ArrowError },
    /// A file is not what was written.
    #[error("spill file {} is damaged: {found}; go on from the last snapshot", .path.display())]
    Damaged { path: PathBuf, found: String },
    /// Another store uses the folder.
    #[error("spill folder {}: another store uses it; choose a folder of this store's own", .path.display())]
    Busy { path: PathBuf },
}

impl SpillError {
    fn io(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { path, what, error }
    }
}

/// The pieces of one chunk by first slot.
pub(super) type Pieces = Vec<(u32, ArrayRef)>;

/// The folder, and files that are written and not in the catalog yet.
pub(crate) struct Spills {
    dir: PathBuf,
    next: AtomicU64,
    written: Mutex<HashMap<u64, Written>>,
    /// Set while the store is being recovered, and when it closes and its files are to stay.
    closing: Arc<AtomicBool>,
    /// Whether files reach the disk before the catalog hears of them.
    durable: bool,
    /// Held while the folder is in use.
    _lock: File,
}

/// A file, deleted when nobody holds it.
#[derive(Debug)]
pub(super) struct Held {
    path: PathBuf,
    closing: Arc<AtomicBool>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.closing.load(Ordering::Acquire) {
            // A file that is gone already holds nothing.
            drop(fs::remove_file(&self.path));
        }
    }
}

/// A file that the catalog does not know yet.
pub(super) struct Written {
    pub(super) file: Arc<Held>,
    pub(super) chunks: BTreeMap<ChunkId, Pieces>,
}

impl Spills {
    /// Begins in a folder; files that an earlier store has left there are deleted unless their numbers are in `known`. No
    /// file goes with its chunks before [`Spills::go_on`].
    ///
    /// # Errors
    /// [`SpillError::Io`], [`SpillError::Busy`].
    pub(crate) fn open(dir: &Path, durable: bool, known: impl Fn(u64) -> bool) -> Result<Self, SpillError> {
        fs::create_dir_all(dir).map_err(SpillError::io(dir, "make the folder"))?;
        let lock = arena::lock(dir).map_err(|error| match error {
            arena::ArenaError::Io { path, what, error } => SpillError::Io { path, what, error },
            _ => SpillError::Busy { path: dir.to_owned() },
        })?;
        let mut next = 0;
        for entry in fs::read_dir(dir).map_err(SpillError::io(dir, "list the folder"))? {
            let path = entry.map_err(SpillError::io(dir, "list the folder"))?.path();
            if path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
            match number.filter(|number| known(*number)) {
                Some(number) => next = next.max(number + 1),
                None => fs::remove_file(&path).map_err(SpillError::io(&path, "delete it"))?,
            }
        }
        // Files of an earlier life stay until its recovery has succeeded.
        let (written, closing) = (Mutex::default(), Arc::new(AtomicBool::new(true)));
        Ok(Self { dir: dir.to_owned(), next: AtomicU64::new(next), written, closing, durable, _lock: lock })
    }

    /// What is let go from now on takes its file along.
    pub(super) fn go_on(&self) {
        self.closing.store(false, Ordering::Release);
    }

    /// Numbers below this one are taken.
    pub(crate) fn begin_at(&self, number: u64) {
        self.next.fetch_max(number, Ordering::Relaxed);
    }

    /// Writes live cells of one column and maps them. They are nobody's until [`Spills::take`].
    ///
    /// # Errors
    /// [`SpillError::Io`] when there is no room; nothing is left of the file then.
    pub(super) fn write(&self, column: &Column, chunks: &BTreeMap<ChunkId, Live>) -> Result<SpillFile, SpillError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.path(number);
        let io = |what| SpillError::io(&path, what);
        let created = File::create_new(&path).map_err(io("create it"))?;
        // From here on the file goes with whoever does not finish.
        let held = Arc::new(Held { path: path.clone(), closing: self.closing.clone() });
        let mut out = Summed::new(BufWriter::with_capacity(1 << 20, created));
        cells_file::write(&mut out, column, chunks.iter()).map_err(|error| match error {
            ArrowError::IoError(_, error) => io("write it")(error),
            error => SpillError::Arrow { path: path.clone(), error },
        })?;
        out.flush().map_err(io("write it"))?;
        if self.durable {
            out.inner.get_ref().sync_all().map_err(io("flush it"))?;
            File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(io("flush its folder"))?;
        }
        let (bytes, crc32) = out.sum();
        let file = SpillFile { number, bytes, crc32 };
        let chunks = self.map(file, column, false)?;
        self.lock().insert(number, Written { file: held, chunks });
        Ok(file)
    }

    /// Takes over a file that was written; `None` when it was taken or given up.
    pub(super) fn take(&self, number: u64) -> Option<Written> {
        self.lock().remove(&number)
    }

    /// A file of an earlier life.
    ///
    /// # Errors
    /// [`SpillError::Damaged`], [`SpillError::Io`].
    pub(super) fn find(&self, file: SpillFile, column: &Column) -> Result<Written, SpillError> {
        let chunks = self.map(file, column, true)?;
        let held = Held { path: self.path(file.number), closing: self.closing.clone() };
        Ok(Written { file: Arc::new(held), chunks })
    }

    fn map(&self, file: SpillFile, column: &Column, check: bool) -> Result<BTreeMap<ChunkId, Pieces>, SpillError> {
        let path = self.path(file.number);
        let damaged = |found: String| SpillError::Damaged { path: path.clone(), found };
        let bytes = arena::mapped(&path).map_err(SpillError::io(&path, "map it"))?;
        if bytes.len() as u64 != file.bytes {
            return Err(damaged(format!("{} bytes, expected {}", bytes.len(), file.bytes)));
        }
        if check {
            let found = crc32fast::hash(&bytes);
            if found != file.crc32 {
                return Err(damaged(format!("checksum {found:08x}, expected {:08x}", file.crc32)));
            }
        }
        let len = bytes.len() as u64;
        let file = ipc::File::open(ipc::Mapped(bytes), len).map_err(|error| damaged(error.to_string()))?;
        let found = cells_file::read(file, column).map_err(|error| match error {
            Unreadable::Damaged(found) => damaged(found),
            Unreadable::Foreign { found, expected } => damaged(format!("{found}, expected {expected}")),
        })?;
        Ok(found.into_iter().map(|Stored { id, pieces }| (id, pieces)).collect())
    }

    /// The store closes: its files stay for the next life.
    pub(super) fn keep(&self) {
        self.closing.store(true, Ordering::Release);
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:06}.{EXTENSION}"))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Written>> {
        self.written.lock().expect("invariant: nothing panics under this lock")
    }
}
