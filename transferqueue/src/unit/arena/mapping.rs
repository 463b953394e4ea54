//! Memory that a file backs, shared with whoever maps the file too.
//!
//! A range belongs to the one it was given to until it is filled, and is not written again while anybody may look at it: who
//! gives ranges out sees to that. The file is never shortened.
#![expect(unsafe_code, reason = "reads and writes memory that a file backs")]

use std::{fs::File, io, ptr, ptr::NonNull, slice};

use memmap2::{MmapOptions, MmapRaw};

pub(super) struct Mapping {
    map: MmapRaw,
}

impl Mapping {
    /// The whole of a file. `filled`: its pages are there when this returns, rather than when each is touched.
    pub(super) fn over(file: &File, filled: bool) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        if filled {
            options.populate();
        }
        Ok(Self { map: options.map_raw(file)? })
    }

    /// The whole of a file, to be read alone.
    pub(super) fn read_only(file: &File) -> io::Result<Self> {
        Ok(Self { map: MmapOptions::new().map_raw_read_only(file)? })
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    /// Writes into a range that its caller was given and nobody reads yet.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        let start = self.start(at, bytes.len());
        // SAFETY: the range lies inside the mapping (`start` has checked it), was given to this caller alone, and no slice of
        // it exists before it is complete.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start.as_ptr(), bytes.len()) }
    }

    /// A range that is complete. It does not change as long as its extent is held.
    pub(super) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: `start` checked the range; it was written before its extent was shared, and is not written again.
        unsafe { slice::from_raw_parts(self.start(at, len).as_ptr(), len) }
    }

    /// Where a range begins in memory.
    pub(super) fn start(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(at <= self.len() && len <= self.len() - at, "invariant: inside the mapping");
        // SAFETY: the offset is inside the mapping (checked above).
        let start = unsafe { self.map.as_mut_ptr().add(at) };
        NonNull::new(start).expect("invariant: a mapping does not begin at null")
    }
}
