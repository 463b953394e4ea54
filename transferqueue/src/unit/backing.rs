//! Where the bytes of a unit lie.

use arrow::array::ArrayRef;

use super::{
    Key, Writer,
    arena::{
        Arena, ArenaError, Entry, Filled, Filler, Layout, Memory, MemoryStats, Payload, Places, Reserved, StoreError,
    },
};
use crate::{arrow_map, ids::ChunkId, schema::Column};

/// Where the bytes of a unit lie.
pub(crate) enum Backing {
    /// Where whoever put them has allocated them.
    Heap,
    /// In shared memory, in segments that are used again.
    Memory(Memory),
    /// In files that outlive the process.
    Files(Arena),
}

/// Cells where they are to lie.
pub(super) struct Stored {
    pub(super) array: ArrayRef,
    /// In a file, which is to say what they are.
    payload: Option<Payload>,
}

impl Backing {
    /// Brings checked cells to where they are to lie.
    pub(super) fn store(&self, column: &Column, array: &ArrayRef) -> Result<Stored, StoreError> {
        match self {
            Self::Heap => Ok(Stored { array: arrow_map::tight(column, array)?, payload: None }),
            Self::Memory(memory) => Ok(Stored { array: memory.store(column, array)?, payload: None }),
            Self::Files(arena) => {
                let payload = arena.store(column, array)?;
                Ok(Stored { array: payload.array.clone(), payload: Some(payload) })
            }
        }
    }

    /// Room that is filled in place; `None` where there is none such.
    pub(super) fn reserve(
        &self,
        filler: Filler,
        column: &Column,
        layout: Layout,
    ) -> Result<Option<Reserved>, ArenaError> {
        match self {
            Self::Heap => Ok(None),
            Self::Memory(memory) => Reserved::in_memory(memory, filler, layout).map(Some),
            Self::Files(arena) => Reserved::in_files(arena, filler, column, layout).map(Some),
        }
    }

    /// A process will fill no more.
    pub(super) fn leave(&self, filler: Filler) {
        match self {
            Self::Heap => {}
            Self::Memory(memory) => memory.leave(filler),
            Self::Files(arena) => arena.leave(filler),
        }
    }

    pub(super) fn files(&self) -> Option<&Arena> {
        match self {
            Self::Files(arena) => Some(arena),
            Self::Heap | Self::Memory(_) => None,
        }
    }

    /// What other processes of the host can map of it.
    pub(super) fn places(&self) -> Option<&Places> {
        match self {
            Self::Heap => None,
            Self::Memory(memory) => Some(memory.places()),
            Self::Files(arena) => Some(arena.places()),
        }
    }

    pub(super) fn memory(&self) -> Option<MemoryStats> {
        match self {
            Self::Memory(memory) => Some(memory.stats()),
            Self::Heap | Self::Files(_) => None,
        }
    }
}

impl From<Filled> for Stored {
    fn from(filled: Filled) -> Self {
        match filled {
            Filled::Memory(array) => Self { array, payload: None },
            Filled::Files(payload) => Self { array: payload.array.clone(), payload: Some(payload) },
        }
    }
}

impl Stored {
    /// Says beside the bytes what they are, where they outlive the process.
    pub(super) fn note(
        &self,
        (partition, column): Key,
        (chunk, slot): (ChunkId, u32),
        writer: Option<Writer>,
    ) -> Result<(), ArenaError> {
        let entry = |place| Entry { partition, column, chunk, slot, writer, place };
        self.payload.as_ref().map_or(Ok(()), |payload| payload.note(entry))
    }
}
