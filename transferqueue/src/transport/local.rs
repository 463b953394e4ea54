//! Same process: a put hands the array over, a get hands out views; no byte is copied.

use arrow::array::ArrayRef;

use super::{Placed, Target, Transport, TransportError, View};
use crate::{
    catalog::command::ColumnRef,
    ids::{ColumnId, PartitionId},
    unit::{OpenCell, Units},
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
}
