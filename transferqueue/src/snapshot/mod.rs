//! A snapshot: one position of the catalog with every live, sealed cell.
//!
//! ```text
//! manifest.json           format, incarnation, lineage, seq, schema, checksum of every other file
//! state.json              the catalog's state
//! cells/p0.c2.arrow       an Arrow file for each column with live cells: columns `chunk`, `slot`, and the cells
//! ```
//!
//! It is made in two steps: [`Captured`] takes the position and holds the chunks (cheap, under the catalog's lock, possible
//! inside a publication hook); writing it takes as long as it takes while work goes on. Only live cells are
//! written. The folder appears under its name when all of it is on disk, or not at all.

mod manifest;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use arrow::error::ArrowError;

pub use manifest::{FileEntry, Manifest, PartitionEntry};
pub(crate) use read::{Chunk, read};

use crate::{
    catalog::State,
    cells_file::Live,
    ids::{ChunkId, ColumnId, PartitionId},
    unit::Units,
};

/// Why a snapshot cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum SnapshotError {
    /// The file system refused.
    #[error("snapshot {}: cannot {what}: {error}", .path.display())]
    Io { path: PathBuf, what: &'static str, error: io::Error },
    /// Something is there already.
    #[error("snapshot {}: already exists; choose another folder", .path.display())]
    Exists { path: PathBuf },
    /// A file is not what was written.
    #[error("snapshot file {} is damaged: {found}; take an older snapshot", .path.display())]
    Damaged { path: PathBuf, found: String },
    /// A file is whole but belongs to something else.
    #[error("snapshot file {} is foreign: {found}, expected {expected}", .path.display())]
    Foreign { path: PathBuf, found: String, expected: String },
    /// Arrow refused to write.
    #[error("snapshot file {}: {error}", .path.display())]
    Arrow { path: PathBuf, error: ArrowError },
}

impl SnapshotError {
    fn io(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { path, what, error }
    }
}

/// One position of the catalog, with holds on the chunks of its live cells.
pub struct Captured {
    state: State,
    /// By column, then by chunk: the live slots and the hold.
    columns: BTreeMap<(PartitionId, ColumnId), BTreeMap<ChunkId, Live>>,
}

impl Captured {
    /// Takes a position. Under the catalog's lock: every live chunk is in the unit then.
    pub(crate) fn take(state: &State, units: &Units) -> Self {
        let mut columns: BTreeMap<_, BTreeMap<ChunkId, Live>> = BTreeMap::new();
        for run in state.live_cells() {
            let chunks = columns.entry((run.partition, run.column)).or_default();
            let live = chunks.entry(run.chunk).or_insert_with(|| Live {
                grant: units.grant(run.chunk).expect("invariant: a chunk with live cells is held by the catalog"),
                slots: Vec::new(),
            });
            live.slots.push((run.slot, run.len));
        }
        columns.values_mut().flat_map(BTreeMap::values_mut).for_each(|live| live.slots.sort_unstable());
        Self { state: state.clone(), columns }
    }

    /// The catalog's state at this position.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Writes it to a folder that does not exist yet, and waits until it is on disk.
    ///
    /// # Errors
    /// [`SnapshotError::Exists`], [`SnapshotError::Io`], [`SnapshotError::Arrow`]; nothing is left under that name then.
    pub fn write(self, dir: &Path) -> Result<Manifest, SnapshotError> {
        write::write(&self, dir)
    }
}

/// The newest complete snapshot among the sub-folders of `folder`; `None` when there is none (or no such folder).
/// Unfinished ones are no snapshots; whether a complete one is damaged shows when it is read.
///
/// # Errors
/// [`SnapshotError::Io`] when the folder cannot be listed.
pub fn latest(folder: &Path) -> Result<Option<PathBuf>, SnapshotError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(SnapshotError::io(folder, "list the folder")(error)),
    };
    let mut newest = None;
    for entry in entries {
        let path = entry.map_err(SnapshotError::io(folder, "list the folder"))?.path();
        let unfinished = path.extension().is_some_and(|extension| extension == write::UNFINISHED);
        if let (false, Ok(manifest)) = (unfinished, Manifest::load(&path)) {
            newest = newest.max(Some(((manifest.lineage, manifest.seq), path)));
        }
    }
    Ok(newest.map(|(_, path)| path))
}
