//! What every transport must do, as tests that know nothing of how it does it.
//!
//! An implementation brings a [`Fixture`] and calls `suite!(ItsFixture)` in its tests.

use arrow::array::{Array, ArrayRef};

use super::{Lens, Placed, Purpose, Target, Transport, TransportError, View};
use crate::{
    arrow_map,
    catalog::command::{CellRun, ColumnRef, Sizes},
    ids::{ChunkId, ColumnId, PartitionId},
    schema::{Column, Dtype, Kind},
};

/// A unit behind a transport, and the catalog's word to that unit.
pub(crate) trait Fixture: Sync {
    /// An empty unit with chunks of about this many bytes.
    fn new(capacity: usize) -> Self;
    fn transport(&self) -> &dyn Transport;
    /// What a catalog would know of a column before cells of it are put.
    fn declare(&self, _partition: PartitionId, _id: ColumnId, _column: &Column) {}
    fn committed(&self, chunk: ChunkId);
    fn free(&self, chunk: ChunkId);
    /// Bytes that the unit holds for whatever reason.
    fn bytes_held(&self) -> u64;
}

/// One `#[test]` per behaviour, for one fixture.
macro_rules! suite {
    ($fixture:ty) => {
        $crate::transport::conformance::suite!(
            $fixture: every_kind_comes_back_as_it_was_put, slots_of_one_put_follow_each_other,
            runs_come_back_in_the_pointers_order, a_cell_can_be_read_many_times_in_one_get,
            committed_cells_never_change_when_more_are_put, freed_bytes_stay_for_an_open_view_and_go_with_it,
            a_pointer_to_freed_bytes_is_gone, an_unknown_cell_is_gone, an_abandoned_put_leaves_nothing,
            a_put_under_way_survives_the_freeing_of_its_chunk, a_wrong_array_is_refused_by_name,
            an_empty_pointer_gives_no_view, many_threads_put_and_get_what_is_theirs,
            room_is_filled_and_put_as_an_array_is, room_for_what_fits_no_column_is_refused,
            room_is_put_for_the_column_it_was_reserved_for, what_room_was_filled_with_is_looked_at
        );
    };
    ($fixture:ty: $($case:ident),*) => {$(
        #[test]
        fn $case() {
            $crate::transport::conformance::$case::<$fixture>();
        }
    )*};
}
pub(crate) use suite;

fn ragged() -> Column {
    Column::new("tokens", Kind::Ragged { dtype: Dtype::I32, inner: vec![] })
}

/// Row `i` has `i % 4` elements, counting on from `start`.
fn rows(start: i32, n: usize) -> ArrayRef {
    let lens: Vec<usize> = (0..n).map(|i| i % 4).collect();
    let total: usize = lens.iter().sum();
    let mut values = arrow::buffer::MutableBuffer::new(0);
    (start..start + total as i32).for_each(|value| values.push(value));
    arrow_map::ragged_array("tokens", &ragged().kind, &lens, values.into()).unwrap()
}

fn put(fixture: &impl Fixture, array: &ArrayRef) -> Placed {
    let column = ragged();
    let target = Target { partition: PartitionId(3), id: ColumnId(1), column: &column, purpose: Purpose::Final };
    fixture.declare(target.partition, target.id, &column);
    fixture.transport().put(target, array.clone()).unwrap()
}

fn put_committed(fixture: &impl Fixture, array: &ArrayRef) -> (ChunkId, u32) {
    let placed = put(fixture, array);
    fixture.committed(placed.chunk);
    (placed.chunk, placed.slot)
}

fn pointer(runs: &[(ChunkId, u32, u32)]) -> ColumnRef {
    let runs = runs.iter().map(|&(chunk, slot, len)| CellRun { chunk, generation: 0, slot, len }).collect();
    ColumnRef { name: "tokens".into(), partition: PartitionId(3), column: ColumnId(1), runs }
}

fn get(fixture: &impl Fixture, runs: &[(ChunkId, u32, u32)]) -> Result<Vec<View>, TransportError> {
    fixture.transport().get(&pointer(runs))
}

fn joined(views: &[View]) -> ArrayRef {
    arrow_map::copy(&ragged(), views.iter().map(View::array)).unwrap()
}

/// A column of each kind, and four cells of it: their lengths, for those that have some, and their values.
fn every_kind() -> Vec<(Column, Option<Vec<usize>>, Vec<u8>)> {
    let kinds = [
        Kind::Dense { dtype: Dtype::F64, shape: vec![] },
        Kind::Dense { dtype: Dtype::U8, shape: vec![3, 2] },
        Kind::Ragged { dtype: Dtype::U16, inner: vec![] },
        Kind::Ragged { dtype: Dtype::U16, inner: vec![2] },
        Kind::Utf8,
        Kind::Binary,
    ];
    let cells = |kind: Kind| {
        let (step, inner) = (arrow_map::step_bytes(&kind), arrow_map::inner_len(&kind));
        let lens = (!matches!(kind, Kind::Dense { .. })).then(|| [1, 0, 2, 1].map(|len| len * inner).to_vec());
        let values = (0..4 * step as u8).collect();
        (Column::new("c", kind), lens, values)
    };
    kinds.map(cells).into()
}

/// As `Outputs` would make it.
fn array_of(column: &Column, lens: Option<&[usize]>, values: &[u8]) -> ArrayRef {
    let bytes = arrow::buffer::Buffer::from(values);
    let steps: Vec<usize> =
        lens.unwrap_or_default().iter().map(|len| len / arrow_map::inner_len(&column.kind)).collect();
    match &column.kind {
        kind @ Kind::Dense { .. } => arrow_map::dense_array(kind, 4, bytes),
        kind @ Kind::Ragged { .. } => arrow_map::ragged_array("c", kind, &steps, bytes).unwrap(),
        kind => arrow_map::bytes_array("c", kind, &steps, bytes).unwrap(),
    }
}

fn target(column: &Column) -> Target<'_> {
    Target { partition: PartitionId(0), id: ColumnId(0), column, purpose: Purpose::Final }
}

/// Four cells that were put in the column of `target`.
fn four(fixture: &impl Fixture, column: &Column, placed: &Placed) -> ArrayRef {
    let runs = vec![CellRun { chunk: placed.chunk, generation: 0, slot: placed.slot, len: 4 }];
    let pointer = ColumnRef { name: "c".into(), partition: PartitionId(0), column: ColumnId(0), runs };
    let views = fixture.transport().get(&pointer).unwrap();
    arrow_map::copy(column, views.iter().map(View::array)).unwrap()
}

pub(crate) fn every_kind_comes_back_as_it_was_put<F: Fixture>() {
    for (column, lens, values) in every_kind() {
        let fixture = F::new(1 << 20);
        let array = array_of(&column, lens.as_deref(), &values);
        fixture.declare(PartitionId(0), ColumnId(0), &column);
        let placed = fixture.transport().put(target(&column), array.clone()).unwrap();
        assert_eq!(four(&fixture, &column, &placed).as_ref(), array.as_ref(), "{}", column.kind);
    }
}

pub(crate) fn room_is_filled_and_put_as_an_array_is<F: Fixture>() {
    for (column, lens, values) in every_kind() {
        let fixture = F::new(1 << 20);
        fixture.declare(PartitionId(0), ColumnId(0), &column);
        // One is left, then dropped: what the next one holds is its own.
        for (count, values) in [values.iter().rev().copied().map(|byte| byte % 64).collect(), values].iter().enumerate()
        {
            let lens = lens.as_deref();
            let wanted = lens.map_or(Lens::Equal(4), Lens::Each);
            let abandoned = fixture.transport().reserve(target(&column), wanted).unwrap();
            let mut room = fixture.transport().reserve(target(&column), wanted).unwrap();
            drop(abandoned);
            assert_eq!((room.rows(), room.len(), room.column()), (4, values.len(), &column));
            assert_eq!(room.values_mut().as_ptr().align_offset(64), 0);
            room.values_mut().copy_from_slice(values);
            let placed = fixture.transport().put_room(target(&column), room).unwrap();
            assert_eq!(placed.slot, 0, "{count}: the former one was let go of");
            let expected = array_of(&column, lens, values);
            assert_eq!(placed.sizes, arrow_map::sizes(&column, &expected).unwrap());
            assert_eq!(four(&fixture, &column, &placed).as_ref(), expected.as_ref(), "{}", column.kind);
            drop(placed);
            assert_eq!(fixture.bytes_held(), 0);
        }
    }
}

pub(crate) fn room_for_what_fits_no_column_is_refused<F: Fixture>() {
    let fixture = F::new(1 << 20);
    let dense = Column::new("c", Kind::Dense { dtype: Dtype::F32, shape: vec![2] });
    let pairs = Column::new("c", Kind::Ragged { dtype: Dtype::U16, inner: vec![2] });
    for (column, lens, why) in [
        (&dense, Lens::Each(&[2, 2]), "expected their number"),
        (&dense, Lens::Equal(usize::MAX), "at most 2147483647 fit"),
        (&pairs, Lens::Equal(2), "expected the length of each"),
        (&pairs, Lens::Each(&[2, 3]), "row 1 is to have 3 elements, not a multiple of 2"),
        (&pairs, Lens::Each(&[1 << 33]), "at most 2147483647 fit"),
    ] {
        fixture.declare(PartitionId(0), ColumnId(0), column);
        let error = fixture.transport().reserve(target(column), lens).unwrap_err().to_string();
        assert!(error.contains("`c`") && error.contains(why), "{error}");
    }
}

pub(crate) fn room_is_put_for_the_column_it_was_reserved_for<F: Fixture>() {
    let fixture = F::new(1 << 20);
    let column = ragged();
    fixture.declare(PartitionId(0), ColumnId(1), &column);
    let room = fixture.transport().reserve(Target { id: ColumnId(1), ..target(&column) }, Lens::Each(&[1])).unwrap();
    let error = fixture.transport().put_room(target(&column), room).unwrap_err().to_string();
    assert!(error.contains("the room was reserved for column `tokens` (position 1 of partition 0)"), "{error}");
    assert_eq!(fixture.bytes_held(), 0);
}

pub(crate) fn what_room_was_filled_with_is_looked_at<F: Fixture>() {
    let fixture = F::new(1 << 20);
    let flags = Column::new("c", Kind::Dense { dtype: Dtype::Bool, shape: vec![] });
    fixture.declare(PartitionId(0), ColumnId(0), &flags);
    let mut room = fixture.transport().reserve(target(&flags), Lens::Equal(3)).unwrap();
    room.values_mut().copy_from_slice(&[0, 1, 2]);
    let error = fixture.transport().put_room(target(&flags), room).unwrap_err().to_string();
    assert!(error.contains("found the byte 2, expected 0 or 1"), "{error}");
    assert_eq!(fixture.bytes_held(), 0);
}

pub(crate) fn slots_of_one_put_follow_each_other<F: Fixture>() {
    let fixture = F::new(1 << 20);
    put_committed(&fixture, &rows(0, 5));
    let placed = put(&fixture, &rows(100, 4));
    assert_eq!(placed.sizes, Sizes::Each(vec![0, 4, 8, 12]));
    let third = get(&fixture, &[(placed.chunk, placed.slot + 2, 1)]).unwrap();
    assert_eq!(joined(&third).as_ref(), rows(100, 4).slice(2, 1).as_ref());
}

pub(crate) fn runs_come_back_in_the_pointers_order<F: Fixture>() {
    let fixture = F::new(1 << 20);
    let (a, first) = put_committed(&fixture, &rows(0, 8));
    let (b, second) = put_committed(&fixture, &rows(500, 8));
    let views = get(&fixture, &[(b, second + 4, 4), (a, first + 1, 2), (b, second, 1)]).unwrap();
    let expected = [rows(500, 8).slice(4, 4), rows(0, 8).slice(1, 2), rows(500, 8).slice(0, 1)];
    assert_eq!(joined(&views).as_ref(), arrow_map::copy(&ragged(), &expected).unwrap().as_ref());
}

pub(crate) fn a_cell_can_be_read_many_times_in_one_get<F: Fixture>() {
    let fixture = F::new(1 << 20);
    let (chunk, slot) = put_committed(&fixture, &rows(7, 4));
    let views = get(&fixture, &[(chunk, slot + 3, 1), (chunk, slot + 3, 1), (chunk, slot + 3, 1)]).unwrap();
    let cell = rows(7, 4).slice(3, 1);
    let expected = arrow_map::copy(&ragged(), [&cell, &cell, &cell]).unwrap();
    assert_eq!(joined(&views).as_ref(), expected.as_ref());
}

pub(crate) fn committed_cells_never_change_when_more_are_put<F: Fixture>() {
    let fixture = F::new(1 << 10);
    let (chunk, slot) = put_committed(&fixture, &rows(0, 6));
    let before = get(&fixture, &[(chunk, slot, 6)]).unwrap();
    for start in 1..50 {
        put_committed(&fixture, &rows(start * 1000, 6));
    }
    assert_eq!(joined(&before).as_ref(), rows(0, 6).as_ref());
    assert_eq!(joined(&get(&fixture, &[(chunk, slot, 6)]).unwrap()).as_ref(), rows(0, 6).as_ref());
}

pub(crate) fn freed_bytes_stay_for_an_open_view_and_go_with_it<F: Fixture>() {
    let fixture = F::new(1 << 20);
    let (chunk, slot) = put_committed(&fixture, &rows(0, 6));
    let views = get(&fixture, &[(chunk, slot, 6)]).unwrap();
    let one = views[0].slice(1, 1);
    fixture.free(chunk);
    assert_eq!(joined(&views).as_ref(), rows(0, 6).as_ref());
    drop(views);
    assert_eq!(one.array().as_ref(), rows(0, 6).slice(1, 1).as_ref());
    assert!(fixture.bytes_held() > 0);
    drop(one);
    assert_eq!(fixture.bytes_held(), 0);
}

pub(crate) fn a_pointer_to_freed_bytes_is_gone<F: Fixture>() {
    let fixture = F::new(1 << 20);
    let (chunk, slot) = put_committed(&fixture, &rows(0, 6));
    fixture.free(chunk);
    assert!(get(&fixture, &[(chunk, slot, 6)]).unwrap_err().is_gone());
    let (again, _) = put_committed(&fixture, &rows(9, 2));
    assert_ne!(again, chunk, "chunk ids are never reused");
}

pub(crate) fn an_unknown_cell_is_gone<F: Fixture>() {
    let fixture = F::new(1 << 20);
    let (chunk, slot) = put_committed(&fixture, &rows(0, 6));
    assert!(get(&fixture, &[(ChunkId(999), 0, 1)]).unwrap_err().is_gone());
    let beyond = get(&fixture, &[(chunk, slot + 5, 2)]).unwrap_err();
    assert!(beyond.is_gone() && beyond.to_string().contains("`tokens`: cells 5..7"), "{beyond}");
}

pub(crate) fn an_abandoned_put_leaves_nothing<F: Fixture>() {
    let fixture = F::new(1 << 20);
    let placed = put(&fixture, &rows(0, 6));
    assert!(fixture.bytes_held() > 0);
    drop(placed);
    assert_eq!(fixture.bytes_held(), 0);
}

pub(crate) fn a_put_under_way_survives_the_freeing_of_its_chunk<F: Fixture>() {
    let fixture = F::new(1 << 20);
    let (chunk, _) = put_committed(&fixture, &rows(0, 6));
    let late = put(&fixture, &rows(50, 3));
    fixture.free(chunk);
    fixture.committed(late.chunk);
    let (late_chunk, late_slot) = (late.chunk, late.slot);
    drop(late);
    assert_eq!(joined(&get(&fixture, &[(late_chunk, late_slot, 3)]).unwrap()).as_ref(), rows(50, 3).as_ref());
    fixture.free(late_chunk);
    assert_eq!(fixture.bytes_held(), 0);
}

pub(crate) fn a_wrong_array_is_refused_by_name<F: Fixture>() {
    let fixture = F::new(1 << 20);
    let column = ragged();
    let target = Target { partition: PartitionId(3), id: ColumnId(1), column: &column, purpose: Purpose::Final };
    let wrong: ArrayRef = std::sync::Arc::new(arrow::array::Float32Array::from(vec![1.0]));
    let error = fixture.transport().put(target, wrong).unwrap_err().to_string();
    assert!(error.contains("`tokens`") && error.contains("ragged i32"), "{error}");
    assert_eq!(fixture.bytes_held(), 0);
}

pub(crate) fn an_empty_pointer_gives_no_view<F: Fixture>() {
    assert!(get(&F::new(1 << 20), &[]).unwrap().is_empty());
}

pub(crate) fn many_threads_put_and_get_what_is_theirs<F: Fixture>() {
    let fixture = F::new(1 << 12);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let fixture = &fixture;
            scope.spawn(move || {
                for round in 0..100 {
                    let start = thread * 1_000_000 + round * 1000;
                    let (chunk, slot) = put_committed(fixture, &rows(start, 7));
                    let views = get(fixture, &[(chunk, slot, 7)]).unwrap();
                    assert_eq!(joined(&views).as_ref(), rows(start, 7).as_ref());
                }
            });
        }
    });
}
