//! A segment of another process, mapped to be read.
#![expect(unsafe_code, reason = "buffers over memory that another process has filled")]

use std::{any::Any, fs::File, io, panic::RefUnwindSafe, sync::Arc};

use arrow::buffer::Buffer;

use super::mapping::Mapping;

/// A segment of another process.
pub(crate) struct Foreign {
    mapping: Mapping,
}

/// Keeps the mapping, and what says to the other process that a range of it is being read.
struct Owner {
    mapped: Arc<Foreign>,
    _grant: Arc<dyn Any + Send + Sync + RefUnwindSafe>,
}

impl Foreign {
    /// Maps a segment of so many bytes.
    ///
    /// # Errors
    /// What the system says; when the file is shorter.
    pub(crate) fn over(file: &File, bytes: u64) -> io::Result<Arc<Self>> {
        let found = file.metadata()?.len();
        if found != bytes {
            return Err(io::Error::other(format!("a segment of {found} bytes, expected {bytes}")));
        }
        Ok(Arc::new(Self { mapping: Mapping::read_only(file)? }))
    }

    /// A range as a buffer, which keeps `grant` as long as it lives; `None` when the segment is shorter.
    pub(crate) fn buffer(
        self: &Arc<Self>,
        at: u64,
        len: u64,
        grant: &Arc<impl Any + Send + Sync + RefUnwindSafe>,
    ) -> Option<Buffer> {
        let (at, len) = (usize::try_from(at).ok()?, usize::try_from(len).ok()?);
        at.checked_add(len).filter(|end| *end <= self.mapping.len())?;
        let owner = Arc::new(Owner { mapped: self.clone(), _grant: grant.clone() });
        let start = owner.mapped.mapping.start(at, len);
        // SAFETY: the range lies inside the mapping (`start` has checked it), which the owner keeps. The store does not write
        // to a range again while a reader is granted it, and its segments never become shorter.
        Some(unsafe { Buffer::from_custom_allocation(start, len, owner) })
    }
}
