//! A whole file, mapped to be read.
#![expect(unsafe_code, reason = "reads memory that a file backs")]

use std::{fs::File, io, path::Path};

use bytes::Bytes;
use memmap2::Mmap;

/// The bytes of a file that is written to its end, and that nobody changes or shortens while it is mapped.
///
/// # Errors
/// What the file system says.
pub(in crate::unit) fn mapped(path: &Path) -> io::Result<Bytes> {
    let file = File::open(path)?;
    // SAFETY: the file is the store's own, in a folder that it holds the lock of; it is written once, before it is mapped, and
    // deleted as a whole, which leaves the mapping as it is.
    let map = unsafe { Mmap::map(&file) }?;
    Ok(Bytes::from_owner(map))
}
