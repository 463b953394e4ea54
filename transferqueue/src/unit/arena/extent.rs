//! One payload: a range of a segment that holds the cells of one write.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arrow::{array::ArrayRef, buffer::Buffer};

use super::{
    ArenaError,
    index::{Entry, Place},
    segment::{ALIGN, Segment},
};
use crate::{
    arrow_map::{self, MapError},
    schema::Column,
};

/// A range of a segment. Arrays over it share it; when the last is gone, the range is free.
pub(super) struct Extent {
    segment: Arc<Segment>,
    at: usize,
    len: usize,
    closing: Arc<AtomicBool>,
}

/// Cells in a segment.
pub(crate) struct Payload {
    pub(crate) array: ArrayRef,
    pub(super) extent: Arc<Extent>,
    pub(super) place: Place,
}

impl Payload {
    /// Writes down what the payload is.
    ///
    /// # Errors
    /// [`ArenaError::Io`].
    pub(crate) fn note(&self, entry: impl FnOnce(Place) -> Entry) -> Result<(), ArenaError> {
        self.extent.segment.note(&entry(self.place))
    }
}

/// Bytes of a payload: offsets, then values on a boundary of their own.
pub(super) fn size(offsets: &[u8], values: &[u8]) -> usize {
    offsets.len().next_multiple_of(ALIGN) + values.len()
}

impl Extent {
    /// A range that its caller has just taken.
    pub(super) fn at(segment: &Arc<Segment>, at: usize, len: usize, closing: Arc<AtomicBool>) -> Self {
        Self { segment: segment.clone(), at, len, closing }
    }

    /// A range that an earlier life has filled.
    pub(super) fn new(segment: &Arc<Segment>, place: &Place, closing: Arc<AtomicBool>) -> Result<Self, ArenaError> {
        let narrow = |number: u64| {
            usize::try_from(number).map_err(|_| ArenaError::Damaged {
                path: segment.path().to_owned(),
                found: format!("a payload at {number}"),
            })
        };
        Ok(Self::at(segment, narrow(place.at)?, narrow(place.bytes())?, closing))
    }

    /// Copies the cells in. Once, by the one who reserved the range.
    pub(super) fn fill(&self, rows: usize, offsets: &[u8], values: &[u8]) -> Place {
        let after = offsets.len().next_multiple_of(ALIGN);
        self.segment.write(self.at, offsets);
        self.segment.write(self.at + offsets.len(), &[0; ALIGN][..after - offsets.len()]);
        self.segment.write(self.at + after, values);
        Place {
            at: self.at as u64,
            rows: rows as u32,
            offsets: offsets.len() as u64,
            values: values.len() as u64,
            crc32: crc32fast::hash(self.bytes()),
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.segment.path()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.segment.bytes(self.at, self.len)
    }

    /// The cells as an array over the mapping; its buffers keep the range.
    pub(super) fn array(self: &Arc<Self>, column: &Column, place: &Place) -> Result<ArrayRef, MapError> {
        let offsets = self.buffer(0, place.offsets as usize);
        let values = self.buffer((place.offsets as usize).next_multiple_of(ALIGN), place.values as usize);
        arrow_map::from_buffers(column, place.rows as usize, offsets, values)
    }

    #[expect(unsafe_code, reason = "a buffer over memory that the range owns")]
    fn buffer(self: &Arc<Self>, from: usize, len: usize) -> Buffer {
        let start = self.segment.start(self.at + from, len);
        // SAFETY: `start` checked the range; the owner keeps the mapping, and nobody writes to the range any more.
        unsafe { Buffer::from_custom_allocation(start, len, self.clone()) }
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        if !self.closing.load(Ordering::Acquire) {
            self.segment.release(self.at, self.len);
        }
    }
}
