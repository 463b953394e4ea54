//! Byte accounts of a unit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Inner;
use crate::ids::{ColumnId, PartitionId};

/// What a unit holds of one column, in bytes of its buffers (offsets included).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnBytes {
    /// Chunks.
    pub chunks: u64,
    /// Cells in them, dead ones included.
    pub cells: u64,
    /// Bytes of chunks that the catalog holds.
    pub live: u64,
    /// Of these, bytes that lie in files (see [`Options::spill`](crate::store::Options::spill)).
    pub spilled: u64,
    /// Bytes of chunks that some view holds, live or freed.
    pub pinned: u64,
    /// Of these, bytes that the catalog has freed already: they leave with their last view.
    pub lingering: u64,
    /// Bytes of chunks that no event names (yet).
    pub unsettled: u64,
    /// Bytes of cells that are being appended to.
    pub open: u64,
}

impl ColumnBytes {
    fn plus(&self, c: &Self) -> Self {
        Self {
            chunks: self.chunks + c.chunks,
            cells: self.cells + c.cells,
            live: self.live + c.live,
            spilled: self.spilled + c.spilled,
            pinned: self.pinned + c.pinned,
            lingering: self.lingering + c.lingering,
            unsettled: self.unsettled + c.unsettled,
            open: self.open + c.open,
        }
    }
}

/// Byte accounts by column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Columns that hold anything.
    pub columns: BTreeMap<(PartitionId, ColumnId), ColumnBytes>,
}

impl Stats {
    /// The sum over all columns.
    pub fn total(&self) -> ColumnBytes {
        self.columns.values().fold(ColumnBytes::default(), |sum, c| sum.plus(c))
    }

    /// These and others together.
    pub(crate) fn plus(mut self, other: Self) -> Self {
        for (key, theirs) in other.columns {
            let ours = self.columns.entry(key).or_default();
            *ours = ours.plus(&theirs);
        }
        self
    }

    /// One column's account; zeros when nothing is held.
    pub fn column(&self, partition: PartitionId, column: ColumnId) -> ColumnBytes {
        self.columns.get(&(partition, column)).copied().unwrap_or_default()
    }
}

impl Inner {
    pub(super) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for entry in &self.chunks {
            let chunk = entry.value();
            let account = chunk.account();
            let bytes = |counted: bool| if counted { account.bytes } else { 0 };
            let sum = stats.columns.entry(chunk.key).or_default();
            sum.chunks += 1;
            sum.cells += account.cells;
            sum.live += bytes(account.live);
            sum.spilled += bytes(account.live && account.spilled);
            sum.pinned += bytes(account.granted);
            sum.lingering += bytes(account.granted && !account.live);
            sum.unsettled += bytes(!account.granted && !account.live);
        }
        for (key, bytes) in self.open.lock().expect("invariant: nothing panics under this lock").iter() {
            stats.columns.entry(*key).or_default().open += bytes;
        }
        stats
    }
}
