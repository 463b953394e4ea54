//! Same process: a put hands the array over, a get hands out views; no byte is copied.

use arrow::array::ArrayRef;

use super::{
    Lens, Placed, Room, Target, Transport, TransportError, View,
    room::{Place, Wanted, array, misfit},
};
use crate::{
    bulk::pool::Block,
    catalog::command::ColumnRef,
    ids::{ColumnId, PartitionId},
    unit::{OpenCell, Units, arena::Filler},
};

/// The transport to units in this process.
#[derive(Clone)]
pub struct Local {
    units: Units,
}

impl Local {
    /// To and from these units, or this one.
    pub fn new(units: impl Into<Units>) -> Self {
        Self { units: units.into() }
    }
}

impl Transport for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    fn put(&self, target: Target<'_>, array: ArrayRef) -> Result<Placed, TransportError> {
        self.units.write_for(None, target, array).map_err(TransportError::Unit)
    }

    fn reserve(&self, target: Target<'_>, lens: Lens<'_>) -> Result<Room, TransportError> {
        let wanted = Wanted::of(target.column, lens).map_err(misfit)?;
        let reserved = self.units.reserve(Filler::Store, target.column, wanted.layout);
        let Some((unit, mut reserved)) = reserved.map_err(TransportError::Unit)? else {
            // On the heap cells lie wherever they are made.
            return Ok(Room::apart(target, wanted, Block::alone));
        };
        reserved.fill_offsets(&wanted.offsets);
        Ok(Room::new(target, wanted.layout, Place::Here(unit, reserved)))
    }

    fn put_room(&self, target: Target<'_>, room: Room) -> Result<Placed, TransportError> {
        let rows = room.rows();
        match room.place_for(target)? {
            Place::Here(unit, reserved) if self.units.has(&unit) => {
                unit.write_filled(None, target, reserved).map_err(TransportError::Unit)
            }
            Place::Apart { offsets, values } => {
                self.put(target, array(target.column, rows, offsets, values).map_err(misfit)?)
            }
            Place::Here(..) | Place::Near(_) => Err(TransportError::elsewhere(target.column)),
        }
    }

    fn get(&self, pointer: &ColumnRef) -> Result<Vec<View>, TransportError> {
        let views = self.units.read(pointer.partition, pointer.column, &pointer.runs);
        views.map_err(|error| TransportError::of(&pointer.name, error))
    }

    fn open(&self, partition: PartitionId, id: ColumnId) -> OpenCell {
        self.units.open(partition, id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::ChunkId,
        transport::{
            Purpose,
            conformance::{self, Fixture},
        },
        unit::Unit,
    };

    struct InProcess<const UNITS: usize> {
        units: Units,
        transport: Local,
    }

    impl<const UNITS: usize> Fixture for InProcess<UNITS> {
        fn new(capacity: usize) -> Self {
            let units = Units::new(UNITS, capacity, 0);
            Self { transport: Local::new(units.clone()), units }
        }

        fn transport(&self) -> &dyn Transport {
            &self.transport
        }

        fn committed(&self, chunk: ChunkId) {
            self.units.committed(chunk);
        }

        fn free(&self, chunk: ChunkId) {
            self.units.free(chunk);
        }

        fn bytes_held(&self) -> u64 {
            let total = self.units.stats().total();
            total.live + total.lingering + total.unsettled
        }
    }

    conformance::suite!(InProcess<1>);

    /// Units whose bytes lie in shared memory.
    struct InSharedMemory(InProcess<1>);

    impl Fixture for InSharedMemory {
        fn new(capacity: usize) -> Self {
            let units = Units::from(Unit::in_shared_memory(1 << 20, capacity, 0));
            Self(InProcess { transport: Local::new(units.clone()), units })
        }

        fn transport(&self) -> &dyn Transport {
            self.0.transport()
        }

        fn committed(&self, chunk: ChunkId) {
            self.0.committed(chunk);
        }

        fn free(&self, chunk: ChunkId) {
            self.0.free(chunk);
        }

        fn bytes_held(&self) -> u64 {
            self.0.bytes_held()
        }
    }

    mod in_shared_memory {
        use super::*;

        conformance::suite!(InSharedMemory);
    }

    mod several {
        use super::*;

        conformance::suite!(InProcess<3>);
    }

    #[test]
    fn a_get_points_at_the_very_bytes_that_were_put() {
        use std::sync::Arc;

        use crate::{arrow_map, catalog::command::CellRun, ids::*, schema::*};
        let fixture = InProcess::<1>::new(1 << 20);
        let column = Column::new("x", Kind::Dense { dtype: Dtype::F32, shape: vec![] });
        let mut values = arrow::buffer::MutableBuffer::new(0);
        values.extend_from_slice(&[1f32, 2.0, 3.0]);
        let array = arrow_map::dense_array(&column.kind, 3, values.into());
        let address = arrow_map::leaf_bytes(&array).unwrap().as_ptr();
        let target = Target { partition: PartitionId(0), id: ColumnId(0), column: &column, purpose: Purpose::Final };
        let placed = fixture.transport.put(target, Arc::clone(&array)).unwrap();
        let run = CellRun { chunk: placed.chunk, generation: 0, slot: 0, len: 3 };
        let pointer = ColumnRef { name: "x".into(), partition: PartitionId(0), column: ColumnId(0), runs: vec![run] };
        let views = fixture.transport.get(&pointer).unwrap();
        assert_eq!(arrow_map::leaf_bytes(views[0].array()).unwrap().as_ptr(), address);
    }

    #[test]
    fn room_of_this_process_is_where_its_cells_are_read_and_free_again_when_it_is_dropped() {
        use crate::{
            disk,
            schema::*,
            unit::{
                Backing, Mapping,
                arena::{Arena, Memory},
            },
        };
        let dir = tempfile::tempdir().unwrap();
        let files = Backing::Files(Arena::create(disk::machine(), dir.path(), 1 << 20, 0).unwrap());
        let column = Column::new("x", Kind::Dense { dtype: Dtype::U8, shape: vec![] });
        let target = Target { partition: PartitionId(0), id: ColumnId(0), column: &column, purpose: Purpose::Final };
        for backing in [Backing::Memory(Memory::new(1 << 20)), files] {
            let unit = Unit::over(backing, None, 1 << 20, 0, 0);
            let transport = Local::new(unit.clone());
            let mut room = transport.reserve(target, Lens::Equal(5000)).unwrap();
            assert!(room.is_in_place());
            room.values_mut().fill(9);
            let address = room.values_mut().as_ptr();
            let mapping = Mapping::of(room.values_mut()).unwrap();
            let placed = transport.put_room(target, room).unwrap();
            let views = unit.read(
                target.partition,
                target.id,
                &[crate::catalog::command::CellRun {
                    chunk: placed.chunk,
                    generation: 0,
                    slot: placed.slot,
                    len: 5000,
                }],
            );
            let view = views.unwrap().remove(0);
            assert_eq!((view.values(), view.values().as_ptr()), (&[9; 5000][..], address));
            assert!(std::ptr::eq(&*view.mapping().unwrap(), &*mapping) && mapping.is_writable());
            if let Some(before) = unit.memory() {
                drop(transport.reserve(target, Lens::Equal(70_000)).unwrap());
                assert_eq!(unit.memory().unwrap(), before);
            }
            // Nobody else's unit takes it.
            let room = transport.reserve(target, Lens::Equal(1)).unwrap();
            let other = Local::new(Unit::in_shared_memory(1 << 20, 1 << 20, 0));
            let error = other.put_room(target, room).unwrap_err().to_string();
            assert!(error.contains("reserved of another store"), "{error}");
        }
    }

    #[test]
    fn on_the_heap_cells_are_taken_over_from_where_they_were_made() {
        use crate::schema::*;
        let fixture = InProcess::<1>::new(1 << 20);
        let column = Column::new("x", Kind::Dense { dtype: Dtype::U8, shape: vec![] });
        let target = Target { partition: PartitionId(0), id: ColumnId(0), column: &column, purpose: Purpose::Final };
        let mut room = fixture.transport.reserve(target, Lens::Equal(100_000)).unwrap();
        assert!(!room.is_in_place());
        let address = room.values_mut().as_ptr();
        let placed = fixture.transport.put_room(target, room).unwrap();
        let chunk = fixture.units.grant(placed.chunk).unwrap();
        assert_eq!(crate::arrow_map::leaf_bytes(&chunk.pieces()[0].1).unwrap().as_ptr(), address);
    }
}
