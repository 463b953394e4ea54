//! Room that is filled in place: cells are written where they are to lie, and nothing is copied after.
//!
//! Each other process of the host that does so has segments of its own, which it alone may write to. Room that nobody says is
//! filled is free again when [`Reserved`] goes, and what was begun with it.

use std::sync::Arc;

use arrow::array::ArrayRef;

use super::{
    Arena, ArenaError, Memory, Payload, StoreError,
    extent::{Extent, Layout},
    memory,
    places::Backed,
    segment,
};
use crate::{
    arrow_map::{self, MapError},
    schema::Column,
};

/// Who fills a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Filler {
    /// The process that keeps it.
    Store,
    /// Another one of the host, by the number the store gave it.
    Process(u64),
    /// The one that did has gone.
    Nobody,
}

/// Room for the cells of one put.
pub(crate) struct Reserved {
    room: Room,
    layout: Layout,
}

enum Room {
    Memory(Arc<Extent<memory::Segment>>),
    Files(Arc<Extent<segment::Segment>>),
}

/// Cells that were filled in place.
pub(crate) enum Filled {
    Memory(ArrayRef),
    Files(Payload),
}

impl Reserved {
    pub(crate) fn in_memory(memory: &Memory, filler: Filler, layout: Layout) -> Result<Self, ArenaError> {
        let room = Room::Memory(Arc::new(memory.reserve(filler, layout.bytes())?));
        Ok(Self { room, layout })
    }

    pub(crate) fn in_files(arena: &Arena, filler: Filler, column: &Column, layout: Layout) -> Result<Self, ArenaError> {
        let room = Room::Files(Arc::new(arena.reserve(filler, column, layout.bytes())?));
        Ok(Self { room, layout })
    }

    /// Where it lies.
    pub(crate) fn backed(&self) -> Backed {
        match &self.room {
            Room::Memory(extent) => extent.backed(),
            Room::Files(extent) => extent.backed(),
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Writes the offsets, for whoever fills the values in this process.
    pub(crate) fn fill_offsets(&mut self, offsets: &[u8]) {
        let layout = self.layout;
        match &mut self.room {
            Room::Memory(extent) => own(extent).fill_offsets(layout, offsets),
            Room::Files(extent) => own(extent).fill_offsets(layout, offsets),
        }
    }

    /// The values' bytes, to be written in this process.
    pub(crate) fn values_mut(&mut self) -> &mut [u8] {
        let layout = self.layout;
        match &mut self.room {
            Room::Memory(extent) => own(extent).values_mut(layout),
            Room::Files(extent) => own(extent).values_mut(layout),
        }
    }

    /// The cells, once they are written. What another process says of them is not believed: they are looked at as if they had
    /// come over the network.
    ///
    /// # Errors
    /// [`MapError`] when they are not cells of the column as they were announced.
    pub(crate) fn filled(self, column: &Column) -> Result<Filled, StoreError> {
        let filled = match self.room {
            Room::Memory(extent) => Filled::Memory(extent.array(column, self.layout)?),
            Room::Files(extent) => Filled::Files(Payload::over(extent, column, self.layout)?),
        };
        let array = filled.array();
        arrow_map::check(column, array)?;
        if Layout::of(array) != self.layout || !arrow_map::is_plain(column, array) {
            let what = format!("its bytes are not those of {} cells", self.layout.rows);
            return Err(MapError::Value { column: column.name.clone(), kind: column.kind.clone(), what }.into());
        }
        Ok(filled)
    }
}

/// A range that no array has been made of.
fn own<T>(extent: &mut Arc<T>) -> &mut T {
    Arc::get_mut(extent).expect("invariant: a range is shared once it is filled, and not before")
}

impl Filled {
    pub(crate) fn array(&self) -> &ArrayRef {
        match self {
            Self::Memory(array) => array,
            Self::Files(payload) => &payload.array,
        }
    }
}
