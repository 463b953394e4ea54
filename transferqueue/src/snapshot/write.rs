//! Writing: to a folder beside the final one, flushed, then renamed.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::{
    array::{Array, ArrayRef, RecordBatch, UInt32Array, UInt64Array},
    datatypes::{DataType, Field, Schema},
    ipc::writer::FileWriter,
};

use super::{
    Captured, Live, SnapshotError,
    manifest::{CELLS, FileEntry, MANIFEST, Manifest, PartitionEntry, STATE},
};
use crate::{arrow_map, ids::ChunkId, schema::Column};

/// Extension of a folder that is being written.
pub(super) const UNFINISHED: &str = "unfinished";

pub(super) fn write(captured: &Captured, dir: &Path) -> Result<Manifest, SnapshotError> {
    if dir.exists() {
        return Err(SnapshotError::Exists { path: dir.to_owned() });
    }
    let draft = Draft::begin(dir)?;
    let state = &captured.state;
    let partitions: Vec<PartitionEntry> = state
        .partitions()
        .into_iter()
        .filter_map(|view| {
            let columns = state.describe(view.id).ok()?.columns;
            Some(PartitionEntry { id: view.id, name: view.name, columns })
        })
        .collect();
    let mut files = vec![draft.file(STATE, |out, _| serde_json::to_writer(out, state).map_err(Into::into))?];
    for (&(partition, id), chunks) in &captured.columns {
        let found = partitions.iter().find(|entry| entry.id == partition);
        let column = found.and_then(|entry| entry.columns.get(usize::from(id.0)));
        let column = column.expect("invariant: live cells belong to a column of a live partition");
        fail::fail_point!("snapshot::writing");
        let name = format!("{CELLS}/p{partition}.c{id}.arrow");
        files.push(draft.file(&name, |out, path| cells(out, path, column, chunks.iter()))?);
    }
    let manifest = Manifest {
        format: Manifest::FORMAT.to_owned(),
        incarnation: state.incarnation(),
        lineage: state.lineage(),
        seq: state.seq(),
        version: state.version(),
        partitions,
        files,
    };
    draft.file(MANIFEST, |out, _| serde_json::to_writer_pretty(out, &manifest).map_err(Into::into))?;
    draft.finish(dir)?;
    Ok(manifest)
}

/// The live cells of one column, one record batch a chunk: chunks are freed one by one after a restore, and each batch is
/// read into memory of its own.
fn cells<'a>(
    out: &mut dyn Write,
    path: &Path,
    column: &Column,
    chunks: impl Iterator<Item = (&'a ChunkId, &'a Live)>,
) -> Result<(), WriteError> {
    let arrow = |error| SnapshotError::Arrow { path: path.to_owned(), error };
    let field = arrow_map::field(column).expect("invariant: the schema was mapped when the column was written");
    let fields = vec![Field::new("chunk", DataType::UInt64, false), Field::new("slot", DataType::UInt32, false), field];
    let schema = Arc::new(Schema::new(fields));
    let mut writer = FileWriter::try_new(out, &schema).map_err(arrow)?;
    for (chunk, live) in chunks {
        let array = live_cells(column, live);
        let slots: UInt32Array = live.slots.iter().flat_map(|&(first, len)| first..first + len).collect();
        let ids = UInt64Array::from(vec![chunk.0; slots.len()]);
        let columns: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(slots), array];
        writer.write(&RecordBatch::try_new(schema.clone(), columns).map_err(arrow)?).map_err(arrow)?;
    }
    writer.finish().map_err(arrow)?;
    Ok(())
}

/// The live cells of a chunk in one array: its only piece as it is, or a copy of what lives, of one chunk at a time.
fn live_cells(column: &Column, live: &Live) -> ArrayRef {
    let pieces = live.grant.pieces();
    if let ([(0, piece)], [(0, len)]) = (pieces.as_slice(), live.slots.as_slice())
        && piece.len() == *len as usize
    {
        return piece.clone();
    }
    let mut slices = Vec::new();
    for &(first, len) in &live.slots {
        let (mut at, end) = (first, first + len);
        let mut index = pieces.partition_point(|(start, _)| *start <= at).saturating_sub(1);
        while at < end {
            let (start, piece) = &pieces[index];
            let take = end.min(start + piece.len() as u32) - at;
            slices.push(piece.slice((at - start) as usize, take as usize));
            at += take;
            index += 1;
        }
    }
    arrow_map::copy(column, &slices).expect("invariant: the cells of one chunk fit one array")
}

/// A folder that becomes a snapshot when it is finished and vanishes otherwise.
struct Draft {
    dir: PathBuf,
    finished: std::cell::Cell<bool>,
}

/// Writing fails in one of three ways; the file's name is added where it is known.
enum WriteError {
    Io(std::io::Error),
    Snapshot(SnapshotError),
}

impl From<serde_json::Error> for WriteError {
    fn from(error: serde_json::Error) -> Self {
        Self::Io(error.into())
    }
}

impl From<SnapshotError> for WriteError {
    fn from(error: SnapshotError) -> Self {
        Self::Snapshot(error)
    }
}

impl Draft {
    fn begin(target: &Path) -> Result<Self, SnapshotError> {
        let mut name: OsString = target.as_os_str().to_owned();
        name.push(format!(".{}.{UNFINISHED}", std::process::id()));
        let dir = PathBuf::from(name);
        fs::create_dir_all(dir.join(CELLS)).map_err(SnapshotError::io(&dir, "make the folder"))?;
        Ok(Self { dir, finished: false.into() })
    }

    fn file(
        &self,
        name: &str,
        fill: impl FnOnce(&mut dyn Write, &Path) -> Result<(), WriteError>,
    ) -> Result<FileEntry, SnapshotError> {
        let path = self.dir.join(name);
        let io = |what| SnapshotError::io(&path, what);
        let file = File::create(&path).map_err(io("create"))?;
        let mut out =
            Summed { inner: BufWriter::with_capacity(1 << 20, file), crc: crc32fast::Hasher::new(), bytes: 0 };
        fill(&mut out, &path).map_err(|error| match error {
            WriteError::Io(error) => io("write")(error),
            WriteError::Snapshot(error) => error,
        })?;
        out.flush().map_err(io("write"))?;
        out.inner.get_ref().sync_all().map_err(io("flush"))?;
        Ok(FileEntry { name: name.to_owned(), bytes: out.bytes, crc32: out.crc.finalize() })
    }

    fn finish(&self, target: &Path) -> Result<(), SnapshotError> {
        sync_dir(&self.dir.join(CELLS))?;
        sync_dir(&self.dir)?;
        fs::rename(&self.dir, target).map_err(SnapshotError::io(target, "rename the finished folder"))?;
        self.finished.set(true);
        match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
            _ => sync_dir(Path::new(".")),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.finished.get() {
            drop(fs::remove_dir_all(&self.dir));
        }
    }
}

fn sync_dir(dir: &Path) -> Result<(), SnapshotError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(SnapshotError::io(dir, "flush the folder"))
}

/// Counts and sums what passes.
struct Summed {
    inner: BufWriter<File>,
    crc: crc32fast::Hasher,
    bytes: u64,
}

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.crc.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}
