//! Reading a log: all of its history, or the line of events that survived.

use std::{
    collections::VecDeque,
    fs::{File, OpenOptions},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
};

use super::{LogError, line, segments};
use crate::catalog::{Catalog, Publication, State, event::Record};

/// A record and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The segment's file.
    pub path: PathBuf,
    /// Line, from 1.
    pub line: u64,
    /// What happened.
    pub record: Record,
}

/// An unfinished last line, left by a process that was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The segment's file.
    pub path: PathBuf,
    /// Line, from 1.
    pub line: u64,
    /// Where the line begins.
    pub offset: u64,
    /// Bytes of it that were written.
    pub bytes: u64,
}

/// Every record in the order of writing, also those of lives that were rolled back.
pub struct Reader {
    left: VecDeque<PathBuf>,
    open: Option<Segment>,
    torn: Option<Torn>,
    failed: bool,
}

struct Segment {
    path: PathBuf,
    file: BufReader<File>,
    line: u64,
    offset: u64,
}

/// Reads a log from its beginning.
///
/// # Errors
/// [`LogError::Missing`] when no log is there.
pub fn read(dir: &Path) -> Result<Reader, LogError> {
    let found: Vec<_> = if dir.is_dir() { segments(dir)? } else { Vec::new() };
    if found.first().is_none_or(|(number, _)| *number != 0) {
        return Err(LogError::Missing { path: dir.to_owned() });
    }
    Ok(Reader::of(found.into_iter().map(|(_, path)| path)))
}

/// The records that lead to the newest state: those a restore rolled back are left out.
///
/// # Errors
/// As [`read`], and what reading finds.
pub fn surviving(dir: &Path) -> Result<impl Iterator<Item = Result<Entry, LogError>>, LogError> {
    let seqs: Vec<u64> = read(dir)?.map(|entry| entry.map(|e| e.record.seq)).collect::<Result<_, _>>()?;
    // A record survives when none after it goes back to its position or before.
    let mut survives = vec![true; seqs.len()];
    let mut lowest = u64::MAX;
    for (i, &seq) in seqs.iter().enumerate().rev() {
        survives[i] = seq < lowest;
        lowest = lowest.min(seq);
    }
    Ok(read(dir)?.zip(survives).filter_map(|(entry, survives)| survives.then_some(entry)))
}

/// The catalog that the surviving records lead to.
///
/// # Errors
/// As [`surviving`], and [`LogError::Replay`] when a record does not follow.
pub fn replay(dir: &Path) -> Result<Catalog, LogError> {
    replay_with(dir, |_, _, _| {})
}

/// The same; `look` sees each surviving record, what a publication in it consumed, and the state right after it.
///
/// # Errors
/// As [`replay`].
pub(crate) fn replay_with(
    dir: &Path,
    mut look: impl FnMut(&Record, Option<&Publication>, &State),
) -> Result<Catalog, LogError> {
    let mut catalog: Option<Catalog> = None;
    for entry in surviving(dir)? {
        let Entry { path, line, record } = entry?;
        let failed = |error| LogError::Replay { path, line, error };
        let published = match &mut catalog {
            None => {
                catalog = Some(Catalog::open(&record).map_err(failed)?);
                None
            }
            Some(catalog) => catalog.replay(&record).map_err(failed)?,
        };
        if let Some(catalog) = &catalog {
            look(&record, published.as_ref(), catalog.state());
        }
    }
    catalog.ok_or_else(|| LogError::Missing { path: dir.to_owned() })
}

/// Cuts an unfinished last line off.
pub(super) fn repair(dir: &Path) -> Result<Option<Torn>, LogError> {
    let Some((_, last)) = segments(dir)?.pop() else {
        return Ok(None);
    };
    let mut reader = Reader::segment(last.clone());
    for entry in reader.by_ref() {
        entry?;
    }
    if let Some(torn) = &reader.torn {
        let file = OpenOptions::new().write(true).open(&last).map_err(LogError::io(&last, "open"))?;
        file.set_len(torn.offset).map_err(LogError::io(&last, "cut the unfinished line off"))?;
        tracing::warn!(file = %torn.path.display(), line = torn.line, bytes = torn.bytes, "cut off an unfinished record");
    }
    Ok(reader.torn)
}

impl Reader {
    fn of(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { left: paths.into_iter().collect(), open: None, torn: None, failed: false }
    }

    /// Reads one segment alone.
    pub(super) fn segment(path: PathBuf) -> Self {
        Self::of([path])
    }

    /// The unfinished last line that reading ended at, if one was there.
    pub fn torn(&self) -> Option<&Torn> {
        self.torn.as_ref()
    }

    fn advance(&mut self) -> Result<Option<Entry>, LogError> {
        loop {
            if self.open.is_none() {
                let Some(path) = self.left.pop_front() else {
                    return Ok(None);
                };
                let file = BufReader::new(File::open(&path).map_err(LogError::io(&path, "open"))?);
                self.open = Some(Segment { path, file, line: 0, offset: 0 });
            }
            let Some(segment) = &mut self.open else {
                return Ok(None);
            };
            let mut bytes = Vec::new();
            let read = segment.file.read_until(b'\n', &mut bytes).map_err(LogError::io(&segment.path, "read"))? as u64;
            if read == 0 {
                self.open = None;
                continue;
            }
            segment.line += 1;
            let (path, number, offset) = (segment.path.clone(), segment.line, segment.offset);
            segment.offset += read;
            let damaged = |found| LogError::Damaged { path: path.clone(), line: number, found };
            if bytes.pop_if(|last| *last == b'\n').is_none() {
                if !self.left.is_empty() {
                    return Err(damaged("an unfinished line before the last segment".to_owned()));
                }
                self.torn = Some(Torn { path, line: number, offset, bytes: read });
                return Ok(None);
            }
            let record = line::parse(&bytes).map_err(damaged)?;
            return Ok(Some(Entry { path, line: number, record }));
        }
    }
}

impl Iterator for Reader {
    type Item = Result<Entry, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.torn.is_some() {
            return None;
        }
        let next = self.advance().transpose();
        self.failed = matches!(next, Some(Err(_)));
        next
    }
}
