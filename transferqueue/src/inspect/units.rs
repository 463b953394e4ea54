//! Bytes of each unit by state.

use serde::{Deserialize, Serialize};

use crate::{
    catalog::views::ColumnView,
    error::Error,
    store::Store,
    unit::{MemoryStats, Unit},
};

/// A unit, in bytes of its buffers unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitView {
    /// Its number, from 0.
    #[serde(default)]
    pub unit: usize,
    /// The process that holds it.
    pub pid: u32,
    /// How bytes travel.
    pub transport: String,
    /// Chunks.
    pub chunks: u64,
    /// Cells in them, dead ones included.
    pub cells: u64,
    /// Chunks that the catalog holds.
    pub live: u64,
    /// Of these, chunks whose cells lie in spill files.
    #[serde(default)]
    pub spilled: u64,
    /// Of the live ones, cells that nobody reads any more, whose chunk has live ones still (payload). Counted by column: `None`
    /// for one unit of several.
    pub dead_in_chunk: Option<u64>,
    /// Chunks that some view holds, live or freed.
    pub pinned: u64,
    /// Of these, chunks that the catalog has freed already.
    pub lingering: u64,
    /// Chunks that no event names (yet).
    pub unsettled: u64,
    /// Cells that are being appended to.
    pub open: u64,
    /// Cells whose chunk is gone, of partitions that are there (payload). Counted by column: `None` for one unit of several.
    pub freed: Option<u64>,
    /// The shared memory that the chunks lie in; `None` where they lie elsewhere.
    #[serde(default)]
    pub memory: Option<MemoryStats>,
}

impl UnitView {
    /// Every unit of a store, by number.
    pub(super) fn all(store: &Store) -> Result<Vec<Self>, Error> {
        let columns = store.with_state(|state, _| state.columns())?;
        let alone = store.units().iter().len() == 1;
        let sum = |of: fn(&ColumnView) -> u64| alone.then(|| columns.iter().map(of).sum());
        let view = |(unit, held): (usize, &Unit)| {
            let total = held.stats().total();
            Self {
                unit,
                pid: std::process::id(),
                transport: store.transport().to_owned(),
                chunks: total.chunks,
                cells: total.cells,
                live: total.live,
                spilled: total.spilled,
                dead_in_chunk: sum(|column| column.bytes_dead_in_chunk),
                pinned: total.pinned,
                lingering: total.lingering,
                unsettled: total.unsettled,
                open: total.open,
                freed: sum(|column| column.bytes_freed_total),
                memory: held.memory(),
            }
        };
        Ok(store.units().iter().enumerate().map(view).collect())
    }
}
