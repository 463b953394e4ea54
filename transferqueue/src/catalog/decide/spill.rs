//! Bytes that only readers outside the run still want leave memory, when the budget keeps groups out for their sake.

use std::collections::BTreeSet;

use super::super::{command::SpillFile, event::Event, state::State};
use crate::ids::{ChunkId, PartitionId};

/// What of a written file counts: chunks that are still there and in memory, and have no cell that still grows.
pub(super) fn spill(state: &State, partition: PartitionId, file: SpillFile, chunks: &[ChunkId]) -> Vec<Event> {
    let Some(table) = state.tables.get(&partition).filter(|table| !table.spills.contains_key(&file.number)) else {
        return Vec::new();
    };
    let open: BTreeSet<ChunkId> = table.open.values().map(|open| open.chunk).collect();
    let there = |id: &ChunkId| table.chunks.get(id).is_some_and(|chunk| chunk.spill.is_none()) && !open.contains(id);
    let chunks: Vec<ChunkId> = chunks.iter().copied().filter(there).collect();
    if chunks.is_empty() {
        return Vec::new();
    }
    vec![Event::ChunksSpilled { partition, file, chunks }]
}
