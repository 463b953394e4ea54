//! A segment of another process, mapped to be read or to be filled.
#![expect(unsafe_code, reason = "buffers over memory that another process has filled")]

use std::{any::Any, fs::File, io, panic::RefUnwindSafe, sync::Arc};

use arrow::{array::ArrayRef, buffer::Buffer};

use super::{
    extent::{self, Layout},
    mapping::Mapping,
};

/// A segment of another process, to be read.
pub(crate) struct Foreign {
    mapping: Mapping,
}

/// A segment of another process that this one fills.
pub(crate) struct Fillable {
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
        sized(file, bytes)?;
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

impl Fillable {
    /// Maps a segment of so many bytes.
    ///
    /// # Errors
    /// As [`Foreign::over`].
    pub(crate) fn over(file: &File, bytes: u64) -> io::Result<Self> {
        sized(file, bytes)?;
        Ok(Self { mapping: Mapping::over(file, true)? })
    }

    /// Copies cells to the range that was reserved for them; `None` when the segment is shorter.
    pub(crate) fn fill(&self, at: u64, array: &ArrayRef) -> Option<()> {
        let (at, len) = (usize::try_from(at).ok()?, Layout::of(array).bytes());
        at.checked_add(len).filter(|end| *end <= self.mapping.len())?;
        extent::fill(&self.mapping, at, array);
        Some(())
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self, at: u64, len: u64) -> &[u8] {
        self.mapping.bytes(at as usize, len as usize)
    }
}

fn sized(file: &File, bytes: u64) -> io::Result<()> {
    let found = file.metadata()?.len();
    if found == bytes { Ok(()) } else { Err(io::Error::other(format!("a segment of {found} bytes, expected {bytes}"))) }
}
