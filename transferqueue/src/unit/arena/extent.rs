//! A range of a segment that holds the cells of one write.

use std::{fs::File, panic::RefUnwindSafe, sync::Arc};

use arrow::{array::ArrayRef, buffer::Buffer};

use super::mapping::Mapping;
use crate::{
    arrow_map::{self, MapError},
    schema::Column,
};

/// Ranges begin on cache lines, as Arrow wants it.
pub(super) const ALIGN: usize = 64;

/// A segment as its ranges know it.
pub(super) trait Room: Send + Sync + RefUnwindSafe + 'static {
    fn mapping(&self) -> &Mapping;

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

/// Bytes of a range: offsets, then values on a boundary of their own.
pub(super) fn size(offsets: &[u8], values: &[u8]) -> usize {
    offsets.len().next_multiple_of(ALIGN) + values.len()
}

impl<R: Room> Extent<R> {
    /// A range that its caller was given, or that an earlier life has filled.
    pub(super) fn at(room: &Arc<R>, at: usize, len: usize) -> Self {
        Self { room: room.clone(), at, len }
    }

    /// Copies the cells in. Once, by the one who was given the range.
    pub(super) fn fill(&self, offsets: &[u8], values: &[u8]) {
        let (mapping, after) = (self.room.mapping(), offsets.len().next_multiple_of(ALIGN));
        mapping.write(self.at, offsets);
        mapping.write(self.at + offsets.len(), &[0; ALIGN][..after - offsets.len()]);
        mapping.write(self.at + after, values);
    }

    /// Where it begins in its segment.
    pub(super) fn offset(&self) -> u64 {
        self.at as u64
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.room.mapping().bytes(self.at, self.len)
    }

    /// The cells as an array over the mapping; its buffers keep the range.
    pub(super) fn array(
        self: &Arc<Self>,
        column: &Column,
        rows: usize,
        offsets: usize,
        values: usize,
    ) -> Result<ArrayRef, MapError> {
        let (offsets, values) = (self.buffer(0, offsets), self.buffer(offsets.next_multiple_of(ALIGN), values));
        arrow_map::from_buffers(column, rows, offsets, values)
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
