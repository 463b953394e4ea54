//! Outputs of a lease: cells, notes, drops, and the commit that consumes its inputs.

use rustc_hash::FxHashMap;

use super::{
    super::{
        bits::Bits,
        command::{CellWrite, DropRows, Reply, RowNote, Sizes, Span},
        definition::WeightRule,
        event::Event,
        refusal::Refusal,
        state::{
            Lease, State,
            cursor::Cursor,
            table::{Field, Table, set_bits},
        },
    },
    Decision,
    leases::{lease, split},
    partitions::finite,
};
use crate::ids::{ColumnId, LeaseId, PartitionId, RowId, Rows, SessionId};

/// What a worker hands in besides the rows it finished.
#[derive(Clone, Copy)]
pub(super) struct Outputs<'a> {
    pub(super) cells: &'a [CellWrite],
    pub(super) notes: &'a [RowNote],
    pub(super) drops: &'a [DropRows],
}

pub(super) fn field(table: &Table, column: ColumnId) -> Result<&Field, Refusal> {
    table.fields.get(usize::from(column.0)).ok_or_else(|| Refusal::Unknown {
        what: format!("column of `{}` at position", table.name),
        name: column.to_string(),
        known: table.names(u64::MAX >> (64 - table.fields.len().max(1))),
    })
}

/// What is wrong with a write whatever the state of its rows.
pub(super) fn check_shape(table: &Table, write: &CellWrite) -> Result<(), Refusal> {
    let field = field(table, write.column)?;
    let name = &field.def.name;
    let rows = write.rows.len();
    let refuse =
        |found: String, expected: String| Err(Refusal::Cells { partition: table.name.clone(), found, expected });
    if let Sizes::Each(each) = &write.sizes
        && each.len() as u64 != rows
    {
        return refuse(format!("{} sizes for {rows} cells of `{name}`", each.len()), "one size a cell".into());
    }
    if u64::from(write.slot) + rows > u64::from(u32::MAX) {
        return refuse(format!("slot {} and {rows} cells of `{name}`", write.slot), "slots below 2^32".into());
    }
    if let Some(max) = field.def.max_bytes {
        let largest = match &write.sizes {
            Sizes::Uniform(bytes) => *bytes,
            Sizes::Each(each) => each.iter().copied().max().unwrap_or(0),
        };
        if u64::from(largest) > max {
            let found = format!("a cell of `{name}` with {largest} bytes");
            return refuse(found, format!("at most {max}, its declared maximum (max_bytes), which admission reserved"));
        }
    }
    match table.chunks.get(&write.chunk) {
        Some(chunk) if chunk.column != write.column.0 => {
            let other = &table.fields[usize::from(chunk.column)].def.name;
            refuse(format!("cells of `{name}` in chunk {}", write.chunk), format!("cells of `{other}`, which it holds"))
        }
        _ => Ok(()),
    }
}

pub(super) fn write(
    state: &State,
    id: LeaseId,
    cells: &[CellWrite],
    notes: &[RowNote],
    caller: SessionId,
) -> Result<Decision, Refusal> {
    let lease = lease(state, id, caller)?;
    let cursor = state.cursor(lease.task)?;
    let table = state.table_of(cursor);
    check_cells(table, cursor, id, lease, cells)?;
    let notes = check_notes(state, table, cursor, id, lease, notes)?;
    let named = cells.iter().flat_map(|write| write.rows.iter());
    let dropped: Bits = lost_among(lease, named);
    let events = written(cursor, lease, cells, notes);
    Ok(Decision::new(events, Reply::Written { dropped: dropped.rows() }))
}

pub(super) fn commit(
    state: &State,
    id: LeaseId,
    rows: &Rows,
    outputs: Outputs<'_>,
    caller: SessionId,
) -> Result<Decision, Refusal> {
    let lease = lease(state, id, caller)?;
    let cursor = state.cursor(lease.task)?;
    let table = state.table_of(cursor);
    check_cells(table, cursor, id, lease, outputs.cells)?;
    let notes = check_notes(state, table, cursor, id, lease, outputs.notes)?;
    let (mut rows, mut lost) = split(id, lease, rows)?;

    let mut leaving = Bits::default();
    let mut drops = Vec::with_capacity(outputs.drops.len());
    for drop in outputs.drops {
        let rows = droppable(state, cursor.partition, drop, &leaving)?;
        leaving.union(&Bits::from(&rows));
        if !rows.is_empty() {
            drops.push(Event::RowsDropped {
                partition: cursor.partition,
                drop: DropRows { rows, reason: drop.reason.clone() },
            });
        }
    }
    let mut answered = lost_among(lease, rows.iter().chain(lost.iter()));
    answered.union(&lost_among(lease, outputs.cells.iter().flat_map(|write| write.rows.iter())));
    if !leaving.is_empty() {
        lost = lost.iter().chain(rows.iter().filter(|row| leaving.contains(row.0))).collect();
        rows = rows.iter().filter(|row| !leaving.contains(row.0)).collect();
    }
    all_sealed(table, cursor, &rows, outputs.cells)?;

    let mut events = written(cursor, lease, outputs.cells, notes);
    events.extend(drops);
    events.push(Event::RowsCommitted { lease: id, task: lease.task, rows, lost });
    Ok(Decision::new(events, Reply::Committed { dropped: answered.rows() }))
}

pub(super) fn drop_outside(state: &State, id: PartitionId, drop: &DropRows) -> Result<Decision, Refusal> {
    let rows = droppable(state, id, drop, &Bits::default())?;
    let dropped =
        Event::RowsDropped { partition: id, drop: DropRows { rows: rows.clone(), reason: drop.reason.clone() } };
    Ok(Decision::done(if rows.is_empty() { Vec::new() } else { vec![dropped] }))
}

fn written(cursor: &Cursor, lease: &Lease, cells: &[CellWrite], notes: Vec<RowNote>) -> Vec<Event> {
    if cells.is_empty() && notes.is_empty() {
        return Vec::new();
    }
    let (partition, task) = (cursor.partition, Some(lease.task));
    vec![Event::CellsWritten { partition, task, cells: cells.to_vec(), notes }]
}

fn lost_among(lease: &Lease, rows: impl Iterator<Item = RowId>) -> Bits {
    let mut dropped = Bits::default();
    if !lease.lost.is_empty() {
        rows.filter(|row| lease.lost.contains(row.0)).for_each(|row| _ = dropped.insert(row.0));
    }
    dropped
}

/// Cells must be of columns the task writes and rows it holds, each named once.
fn check_cells(table: &Table, cursor: &Cursor, id: LeaseId, lease: &Lease, cells: &[CellWrite]) -> Result<(), Refusal> {
    let mut touched: Vec<(ColumnId, Bits)> = Vec::new();
    for write in cells {
        let field = field(table, write.column)?;
        let name = &field.def.name;
        if cursor.writes & 1 << write.column.0 == 0 {
            return Err(Refusal::NotWriter {
                task: cursor.def.name.clone(),
                partition: table.name.clone(),
                column: name.clone(),
                id: write.column,
                writes: table.names(cursor.writes),
            });
        }
        check_shape(table, write)?;
        split(id, lease, &write.rows)?;
        let rows = Bits::from(&write.rows);
        if let Some((_, other)) =
            touched.iter().find(|(c, other)| *c == write.column && !other.intersection(&rows).is_empty())
        {
            let found = format!("column `{name}`, rows {}, twice in one call", other.intersection(&rows).rows());
            return Err(Refusal::Cells { partition: table.name.clone(), found, expected: "each cell once".into() });
        }
        touched.push((write.column, rows));
        for row in write.rows.iter() {
            check_cell(table, write, name, row)?;
        }
    }
    Ok(())
}

fn check_cell(table: &Table, write: &CellWrite, name: &str, id: RowId) -> Result<(), Refusal> {
    // A lost row has no cells; its bytes count as dead.
    let Some(row) = table.pages.get(id) else { return Ok(()) };
    let bit = 1 << write.column.0;
    let refuse = |found: String, hint: &str| {
        let (partition, column) = (table.name.clone(), name.to_owned());
        Err(Refusal::Cell { partition, column, row: id, found, hint: hint.into() })
    };
    if row.sealed & bit == 0 {
        return match write.replaces {
            None => Ok(()),
            Some(generation) => refuse(
                format!("generation {generation} was to be replaced, but nothing is sealed"),
                "write it without `replaces`",
            ),
        };
    }
    if row.held & bit == 0 {
        return refuse("it was consumed by every reader already".into(), "it cannot be replaced any more");
    }
    let cell = table.pages.cell(id, usize::from(write.column.0)).expect("invariant: a held cell lies in a run");
    let generation = cell.generation;
    match write.replaces {
        None => refuse(format!("it is sealed (generation {generation})"), "say which generation is replaced"),
        Some(_) if !write.seal => refuse("an open cell would replace a sealed one".into(), "replace by sealed cells"),
        Some(found) if found == generation => Ok(()),
        Some(found) => refuse(
            format!("generation {found} was to be replaced, but generation {generation} is there"),
            "read it again before replacing it",
        ),
    }
}

/// Notes on lost rows are left out; the others must be of leased rows and tell possible versions.
fn check_notes(
    state: &State,
    table: &Table,
    cursor: &Cursor,
    id: LeaseId,
    lease: &Lease,
    notes: &[RowNote],
) -> Result<Vec<RowNote>, Refusal> {
    let mut kept = Vec::with_capacity(notes.len());
    for note in notes {
        if lease.lost.contains(note.row.0) {
            continue;
        }
        if !lease.rows.contains(note.row.0) {
            let rows = Rows::run(note.row, 1);
            return Err(Refusal::NotLeased { lease: id, rows, held: lease.rows.rows() });
        }
        finite(table, note.row, &note.tags)?;
        if let Some(span) = note.span {
            check_span(state, table, cursor, note.row, span)?;
        }
        kept.push(note.clone());
    }
    Ok(kept)
}

fn check_span(state: &State, table: &Table, cursor: &Cursor, id: RowId, span: Span) -> Result<(), Refusal> {
    let refuse = |expected: String| {
        let found = format!("weight versions {} to {}", span.first, span.last);
        Err(Refusal::Note { partition: table.name.clone(), row: id, found, expected })
    };
    if span.first > span.last || span.last > state.version {
        return refuse(format!("first ≤ last ≤ {}, the newest version", state.version));
    }
    let Some(row) = table.pages.get(id) else { return Ok(()) };
    let Some(group) = table.groups.get(&row.group) else { return Ok(()) };
    let admitted = group.version;
    let exact = cursor.one_version
        || state
            .progress
            .as_ref()
            .is_some_and(|p| p.partition == cursor.partition && p.plan.weights == WeightRule::Exact);
    match () {
        () if exact && span.first != admitted => refuse(format!("first = {admitted}, the version at its admission")),
        () if span.first < admitted => refuse(format!("first ≥ {admitted}, the version at its admission")),
        () => Ok(()),
    }
}

/// The live ones of rows to drop. A row that is gone already is skipped; one that was never born is refused.
fn droppable(state: &State, id: PartitionId, drop: &DropRows, except: &Bits) -> Result<Rows, Refusal> {
    let table = state.table(id)?;
    if state.models.iter().any(|model| model.names(id)) {
        return Err(Refusal::Partition {
            partition: table.name.clone(),
            found: "a weight version or trainer state lies in it".into(),
            hint: "a version is always complete; it goes by itself once nobody needs it".into(),
        });
    }
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if drop.reason.is_empty() || !drop.reason.chars().all(word) {
        return Err(Refusal::Reason(drop.reason.clone()));
    }
    let expanded = state.expanded(table);
    let (mut rows, mut seen) = (Rows::default(), Bits::default());
    for row in drop.rows.iter() {
        let no_row = |hint: &str| Err(Refusal::NoRow { partition: table.name.clone(), row, hint: hint.into() });
        if row >= table.next_row {
            return no_row("it was never born");
        }
        let Some(found) = table.pages.get(row) else { continue };
        if found.holds > 0 && expanded.is_none_or(|next| row < next) {
            return no_row("or rather, rows born from it are in use; drop those first");
        }
        if !except.contains(row.0) && seen.insert(row.0) {
            rows.push(row);
        }
    }
    Ok(rows)
}

impl State {
    /// Rows below this id may have been expanded by a child; `None`: any row may be.
    fn expanded(&self, table: &Table) -> Option<RowId> {
        let mut next = RowId(0);
        for expansion in table.children.iter().filter_map(|child| self.tables.get(child)?.expansion.as_ref()) {
            match expansion.round {
                Some(_) => return None,
                None => next = next.max(expansion.next),
            }
        }
        Some(next)
    }
}

/// Every declared write of every row must be sealed, before or by this call.
fn all_sealed(table: &Table, cursor: &Cursor, rows: &Rows, cells: &[CellWrite]) -> Result<(), Refusal> {
    if cursor.writes == 0 {
        return Ok(());
    }
    let sealing = || cells.iter().filter(|write| write.seal);
    // Most commits write every column for exactly the rows they finish.
    let common = sealing().filter(|write| write.rows == *rows).fold(0, |mask, write| mask | 1_u64 << write.column.0);
    if cursor.writes & !common == 0 {
        return Ok(());
    }
    let mut here: FxHashMap<RowId, u64> = FxHashMap::default();
    for write in sealing().filter(|write| write.rows != *rows) {
        write.rows.iter().for_each(|row| *here.entry(row).or_insert(0) |= 1 << write.column.0);
    }
    let mut missing = 0_u64;
    let open = |row: &RowId| {
        let before = table.pages.get(*row).map_or(0, |row| row.sealed);
        cursor.writes & !(common | before | here.get(row).copied().unwrap_or(0))
    };
    rows.iter().for_each(|row| missing |= open(&row));
    let Some(column) = set_bits(missing).next() else { return Ok(()) };
    Err(Refusal::Unsealed {
        task: cursor.def.name.clone(),
        partition: table.name.clone(),
        column: table.fields[column].def.name.clone(),
        rows: rows.iter().filter(|row| open(row) & 1 << column != 0).collect(),
    })
}
