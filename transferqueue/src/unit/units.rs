//! The units behind one catalog: which of them a put goes to, and which of them holds a chunk.
//!
//! *Where a put goes.* To the unit whose chunks hold the fewest bytes; of several such, to the one with the lowest number.
//! All cells of one put lie in one chunk, so in one unit.
//!
//! *Who holds a chunk.* Its number says which unit made it ([`Unit`] numbers chunks). A chunk that a snapshot brought lies
//! where there was room, whatever its number says: such chunks are listed, once, before the store begins.
//!
//! ```
//! use transferqueue::{schema::{Column, Dtype, Kind}, unit::Units, ColumnId, PartitionId};
//! use std::sync::Arc;
//! let units = Units::new(2, 1 << 20, 0);
//! let reward = Column::new("reward", Kind::Dense { dtype: Dtype::F32, shape: vec![] });
//! let cells = || Arc::new(arrow::array::Float32Array::from(vec![1.0, 0.5]));
//! let [a, b] = [0, 1].map(|_| units.write(PartitionId(0), ColumnId(0), &reward, cells()).unwrap());
//! assert_ne!(a.chunk, b.chunk, "the second put goes to the unit that holds nothing yet");
//! assert_eq!(units.iter().map(|unit| unit.stats().total().cells).collect::<Vec<_>>(), [2, 2]);
//! ```

use std::{collections::HashMap, sync::Arc};

use arrow::array::ArrayRef;

use super::{
    ArenaError, Backing, Grant, OpenCell, Stats, Unit, UnitError, Writer,
    arena::{Backed, Filler, Layout, Reserved},
};
use crate::{
    catalog::{State, command::CellRun},
    error::Error,
    ids::{ChunkId, ColumnId, PartitionId},
    schema::Column,
    snapshot::Chunk,
    transport::{Placed, Target, View},
};

/// The units behind one catalog; clones share them. There is at least one.
#[derive(Clone)]
pub struct Units {
    units: Arc<[Unit]>,
    /// Chunks that lie elsewhere than their number says.
    moved: Arc<HashMap<ChunkId, usize>>,
}

impl From<Unit> for Units {
    fn from(unit: Unit) -> Self {
        Self::over(vec![unit], HashMap::new())
    }
}

impl Units {
    /// Most units of a store.
    pub const MAX: usize = 1 << super::UNIT_BITS;

    /// So many empty units (at least one, at most [`Units::MAX`]) in memory. `capacity`: bytes after which a chunk takes no
    /// more cells; `life`: a number that no earlier units of the same catalog had.
    pub fn new(count: usize, capacity: usize, life: u64) -> Self {
        let units =
            (0..count.clamp(1, Self::MAX)).map(|number| Unit::over(Backing::Heap, None, capacity, life, number));
        Self::over(units.collect(), HashMap::new())
    }

    /// Units by number, with the chunks that lie elsewhere than in the unit that made them.
    pub(crate) fn over(units: Vec<Unit>, moved: HashMap<ChunkId, usize>) -> Self {
        Self { units: units.into(), moved: Arc::new(moved) }
    }

    /// The units by their number.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Unit> {
        self.units.iter()
    }

    /// The unit that holds a chunk, if any does.
    pub(super) fn home(&self, chunk: ChunkId) -> Option<&Unit> {
        match self.moved.is_empty() {
            true => self.units.get(Unit::number(chunk)),
            false => self.units.get(self.moved.get(&chunk).copied().unwrap_or_else(|| Unit::number(chunk))),
        }
    }

    fn emptiest(&self) -> &Unit {
        &self.units[emptiest(&self.units)]
    }

    /// Stores cells, as [`Unit::write`] does.
    ///
    /// # Errors
    /// As [`Unit::write`].
    pub fn write(
        &self,
        partition: PartitionId,
        id: ColumnId,
        column: &Column,
        array: ArrayRef,
    ) -> Result<Placed, UnitError> {
        self.emptiest().write(partition, id, column, array)
    }

    /// Stores cells for a purpose, which a session of another process may have put.
    pub(crate) fn write_for(
        &self,
        writer: Option<Writer>,
        target: Target<'_>,
        array: ArrayRef,
    ) -> Result<Placed, UnitError> {
        self.emptiest().write_for(writer, target, array)
    }

    /// Room that is filled in place, and the unit it is of; `None` where bytes lie otherwise.
    pub(crate) fn reserve(
        &self,
        filler: Filler,
        column: &Column,
        layout: Layout,
    ) -> Result<Option<(Unit, Reserved)>, UnitError> {
        let unit = self.emptiest();
        let reserved = unit.reserve(filler, column, layout)?;
        Ok(reserved.map(|reserved| (unit.clone(), reserved)))
    }

    /// Whether this is one of them.
    pub(crate) fn has(&self, unit: &Unit) -> bool {
        self.iter().any(|own| Arc::ptr_eq(&own.inner, &unit.inner))
    }

    /// A process fills nothing in place any more.
    pub(crate) fn leave(&self, filler: Filler) {
        self.iter().for_each(|unit| unit.leave(filler));
    }

    /// Looks at cells of a column, as [`Unit::read`] does; runs of several units come in the order of the pointer. All of it
    /// are pointers into this process: nothing is waited for, so nothing is done side by side.
    ///
    /// # Errors
    /// As [`Unit::read`].
    pub fn read(&self, partition: PartitionId, column: ColumnId, runs: &[CellRun]) -> Result<Vec<View>, UnitError> {
        if let [unit] = &*self.units {
            return unit.read(partition, column, runs);
        }
        let mut views = Vec::with_capacity(runs.len());
        let home = |run: &CellRun| self.home(run.chunk).map(std::ptr::from_ref);
        for stretch in runs.chunk_by(|a, b| home(a) == home(b)) {
            let CellRun { chunk, slot, len, .. } = stretch[0];
            let gone = || UnitError::Gone { chunk, slot, end: slot.saturating_add(len) };
            views.extend(self.home(chunk).ok_or_else(gone)?.read(partition, column, stretch)?);
        }
        Ok(views)
    }

    /// Whether other processes of the host can map what lies here.
    pub(crate) fn can_be_mapped(&self) -> bool {
        self.units.iter().any(|unit| unit.inner.backing.places().is_some())
    }

    /// The segment that bytes of a view lie in; `None`: no other process can map them.
    pub(crate) fn backed(&self, bytes: &[u8]) -> Option<Backed> {
        self.units.iter().find_map(|unit| unit.inner.backing.places()?.find(bytes))
    }

    /// Holds a chunk; `None` when it is gone.
    pub fn grant(&self, chunk: ChunkId) -> Option<Grant> {
        self.home(chunk)?.grant(chunk)
    }

    /// An event names the chunk: the catalog holds it from now on.
    pub fn committed(&self, chunk: ChunkId) {
        if let Some(unit) = self.home(chunk) {
            unit.committed(chunk);
        }
    }

    /// An event frees the chunk: it leaves when the last grant and write hold are gone, and takes no more cells.
    pub fn free(&self, chunk: ChunkId) {
        if let Some(unit) = self.home(chunk) {
            unit.free(chunk);
        }
    }

    /// A cell that grows; its bytes count as `open` of one unit until it is sealed or dropped.
    pub fn open(&self, partition: PartitionId, id: ColumnId) -> OpenCell {
        self.emptiest().open(partition, id)
    }

    /// What all of them hold, per column.
    pub fn stats(&self) -> Stats {
        self.units.iter().fold(Stats::default(), |sum, unit| sum.plus(unit.stats()))
    }

    /// The store closes: what is let go from now on stays in the files, if bytes are kept there, for its next life.
    pub(crate) fn close(&self) {
        self.units.iter().for_each(Unit::close);
    }

    /// Waits until the bytes of every write so far are on the disk, if they are kept in files.
    pub(crate) fn sync(&self) -> Result<(), ArenaError> {
        self.units.iter().try_for_each(Unit::sync)
    }

    /// Every chunk that is there, each in the unit where it is looked for.
    #[cfg(test)]
    pub(crate) fn chunk_ids(&self) -> std::collections::BTreeSet<ChunkId> {
        let mut all = std::collections::BTreeSet::new();
        for unit in self.iter() {
            for chunk in unit.chunk_ids() {
                assert!(all.insert(chunk), "chunk {chunk} lies in two units");
                let home = self.home(chunk).expect("every number leads to a unit");
                assert!(std::ptr::eq(home, unit), "chunk {chunk} is looked for elsewhere");
            }
        }
        all
    }
}

/// Puts chunks of a snapshot into empty units, each where the fewest bytes are, whichever unit made it.
///
/// # Errors
/// [`Error::Refused`] when a chunk is of a partition that the state lacks; as [`Unit::restore`].
pub(crate) fn restore(state: &State, units: Vec<Unit>, chunks: Vec<Chunk>) -> Result<Units, Error> {
    let mut moved = HashMap::new();
    for Chunk { key: (partition, column), id, pieces } in chunks {
        let description = state.describe(partition)?;
        let at = emptiest(&units);
        units[at].restore((partition, column), &description.columns[usize::from(column.0)], id, pieces)?;
        note(&mut moved, id, at);
    }
    Ok(Units::over(units, moved))
}

/// A chunk lies in a unit: noted where its number says otherwise.
pub(crate) fn note(moved: &mut HashMap<ChunkId, usize>, chunk: ChunkId, unit: usize) {
    if Unit::number(chunk) != unit {
        moved.insert(chunk, unit);
    }
}

fn emptiest(units: &[Unit]) -> usize {
    let bytes = |at: &usize| units[*at].bytes();
    if units.len() == 1 { 0 } else { (0..units.len()).min_by_key(bytes).unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array};
    use proptest::prelude::*;

    use super::*;
    use crate::schema::{Dtype, Kind};

    const KEY: (PartitionId, ColumnId) = (PartitionId(1), ColumnId(2));

    fn column() -> Column {
        Column::new("x", Kind::Dense { dtype: Dtype::I64, shape: vec![] })
    }

    fn write(units: &Units, values: Vec<i64>) -> (CellRun, Placed) {
        let len = values.len() as u32;
        let placed = units.write(KEY.0, KEY.1, &column(), Arc::new(Int64Array::from(values))).unwrap();
        (CellRun { chunk: placed.chunk, generation: 0, slot: placed.slot, len }, placed)
    }

    fn read(units: &Units, runs: &[CellRun]) -> Vec<i64> {
        let views = units.read(KEY.0, KEY.1, runs).unwrap();
        let values = |view: &View| view.array().as_primitive::<arrow::datatypes::Int64Type>().values().to_vec();
        views.iter().flat_map(values).collect()
    }

    #[test]
    fn a_put_goes_to_the_unit_with_the_fewest_bytes() {
        let units = Units::new(3, 1 << 20, 0);
        let (large, held) = write(&units, vec![7; 100]);
        let small: Vec<usize> =
            (0..4).map(|_| write(&units, vec![1; 10])).map(|(run, _)| Unit::number(run.chunk)).collect();
        assert_eq!((Unit::number(large.chunk), small), (0, vec![1, 1, 1, 1]), "what nobody holds is gone at once");
        let (kept, also) = (write(&units, vec![1; 10]), write(&units, vec![1; 10]));
        assert_eq!([&kept, &also].map(|(run, _)| Unit::number(run.chunk)), [1, 2]);
        drop((held, kept, also));
        assert!(units.iter().all(|unit| unit.bytes() == 0), "bytes that go are counted out");
    }

    #[test]
    fn a_chunk_is_freed_in_the_unit_that_holds_it() {
        let units = Units::new(2, 1 << 20, 0);
        let [a, b] = [5, 6].map(|value| write(&units, vec![value]));
        [&a, &b].iter().for_each(|(run, _)| units.committed(run.chunk));
        let (first, second) = (a.0, b.0);
        drop((a, b));
        units.free(first.chunk);
        assert!(units.grant(first.chunk).is_none() && units.grant(second.chunk).is_some());
        assert_eq!(read(&units, std::slice::from_ref(&second)), [6]);
        let error = units.read(KEY.0, KEY.1, &[second, first]).unwrap_err();
        assert!(matches!(error, UnitError::Gone { .. }), "{error}");
        let nowhere = CellRun { chunk: ChunkId(5 << super::super::NUMBER_BITS), generation: 0, slot: 0, len: 1 };
        assert!(matches!(units.read(KEY.0, KEY.1, &[nowhere]), Err(UnitError::Gone { .. })), "there is no unit 5");
    }

    #[test]
    fn a_moved_chunk_is_found_where_it_lies_and_its_number_is_never_given_again() {
        let made = Units::new(3, 1 << 20, 4);
        let puts: Vec<_> = (0..3).map(|value| write(&made, vec![value])).collect();
        let cells =
            |run: &CellRun| vec![(0, made.read(KEY.0, KEY.1, std::slice::from_ref(run)).unwrap()[0].array().clone())];
        let (units, mut moved) =
            ([0, 1].map(|number| Unit::over(Backing::Heap, None, 1 << 20, 5, number)).to_vec(), HashMap::new());
        for (at, (run, _)) in [1, 0, 0].into_iter().zip(&puts) {
            units[at].adopt(KEY, run.chunk, cells(run), true);
            note(&mut moved, run.chunk, at);
        }
        let units = Units::over(units, moved);
        let runs: Vec<CellRun> = puts.iter().map(|(run, _)| *run).collect();
        assert_eq!(read(&units, &runs), [0, 1, 2]);
        assert_eq!(units.chunk_ids().len(), 3);
        assert!(puts.iter().all(|(run, _)| write(&units, vec![9]).0.chunk != run.chunk));
    }

    #[test]
    fn a_unit_whose_numbers_are_used_up_says_so() {
        let units = Units::new(2, 1, 0);
        let last = (1 << super::super::NUMBER_BITS) - 1;
        units.units[0].inner.next.store(last, std::sync::atomic::Ordering::Relaxed);
        let unit = &units.units[0];
        let cells = || Arc::new(Int64Array::from(vec![1])) as ArrayRef;
        assert_eq!(unit.write(KEY.0, KEY.1, &column(), cells()).unwrap().chunk, ChunkId(last));
        let error = unit.write(KEY.0, KEY.1, &column(), cells()).unwrap_err().to_string();
        assert!(error.starts_with("unit 0 has given 17179869184 chunk numbers"), "{error}");
    }

    proptest! {
        #[test]
        fn cells_of_several_units_come_in_the_order_of_the_pointer(
            count in 1..5_usize,
            capacity in 1..400_usize,
            lens in proptest::collection::vec(1..9_usize, 1..40),
            order in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..30),
        ) {
            let units = Units::new(count, capacity, 3);
            let mut next = 0;
            let puts: Vec<(CellRun, Placed, i64)> = lens.iter().map(|len| {
                let first = next;
                next += *len as i64;
                let (run, placed) = write(&units, (first..next).collect());
                (run, placed, first)
            }).collect();
            prop_assert!(count == 1 || puts.len() < 2 || units.iter().filter(|unit| unit.bytes() > 0).count() > 1);
            let (mut runs, mut expected) = (Vec::new(), Vec::new());
            for (put, from, len) in order {
                let (run, _, first) = put.get(&puts);
                let from = from.index(run.len as usize) as u32;
                let len = 1 + len.index((run.len - from) as usize) as u32;
                runs.push(CellRun { slot: run.slot + from, len, ..*run });
                expected.extend((0..i64::from(len)).map(|at| first + i64::from(from) + at));
            }
            prop_assert_eq!(read(&units, &runs), expected);
        }
    }
}
