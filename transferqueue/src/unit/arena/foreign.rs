//! A segment of another process, mapped to be read or to be filled.
#![expect(unsafe_code, reason = "buffers over memory that another process has filled")]

use std::{
    any::Any,
    collections::BTreeMap,
    fs::File,
    io,
    panic::RefUnwindSafe,
    sync::{Arc, Mutex, MutexGuard},
};

use arrow::{array::ArrayRef, buffer::Buffer};

use super::{
    extent::{self, Layout},
    mapping::Mapping,
};

/// A segment of another process, to be read.
pub(crate) struct Foreign {
    mapping: Arc<Mapping>,
}

/// A segment of another process that this one fills.
pub(crate) struct Fillable {
    mapping: Arc<Mapping>,
    /// Ranges that are being filled: where each begins, and its bytes.
    lent: Mutex<BTreeMap<usize, usize>>,
}

/// A range that this process fills, and nobody else, as long as this lives.
pub(crate) struct Lent {
    of: Arc<Fillable>,
    at: usize,
    layout: Layout,
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
    pub(crate) fn over(file: &File, bytes: u64) -> io::Result<Arc<Self>> {
        sized(file, bytes)?;
        Ok(Arc::new(Self { mapping: Mapping::over(file, true)?, lent: Mutex::default() }))
    }

    /// The range that was reserved for such cells; `None` when the segment is shorter, or part of it is being filled already.
    pub(crate) fn lend(self: &Arc<Self>, at: u64, layout: Layout) -> Option<Lent> {
        let (at, len) = (usize::try_from(at).ok()?, layout.bytes());
        let end = at.checked_add(len).filter(|end| *end <= self.mapping.len())?;
        let mut lent = self.lent();
        let is_apart = |(other, len): (&usize, &usize)| other + len <= at;
        if !lent.range(..end).next_back().is_none_or(is_apart) {
            return None;
        }
        lent.insert(at, len);
        Some(Lent { of: self.clone(), at, layout })
    }

    fn lent(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.lent.lock().expect("invariant: nothing panics under this lock")
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self, at: u64, len: u64) -> &[u8] {
        self.mapping.bytes(at as usize, len as usize)
    }
}

impl Lent {
    /// Copies the cells in.
    pub(crate) fn fill(&mut self, array: &ArrayRef) {
        assert_eq!(Layout::of(array), self.layout, "invariant: the cells that room was asked for");
        extent::fill(&self.of.mapping, self.at, array);
    }

    /// Writes the offsets of cells whose values are written in place.
    pub(crate) fn fill_offsets(&mut self, offsets: &[u8]) {
        extent::fill_offsets(&self.of.mapping, self.at, self.layout, offsets);
    }

    /// The values' bytes, to be written in place.
    pub(crate) fn values_mut(&mut self) -> &mut [u8] {
        let (at, len) = (self.at + self.layout.values_at(), self.layout.values);
        // SAFETY: the store gave the range to this process, whose `Fillable` has lent it once, to this value; it is borrowed
        // mutably, and the store reads it when it is told that it is filled.
        unsafe { self.of.mapping.bytes_mut(at, len) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.of.lent().remove(&self.at);
    }
}

fn sized(file: &File, bytes: u64) -> io::Result<()> {
    let found = file.metadata()?.len();
    if found == bytes { Ok(()) } else { Err(io::Error::other(format!("a segment of {found} bytes, expected {bytes}"))) }
}
