//! A range of a segment that holds the cells of one write.

use std::{fs::File, panic::RefUnwindSafe, sync::Arc};

use arrow::{array::ArrayRef, buffer::Buffer};

use super::{
    mapping::Mapping,
    places::{Backed, Farewells},
};
use crate::{
    arrow_map::{self, MapError},
    schema::Column,
};

/// How the cells of one write lie in their range: offsets, then values on a boundary of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Number of cells.
    pub(crate) rows: usize,
    /// Bytes of offsets; 0 for dense columns.
    pub(crate) offsets: usize,
    /// Bytes of values.
    pub(crate) values: usize,
}

impl Layout {
    /// Of an array whose bytes are its own cells and no others ([`arrow_map::plain`]).
    pub(crate) fn of(array: &ArrayRef) -> Self {
        let [offsets, values] = parts(array).map(<[u8]>::len);
        Self { rows: array.len(), offsets, values }
    }

    /// Bytes of all of it.
    pub(crate) fn bytes(&self) -> usize {
        self.values_at().saturating_add(self.values)
    }

    /// Where the values begin.
    pub(super) fn values_at(&self) -> usize {
        self.offsets.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX)
    }
}

/// Offsets and values of an array.
fn parts(array: &ArrayRef) -> [&[u8]; 2] {
    [arrow_map::offset_bytes(array), arrow_map::leaf_bytes(array).unwrap_or_default()]
}

/// Copies the cells of an array to where they are to lie. Once, by the one who was given the range.
pub(super) fn fill(mapping: &Mapping, at: usize, array: &ArrayRef) {
    let (layout, [offsets, values]) = (Layout::of(array), parts(array));
    fill_offsets(mapping, at, layout, offsets);
    mapping.write(at + layout.values_at(), values);
}

/// Writes all but the values of cells, likewise.
pub(super) fn fill_offsets(mapping: &Mapping, at: usize, layout: Layout, offsets: &[u8]) {
    mapping.write(at, offsets);
    mapping.write(at + layout.offsets, &[0; ALIGN][..layout.values_at() - layout.offsets]);
}

/// Ranges begin on cache lines, as Arrow wants it.
pub(super) const ALIGN: usize = 64;

/// A segment as its ranges know it.
pub(super) trait Room: Send + Sync + RefUnwindSafe + 'static {
    fn mapping(&self) -> &Arc<Mapping>;

    /// Who is to be told when the segment goes.
    fn farewells(&self) -> &Farewells;

    /// What backs the mapping.
    fn file(&self) -> &File;

    /// Tells the segment from every other one of this process.
    fn id(&self) -> u64;

    /// A range is nobody's any more.
    fn release(&self, at: usize, len: usize);
}

/// A range of a segment. Arrays over it share it; when the last is gone, the range is free.
pub(super) struct Extent<R: Room> {
    pub(super) room: Arc<R>,
    at: usize,
    len: usize,
}

impl<R: Room> Extent<R> {
    /// A range that its caller was given, or that an earlier life has filled.
    pub(super) fn at(room: &Arc<R>, at: usize, len: usize) -> Self {
        Self { room: room.clone(), at, len }
    }

    /// Copies the cells in.
    pub(super) fn fill(&self, array: &ArrayRef) {
        fill(self.room.mapping(), self.at, array);
    }

    /// Writes the offsets of cells whose values are written in place.
    pub(super) fn fill_offsets(&mut self, layout: Layout, offsets: &[u8]) {
        fill_offsets(self.room.mapping(), self.at, layout, offsets);
    }

    /// The values' bytes, to be written in place.
    #[expect(unsafe_code, reason = "memory that the range owns")]
    pub(super) fn values_mut(&mut self, layout: Layout) -> &mut [u8] {
        // SAFETY: the range is this extent's alone, which is borrowed mutably: nothing reads it before it is shared.
        unsafe { self.room.mapping().bytes_mut(self.at + layout.values_at(), layout.values) }
    }

    /// Its segment, and where it begins there.
    pub(super) fn backed(&self) -> Backed {
        Backed::new(self.room.clone(), self.at)
    }

    /// Where it begins in its segment.
    pub(super) fn offset(&self) -> u64 {
        self.at as u64
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.room.mapping().bytes(self.at, self.len)
    }

    /// The cells as an array over the mapping; its buffers keep the range.
    pub(super) fn array(self: &Arc<Self>, column: &Column, layout: Layout) -> Result<ArrayRef, MapError> {
        let (offsets, values) = (self.buffer(0, layout.offsets), self.buffer(layout.values_at(), layout.values));
        arrow_map::from_buffers(column, layout.rows, offsets, values)
    }

    #[expect(unsafe_code, reason = "a buffer over memory that the range owns")]
    fn buffer(self: &Arc<Self>, from: usize, len: usize) -> Buffer {
        let start = self.room.mapping().start(self.at + from, len);
        // SAFETY: `start` checked the range; the owner keeps the mapping, and nobody writes to the range any more.
        unsafe { Buffer::from_custom_allocation(start, len, self.clone()) }
    }
}

impl<R: Room> Drop for Extent<R> {
    fn drop(&mut self) {
        self.room.release(self.at, self.len);
    }
}
