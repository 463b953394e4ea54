//! Cells go to a file and count as memory no longer, until they die or the catalog is restored.

use std::collections::BTreeSet;

use super::super::{
    command::SpillFile,
    state::{
        State,
        table::{Chunk, Spill, Table},
    },
};
use crate::ids::{ChunkId, PartitionId, RowId};

impl State {
    pub(super) fn chunks_spilled(&mut self, partition: PartitionId, file: SpillFile, chunks: &[ChunkId]) {
        self.scratch.schedule = true;
        let Some(table) = self.tables.get_mut(&partition) else { return };
        for chunk in chunks {
            if let Some(chunk) = table.chunks.get_mut(chunk) {
                chunk.spill = Some(file.number);
            }
        }
        let chunks: BTreeSet<ChunkId> = chunks.iter().copied().collect();
        let column = chunks.iter().find_map(|chunk| Some(usize::from(table.chunks.get(chunk)?.column)));
        for row in table.live.iter().map(RowId) {
            // All of one column.
            let Some(column) =
                column.filter(|column| table.pages.get(row).is_some_and(|row| row.held & 1 << column != 0))
            else {
                continue;
            };
            let cell = table.pages.cell(row, column).filter(|cell| chunks.contains(&cell.chunk));
            table.fields[column].spilled += cell.map_or(0, |cell| u64::from(cell.bytes));
        }
        table.spills.insert(file.number, Spill { file, chunks });
    }
}

impl Table {
    /// A chunk is gone: its file holds one less.
    pub(super) fn forget_spilled(&mut self, id: ChunkId, chunk: &Chunk) {
        let Some(number) = chunk.spill else { return };
        let Some(spill) = self.spills.get_mut(&number) else { return };
        spill.chunks.remove(&id);
        if spill.chunks.is_empty() {
            self.spills.remove(&number);
        }
    }

    /// All cells are in memory again.
    pub(super) fn unspill(&mut self) {
        self.spills.clear();
        self.chunks.values_mut().for_each(|chunk| chunk.spill = None);
        self.fields.iter_mut().for_each(|field| field.spilled = 0);
    }
}
