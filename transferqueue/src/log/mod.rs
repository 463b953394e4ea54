//! The event log: every record of the catalog, one JSON object a line, appended to numbered segments.
//!
//! ```text
//! events/000000.jsonl     {"version":1,"seq":0,"at":0,…,"crc":"5f3a90c1"}
//! events/000001.jsonl     …
//! ```
//!
//! `crc` is the CRC-32 of everything before it in the line. A process that is killed may leave an unfinished last
//! line: it is cut off and said. Any other damage is refused with file and line.
//!
//! A store that is restored goes on in a new segment, whose first record (`restored`) follows the snapshot's position.
//! Records beyond that position, written by the life that ended, stay in the files as history; a reader that wants the
//! surviving line of events ([`surviving`]) leaves them out.

pub(crate) mod line;
mod read;
#[cfg(test)]
mod tests;

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

pub(crate) use read::replay_with;
pub use read::{Entry, Reader, Torn, read, replay, surviving};

use crate::{
    catalog::event::{Event, Record},
    disk::Disk,
};

/// When records reach the disk, beyond the operating system's own pace (a killed process loses nothing either way).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flush {
    /// When the operating system likes: a crash of the machine may lose the tail.
    #[default]
    None,
    /// With every publication: what a snapshot was named after is on disk.
    Publication,
}

/// Why a log cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum LogError {
    /// The file system refused.
    #[error("event log {}: cannot {what}: {error}", .path.display())]
    Io { path: PathBuf, what: &'static str, error: io::Error },
    /// A line is not what was written.
    #[error("event log {}, line {line}: {found}; the file is damaged, restore a snapshot with a fresh log folder", .path.display())]
    Damaged { path: PathBuf, line: u64, found: String },
    /// A new run would write into the history of another.
    #[error("event log {}: holds the events of an earlier run; restore its snapshot or choose another folder", .path.display())]
    Exists { path: PathBuf },
    /// The folder belongs to another catalog.
    #[error("event log {}: holds the events of catalog {found:x}, the snapshot is of {expected:x}; restore with the folder of its own run, or a fresh one", .path.display())]
    Foreign { path: PathBuf, found: u64, expected: u64 },
    /// There is no log.
    #[error("event log {}: no segment 000000.jsonl there", .path.display())]
    Missing { path: PathBuf },
    /// A record does not follow from those before it.
    #[error("event log {}, line {line}: {error}", .path.display())]
    Replay { path: PathBuf, line: u64, error: crate::catalog::Refusal },
}

impl LogError {
    fn io(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { path, what, error }
    }
}

/// How a log is written.
#[derive(Clone)]
pub(crate) struct Policy {
    pub(crate) segment_bytes: u64,
    pub(crate) flush: Flush,
    pub(crate) disk: Arc<dyn Disk>,
}

/// The open end of a log.
pub(crate) struct Log {
    dir: PathBuf,
    policy: Policy,
    segment: u64,
    file: Arc<File>,
    path: PathBuf,
    bytes: u64,
}

impl Log {
    /// A log that begins.
    pub(crate) fn create(dir: &Path, policy: Policy) -> Result<Self, LogError> {
        fs::create_dir_all(dir).map_err(LogError::io(dir, "make the folder"))?;
        if !segments(dir)?.is_empty() {
            return Err(LogError::Exists { path: dir.to_owned() });
        }
        Self::segment(dir.to_owned(), policy, 0)
    }

    /// A log that goes on in a new segment, after its unfinished last line (if one) was cut off.
    pub(crate) fn resume(dir: &Path, policy: Policy) -> Result<(Self, Option<Torn>), LogError> {
        fs::create_dir_all(dir).map_err(LogError::io(dir, "make the folder"))?;
        let torn = read::repair(dir)?;
        let last = segments(dir)?.pop();
        if let Some((_, path)) = &last {
            // Only the open end of a log is flushed later on: what a killed process had not flushed is so now.
            let file = File::open(path).map_err(LogError::io(path, "open"))?;
            policy.disk.sync(&file, path).map_err(LogError::io(path, "flush"))?;
        }
        let next = last.map_or(0, |(number, _)| number + 1);
        Ok((Self::segment(dir.to_owned(), policy, next)?, torn))
    }

    /// Appends a record: one write, so that a killed process leaves at most one unfinished line.
    pub(crate) fn append(&mut self, record: &Record) -> Result<(), LogError> {
        if self.bytes >= self.policy.segment_bytes {
            self.sync()?;
            *self = Self::segment(std::mem::take(&mut self.dir), self.policy.clone(), self.segment + 1)?;
        }
        let line = line::write(record);
        self.policy.disk.append(&self.file, &self.path, &line).map_err(LogError::io(&self.path, "append"))?;
        self.bytes += line.len() as u64;
        let publishes = record.events.iter().any(|event| matches!(event, Event::CyclePublished { .. }));
        if publishes && self.policy.flush == Flush::Publication {
            self.sync()?;
        }
        Ok(())
    }

    /// Waits until all of it is on disk.
    fn sync(&self) -> Result<(), LogError> {
        self.policy.disk.sync(&self.file, &self.path).map_err(LogError::io(&self.path, "flush"))
    }

    /// The segment that is being written, to be flushed while others append. Those before it are on the disk.
    pub(crate) fn file(&self) -> OpenSegment {
        OpenSegment { file: self.file.clone(), path: self.path.clone(), disk: self.policy.disk.clone() }
    }

    fn segment(dir: PathBuf, policy: Policy, segment: u64) -> Result<Self, LogError> {
        let path = dir.join(format!("{segment:06}.jsonl"));
        let opened = OpenOptions::new().create_new(true).append(true).open(&path);
        let file = Arc::new(opened.map_err(LogError::io(&path, "begin a segment"))?);
        policy.disk.sync_names(&dir).map_err(LogError::io(&dir, "flush the folder"))?;
        Ok(Self { dir, policy, segment, file, path, bytes: 0 })
    }
}

/// A segment that is being written.
pub(crate) struct OpenSegment {
    file: Arc<File>,
    path: PathBuf,
    disk: Arc<dyn Disk>,
}

impl OpenSegment {
    /// Waits until what was appended so far is on disk.
    pub(crate) fn sync(&self) -> Result<(), LogError> {
        self.disk.sync(&self.file, &self.path).map_err(LogError::io(&self.path, "flush"))
    }
}

/// The segments in order.
fn segments(dir: &Path) -> Result<Vec<(u64, PathBuf)>, LogError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(LogError::io(dir, "list the folder"))? {
        let path = entry.map_err(LogError::io(dir, "list the folder"))?.path();
        let number = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".jsonl"));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found)
}

/// The highest lineage that any life of this log began; 0 for one that was never restored or is not there.
/// `incarnation` is the one that its catalog was created with.
pub(crate) fn last_lineage(dir: &Path, incarnation: u64) -> Result<u64, LogError> {
    let mut last = 0;
    if !dir.is_dir() {
        return Ok(last);
    }
    // Every life begins a segment, so first records are enough.
    for (_, path) in segments(dir)? {
        let Some(Ok(entry)) = Reader::segment(path).next() else { continue };
        for event in &entry.record.events {
            match event {
                Event::Restored { lineage } => last = last.max(*lineage),
                Event::Defined { incarnation: found, .. } if *found != incarnation => {
                    return Err(LogError::Foreign { path: dir.to_owned(), found: *found, expected: incarnation });
                }
                _ => {}
            }
        }
    }
    Ok(last)
}
