//! What a payload is: one line of a segment's index, with its checksum.

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};

use super::{ArenaError, Layout};
use crate::{
    checked_line,
    ids::{ChunkId, ColumnId, PartitionId, SessionId},
};

/// Where cells lie in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// First byte.
    pub(crate) at: u64,
    /// Number of cells.
    pub(crate) rows: u32,
    /// Bytes of offsets; 0 for dense columns.
    pub(crate) offsets: u64,
    /// Bytes of values, which begin at the next multiple of 64 behind the offsets.
    pub(crate) values: u64,
    /// CRC-32 of all of it.
    pub(crate) crc32: u32,
}

impl Place {
    /// How the cells lie there.
    pub(super) fn layout(&self) -> Layout {
        Layout { rows: self.rows as usize, offsets: self.offsets as usize, values: self.values as usize }
    }

    /// Bytes of all of it.
    pub(crate) fn bytes(&self) -> u64 {
        self.offsets.next_multiple_of(super::extent::ALIGN as u64).saturating_add(self.values)
    }
}

/// What a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) partition: PartitionId,
    pub(crate) column: ColumnId,
    pub(crate) chunk: ChunkId,
    /// Slot of the first cell.
    pub(crate) slot: u32,
    /// The session of another process that has put it, and its number for the put.
    pub(crate) writer: Option<(SessionId, u64)>,
    #[serde(flatten)]
    pub(crate) place: Place,
}

pub(super) fn line(entry: &Entry) -> Vec<u8> {
    checked_line::write(entry)
}

/// The entries of an index. An unfinished last line was being written when the process was killed: no event names it.
pub(super) fn read(path: &Path) -> Result<Vec<Entry>, ArenaError> {
    let bytes = fs::read(path).map_err(ArenaError::io(path, "read it"))?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let lines = bytes[..whole].split_inclusive(|byte| *byte == b'\n').enumerate();
    let parse = |(number, line): (usize, &[u8])| {
        let damaged =
            |found| ArenaError::Damaged { path: path.to_owned(), found: format!("line {}: {found}", number + 1) };
        checked_line::parse(&line[..line.len() - 1]).map_err(damaged)
    };
    lines.map(parse).collect()
}
