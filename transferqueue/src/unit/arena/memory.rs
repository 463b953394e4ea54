//! Bytes in shared memory: segments that are filled with pages beforehand, and used again.
//!
//! A page costs far more when it is touched for the first time than a copy into it does (`docs/performance.md`). So the pages
//! of a segment are there before anything is written to it, and what is free again is given out before another segment is
//! made. A range is freed by itself: a cell that stays long keeps its own range, and nothing of its neighbours.
//!
//! A segment that another process fills is that process's alone: its ranges are given to no one else, also when it has gone
//! (it may have the segment mapped still); their pages go back one by one then.
//!
//! A segment is a file without a name (memfd): it goes with the store's process, and with the last view of it.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::{Duration, Instant},
};

use arrow::array::ArrayRef;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use serde::{Deserialize, Serialize};

use super::{
    ArenaError, Filler, PAGE, StoreError,
    extent::{ALIGN, Extent, Layout, Room},
    free::Free,
    mapping::Mapping,
    places::{self, Farewells, Places},
};
use crate::{arrow_map, schema::Column};

/// Segments are whole pages, of the large kind where there are such.
const HUGE_PAGE: usize = 2 << 20;
/// An empty segment is kept for this long: the next ranges need no fresh pages then.
const IDLE: Duration = Duration::from_secs(30);

/// Segments and what lies in them; clones share them.
#[derive(Clone)]
pub(crate) struct Memory {
    pool: Arc<Pool>,
}

struct Pool {
    segment_bytes: usize,
    idle: Duration,
    places: Places,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    segments: BTreeMap<u64, Held>,
}

struct Held {
    segment: Arc<Segment>,
    filler: Filler,
    free: Free,
    /// When its last range was given back.
    emptied: Option<Instant>,
}

pub(super) struct Segment {
    number: u64,
    id: u64,
    file: File,
    mapping: Arc<Mapping>,
    huge: bool,
    pool: Weak<Pool>,
    farewells: Farewells,
}

impl State {
    /// Takes room in the first segment of the filler's that has it: so the last ones become empty, and can go.
    fn take(&mut self, filler: Filler, bytes: usize) -> Option<(Arc<Segment>, usize)> {
        self.segments.values_mut().filter(|held| held.filler == filler).find_map(|held| {
            let at = held.free.take(bytes)?;
            held.emptied = None;
            Some((held.segment.clone(), at))
        })
    }

    /// Takes out the segments that have been empty for so long, and those that nobody will fill again.
    fn shrink(&mut self, idle: Duration) -> Vec<Held> {
        let is_over = |held: &mut Held| {
            let idle = if held.filler == Filler::Nobody { Duration::ZERO } else { idle };
            held.emptied.is_some_and(|at| at.elapsed() >= idle)
        };
        self.segments.extract_if(.., |_, held| is_over(held)).map(|(_, held)| held).collect()
    }

    /// Bytes of the next segment for a filler: an outside one begins with little, and doubles what it has.
    fn next_bytes(&self, filler: Filler, most: usize) -> usize {
        let theirs = self.segments.values().filter(|held| held.filler == filler);
        let has: usize = theirs.map(|held| held.segment.mapping.len()).sum();
        if filler == Filler::Store { most } else { has.max(HUGE_PAGE).min(most) }
    }
}

/// How shared memory is used, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStats {
    /// Segments.
    pub segments: u64,
    /// Bytes of them.
    pub reserved: u64,
    /// Of these, bytes on huge pages.
    pub huge: u64,
    /// Bytes that are given out, rounded up to 64 each.
    pub used: u64,
    /// The longest range that is free.
    pub longest: u64,
}

impl Memory {
    /// Without any segment yet. `segment_bytes`: size of one; a larger range has a segment of its own.
    pub(crate) fn new(segment_bytes: usize) -> Self {
        Self::keeping(segment_bytes, IDLE)
    }

    fn keeping(segment_bytes: usize, idle: Duration) -> Self {
        Self { pool: Arc::new(Pool { segment_bytes, idle, places: Places::default(), state: Mutex::default() }) }
    }

    /// Copies cells into a segment.
    ///
    /// # Errors
    /// [`ArenaError::Memory`] when there is no room.
    pub(crate) fn store(&self, column: &Column, array: &ArrayRef) -> Result<ArrayRef, StoreError> {
        let array = arrow_map::plain(column, array)?;
        let layout = Layout::of(&array);
        let extent = Arc::new(self.reserve(Filler::Store, layout.bytes())?);
        extent.fill(&array);
        Ok(extent.array(column, layout)?)
    }

    /// A process will fill no more; what it has filled stays as long as it is held.
    pub(crate) fn leave(&self, filler: Filler) {
        let mut state = self.pool.lock();
        let mut free = Vec::new();
        for held in state.segments.values_mut().filter(|held| held.filler == filler) {
            held.filler = Filler::Nobody;
            free.extend(held.free.ranges().map(|(at, len)| (held.segment.clone(), at, len)));
        }
        let gone = state.shrink(self.pool.idle);
        drop(state);
        // Not under the lock: the kernel takes its time.
        free.into_iter().for_each(|(segment, at, len)| segment.punch(at, len));
        drop(gone);
    }

    pub(crate) fn places(&self) -> &Places {
        &self.pool.places
    }

    /// How the segments are used.
    pub(crate) fn stats(&self) -> MemoryStats {
        let state = self.pool.lock();
        state.segments.values().fold(MemoryStats::default(), |sum, Held { segment, free, .. }| {
            let bytes = segment.mapping.len() as u64;
            MemoryStats {
                segments: sum.segments + 1,
                reserved: sum.reserved + bytes,
                huge: sum.huge + if segment.huge { bytes } else { 0 },
                used: sum.used + bytes - free.bytes() as u64,
                longest: sum.longest.max(free.longest() as u64),
            }
        })
    }

    /// Room for so many bytes, to be filled by one alone.
    ///
    /// # Errors
    /// [`ArenaError::Memory`] when there is none.
    pub(super) fn reserve(&self, filler: Filler, bytes: usize) -> Result<Extent<Segment>, ArenaError> {
        let room = room(bytes);
        let (number, there, next_bytes) = {
            let mut state = self.pool.lock();
            let there = state.take(filler, room);
            state.next += u64::from(there.is_none());
            (state.next, there, state.next_bytes(filler, self.pool.segment_bytes))
        };
        if let Some((segment, at)) = there {
            return Ok(Extent::at(&segment, at, bytes));
        }
        // Not under the lock: its pages take a while.
        let segment = Arc::new(Segment::create(number, next_bytes.max(room), Arc::downgrade(&self.pool))?);
        self.pool.places.add(segment.clone());
        let mut free = Free::all(segment.mapping.len());
        let at = free.take(room).expect("invariant: a new segment has room for what it was made for");
        self.pool.lock().segments.insert(number, Held { segment: segment.clone(), filler, free, emptied: None });
        Ok(Extent::at(&segment, at, bytes))
    }
}

/// What a range of so many bytes takes of its segment. (An empty one takes some: each has a place of its own.)
fn room(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(ALIGN)
}

impl Pool {
    fn give(&self, number: u64, at: usize, len: usize) {
        let mut state = self.lock();
        let Some(held) = state.segments.get_mut(&number) else { return };
        let (at, len) = held.free.give(at, room(len));
        let unused = (held.filler == Filler::Nobody).then(|| held.segment.clone());
        held.emptied = (held.free.bytes() == held.segment.mapping.len()).then(Instant::now);
        let gone = state.shrink(self.idle);
        drop(state);
        // Not under the lock: the kernel takes its time.
        unused.iter().for_each(|segment| segment.punch(at, len));
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("invariant: nothing panics under this lock")
    }
}

impl Segment {
    fn create(number: u64, bytes: usize, pool: Weak<Pool>) -> Result<Self, ArenaError> {
        let bytes = bytes.next_multiple_of(HUGE_PAGE);
        let failed = |what| move |error: io::Error| ArenaError::Memory { bytes, what, error };
        // Asked first: the kernel promises more than there is, and ends processes when they take it at its word.
        let there = available();
        if bytes as u64 > there {
            let error = io::Error::other(format!("{there} are available"));
            return Err(failed("reserve it")(error));
        }
        // Where there are no huge pages, or too few, the others do.
        let (file, huge) = match file(bytes, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB) {
            Ok(file) => (file, true),
            Err(_) => (file(bytes, MemfdFlags::empty()).map_err(failed("reserve it"))?, false),
        };
        let mapping = Mapping::over(&file, true).map_err(failed("map it"))?;
        Ok(Self { number, id: places::next(), file, mapping, huge, pool, farewells: Farewells::default() })
    }

    /// Gives the whole pages of a free range back, which nobody will fill again.
    fn punch(&self, at: usize, len: usize) {
        if let Err(error) = super::punch(&self.file, at, len, if self.huge { HUGE_PAGE } else { PAGE }) {
            // The pages go back with the segment.
            tracing::debug!(%error, "no hole in a segment of shared memory");
        }
    }
}

/// A file of so many bytes in memory, whose length nobody changes.
fn file(bytes: usize, pages: MemfdFlags) -> io::Result<File> {
    let file = File::from(memfd_create("transferqueue", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages)?);
    // Reserved at once: too little memory is an error here, not a signal in the middle of a copy.
    fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}

/// Bytes of memory that can be had: of the machine, and of the control group this process is in.
fn available() -> u64 {
    let number = |text: &str| text.split_whitespace().next()?.parse::<u64>().ok();
    let read = |path: &str| fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        Some(number(line)?.saturating_mul(1024))
    });
    let group = |name: &str| number(&read(&format!("/sys/fs/cgroup/memory.{name}"))?);
    let group = group("max").zip(group("current")).map(|(max, current)| max.saturating_sub(current));
    machine.unwrap_or(u64::MAX).min(group.unwrap_or(u64::MAX))
}

impl Room for Segment {
    fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    fn farewells(&self) -> &Farewells {
        &self.farewells
    }

    fn file(&self) -> &File {
        &self.file
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn release(&self, at: usize, len: usize) {
        // Views may outlive the store: then the segment goes with the last of them.
        if let Some(pool) = self.pool.upgrade() {
            pool.give(self.number, at, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Array;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        arrow_map::{dense_array, ragged_array},
        schema::{Dtype, Kind},
    };

    const SEGMENT: usize = HUGE_PAGE;

    fn column() -> Column {
        Column::new("x", Kind::Dense { dtype: Dtype::U8, shape: vec![] })
    }

    fn cells(len: usize, value: u8) -> ArrayRef {
        dense_array(&column().kind, len, arrow::buffer::Buffer::from(vec![value; len]))
    }

    fn store(memory: &Memory, len: usize, value: u8) -> ArrayRef {
        memory.store(&column(), &cells(len, value)).unwrap()
    }

    fn address(array: &ArrayRef) -> usize {
        arrow_map::leaf_bytes(array).unwrap().as_ptr() as usize
    }

    #[test]
    fn what_is_freed_is_used_again_before_another_segment_is_made() {
        let memory = Memory::new(SEGMENT);
        let all: Vec<ArrayRef> = (0..4).map(|value| store(&memory, SEGMENT / 4, value)).collect();
        let second = address(&all[1]);
        assert_eq!(memory.stats().segments, 1);
        assert_eq!((memory.stats().used, memory.stats().longest), (SEGMENT as u64, 0));
        let mut all = all.into_iter();
        let (first, _, rest) = (all.next().unwrap(), all.next().unwrap(), all.collect::<Vec<_>>());
        let again = store(&memory, SEGMENT / 4, 9);
        assert_eq!((address(&again), memory.stats().segments), (second, 1));
        for (array, value) in [(&first, 0), (&again, 9), (&rest[0], 2), (&rest[1], 3)] {
            assert_eq!(array, &cells(SEGMENT / 4, value));
        }
    }

    #[test]
    fn a_cell_that_stays_keeps_its_own_range_alone() {
        let memory = Memory::new(SEGMENT);
        let mut late = Vec::new();
        for round in 0..50_u8 {
            let all: Vec<ArrayRef> = (0..64).map(|_| store(&memory, SEGMENT / 64, round)).collect();
            late.push(all[7].slice(0, 8));
        }
        let stats = memory.stats();
        assert_eq!(stats.used, 50 * SEGMENT as u64 / 64, "50 late cells, each with its range");
        assert!(stats.segments <= 3, "{stats:?}");
        assert!(late.iter().zip(0..).all(|(array, round)| *array == cells(8, round)));
    }

    #[test]
    fn a_large_range_has_a_segment_of_its_own_and_the_empty_ones_go_in_time() {
        for (idle, left) in [(Duration::ZERO, 1), (Duration::from_secs(3600), 13)] {
            let memory = Memory::keeping(SEGMENT, idle);
            let large = store(&memory, 3 * SEGMENT + 1, 7);
            assert_eq!((memory.stats().segments, memory.stats().reserved), (1, 4 * SEGMENT as u64));
            let many: Vec<ArrayRef> = (0..12).map(|value| store(&memory, SEGMENT, value)).collect();
            assert_eq!(memory.stats().reserved, 16 * SEGMENT as u64, "the large one's rest is too short for them");
            drop(many);
            assert_eq!(memory.stats().segments, left);
            drop(large);
            assert_eq!((memory.stats().segments, memory.stats().used), (left - u64::from(left == 1), 0));
        }
    }

    #[test]
    fn of_a_slice_only_its_own_cells_are_stored() {
        let memory = Memory::new(SEGMENT);
        let tokens = Column::new("tokens", Kind::Ragged { dtype: Dtype::U8, inner: vec![2] });
        let values = arrow::buffer::Buffer::from((0..=255).collect::<Vec<u8>>());
        let ragged = ragged_array("tokens", &tokens.kind, &[30, 40, 0, 58], values).unwrap();
        let text = Column::new("text", Kind::Utf8);
        let texts: ArrayRef = Arc::new(arrow::array::StringArray::from(vec!["a", "bcd", "", "ef"]));
        for (column, array, bytes) in
            [(column(), cells(100, 3), [100, 2, 0]), (tokens, ragged, [256, 80, 0]), (text, texts, [6, 3, 0])]
        {
            for ((from, len), bytes) in [(0, array.len()), (1, 2), (2, 0)].into_iter().zip(bytes) {
                let slice = array.slice(from, len);
                let stored = memory.store(&column, &slice).unwrap();
                assert_eq!(&stored, &slice);
                assert_eq!(arrow_map::leaf_bytes(&stored).unwrap().len(), bytes, "{} from {from}", column.name);
            }
        }
    }

    #[test]
    fn views_outlive_the_store() {
        let memory = Memory::new(SEGMENT);
        let array = store(&memory, 1000, 5);
        drop(memory);
        assert_eq!(&array, &cells(1000, 5));
    }

    #[test]
    fn of_a_process_that_has_gone_only_what_is_held_stays() {
        let memory = Memory::new(4 * SEGMENT);
        let theirs = |process: u64, bytes| Arc::new(memory.reserve(Filler::Process(process), bytes).unwrap());
        let (first, late, last) = (theirs(7, SEGMENT / 2), theirs(7, 100), theirs(7, SEGMENT / 4));
        let other = theirs(8, 100);
        assert_eq!((memory.stats().segments, memory.stats().reserved), (2, 2 * SEGMENT as u64), "each has its own");
        let grown = theirs(7, SEGMENT);
        assert_eq!(memory.stats().reserved, 4 * SEGMENT as u64 - SEGMENT as u64, "one more of theirs");
        drop((first, grown));
        memory.leave(Filler::Process(7));
        assert_eq!(memory.stats().segments, 2, "an empty one goes at once");
        drop(last);
        // Nobody is given its free ranges, for the process may write to them still.
        let segment = |extent: &Arc<Extent<Segment>>| extent.room.id;
        let next = [theirs(8, SEGMENT / 4), theirs(7, SEGMENT / 4)];
        let stored = Arc::new(memory.reserve(Filler::Store, SEGMENT / 4).unwrap());
        assert!(next.iter().chain([&stored]).all(|extent| segment(extent) != segment(&late)));
        assert_eq!(segment(&next[0]), segment(&other));
        if !late.room.huge {
            let pages = std::os::unix::fs::MetadataExt::blocks(&late.room.file.metadata().unwrap()) * 512 / PAGE as u64;
            assert!(pages <= 2, "{pages} pages for 100 bytes");
        }
        let before = memory.stats().segments;
        drop(late);
        assert_eq!(memory.stats().segments, before - 1);
    }

    /// Pages that this thread was the first to touch, and those it had to be shown.
    fn faults() -> u64 {
        let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
        stat.rsplit(')').next().unwrap().split_whitespace().nth(7).unwrap().parse().unwrap()
    }

    #[test]
    fn the_pages_of_a_segment_are_there_before_it_is_written_to() {
        let (memory, source) = (Memory::new(16 * SEGMENT), cells(4 * SEGMENT, 1));
        let first = store(&memory, 1, 1);
        let before = faults();
        let array = memory.store(&column(), &source).unwrap();
        let (found, pages) = (faults() - before, 4 * SEGMENT as u64 / 4096);
        assert!(found < pages / 20, "{found} faults for {pages} pages");
        drop((first, array));
    }

    #[test]
    fn too_much_memory_is_an_error_that_says_how_much() {
        let memory = Memory::new(SEGMENT);
        let error = memory.reserve(Filler::Store, 1 << 50).err().unwrap().to_string();
        assert!(error.starts_with("no 1125899906842624 bytes of shared memory: cannot reserve it: "), "{error}");
        assert_eq!(&store(&memory, 3, 1), &cells(3, 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20, ..Default::default() })]
        #[test]
        fn every_array_stays_what_was_stored(steps in proptest::collection::vec((0..3_u8, 0..200_000_usize, any::<u8>()), 1..60)) {
            let (memory, mut held) = (Memory::new(SEGMENT), Vec::new());
            for (kind, number, value) in steps {
                if kind == 0 && !held.is_empty() {
                    drop::<(ArrayRef, usize, u8)>(held.swap_remove(number % held.len()));
                } else {
                    held.push((store(&memory, number, value), number, value));
                }
                let used: usize = held.iter().map(|(_, len, _)| room(*len)).sum();
                prop_assert_eq!(memory.stats().used, used as u64);
            }
            for (array, len, value) in held {
                prop_assert_eq!(&array, &cells(len, value));
            }
        }
    }
}
