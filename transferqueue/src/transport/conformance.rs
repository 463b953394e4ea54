//! What every transport must do, as tests that know nothing of how it does it.
//!
//! An implementation brings a [`Fixture`] and calls `suite!(ItsFixture)` in its tests.

use arrow::array::{Array, ArrayRef};

use super::{Placed, Purpose, Target, Transport, TransportError, View};
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
            an_empty_pointer_gives_no_view, many_threads_put_and_get_what_is_theirs
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

pub(crate) fn every_kind_comes_back_as_it_was_put<F: Fixture>() {
    let kinds = [
        Kind::Dense { dtype: Dtype::F64, shape: vec![] },
        Kind::Dense { dtype: Dtype::U8, shape: vec![3, 2] },
        Kind::Ragged { dtype: Dtype::U16, inner: vec![] },
        Kind::Ragged { dtype: Dtype::U16, inner: vec![2] },
        Kind::Utf8,
        Kind::Binary,
    ];
    for kind in kinds {
        let fixture = F::new(1 << 20);
        let column = Column::new("c", kind.clone());
        let bytes = |n: usize| arrow::buffer::Buffer::from((0..n as u8).collect::<Vec<_>>().as_slice());
        let array = match &kind {
            Kind::Dense { dtype, .. } => {
                arrow_map::dense_array(&kind, 4, bytes(4 * dtype.size() * arrow_map::inner_len(&kind)))
            }
            Kind::Ragged { .. } => {
                arrow_map::ragged_array("c", &kind, &[1, 0, 2, 1], bytes(8 * arrow_map::inner_len(&kind))).unwrap()
            }
            _ => arrow_map::bytes_array("c", &kind, &[1, 0, 2, 1], bytes(4)).unwrap(),
        };
        let target = Target { partition: PartitionId(0), id: ColumnId(0), column: &column, purpose: Purpose::Final };
        fixture.declare(target.partition, target.id, &column);
        let placed = fixture.transport().put(target, array.clone()).unwrap();
        let runs = vec![CellRun { chunk: placed.chunk, generation: 0, slot: placed.slot, len: 4 }];
        let pointer = ColumnRef { name: "c".into(), partition: PartitionId(0), column: ColumnId(0), runs };
        let views = fixture.transport().get(&pointer).unwrap();
        assert_eq!(arrow_map::copy(&column, views.iter().map(View::array)).unwrap().as_ref(), array.as_ref(), "{kind}");
    }
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
