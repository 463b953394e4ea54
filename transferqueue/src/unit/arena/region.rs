//! A segment as others read it past this process: by its addresses, for as long as they are registered.
#![cfg_attr(feature = "ucx", expect(unsafe_code, reason = "says of memory that others write to that it may be read"))]

use std::sync::Arc;

use super::mapping::Mapping;

/// Keeps a segment's memory mapped, and nothing else of it: the segment may go, and gives its room and its file back as it does.
#[cfg_attr(not(feature = "ucx"), allow(dead_code, reason = "UCX registers segments"))]
pub(crate) struct Region {
    mapping: Arc<Mapping>,
}

#[cfg_attr(not(feature = "ucx"), allow(dead_code, reason = "UCX registers segments"))]
impl Region {
    pub(super) fn over(mapping: &Arc<Mapping>) -> Self {
        Self { mapping: mapping.clone() }
    }
}

// SAFETY: the mapping stays where it is until its last owner drops it, and this is one. Its pages can be read all that time: the
// file is of that length from the start and never shortened (`memory` seals it; `segment`'s is in a folder that this process has
// locked), and a hole in it reads as zeros. Bytes of it change only while they are nobody's to read: they are written through raw
// pointers, here (`Mapping::write`) or by the one process that was given the range, and a reference to a range (`Mapping::bytes`,
// the buffers of `extent`) is made once it is complete; it is not written again as long as that lives. Who reads a range that was
// not granted to it sees any bytes, and has made no reference to them.
#[cfg(feature = "ucx")]
unsafe impl tq_ucx::Region for Region {
    fn range(&self) -> std::ptr::NonNull<[u8]> {
        let len = self.mapping.len();
        std::ptr::NonNull::slice_from_raw_parts(self.mapping.start(0, len), len)
    }
}
