//! What a store asks of the disk that its log and its arenas lie on, beyond plain files: to append, and to make certain.
//!
//! A simulation brings a disk of its own, which fails when it is told to and knows what a crash of the machine would leave.

use std::{
    fs::File,
    io::{self, Write},
    panic::RefUnwindSafe,
    path::Path,
    sync::Arc,
};

/// Appends to files and brings them to where a crash of the machine does not reach.
pub(crate) trait Disk: Send + Sync + RefUnwindSafe {
    /// Appends all of the bytes in one write, so that a killed process leaves at most one unfinished line.
    fn append(&self, file: &File, _path: &Path, bytes: &[u8]) -> io::Result<()> {
        { file }.write_all(bytes)
    }

    /// Waits until what a file holds survives the machine.
    fn sync(&self, file: &File, _path: &Path) -> io::Result<()> {
        file.sync_data()
    }

    /// Waits until the names of the files in a folder do.
    fn sync_names(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

/// The disk of this machine, as the operating system gives it.
struct Machine;

impl Disk for Machine {}

/// The disk of this machine.
pub(crate) fn machine() -> Arc<dyn Disk> {
    Arc::new(Machine)
}
