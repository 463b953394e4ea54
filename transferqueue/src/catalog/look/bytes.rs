//! Who keeps bytes that the budget wants back, and which of them nobody in the run will read.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{
    decide::could_serve,
    definition::Gate,
    state::{
        State,
        cursor::Cursor,
        pages::Row,
        table::{Field, Table, set_bits},
    },
    views::OwedView,
};
use crate::ids::{ChunkId, ColumnId, PartitionId, RowId, TaskId};

/// Chunks of one column whose live cells only readers outside the run still want.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cold {
    pub(crate) partition: PartitionId,
    pub(crate) column: ColumnId,
    /// The slots of live cells of each chunk, ascending.
    pub(crate) chunks: BTreeMap<ChunkId, Vec<u32>>,
}

/// A run that cannot go on for want of bytes that nobody in it will let go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Starved {
    /// Grows whenever something moves: two looks with the same number saw the same.
    pub(crate) moved: u64,
    /// Who must read what.
    pub(crate) why: String,
}

impl State {
    /// Bytes that are missing for the groups which only the budget keeps out; 0 when it keeps none out.
    pub(crate) fn short_of(&self) -> u64 {
        let (Some(budget), Some(progress)) = (self.definition.budget, &self.progress) else { return 0 };
        let table = &self.tables[&progress.partition];
        let Some(expansion) = table.expansion.as_ref().filter(|e| !table.closed && e.gate == Gate::Schedule) else {
            return 0;
        };
        let parent = &self.tables[&expansion.parent];
        let room = progress.allowed().saturating_sub(progress.in_flight()).min(progress.remaining());
        let groups = parent.live.iter_from(expansion.next.0).take(room as usize).count() as u64;
        if progress.cycle >= progress.cycles || groups == 0 {
            return 0;
        }
        let (group, free) = (u64::from(expansion.n) * table.reservation(), budget.saturating_sub(self.budgeted()));
        if free >= group { 0 } else { (group * groups).saturating_sub(free) }
    }

    /// Chunks that only readers outside the run still want, oldest first, until they hold so many bytes. When there is none
    /// and the run cannot go on without, those of which some cells are wanted by others, too.
    pub(crate) fn cold(&self, bytes: u64) -> Vec<Cold> {
        let found = self.colder(bytes, false);
        if found.is_empty() && self.starved().is_some() { self.colder(bytes, true) } else { found }
    }

    fn colder(&self, bytes: u64, mixed: bool) -> Vec<Cold> {
        let (mut found, mut left) = (Vec::new(), bytes);
        for (&partition, table) in self.tables.iter().filter(|(_, table)| table.expansion.is_some()) {
            let outside = self.outside(table);
            if outside != 0 && left > 0 {
                found.extend(cold_in(partition, table, outside, mixed, &mut left));
            }
        }
        found
    }

    /// Bits of a partition's tasks that are no part of the run.
    fn outside(&self, table: &Table) -> u64 {
        let external = |(_, task): &(usize, &TaskId)| self.cursors[task.0 as usize].def.external;
        table.tasks.iter().enumerate().filter(external).fold(0, |mask, (bit, _)| mask | 1 << bit)
    }

    /// Whether the run waits for bytes, and nothing that it does itself will bring them.
    pub(crate) fn starved(&self) -> Option<Starved> {
        let missing = self.short_of();
        let idle = |(task, cursor): (usize, &Cursor)| {
            cursor.def.external
                || cursor.leases.is_empty() && cursor.done.is_empty() && !could_serve(self, TaskId(task as u32))
        };
        if missing == 0 || !self.cursors.iter().enumerate().all(idle) {
            return None;
        }
        let holders = self.held_outside();
        // One that reads right now will let go.
        let reading = self.cursors.iter().any(|cursor| cursor.def.external && !cursor.leases.is_empty());
        if holders.is_empty() || reading {
            return None;
        }
        let progress = self.progress.as_ref()?;
        let why = format!(
            "the budget of {} bytes keeps the next group out ({missing} bytes are missing): {holders}; let it read them, let the store spill them, raise the budget, or take the reader out",
            self.definition.budget.unwrap_or_default(),
        );
        let used = |cursor: &Cursor| cursor.reuse.as_ref().map_or(cursor.consumed, |reuse| reuse.committed);
        let used: u64 = self.cursors.iter().map(used).sum();
        Some(Starved { moved: used + progress.admitted + progress.dropped + progress.retired, why })
    }

    /// Who outside the run keeps what in memory that nobody in it wants, in words; empty when nobody does. Costs time in
    /// proportion to the rows that are owed.
    fn held_outside(&self) -> String {
        let external = self.cursors.iter().filter(|cursor| cursor.def.external);
        external.filter_map(|cursor| self.holds(cursor)).collect::<Vec<_>>().join("; ")
    }

    fn holds(&self, cursor: &Cursor) -> Option<String> {
        let table = self.table_of(cursor);
        table.expansion.as_ref()?;
        let outside = self.outside(table);
        let mut bytes = 0;
        for row in cursor.owing.iter().map(RowId) {
            let Some(found) = table.pages.get(row) else { continue };
            for column in set_bits(found.held & cursor.reads) {
                let field = &table.fields[column];
                if field.def.max_bytes.is_none() || is_wanted(field, found, outside) {
                    continue;
                }
                let cell = table.pages.cell(row, column).filter(|cell| !table.is_spilled(cell.chunk));
                bytes += cell.map_or(0, |cell| u64::from(cell.bytes));
            }
        }
        let names = table.names(cursor.reads);
        let (reader, partition, rows) = (&cursor.def.name, &table.name, cursor.owing.len());
        (bytes > 0).then(|| {
            format!("`{reader}`, which reads from outside the run, has not read {names} of {rows} rows of `{partition}` ({bytes} bytes)")
        })
    }

    /// What readers outside the run are still owed; those that are owed nothing are left out.
    pub fn owed_outside(&self) -> Vec<OwedView> {
        let external = self.cursors.iter().filter(|cursor| cursor.def.external && !cursor.owing.is_empty());
        let view = |cursor: &Cursor| {
            let table = self.table_of(cursor);
            OwedView {
                task: cursor.def.name.clone(),
                partition: table.name.clone(),
                rows: cursor.owing.len(),
                uses: cursor.reuse.as_ref().map_or(cursor.owing.len(), |reuse| reuse.left(cursor.owing.len())),
                leased: cursor.leases.iter().map(|lease| self.leases[lease].rows.len()).sum(),
                columns: cursor.def.reads.clone(),
                spilled: set_bits(cursor.reads).map(|column| table.fields[column].spilled).sum(),
            }
        };
        external.map(view).collect()
    }
}

/// What one chunk holds, for whom.
struct Kept {
    column: usize,
    slots: Vec<u32>,
    bytes: u64,
    /// Of these, bytes that only readers outside the run want.
    cold: u64,
}

/// Whether anyone in the run still wants a cell.
fn is_wanted(field: &Field, row: &Row, outside: u64) -> bool {
    let readers = if field.readers == 0 { u64::MAX } else { field.readers };
    readers & row.wanted() & !outside != 0 || field.linked && row.holds > 0
}

fn cold_in(partition: PartitionId, table: &Table, outside: u64, mixed: bool, left: &mut u64) -> Vec<Cold> {
    // A cell that still grows is in no file.
    let open: BTreeSet<ChunkId> = table.open.values().map(|open| open.chunk).collect();
    let counted = table.fields.iter().enumerate().filter(|(_, field)| field.def.max_bytes.is_some());
    let counted = counted.fold(0, |mask, (column, _)| mask | 1 << column);
    let mut chunks: BTreeMap<ChunkId, Kept> = BTreeMap::new();
    for row in table.live.iter().map(RowId) {
        let Some(found) = table.pages.get(row) else { continue };
        for column in set_bits(found.held & counted) {
            let Some(cell) = table.pages.cell(row, column) else { continue };
            let wanted = is_wanted(&table.fields[column], found, outside);
            let new = || Kept { column, slots: Vec::new(), bytes: 0, cold: 0 };
            let chunk = chunks.entry(cell.chunk).or_insert_with(new);
            chunk.slots.push(cell.slot);
            chunk.bytes += u64::from(cell.bytes);
            chunk.cold += if wanted { 0 } else { u64::from(cell.bytes) };
        }
    }
    let mut columns: BTreeMap<usize, Cold> = BTreeMap::new();
    for (id, mut chunk) in chunks {
        let enough = chunk.cold == chunk.bytes || mixed && chunk.cold > 0;
        if *left == 0 || !enough || open.contains(&id) || table.is_spilled(id) {
            continue;
        }
        *left = left.saturating_sub(chunk.bytes);
        chunk.slots.sort_unstable();
        let new = || Cold { partition, column: ColumnId(chunk.column as u16), chunks: BTreeMap::new() };
        columns.entry(chunk.column).or_insert_with(new).chunks.insert(id, chunk.slots);
    }
    columns.into_values().collect()
}
