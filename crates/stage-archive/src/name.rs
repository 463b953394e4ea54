//! Which file holds which batch, and which files go when a run goes back.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use crate::ArchiveError;

/// Begins the names of files that are being written.
pub(crate) const DRAFT: &str = ".writing-";

/// A cut batch of a partition; its file is `cycle_000012.mini_0003.parquet`. Ordered as batches are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchName {
    /// The cycle (of a partition with `every`: the version that its round belongs to).
    pub cycle: u64,
    /// Index of the batch within it.
    pub index: u64,
}

impl BatchName {
    /// Reads a file's name; `None`: it is no batch's.
    pub fn parse(file: &str) -> Option<Self> {
        let (cycle, index) = file.strip_prefix("cycle_")?.strip_suffix(".parquet")?.split_once(".mini_")?;
        let name = Self { cycle: cycle.parse().ok()?, index: index.parse().ok()? };
        (name.to_string() == file).then_some(name)
    }
}

impl fmt::Display for BatchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cycle_{:06}.mini_{:04}.parquet", self.cycle, self.index)
    }
}

/// The batches of one partition's folder, in the order in which they were cut.
///
/// # Errors
/// When the folder cannot be read.
pub fn list(folder: &Path) -> Result<Vec<(BatchName, PathBuf)>, ArchiveError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(ArchiveError::io(folder, "list it"))? {
        let path = entry.map_err(ArchiveError::io(folder, "list it"))?.path();
        if let Some(name) = path.file_name().and_then(|name| name.to_str()).and_then(BatchName::parse) {
            files.push((name, path));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Takes back what a run archived beyond its first `cycles` cycles, in all partitions, and what was being written when a
/// process was killed. Without an archive there is nothing to do.
///
/// # Errors
/// When a file cannot be deleted.
pub fn rollback(archive: &Path, cycles: u64, workers_live: bool) -> Result<(), ArchiveError> {
    let partitions = match fs::read_dir(archive) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(ArchiveError::io(archive, "list it"))?,
    };
    for partition in partitions {
        let folder = partition.map_err(ArchiveError::io(archive, "list it"))?.path();
        if !folder.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&folder).map_err(ArchiveError::io(&folder, "list it"))? {
            let path = entry.map_err(ArchiveError::io(&folder, "list it"))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            // A draft may be a living worker's: it is renamed when it is whole, or goes with what wrote it.
            let stale = name.starts_with(DRAFT) && !workers_live;
            if stale || BatchName::parse(name).is_some_and(|batch| batch.cycle >= cycles) {
                fs::remove_file(&path).map_err(ArchiveError::io(&path, "delete it"))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_as_it_is_written_and_others_are_no_batches() {
        for (cycle, index) in [(0, 0), (12, 3), (1_234_567, 12_345)] {
            let name = BatchName { cycle, index };
            assert_eq!(BatchName::parse(&name.to_string()), Some(name));
        }
        assert_eq!(BatchName { cycle: 12, index: 3 }.to_string(), "cycle_000012.mini_0003.parquet");
        for other in
            ["cycle_12.mini_3.parquet", "cycle_000012.parquet", "notes.txt", ".writing-a", "cycle_000012.mini_0003"]
        {
            assert_eq!(BatchName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn going_back_deletes_later_cycles_and_drafts_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let samples = folder.path().join("samples");
        fs::create_dir(&samples).unwrap();
        let batches = [(0, 0), (1, 0), (1, 1), (2, 0), (10, 0)].map(|(cycle, index)| BatchName { cycle, index });
        for batch in batches {
            fs::write(samples.join(batch.to_string()), "").unwrap();
        }
        for other in [".writing-xyz", "notes.txt"] {
            fs::write(samples.join(other), "").unwrap();
        }
        rollback(folder.path(), 2, true).unwrap();
        assert!(samples.join(".writing-xyz").exists(), "somebody is writing it");
        rollback(folder.path(), 2, false).unwrap();
        let left: Vec<BatchName> = list(&samples).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(left, batches[..3]);
        assert!(samples.join("notes.txt").exists() && !samples.join(".writing-xyz").exists());
        rollback(&folder.path().join("nothing"), 0, false).expect("a run without archive");
    }
}
