//! Bytes that outlive their process: cells in shared-mapped files. (Those that need not lie in [`memory`].)
//!
//! ```text
//! arena/meta.json          format, incarnation
//! arena/000004.data        a segment: payloads one after the other, each on 64 bytes
//! arena/000004.index       a line for each payload: where it lies, what it holds, its checksum
//! ```
//!
//! A payload is written once and never changed, so a mapping of it can be handed out as an Arrow array without a copy. The
//! kernel keeps the pages when the process is killed; [`Arena::open`] finds them again. What of it still counts is the
//! catalog's word: a payload is named by an event, or held by a session that lives, or nobody's.
//!
//! Blocks are reserved before they are written: a full disk is an error of [`Arena::store`], not a signal in the middle of
//! a copy. A freed payload gives its whole pages back at once (a hole in the file); a segment without payloads is
//! deleted. The arena is filled by one process; a folder belongs to one store.

mod extent;
mod foreign;
mod free;
mod index;
mod mapped;
mod mapping;
mod memory;
mod places;
mod region;
mod reserved;
mod segment;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use arrow::array::ArrayRef;
use rustix::fs::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};

pub(super) use self::mapped::mapped;
use self::{extent::Extent, index::Place, segment::Segment};
pub(crate) use self::{
    extent::Layout,
    foreign::{Fillable, Foreign, Lent},
    index::Entry,
    memory::Memory,
    places::{Backed, Places, Watch},
    region::Region,
    reserved::{Filled, Filler, Reserved},
};
pub use self::{mapping::Mapping, memory::MemoryStats};
use crate::{
    arrow_map::{self, MapError},
    disk::Disk,
    schema::Column,
};

const META: &str = "meta.json";
const LOCK: &str = "lock";
const FORMAT: &str = "tq.arena.1";
const PAGE: usize = 4096;
/// Bytes of the first segment that another process fills; the next ones are each twice as large.
const FIRST_BYTES: usize = 1 << 20;

/// Why bytes cannot be kept in files, or found again.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum ArenaError {
    /// The file system refused.
    #[error("arena {}: cannot {what}: {error}", .path.display())]
    Io { path: PathBuf, what: &'static str, error: io::Error },
    /// Something is not what was written.
    #[error("arena {} is damaged: {found}; go on from the last snapshot", .path.display())]
    Damaged { path: PathBuf, found: String },
    /// The folder belongs to another store.
    #[error("arena {} holds the bytes of store {found:x}, expected those of {expected:x}; recover each store with its own folder", .path.display())]
    Foreign { path: PathBuf, found: u64, expected: u64 },
    /// A store that lives uses the folder.
    #[error("arena {}: another store uses it; choose a folder of this store's own", .path.display())]
    Busy { path: PathBuf },
    /// There is not so much memory.
    #[error(
        "no {bytes} bytes of shared memory: cannot {what}: {error}; give the store a smaller budget, or its machine or container more memory"
    )]
    Memory { bytes: usize, what: &'static str, error: io::Error },
    /// There is no arena.
    #[error("arena {}: none there; this store's bytes were not kept (`durability: none`), go on from the last snapshot", .path.display())]
    Missing { path: PathBuf },
}

impl ArenaError {
    fn io(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { path, what, error }
    }
}

/// Whose bytes a folder holds.
#[derive(Serialize, Deserialize)]
struct Meta {
    format: String,
    incarnation: u64,
}

/// A folder of segments.
pub(crate) struct Arena {
    dir: PathBuf,
    segment_bytes: usize,
    incarnation: u64,
    disk: Arc<dyn Disk>,
    places: Places,
    filling: Mutex<Filling>,
    /// Held while the arena is open.
    _lock: File,
    /// Set while the store is being recovered, and when it closes: what is let go then stays in the files.
    closing: Arc<AtomicBool>,
}

struct Filling {
    next: u64,
    segments: BTreeMap<(Filler, Life), Arc<Segment>>,
    /// The names of segments before this one are on the disk.
    named: u64,
    /// Segments with writes that may not be on the disk yet.
    unsynced: BTreeMap<u64, Weak<Segment>>,
}

/// Which payloads share a segment. Weights and trainer states come in megabytes and go with the next version; cells of rows
/// come in bytes and go, chunk by chunk, much later: in one segment few of them would keep the file of many others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Life {
    /// Columns with a declared maximum: rows of the run.
    Rows,
    /// All others.
    Versions,
}

impl Life {
    fn of(column: &Column) -> Self {
        if column.max_bytes.is_some() { Self::Rows } else { Self::Versions }
    }
}

/// A payload that an earlier life of the store has left.
pub(crate) struct Found {
    pub(crate) entry: Entry,
    extent: Arc<Extent<Segment>>,
}

/// Cells in a segment.
pub(crate) struct Payload {
    pub(crate) array: ArrayRef,
    extent: Arc<Extent<Segment>>,
    place: Place,
}

impl Payload {
    /// Of a range that is filled.
    fn over(extent: Arc<Extent<Segment>>, column: &Column, layout: Layout) -> Result<Self, MapError> {
        let array = extent.array(column, layout)?;
        let place = Place {
            at: extent.offset(),
            rows: layout.rows as u32,
            offsets: layout.offsets as u64,
            values: layout.values as u64,
            crc32: crc32fast::hash(extent.bytes()),
        };
        Ok(Self { array, extent, place })
    }

    /// Writes down what the payload is.
    ///
    /// # Errors
    /// [`ArenaError::Io`].
    pub(crate) fn note(&self, entry: impl FnOnce(Place) -> Entry) -> Result<(), ArenaError> {
        self.extent.room.note(&entry(self.place))
    }
}

impl Found {
    /// The cells, once their checksum is right.
    ///
    /// # Errors
    /// [`ArenaError::Damaged`] when they are not what was written.
    pub(crate) fn cells(&self, column: &Column) -> Result<ArrayRef, ArenaError> {
        let damaged = |found: String| {
            let (path, entry) = (self.extent.room.path().to_owned(), &self.entry);
            let found = format!("chunk {} from slot {} (column `{}`): {found}", entry.chunk, entry.slot, column.name);
            ArenaError::Damaged { path, found }
        };
        let found = crc32fast::hash(self.extent.bytes());
        if found != self.entry.place.crc32 {
            return Err(damaged(format!("checksum {found:08x}, expected {:08x}", self.entry.place.crc32)));
        }
        self.extent.array(column, self.entry.place.layout()).map_err(|error| damaged(error.to_string()))
    }
}

impl Arena {
    /// An empty arena; what an earlier one has left in the folder is deleted. `segment_bytes`: size of a file; a larger
    /// payload has a file of its own.
    ///
    /// # Errors
    /// [`ArenaError::Io`].
    pub(crate) fn create(
        disk: Arc<dyn Disk>,
        dir: &Path,
        segment_bytes: usize,
        incarnation: u64,
    ) -> Result<Self, ArenaError> {
        fs::create_dir_all(dir).map_err(ArenaError::io(dir, "make the folder"))?;
        let lock = lock(dir)?;
        for (_, path) in files(dir)? {
            fs::remove_file(&path).map_err(ArenaError::io(&path, "delete it"))?;
        }
        let (path, draft) = (dir.join(META), dir.join("meta.json.writing"));
        let meta = Meta { format: FORMAT.to_owned(), incarnation };
        let text = serde_json::to_vec(&meta).expect("invariant: plain values");
        let file = File::create(&draft).map_err(ArenaError::io(&draft, "write it"))?;
        disk.append(&file, &draft, &text).map_err(ArenaError::io(&draft, "write it"))?;
        disk.sync(&file, &draft).map_err(ArenaError::io(&draft, "flush it"))?;
        fs::rename(&draft, &path).map_err(ArenaError::io(&path, "write it"))?;
        disk.sync_names(dir).map_err(ArenaError::io(dir, "flush the folder"))?;
        let arena = Self::begin(disk, dir, lock, (segment_bytes, incarnation, 0));
        arena.go_on();
        Ok(arena)
    }

    /// Deletes what an earlier arena has left in a folder, if one has; the folder, too, when nothing else lies there.
    ///
    /// # Errors
    /// [`ArenaError::Busy`], [`ArenaError::Io`].
    pub(crate) fn delete(dir: &Path) -> Result<(), ArenaError> {
        if !Self::is_there(dir) {
            return Ok(());
        }
        let lock = lock(dir)?;
        let files = files(dir)?.into_iter().map(|(_, path)| path);
        // Last what says that an arena is there.
        for path in files.chain([dir.join(META), dir.join(LOCK)]) {
            fs::remove_file(&path).map_err(ArenaError::io(&path, "delete it"))?;
        }
        drop(lock);
        // Other files of someone's may be in it: then it stays.
        drop(fs::remove_dir(dir));
        Ok(())
    }

    /// Whether a folder holds an arena.
    pub(crate) fn is_there(dir: &Path) -> bool {
        dir.join(META).is_file()
    }

    /// Goes on in the folder of an earlier life, with all that lies there. Nothing of it goes before [`Arena::go_on`]: a
    /// recovery that fails leaves everything to the next one.
    ///
    /// # Errors
    /// [`ArenaError::Missing`], [`ArenaError::Damaged`], [`ArenaError::Io`].
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        segment_bytes: usize,
    ) -> Result<(Self, Vec<Found>), ArenaError> {
        let path = dir.join(META);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ArenaError::Missing { path: dir.to_owned() });
            }
            read => read.map_err(ArenaError::io(&path, "read it"))?,
        };
        let lock = lock(dir)?;
        let damaged = |found: String| ArenaError::Damaged { path: path.clone(), found };
        let meta: Meta = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        if meta.format != FORMAT {
            return Err(damaged(format!("format `{}`, expected `{FORMAT}`", meta.format)));
        }
        let next = files(dir)?.last().map_or(0, |(number, _)| number + 1);
        let arena = Self::begin(disk, dir, lock, (segment_bytes, meta.incarnation, next));
        let mut found = Vec::new();
        for (number, path) in files(dir)? {
            if path.extension().is_some_and(|extension| extension == segment::INDEX) {
                if !path.with_extension(segment::DATA).exists() {
                    // A crash of the machine kept one name of two: nothing in there was promised to anybody.
                    fs::remove_file(&path).map_err(ArenaError::io(&path, "delete it"))?;
                    continue;
                }
                let (segment, entries) = Segment::open(&arena.disk, &arena.closing, dir, number)?;
                arena.places.add(segment.clone());
                for entry in entries {
                    // The segment has found it inside of itself.
                    let (at, len) = (entry.place.at as usize, entry.place.bytes() as usize);
                    let extent = Arc::new(Extent::at(&segment, at, len));
                    found.push(Found { entry, extent });
                }
                // The life that ended may not have flushed it, and an event of this one may name what it holds.
                arena.lock().unsynced.insert(number, Arc::downgrade(&segment));
                segment.seal();
            }
        }
        Ok((arena, found))
    }

    /// Whether it holds the bytes of this store.
    ///
    /// # Errors
    /// [`ArenaError::Foreign`].
    pub(crate) fn is_of(&self, incarnation: u64) -> Result<(), ArenaError> {
        if self.incarnation == incarnation {
            return Ok(());
        }
        Err(ArenaError::Foreign { path: self.dir.clone(), found: self.incarnation, expected: incarnation })
    }

    /// What is let go from now on gives its room back.
    pub(crate) fn go_on(&self) {
        self.closing.store(false, Ordering::Release);
    }

    fn begin(
        disk: Arc<dyn Disk>,
        dir: &Path,
        lock: File,
        (segment_bytes, incarnation, next): (usize, u64, u64),
    ) -> Self {
        let filling = Mutex::new(Filling { next, segments: BTreeMap::new(), named: 0, unsynced: BTreeMap::new() });
        let (dir, closing) = (dir.to_owned(), Arc::new(AtomicBool::new(true)));
        Self { dir, segment_bytes, incarnation, disk, places: Places::default(), filling, _lock: lock, closing }
    }

    /// Copies cells into a segment. The payload is nobody's until [`Payload::note`] writes down what it is.
    ///
    /// # Errors
    /// [`ArenaError::Io`] when there is no room.
    pub(crate) fn store(&self, column: &Column, array: &ArrayRef) -> Result<Payload, StoreError> {
        let array = arrow_map::plain(column, array)?;
        let layout = Layout::of(&array);
        let extent = Arc::new(self.reserve(Filler::Store, column, layout.bytes())?);
        extent.fill(&array);
        Ok(Payload::over(extent, column, layout)?)
    }

    /// A process will fill no more; what it has filled stays as long as it is held.
    pub(crate) fn leave(&self, filler: Filler) {
        let theirs: Vec<_> = self.lock().segments.extract_if(.., |(of, _), _| *of == filler).collect();
        theirs.into_iter().for_each(|(_, segment)| segment.seal());
    }

    /// Room for so many bytes of cells of a column, to be filled by one alone.
    fn reserve(&self, filler: Filler, column: &Column, bytes: usize) -> Result<Extent<Segment>, ArenaError> {
        let of = (filler, Life::of(column));
        let mut filling = self.lock();
        if let Some(segment) = filling.segments.get(&of)
            && let Some(at) = segment.take(bytes)
        {
            return Ok(Extent::at(segment, at, bytes));
        }
        let had = filling.segments.remove(&of).map(|full| {
            full.seal();
            full.len()
        });
        let number = filling.next;
        filling.next += 1;
        let next_bytes = match filler {
            Filler::Store => self.segment_bytes,
            _ => had.map_or(FIRST_BYTES, |had| had.saturating_mul(2)).min(self.segment_bytes),
        };
        let bytes_of_it = next_bytes.max(bytes);
        let segment = Segment::create(&self.disk, &self.closing, &self.dir, number, bytes_of_it)?;
        self.places.add(segment.clone());
        let at = segment.take(bytes).expect("invariant: a new segment has room for what it was made for");
        // Files that are deleted need no flush, and where nobody ever asks for one only what is there is kept in mind.
        filling.unsynced.retain(|_, segment| segment.strong_count() > 0);
        filling.unsynced.insert(number, Arc::downgrade(&segment));
        filling.segments.insert(of, segment.clone());
        Ok(Extent::at(&segment, at, bytes))
    }

    pub(crate) fn places(&self) -> &Places {
        &self.places
    }

    /// Waits until everything stored so far is on the disk.
    ///
    /// # Errors
    /// [`ArenaError::Io`].
    pub(crate) fn sync(&self) -> Result<(), ArenaError> {
        let (segments, filling, named, next) = {
            let filling = self.lock();
            let current: Vec<u64> = filling.segments.values().map(|segment| segment.number()).collect();
            (filling.unsynced.clone(), current, filling.named, filling.next)
        };
        if named < next {
            self.disk.sync_names(&self.dir).map_err(ArenaError::io(&self.dir, "flush the folder"))?;
            let mut filling = self.lock();
            filling.named = filling.named.max(next);
        }
        for (number, segment) in segments {
            let Some(segment) = segment.upgrade() else { continue };
            // Asked first: what is noted from now on may miss this flush.
            let complete = !filling.contains(&number) && segment.is_noted();
            segment.sync()?;
            if complete {
                self.lock().unsynced.remove(&number);
            }
        }
        Ok(())
    }

    /// The store closes: what it holds stays for the next life.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Filling> {
        self.filling.lock().expect("invariant: nothing panics under this lock")
    }
}

/// Gives the whole pages of a range back to the system.
fn punch(file: &File, at: usize, len: usize, page: usize) -> io::Result<()> {
    let (first, last) = (at.next_multiple_of(page), (at + len) / page * page);
    if last <= first {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, flags, first as u64, (last - first) as u64)?)
}

/// Why cells were not stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(transparent)]
    Arena(#[from] ArenaError),
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Takes the folder, until the process ends, however it ends.
pub(super) fn lock(dir: &Path) -> Result<File, ArenaError> {
    let path = dir.join(LOCK);
    let file = File::create(&path).map_err(ArenaError::io(&path, "create it"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ArenaError::Busy { path: dir.to_owned() }),
        Err(TryLockError::Error(error)) => Err(ArenaError::io(&path, "lock it")(error)),
    }
}

/// Files of segments, by number.
fn files(dir: &Path) -> Result<Vec<(u64, PathBuf)>, ArenaError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(ArenaError::io(dir, "list the folder"))? {
        let path = entry.map_err(ArenaError::io(dir, "list the folder"))?.path();
        let ours = path.extension().is_some_and(|ext| ext == segment::DATA || ext == segment::INDEX);
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        if let (true, Some(number)) = (ours, number) {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found)
}
