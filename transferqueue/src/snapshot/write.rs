//! Writing: to a folder beside the final one, flushed, then renamed.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use arrow::error::ArrowError;

use super::{
    Captured, SnapshotError,
    manifest::{CELLS, FileEntry, MANIFEST, Manifest, PartitionEntry, STATE},
};
use crate::cells_file::{self, Summed};

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
    let mut files = vec![draft.file(STATE, |out| serde_json::to_writer(out, state).map_err(Into::into))?];
    for (&(partition, id), chunks) in &captured.columns {
        let found = partitions.iter().find(|entry| entry.id == partition);
        let column = found.and_then(|entry| entry.columns.get(usize::from(id.0)));
        let column = column.expect("invariant: live cells belong to a column of a live partition");
        fail::fail_point!("snapshot::writing");
        let name = format!("{CELLS}/p{partition}.c{id}.arrow");
        files.push(draft.file(&name, |out| Ok(cells_file::write(out, column, chunks.iter())?))?);
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
    draft.file(MANIFEST, |out| serde_json::to_writer_pretty(out, &manifest).map_err(Into::into))?;
    draft.finish(dir)?;
    Ok(manifest)
}

/// A folder that becomes a snapshot when it is finished and vanishes otherwise.
struct Draft {
    dir: PathBuf,
    finished: std::cell::Cell<bool>,
}

/// Writing fails in one of three ways; the file's name is added where it is known.
enum WriteError {
    Io(std::io::Error),
    Arrow(ArrowError),
}

impl From<serde_json::Error> for WriteError {
    fn from(error: serde_json::Error) -> Self {
        Self::Io(error.into())
    }
}

impl From<ArrowError> for WriteError {
    fn from(error: ArrowError) -> Self {
        Self::Arrow(error)
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
        fill: impl FnOnce(&mut dyn Write) -> Result<(), WriteError>,
    ) -> Result<FileEntry, SnapshotError> {
        let path = self.dir.join(name);
        let io = |what| SnapshotError::io(&path, what);
        let file = File::create(&path).map_err(io("create"))?;
        let mut out = Summed::new(BufWriter::with_capacity(1 << 20, file));
        fill(&mut out).map_err(|error| match error {
            WriteError::Io(error) => io("write")(error),
            WriteError::Arrow(error) => SnapshotError::Arrow { path: path.clone(), error },
        })?;
        out.flush().map_err(io("write"))?;
        out.inner.get_ref().sync_all().map_err(io("flush"))?;
        let (bytes, crc32) = out.sum();
        Ok(FileEntry { name: name.to_owned(), bytes, crc32 })
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
