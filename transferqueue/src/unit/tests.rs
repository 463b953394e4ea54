use std::sync::{Arc, Weak};

use arrow::array::{Array, ArrayRef};

use super::{arena::Fillable, *};
use crate::{
    arrow_map::dense_array,
    schema::{Dtype, Kind},
};

fn column() -> Column {
    Column::new("x", Kind::Dense { dtype: Dtype::I64, shape: vec![] })
}

fn cells(values: std::ops::Range<i64>) -> ArrayRef {
    let mut buffer = arrow::buffer::MutableBuffer::new(0);
    let n = values.clone().count();
    values.for_each(|value| buffer.push(value));
    buffer.shrink_to_fit();
    dense_array(&column().kind, n, buffer.into())
}

fn write(unit: &Unit, array: ArrayRef) -> Placed {
    unit.write(PartitionId(1), ColumnId(2), &column(), array).unwrap()
}

fn run(placed: &Placed, len: u32) -> CellRun {
    CellRun { chunk: placed.chunk, generation: 0, slot: placed.slot, len }
}

#[test]
fn a_full_chunk_gives_way_to_the_next_and_a_large_write_gets_its_own() {
    let unit = Unit::new(1000, 0);
    let [a, b, c, d] = [50, 50, 50, 500].map(|n| write(&unit, cells(0..n)));
    assert_eq!((a.chunk, a.slot, b.chunk, b.slot), (a.chunk, 0, a.chunk, 50));
    assert_ne!(c.chunk, a.chunk);
    assert_ne!(d.chunk, c.chunk);
    assert_eq!(unit.stats().total().chunks, 3);
}

#[test]
fn single_rows_close_a_chunk_by_number() {
    let unit = Unit::new(1 << 30, 0);
    let placed: Vec<Placed> = (0..=MAX_PIECES as i64).map(|i| write(&unit, cells(i..i + 1))).collect();
    let slots = (placed[MAX_PIECES - 1].slot, placed[MAX_PIECES].slot);
    assert_eq!(slots, (MAX_PIECES as u32 - 1, 0));
}

#[test]
fn memory_really_goes_with_the_last_hold() {
    let unit = Unit::new(1 << 20, 0);
    let array = cells(0..100);
    let memory: Weak<dyn Array> = Arc::downgrade(&array);
    let placed = write(&unit, array);
    let views = unit.read(PartitionId(1), ColumnId(2), &[run(&placed, 100)]).unwrap();
    unit.committed(placed.chunk);
    let chunk = placed.chunk;
    drop(placed);
    unit.free(chunk);
    assert!(memory.upgrade().is_some(), "a view holds it");
    drop(views);
    assert!(memory.upgrade().is_none(), "nothing holds it");
}

#[test]
fn each_byte_is_counted_for_what_holds_it() {
    let unit = Unit::new(1 << 20, 0);
    let of = |unit: &Unit| unit.stats().column(PartitionId(1), ColumnId(2));
    let placed = write(&unit, cells(0..64));
    assert_eq!(of(&unit), ColumnBytes { chunks: 1, cells: 64, unsettled: 512, ..Default::default() });
    unit.committed(placed.chunk);
    assert_eq!(of(&unit), ColumnBytes { chunks: 1, cells: 64, live: 512, ..Default::default() });
    let views = unit.read(PartitionId(1), ColumnId(2), &[run(&placed, 1)]).unwrap();
    assert_eq!(of(&unit), ColumnBytes { chunks: 1, cells: 64, live: 512, pinned: 512, ..Default::default() });
    unit.free(placed.chunk);
    assert_eq!(of(&unit), ColumnBytes { chunks: 1, cells: 64, pinned: 512, lingering: 512, ..Default::default() });
    drop(views);
    drop(placed);
    assert_eq!(of(&unit), ColumnBytes::default());
}

#[test]
fn open_cells_are_counted_until_they_are_sealed_or_forgotten() {
    let unit = Unit::new(1 << 20, 0);
    let mut cell = unit.open(PartitionId(1), ColumnId(2));
    cell.append(&[1i32, 2, 3]);
    cell.append(&[4i32]);
    assert_eq!(unit.stats().column(PartitionId(1), ColumnId(2)).open, 16);
    assert_eq!(cell.parts().collect::<Vec<_>>().concat(), bytemuck::cast_slice::<i32, u8>(&[1, 2, 3, 4]));
    drop(cell);
    assert_eq!(unit.stats(), Stats::default());
}

#[test]
fn a_restored_chunk_has_its_cells_at_their_slots_and_nothing_between() {
    let unit = Unit::new(1 << 20, 1);
    unit.adopt((PartitionId(1), ColumnId(2)), ChunkId(7), vec![(2, cells(20..22)), (9, cells(90..91))], true);
    let at =
        |slot, len| unit.read(PartitionId(1), ColumnId(2), &[CellRun { chunk: ChunkId(7), generation: 0, slot, len }]);
    assert_eq!(at(3, 1).unwrap()[0].array().as_ref(), cells(21..22).as_ref());
    assert_eq!(at(9, 1).unwrap()[0].array().as_ref(), cells(90..91).as_ref());
    for (slot, len) in [(0, 1), (3, 2), (4, 1), (9, 2), (9, u32::MAX)] {
        assert!(matches!(at(slot, len), Err(UnitError::Gone { .. })), "{slot}+{len}");
    }
    assert!(write(&unit, cells(0..1)).chunk > ChunkId(1 << 40), "a later life has later ids");
    unit.free(ChunkId(7));
    assert!(at(9, 1).is_err());
}

#[test]
fn a_chunk_is_read_as_the_column_that_it_holds() {
    let unit = Unit::new(1 << 20, 0);
    let placed = write(&unit, cells(0..3));
    let error = unit.read(PartitionId(1), ColumnId(1), &[run(&placed, 3)]).unwrap_err();
    assert!(matches!(error, UnitError::Foreign { .. }), "{error}");
    assert!(error.to_string().contains("holds column 2 of partition 1, not column 1 of partition 1"), "{error}");
}

/// Units whose bytes other processes can map: in shared memory, and in files of this folder.
fn mappable(dir: &std::path::Path) -> [Unit; 2] {
    let arena = Arena::create(crate::disk::machine(), dir, 1 << 20, 7).unwrap();
    [Backing::Memory(Memory::new(1 << 20)), Backing::Files(arena)]
        .map(|backing| Unit::over(backing, None, 1 << 16, 0, 0))
}

fn target(column: &Column) -> Target<'_> {
    Target { partition: PartitionId(1), id: ColumnId(2), column, purpose: Purpose::Final }
}

#[test]
fn what_another_process_has_filled_is_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    for unit in mappable(dir.path()) {
        let (column, array) = (column(), cells(10..110));
        let reserved = unit.reserve(Filler::Process(1), &column, Layout::of(&array)).unwrap().unwrap();
        let place = reserved.backed();
        // As the other process does it.
        let mapped = Fillable::over(&place.writable().unwrap(), place.len() as u64).unwrap();
        mapped.lend(place.at as u64, Layout::of(&array)).unwrap().fill(&array);
        let placed = unit.write_filled(None, target(&column), reserved).unwrap();
        let views = unit.read(PartitionId(1), ColumnId(2), &[run(&placed, 100)]).unwrap();
        assert_eq!(views[0].array(), &array);
        let places = unit.inner.backing.places().unwrap();
        let found = places.find(arrow_map::leaf_bytes(views[0].array()).unwrap()).unwrap();
        assert_eq!((found.id(), found.at), (place.id(), place.at), "it lies where it was written");
        // The store's own cells lie elsewhere.
        let own = write(&unit, cells(0..10));
        let views = unit.read(PartitionId(1), ColumnId(2), &[run(&own, 10)]).unwrap();
        assert_ne!(places.find(arrow_map::leaf_bytes(views[0].array()).unwrap()).unwrap().id(), place.id());
    }
}

#[test]
fn what_another_process_says_of_its_cells_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let ragged = Column::new("tokens", Kind::Ragged { dtype: Dtype::I64, inner: vec![] });
    let flags = Column::new("flags", Kind::Dense { dtype: Dtype::Bool, shape: vec![] });
    let layout = |rows, offsets, values| Layout { rows, offsets, values };
    // The bytes that lie there are the numbers 0, 1, 2, … of 8 bytes each.
    let wrong = [
        (column(), layout(3, 0, 16), "16 bytes for 3 cells of 8"),
        (column(), layout(2, 12, 16), "not those of 2 cells"),
        (ragged.clone(), layout(1, 4, 16), "large enough"),
        (ragged.clone(), layout(2, 12, 16), "not those of 2 cells"),
        (ragged, layout(4, 20, 0), "offset"),
        (flags, layout(24, 0, 24), "the byte 2, expected 0 or 1"),
    ];
    for unit in mappable(dir.path()) {
        for (column, layout, why) in &wrong {
            let reserved = unit.reserve(Filler::Process(1), column, *layout).unwrap().unwrap();
            let place = reserved.backed();
            let mapped = Fillable::over(&place.writable().unwrap(), place.len() as u64).unwrap();
            let numbers = cells(0..8);
            mapped.lend(place.at as u64, Layout::of(&numbers)).unwrap().fill(&numbers);
            let error = unit.write_filled(None, target(column), reserved).unwrap_err().to_string();
            assert!(error.contains(why), "{layout:?} of `{}`: {error}", column.name);
        }
        assert_eq!(unit.stats().total().cells, 0);
    }
}
