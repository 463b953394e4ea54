//! Reading: every checksum first, then the state, then the cells.

use std::{
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use arrow::array::ArrayRef;

use super::{
    SnapshotError,
    manifest::{CELLS, FileEntry, MANIFEST, Manifest, STATE},
};
use crate::{
    catalog::State,
    cells_file::{self, Stored, Unreadable},
    ids::{ChunkId, ColumnId, PartitionId},
    ipc,
    schema::Column,
};

/// What a snapshot held.
pub(crate) struct Taken {
    pub(crate) state: State,
    pub(crate) chunks: Vec<Chunk>,
}

/// A chunk's live cells: pieces by first slot.
pub(crate) struct Chunk {
    pub(crate) key: (PartitionId, ColumnId),
    pub(crate) id: ChunkId,
    pub(crate) pieces: Vec<(u32, ArrayRef)>,
}

pub(crate) fn read(dir: &Path) -> Result<Taken, SnapshotError> {
    let manifest = Manifest::load(dir)?;
    for entry in &manifest.files {
        if entry.name != STATE && key(&entry.name).is_none() {
            let (found, expected) =
                (entry.name.clone(), "state.json and cells/p<partition>.c<column>.arrow".to_owned());
            return Err(SnapshotError::Foreign { path: dir.join(MANIFEST), found, expected });
        }
        verify(dir, entry)?;
    }
    let state = state(dir, &manifest)?;
    let mut chunks = Vec::new();
    for entry in manifest.files.iter().filter(|entry| entry.name != STATE) {
        let path = dir.join(&entry.name);
        let foreign = |found: &str, expected: &str| SnapshotError::Foreign {
            path: path.clone(),
            found: found.to_owned(),
            expected: expected.to_owned(),
        };
        let key = key(&entry.name).expect("invariant: names were looked at above");
        let partition = manifest.partitions.iter().find(|partition| partition.id == key.0);
        let column = partition.and_then(|partition| partition.columns.get(usize::from(key.1.0)));
        let column = column.ok_or_else(|| foreign("a column that the manifest does not list", "a listed one"))?;
        cells(&path, key, column, &mut chunks)?;
    }
    Ok(Taken { state, chunks })
}

fn verify(dir: &Path, entry: &FileEntry) -> Result<(), SnapshotError> {
    let path = dir.join(&entry.name);
    // One byte more than there should be tells that there are more.
    let mut file = File::open(&path).map_err(SnapshotError::io(&path, "open"))?.take(entry.bytes.saturating_add(1));
    let (mut crc, mut bytes, mut buffer) = (crc32fast::Hasher::new(), 0, vec![0; 1 << 20]);
    loop {
        let read = file.read(&mut buffer).map_err(SnapshotError::io(&path, "read"))?;
        if read == 0 {
            break;
        }
        crc.update(&buffer[..read]);
        bytes += read as u64;
    }
    let crc = crc.finalize();
    if (bytes, crc) != (entry.bytes, entry.crc32) {
        let found =
            format!("{bytes} bytes with checksum {crc:08x}, expected {} bytes with {:08x}", entry.bytes, entry.crc32);
        return Err(SnapshotError::Damaged { path, found });
    }
    Ok(())
}

fn state(dir: &Path, manifest: &Manifest) -> Result<State, SnapshotError> {
    let path = dir.join(STATE);
    if !manifest.files.iter().any(|entry| entry.name == STATE) {
        let (found, expected) = ("not in the manifest".to_owned(), "an entry with its checksum".to_owned());
        return Err(SnapshotError::Foreign { path, found, expected });
    }
    let file = File::open(&path).map_err(SnapshotError::io(&path, "open"))?;
    let parsed: Result<State, _> = serde_json::from_reader(BufReader::new(file));
    let state = parsed.map_err(|error| SnapshotError::Damaged { path: path.clone(), found: error.to_string() })?;
    let found = (state.incarnation(), state.lineage(), state.seq());
    let expected = (manifest.incarnation, manifest.lineage, manifest.seq);
    if found != expected {
        let say = |(incarnation, lineage, seq)| format!("incarnation {incarnation}, lineage {lineage}, position {seq}");
        return Err(SnapshotError::Foreign { path, found: say(found), expected: say(expected) });
    }
    Ok(state)
}

fn cells(
    path: &Path,
    key: (PartitionId, ColumnId),
    column: &Column,
    chunks: &mut Vec<Chunk>,
) -> Result<(), SnapshotError> {
    let damaged = |found: String| SnapshotError::Damaged { path: path.to_owned(), found };
    let file = File::open(path).map_err(SnapshotError::io(path, "open"))?;
    let bytes = file.metadata().map_err(SnapshotError::io(path, "open"))?.len();
    let file = ipc::File::open(BufReader::new(file), bytes).map_err(|error| damaged(error.to_string()))?;
    let found = cells_file::read(file, column).map_err(|error| match error {
        Unreadable::Damaged(found) => damaged(found),
        Unreadable::Foreign { found, expected } => SnapshotError::Foreign { path: path.to_owned(), found, expected },
    })?;
    chunks.extend(found.into_iter().map(|Stored { id, pieces }| Chunk { key, id, pieces }));
    Ok(())
}

/// Partition and column from `cells/p3.c1.arrow`.
fn key(name: &str) -> Option<(PartitionId, ColumnId)> {
    let stem = name.strip_prefix(CELLS)?.strip_prefix("/p")?.strip_suffix(".arrow")?;
    let (partition, column) = stem.split_once(".c")?;
    Some((PartitionId(partition.parse().ok()?), ColumnId(column.parse().ok()?)))
}
