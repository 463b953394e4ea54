//! One unit of memory: chunks of sealed cells, bytes only. What lives and what is free is the catalog's word.
//!
//! A *chunk* holds sealed cells of one column: a list of immutable Arrow arrays (*pieces*), filled up to a fixed number of
//! bytes and only ever appended to, so that what was committed never changes. Its slots are numbered from 0.
//!
//! A chunk stays while one of three holds on: the catalog (an event named it and no later event freed it), a *grant* (an open
//! view of its bytes), or a *write hold* (cells written, their event not yet decided). When the last lets go its
//! memory goes. A chunk that no event ever named thus leaves with the hold of its writer.
//!
//! Where bytes are to outlive the process, or to lie in pages that are there already, each write is copied once into an arena
//! (shared-mapped files, or shared memory), and pieces are views of it.
//!
//! ```
//! use transferqueue::{schema::{Column, Dtype, Kind}, unit::Unit, ColumnId, PartitionId};
//! use std::sync::Arc;
//! let unit = Unit::new(1 << 20, 0);
//! let reward = Column::new("reward", Kind::Dense { dtype: Dtype::F32, shape: vec![] });
//! let cells = Arc::new(arrow::array::Float32Array::from(vec![1.0, 0.5]));
//! let placed = unit.write(PartitionId(0), ColumnId(0), &reward, cells)?;
//! unit.committed(placed.chunk); // the catalog's event names it
//! drop(placed);
//! assert_eq!(unit.stats().total().cells, 2);
//! # Ok::<(), transferqueue::unit::UnitError>(())
//! ```

pub(crate) mod arena;
mod backing;
mod chunk;
mod open;
mod spill;
mod stats;
#[cfg(test)]
mod tests;
pub(crate) mod units;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use arrow::array::ArrayRef;
use dashmap::DashMap;

pub(crate) use self::backing::Backing;
pub(crate) use self::spill::{InFile, Spills};
use self::{
    arena::{Arena, Filler, Layout, Memory, Reserved, StoreError},
    backing::Stored,
    chunk::Chunk,
};
pub use self::{
    arena::{ArenaError, Mapping, MemoryStats},
    open::OpenCell,
    spill::SpillError,
    stats::{ColumnBytes, Stats},
    units::Units,
};
use crate::{
    arrow_map::{self, MapError},
    catalog::command::{CellRun, Sizes, SpillFile},
    ids::{ChunkId, ColumnId, PartitionId, SessionId},
    schema::Column,
    transport::{Placed, Purpose, Target, View},
};

/// Why a unit did not take or give cells.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum UnitError {
    /// The pointer is older than the bytes.
    #[error(
        "cells {slot}..{end} of chunk {chunk} are gone: their rows were consumed or dropped; claim or resolve again"
    )]
    Gone { chunk: ChunkId, slot: u32, end: u32 },
    /// The pointer was not made by this store's catalog.
    #[error(
        "chunk {chunk} holds column {} of partition {}, not column {column} of partition {partition}; take the pointer as the store gave it",
        .holds.1, .holds.0
    )]
    Foreign { chunk: ChunkId, holds: Key, partition: PartitionId, column: ColumnId },
    /// The array does not fit the column.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Every chunk number of this life is taken.
    #[error("unit {unit} has given {} chunk numbers in this life of the store, as many as there are; start the store again, or with more units", 1_u64 << NUMBER_BITS)]
    Exhausted { unit: usize },
    /// There is no room for the bytes where they are to be kept.
    #[error(transparent)]
    Arena(#[from] ArenaError),
}

impl From<StoreError> for UnitError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Map(error) => Self::Map(error),
            StoreError::Arena(error) => Self::Arena(error),
        }
    }
}

/// The cells of one column that are being filled.
type Key = (PartitionId, ColumnId);

pub(crate) struct Inner {
    /// Every chunk that someone holds on to.
    chunks: DashMap<ChunkId, Arc<Chunk>>,
    /// The chunk of each column and purpose that still takes cells.
    filling: Mutex<HashMap<(Key, Purpose), Arc<Chunk>>>,
    /// Bytes of open cells.
    open: Mutex<HashMap<Key, u64>>,
    /// Number of the next chunk, its life and unit included, and the first one that is not this unit's any more.
    next: AtomicU64,
    end: u64,
    /// Of all chunks that are there.
    bytes: AtomicU64,
    capacity: usize,
    /// Where cells go that leave memory, if they may.
    spills: Option<Arc<Spills>>,
    /// Where the bytes lie. The last field: chunks go before it closes.
    backing: Backing,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    /// What the chunks hold stays in the files.
    fn close(&self) {
        if let Some(arena) = self.backing.files() {
            arena.close();
            self.spills.iter().for_each(|spills| spills.keep());
        }
    }
}

/// The session of another process that puts cells, and its number for the put.
pub(crate) type Writer = (SessionId, u64);

/// A unit; clones share it.
#[derive(Clone)]
pub struct Unit {
    inner: Arc<Inner>,
}

/// Pieces of one chunk at most: single-row writes close a chunk by number before they close it by bytes.
const MAX_PIECES: usize = 1024;

/// A chunk's number: the life of the store in the upper 24 bits, so that none is given twice; below it the unit that made
/// the chunk; below that a count. (A store of one unit numbers as it did before there were several.)
const LIFE_BITS: u32 = 40;
const UNIT_BITS: u32 = 6;
const NUMBER_BITS: u32 = LIFE_BITS - UNIT_BITS;

impl Unit {
    /// An empty unit. `capacity`: bytes after which a chunk takes no more cells (a larger write gets its own chunk);
    /// `life`: a number that no earlier unit of the same catalog had, so that chunk ids are never reused.
    pub fn new(capacity: usize, life: u64) -> Self {
        Self::over(Backing::Heap, None, capacity, life, 0)
    }

    /// An empty unit whose bytes lie in shared memory, in segments of `segment_bytes` that are used again; otherwise as
    /// [`Unit::new`].
    pub fn in_shared_memory(segment_bytes: usize, capacity: usize, life: u64) -> Self {
        Self::over(Backing::Memory(Memory::new(segment_bytes)), None, capacity, life, 0)
    }

    /// A unit whose bytes lie as `backing` says, and may leave memory for files, if there are; `number` tells it from the other
    /// units of its store.
    pub(crate) fn over(
        backing: Backing,
        spills: Option<Arc<Spills>>,
        capacity: usize,
        life: u64,
        number: usize,
    ) -> Self {
        let first = (life << LIFE_BITS) | ((number as u64) << NUMBER_BITS);
        let inner = Inner {
            chunks: DashMap::new(),
            filling: Mutex::default(),
            open: Mutex::default(),
            next: AtomicU64::new(first + 1),
            end: first + (1 << NUMBER_BITS),
            bytes: AtomicU64::new(0),
            capacity,
            spills,
            backing,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The lives of a catalog that chunk ids tell apart: of which one this chunk is.
    pub(crate) fn life(chunk: ChunkId) -> u64 {
        chunk.0 >> LIFE_BITS
    }

    /// Most lives that chunk ids tell apart.
    pub(crate) const LIVES: u64 = 1 << (64 - LIFE_BITS);

    /// Which unit of its store has made the chunk.
    pub(crate) fn number(chunk: ChunkId) -> usize {
        ((chunk.0 >> NUMBER_BITS) as usize) & ((1 << UNIT_BITS) - 1)
    }

    /// Bytes of all chunks that are there, whoever holds them.
    pub(crate) fn bytes(&self) -> u64 {
        self.inner.bytes.load(Ordering::Relaxed)
    }

    /// Stores cells. Their slots follow each other in one chunk; the returned hold keeps them until the catalog knows.
    /// The array is taken over without a copy when its buffers are aligned and its own (as those of `Outputs` are).
    ///
    /// # Errors
    /// [`UnitError::Map`] when the array does not fit the column; [`UnitError::Arena`] when there is no room for it.
    pub fn write(
        &self,
        partition: PartitionId,
        id: ColumnId,
        column: &Column,
        array: ArrayRef,
    ) -> Result<Placed, UnitError> {
        self.write_for(None, Target { partition, id, column, purpose: Purpose::Final }, array)
    }

    /// Stores cells for a purpose, which a session of another process may have put.
    pub(crate) fn write_for(
        &self,
        writer: Option<Writer>,
        target: Target<'_>,
        array: ArrayRef,
    ) -> Result<Placed, UnitError> {
        arrow_map::check(target.column, &array)?;
        let stored = self.inner.backing.store(target.column, &array)?;
        self.settle(writer, target, &stored)
    }

    /// Room for cells of a column that is filled in place, here or by another process of the host; `None` where the bytes lie otherwise.
    pub(crate) fn reserve(
        &self,
        filler: Filler,
        column: &Column,
        layout: Layout,
    ) -> Result<Option<Reserved>, UnitError> {
        Ok(self.inner.backing.reserve(filler, column, layout)?)
    }

    /// Stores the cells that were filled in place.
    pub(crate) fn write_filled(
        &self,
        writer: Option<Writer>,
        target: Target<'_>,
        reserved: Reserved,
    ) -> Result<Placed, UnitError> {
        self.settle(writer, target, &reserved.filled(target.column)?.into())
    }

    /// A process fills nothing in place any more.
    pub(crate) fn leave(&self, filler: Filler) {
        self.inner.backing.leave(filler);
    }

    /// Checked cells find their place in a chunk.
    fn settle(&self, writer: Option<Writer>, target: Target<'_>, stored: &Stored) -> Result<Placed, UnitError> {
        let Target { partition, id, column, purpose } = target;
        let sizes = arrow_map::sizes(column, &stored.array)?;
        let placed = self.inner.place((partition, id), purpose, stored.array.clone(), sizes)?;
        stored.note((partition, id), (placed.chunk, placed.slot), writer)?;
        Ok(placed)
    }

    /// The store closes: what is let go from now on stays in the files, if bytes are kept there, for its next life.
    pub(crate) fn close(&self) {
        self.inner.close();
    }

    /// Waits until the bytes of every write so far are on the disk, if they are kept in files.
    pub(crate) fn sync(&self) -> Result<(), ArenaError> {
        self.inner.backing.files().map_or(Ok(()), Arena::sync)
    }

    /// Looks at cells of a column: views in the order of the runs, no byte copied. Each chunk among them is held until its last
    /// view is gone.
    ///
    /// # Errors
    /// [`UnitError::Gone`] when a cell is not there (any more), [`UnitError::Foreign`] when a chunk is of another column.
    pub fn read(&self, partition: PartitionId, column: ColumnId, runs: &[CellRun]) -> Result<Vec<View>, UnitError> {
        let mut views: Vec<View> = Vec::with_capacity(runs.len());
        let mut last: Option<(ChunkId, Arc<Grant>)> = None;
        for run in runs {
            let gone = UnitError::Gone { chunk: run.chunk, slot: run.slot, end: run.slot.saturating_add(run.len) };
            let grant = match &last {
                Some((chunk, grant)) if *chunk == run.chunk => grant.clone(),
                _ => match self.grant(run.chunk) {
                    Some(grant) => Arc::new(grant),
                    None => return Err(gone),
                },
            };
            let holds = grant.chunk.key;
            if holds != (partition, column) {
                return Err(UnitError::Foreign { chunk: run.chunk, holds, partition, column });
            }
            let complete = grant.chunk.slices(run.slot, run.len, |array| views.push(View::new(array, grant.clone())));
            if !complete {
                return Err(gone);
            }
            last = Some((run.chunk, grant));
        }
        Ok(views)
    }

    /// Holds a chunk; `None` when it is gone.
    pub fn grant(&self, chunk: ChunkId) -> Option<Grant> {
        let chunk = self.inner.chunks.get(&chunk)?.clone();
        chunk.hold().then(|| Grant { unit: self.inner.clone(), chunk })
    }

    /// An event names the chunk: the catalog holds it from now on.
    pub fn committed(&self, chunk: ChunkId) {
        if let Some(chunk) = self.inner.chunks.get(&chunk) {
            chunk.set_live(true);
        }
    }

    /// An event frees the chunk: it leaves when the last grant and write hold are gone, and takes no more cells.
    pub fn free(&self, chunk: ChunkId) {
        let found = self.inner.chunks.get(&chunk).map(|chunk| chunk.clone());
        if let Some(chunk) = found {
            chunk.set_live(false);
            self.inner.sweep(&chunk);
        }
    }

    /// A cell that grows; its bytes count as `open` until it is sealed or dropped.
    pub fn open(&self, partition: PartitionId, id: ColumnId) -> OpenCell {
        OpenCell::new(self.inner.clone(), (partition, id))
    }

    /// What an earlier life has left is taken over, or not needed: from now on files go with what lies in them.
    pub(crate) fn go_on(&self) {
        self.inner.backing.files().into_iter().for_each(Arena::go_on);
        self.inner.spills.iter().for_each(|spills| spills.go_on());
    }

    /// Every chunk that is there.
    #[cfg(test)]
    pub(crate) fn chunk_ids(&self) -> std::collections::BTreeSet<ChunkId> {
        self.inner.chunks.iter().map(|entry| *entry.key()).collect()
    }

    /// How the shared memory is used that the cells lie in, if they do.
    pub fn memory(&self) -> Option<MemoryStats> {
        self.inner.backing.memory()
    }

    /// What is held, per column.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Puts a chunk back that a snapshot holds: live, closed, pieces at given slots. Where bytes are kept in files, they
    /// are copied there.
    pub(crate) fn restore(
        &self,
        key: Key,
        column: &Column,
        chunk: ChunkId,
        pieces: Vec<(u32, ArrayRef)>,
    ) -> Result<(), UnitError> {
        let kept = |(slot, array): (u32, ArrayRef)| {
            arrow_map::check(column, &array)?;
            let stored = self.inner.backing.store(column, &array)?;
            stored.note(key, (chunk, slot), None)?;
            Ok::<_, UnitError>((slot, stored.array))
        };
        let pieces = pieces.into_iter().map(kept).collect::<Result<Vec<_>, _>>()?;
        self.adopt(key, chunk, pieces, true);
        Ok(())
    }

    /// Puts a closed chunk back whose pieces lie where they are to stay.
    pub(crate) fn adopt(&self, key: Key, chunk: ChunkId, pieces: Vec<(u32, ArrayRef)>, live: bool) {
        let restored = Arc::new(Chunk::restored(chunk, key, pieces, live));
        self.inner.bytes.fetch_add(restored.memory(), Ordering::Relaxed);
        self.inner.chunks.insert(chunk, restored);
    }

    /// The chunks of a spill file that an earlier life has written, with their pieces.
    ///
    /// # Errors
    /// [`SpillError`] when the file is not what was written.
    pub(crate) fn find_spilled(
        &self,
        column: &Column,
        file: SpillFile,
    ) -> Result<BTreeMap<ChunkId, InFile>, SpillError> {
        let spills = self.inner.spills.as_ref();
        spills.map_or_else(|| Ok(BTreeMap::new()), |spills| spills.find(file, column))
    }

    /// Puts a chunk back that lies in a spill file.
    pub(crate) fn adopt_spilled(&self, key: Key, chunk: ChunkId, pieces: InFile) {
        let adopted = Arc::new(Chunk::restored(chunk, key, Vec::new(), true));
        adopted.spill(pieces);
        self.inner.chunks.insert(chunk, adopted);
    }

    /// The cells of a chunk lie in a file from now on; what they were views of before.
    fn spilled(&self, chunk: ChunkId, pieces: InFile) -> Vec<ArrayRef> {
        let Some(found) = self.inner.chunks.get(&chunk).map(|chunk| chunk.clone()) else { return Vec::new() };
        let memory = found.memory();
        let before = found.spill(pieces);
        self.inner.bytes.fetch_sub(memory, Ordering::Relaxed);
        before
    }

    /// Holds cells of an adopted chunk for a writer that has not named them yet.
    pub(crate) fn hold(&self, chunk: ChunkId, slot: u32, sizes: Sizes) -> Option<Placed> {
        let found = self.inner.chunks.get(&chunk)?.clone();
        found.begin_write();
        let hold = WriteHold { unit: self.inner.clone(), chunk: found };
        Some(Placed { chunk, slot, sizes, hold: Box::new(hold) })
    }
}

impl Inner {
    fn place(self: &Arc<Self>, key: Key, purpose: Purpose, array: ArrayRef, sizes: Sizes) -> Result<Placed, UnitError> {
        let mut filling = self.filling.lock().expect("invariant: nothing panics under this lock");
        let of = (key, purpose);
        let bytes = array.get_buffer_memory_size();
        let fits = |chunk: &Arc<Chunk>| chunk.push(&array, bytes, self.capacity, MAX_PIECES);
        let (chunk, slot) = match filling.get(&of).and_then(|chunk| fits(chunk).map(|slot| (chunk.clone(), slot))) {
            Some(found) => found,
            None => {
                // Under the lock of `filling`: nobody else takes a number in between.
                let id = ChunkId(self.next.load(Ordering::Relaxed));
                if id.0 >= self.end {
                    return Err(UnitError::Exhausted { unit: Unit::number(ChunkId(self.end - 1)) });
                }
                self.next.store(id.0 + 1, Ordering::Relaxed);
                let chunk = Arc::new(Chunk::new(id, key, &array, bytes));
                self.chunks.insert(id, chunk.clone());
                filling.insert(of, chunk.clone());
                (chunk, 0)
            }
        };
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let hold = WriteHold { unit: self.clone(), chunk: chunk.clone() };
        Ok(Placed { chunk: chunk.id, slot, sizes, hold: Box::new(hold) })
    }

    /// Removes a chunk that nobody holds.
    fn sweep(&self, chunk: &Arc<Chunk>) {
        if !chunk.retire_if_unheld() {
            return;
        }
        self.chunks.remove(&chunk.id);
        self.bytes.fetch_sub(chunk.memory(), Ordering::Relaxed);
        let mut filling = self.filling.lock().expect("invariant: nothing panics under this lock");
        for of in [Purpose::Final, Purpose::Partial].map(|purpose| (chunk.key, purpose)) {
            if filling.get(&of).is_some_and(|current| current.id == chunk.id) {
                filling.remove(&of);
            }
        }
    }
}

/// A hold on a chunk's bytes: while it lives they stay where they are.
pub struct Grant {
    unit: Arc<Inner>,
    chunk: Arc<Chunk>,
}

impl Grant {
    /// The committed and uncommitted pieces with their first slots.
    pub(crate) fn pieces(&self) -> Vec<(u32, ArrayRef)> {
        self.chunk.pieces()
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.chunk.let_go();
        self.unit.sweep(&self.chunk);
    }
}

/// Keeps written cells until the catalog has decided about them.
struct WriteHold {
    unit: Arc<Inner>,
    chunk: Arc<Chunk>,
}

impl Drop for WriteHold {
    fn drop(&mut self) {
        self.chunk.end_write();
        self.unit.sweep(&self.chunk);
    }
}
