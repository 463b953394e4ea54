//! Bytes of a unit by state.

use serde::{Deserialize, Serialize};

use crate::{error::Error, store::Store};

/// A unit, in bytes of its buffers unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitView {
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
    /// Of the live ones, cells that nobody reads any more, whose chunk has live ones still (payload).
    pub dead_in_chunk: u64,
    /// Chunks that some view holds, live or freed.
    pub pinned: u64,
    /// Of these, chunks that the catalog has freed already.
    pub lingering: u64,
    /// Chunks that no event names (yet).
    pub unsettled: u64,
    /// Cells that are being appended to.
    pub open: u64,
    /// Cells whose chunk is gone, of partitions that are there (payload).
    pub freed: u64,
}

impl UnitView {
    pub(super) fn of(store: &Store) -> Result<Self, Error> {
        let total = store.unit().stats().total();
        let columns = store.with_state(|state, _| state.columns())?;
        Ok(Self {
            pid: std::process::id(),
            transport: store.transport().to_owned(),
            chunks: total.chunks,
            cells: total.cells,
            live: total.live,
            spilled: total.spilled,
            dead_in_chunk: columns.iter().map(|column| column.bytes_dead_in_chunk).sum(),
            pinned: total.pinned,
            lingering: total.lingering,
            unsettled: total.unsettled,
            open: total.open,
            freed: columns.iter().map(|column| column.bytes_freed_total).sum(),
        })
    }
}
