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

use super::{Unit, Units, arena};
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

/// The cells of one chunk in a file: views of its mapping, and the hold on the file.
pub(crate) struct InFile {
    pub(super) pieces: Pieces,
    pub(super) file: Arc<Held>,
}

impl InFile {
    /// By first slot.
    pub(crate) fn pieces(&self) -> &[(u32, ArrayRef)] {
        &self.pieces
    }
}

/// The folder, and files that are written and not in the catalog yet.
pub(crate) struct Spills {
    dir: PathBuf,
    next: AtomicU64,
    written: Mutex<HashMap<u64, BTreeMap<ChunkId, InFile>>>,
    /// Set while the store is being recovered, and when it closes and its files are to stay.
    closing: Arc<AtomicBool>,
    /// Whether files reach the disk before the catalog hears of them.
    durable: bool,
    /// Held while the folder is in use.
    _lock: File,
}

/// A file, deleted when nobody holds it.
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
            match number {
                Some(number) if known(number) => next = next.max(number + 1),
                Some(_) => fs::remove_file(&path).map_err(SpillError::io(&path, "delete it"))?,
                // A file of somebody else's.
                None => {}
            }
        }
        // Files of an earlier life stay until its recovery has succeeded.
        let (written, closing) = (Mutex::default(), Arc::new(AtomicBool::new(true)));
        Ok(Self { dir: dir.to_owned(), next: AtomicU64::new(next), written, closing, durable, _lock: lock })
    }

    /// What is let go from now on takes its file along.
    pub(crate) fn go_on(&self) {
        self.closing.store(false, Ordering::Release);
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
        let chunks = self.map(file, &held, column, false)?;
        self.lock().insert(number, chunks);
        Ok(file)
    }

    /// Takes over a file that was written; `None` when it was taken or given up.
    fn take(&self, number: u64) -> Option<BTreeMap<ChunkId, InFile>> {
        self.lock().remove(&number)
    }

    /// The chunks of a file of an earlier life.
    ///
    /// # Errors
    /// [`SpillError::Damaged`], [`SpillError::Io`].
    pub(super) fn find(&self, file: SpillFile, column: &Column) -> Result<BTreeMap<ChunkId, InFile>, SpillError> {
        self.next.fetch_max(file.number + 1, Ordering::Relaxed);
        let held = Arc::new(Held { path: self.path(file.number), closing: self.closing.clone() });
        self.map(file, &held, column, true)
    }

    fn map(
        &self,
        file: SpillFile,
        held: &Arc<Held>,
        column: &Column,
        check: bool,
    ) -> Result<BTreeMap<ChunkId, InFile>, SpillError> {
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
        let found = found.into_iter().map(|Stored { id, pieces }| (id, InFile { pieces, file: held.clone() }));
        Ok(found.collect())
    }

    /// The store closes: its files stay for the next life.
    pub(super) fn keep(&self) {
        self.closing.store(true, Ordering::Release);
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:06}.{EXTENSION}"))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, BTreeMap<ChunkId, InFile>>> {
        self.written.lock().expect("invariant: nothing panics under this lock")
    }
}

impl Units {
    fn spills(&self) -> Option<&Spills> {
        self.iter().next()?.inner.spills.as_deref()
    }

    /// Closes chunks whose live cells are to leave memory, and holds them. Called under the catalog's lock: `chunks` are what
    /// it knows of them, and nothing is added any more. Chunks with cells that no event has named yet are left out.
    pub(crate) fn close_chunks(&self, chunks: &BTreeMap<ChunkId, Vec<u32>>) -> BTreeMap<ChunkId, Live> {
        let live = |(id, slots): (&ChunkId, &Vec<u32>)| {
            let grant = self.grant(*id).filter(|grant| grant.chunk.close())?;
            Some((*id, Live { grant, slots: cells_file::runs(slots) }))
        };
        chunks.iter().filter_map(live).collect()
    }

    /// Writes the live cells of closed chunks of one column to a file, from whichever units hold them. They stay in memory until
    /// the catalog's event says otherwise ([`Units::spilled`]). `None` where no cell may leave memory.
    ///
    /// # Errors
    /// [`SpillError`]; nothing has changed then.
    pub(crate) fn write_out(
        &self,
        column: &Column,
        chunks: &BTreeMap<ChunkId, Live>,
    ) -> Result<Option<SpillFile>, SpillError> {
        self.spills().map(|spills| spills.write(column, chunks)).transpose()
    }

    /// An event says that chunks lie in a file now: their pieces are views of it from now on. Returns what they were views of
    /// before.
    pub(crate) fn spilled(&self, file: &SpillFile, chunks: &[ChunkId]) -> Vec<ArrayRef> {
        let Some(mut written) = self.spills().and_then(|spills| spills.take(file.number)) else { return Vec::new() };
        let there = chunks.iter().filter_map(|id| Some((self.home(*id)?, *id, written.remove(id)?)));
        there.flat_map(|(unit, id, pieces)| unit.spilled(id, pieces)).collect()
    }

    /// Gives up a file that no event has named.
    pub(crate) fn forget_file(&self, number: u64) {
        drop(self.spills().and_then(|spills| spills.take(number)));
    }

    /// What an earlier life has left is taken over, or not needed: from now on files go with what lies in them.
    pub(crate) fn go_on(&self) {
        self.iter().for_each(Unit::go_on);
    }
}
