//! The disk of a story: a folder in memory, where writes fail when they are told to, and which knows what would be left
//! of its files if the machine went down now.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use tempfile::TempDir;

use super::random::Random;
use crate::disk::Disk;

const PAGE: usize = 4096;

/// What goes wrong from now on, until it is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The next record stops after so many bytes: the disk is full.
    Full(usize),
    /// So does the next line of an arena's index.
    Arena(usize),
    /// Nothing is flushed.
    Flush,
}

#[derive(Default)]
struct Platter {
    /// Every byte of the log, over all of its segments.
    log: Vec<u8>,
    /// Where each segment begins in there.
    segments: Vec<(PathBuf, usize)>,
    /// Files that grow, with how much of them a crash of the machine leaves for certain.
    grown: BTreeMap<PathBuf, u64>,
    /// Files that are written anywhere, as they were when they were flushed.
    filled: BTreeMap<PathBuf, Vec<u8>>,
    /// Names that are there after a crash for certain.
    named: BTreeSet<PathBuf>,
    fault: Option<Fault>,
}

/// A handle to it; clones share the disk.
#[derive(Clone)]
pub(super) struct Drive {
    folder: Arc<TempDir>,
    platter: Arc<Mutex<Platter>>,
}

impl Drive {
    pub(super) fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { TempDir::with_prefix_in("tq-story-", memory) } else { TempDir::new() };
        Self { folder: Arc::new(folder.unwrap()), platter: Arc::default() }
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn platter(&self) -> MutexGuard<'_, Platter> {
        self.platter.lock().unwrap()
    }

    pub(super) fn fail(&self, fault: Option<Fault>) {
        self.platter().fault = fault;
    }

    /// The log from a position on.
    pub(super) fn from(&self, offset: usize) -> Vec<u8> {
        self.platter().log[offset..].to_vec()
    }

    /// Bytes of the log that a crash of the machine leaves for certain.
    pub(super) fn synced(&self) -> usize {
        let platter = self.platter();
        let ends = platter.segments.iter().skip(1).map(|(_, start)| *start).chain([platter.log.len()]);
        for ((path, start), end) in platter.segments.iter().zip(ends) {
            let synced = start + platter.grown.get(path).map_or(0, |bytes| *bytes as usize);
            if synced < end {
                return synced;
            }
        }
        platter.log.len()
    }

    /// The process was killed while it noted a payload.
    pub(super) fn tear(&self, random: &mut Random) {
        let Some(index) = self.files().into_iter().rfind(|path| has(path, "index")) else { return };
        let line = br#"{"partition":1,"column":0,"chunk":1099511627777,"slot":0"#;
        let mut file = OpenOptions::new().append(true).open(index).unwrap();
        file.write_all(&line[..random.below(line.len() as u64) as usize]).unwrap();
    }

    /// The machine goes down: of what was not flushed any part may be gone.
    pub(super) fn crash(&self, random: &mut Random) {
        let platter = self.platter();
        for path in self.files() {
            if !platter.named.contains(&path) && random.chance(50) {
                fs::remove_file(&path).unwrap();
                continue;
            }
            if let Some(was) = platter.filled.get(&path).cloned().or_else(|| has(&path, "data").then(Vec::new)) {
                let mut now = fs::read(&path).unwrap();
                for (at, page) in now.chunks_mut(PAGE).enumerate() {
                    if random.chance(50) {
                        let old = was.get(at * PAGE..).unwrap_or_default();
                        let kept = old.len().min(page.len());
                        page[..kept].copy_from_slice(&old[..kept]);
                        page[kept..].fill(0);
                    }
                }
                fs::write(&path, now).unwrap();
            } else if has(&path, "index") || has(&path, "jsonl") {
                let (synced, len) = (platter.grown.get(&path).copied().unwrap_or(0), len(&path));
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(random.range(synced, len.max(synced))).unwrap();
            }
        }
    }

    /// The next life has read the log: what it found there, and cut off, is what there is.
    pub(super) fn reread(&self) {
        let mut platter = self.platter();
        (platter.log, platter.segments) = Default::default();
        for path in self.files().into_iter().filter(|path| has(path, "jsonl")) {
            let start = platter.log.len();
            platter.log.extend(fs::read(&path).unwrap());
            platter.segments.push((path, start));
        }
    }

    /// Every file, in the order of their names.
    fn files(&self) -> Vec<PathBuf> {
        let folders = ["events", "arena", "arena/unit_0", "arena/unit_1", "arena/unit_2"];
        let mut found: Vec<PathBuf> = folders
            .into_iter()
            .flat_map(|name| fs::read_dir(self.folder().join(name)).into_iter().flatten())
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file())
            .collect();
        found.sort();
        found
    }
}

fn has(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

impl Disk for Drive {
    fn append(&self, mut file: &File, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut platter = self.platter();
        let (log, index) = (has(path, "jsonl"), has(path, "index"));
        let room = match platter.fault {
            Some(Fault::Full(room)) if log => room.min(bytes.len()),
            Some(Fault::Arena(room)) if index => room.min(bytes.len()),
            _ => bytes.len(),
        };
        if log {
            if platter.segments.last().is_none_or(|(last, _)| last != path) {
                let start = platter.log.len();
                platter.segments.push((path.to_owned(), start));
            }
            platter.log.extend_from_slice(&bytes[..room]);
        }
        file.write_all(&bytes[..room])?;
        if room < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync(&self, _: &File, path: &Path) -> io::Result<()> {
        let mut platter = self.platter();
        if platter.fault == Some(Fault::Flush) {
            return Err(io::Error::other("the flush failed"));
        }
        if has(path, "data") {
            // A segment that has gone keeps its handle for a while.
            if let Ok(bytes) = fs::read(path) {
                platter.filled.insert(path.to_owned(), bytes);
            }
        } else if let Ok(found) = fs::metadata(path) {
            platter.grown.insert(path.to_owned(), found.len());
        }
        Ok(())
    }

    fn sync_names(&self, dir: &Path) -> io::Result<()> {
        let mut platter = self.platter();
        if platter.fault == Some(Fault::Flush) {
            return Err(io::Error::other("the flush failed"));
        }
        for entry in fs::read_dir(dir)? {
            platter.named.insert(entry?.path());
        }
        Ok(())
    }
}
