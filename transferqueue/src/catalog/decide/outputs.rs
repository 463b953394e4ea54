//! What is wrong with cells and notes that a worker hands in.

use rustc_hash::FxHashMap;

use super::{
    super::{
        bits::Bits,
        command::{CellWrite, RowNote, Sizes, Span},
        definition::{OnLost, WeightRule},
        refusal::Refusal,
        state::{
            Lease, State,
            cursor::Cursor,
            table::{Field, Table, set_bits},
        },
    },
    leases::split,
    partitions::finite,
};
use crate::ids::{ColumnId, LeaseId, RowId, Rows};

pub(super) fn field(table: &Table, column: ColumnId) -> Result<&Field, Refusal> {
    table.fields.get(usize::from(column.0)).ok_or_else(|| Refusal::Unknown {
        what: format!("column of `{}` at position", table.name),
        name: column.to_string(),
        known: table.names(u64::MAX >> (64 - table.fields.len().max(1))),
    })
}

/// What is wrong with a write whatever the state of its rows.
pub(super) fn shape(table: &Table, write: &CellWrite) -> Result<(), Refusal> {
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
    if rows > u64::from(u32::MAX - write.slot) {
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

/// Of a task whose rows are resumed, open cells are those that it saves, and no others.
pub(super) fn final_ones(table: &Table, cursor: &Cursor, cells: &[CellWrite]) -> Result<(), Refusal> {
    match cells.iter().find(|write| !write.seal && cursor.def.on_lost == OnLost::Resume) {
        None => Ok(()),
        Some(open) => Err(Refusal::Cells {
            partition: table.name.clone(),
            found: format!("open cells of column {}, rows {}, of `{}`", open.column, open.rows, cursor.def.name),
            expected: "sealed ones; what is not finished is saved (`on_lost: resume`)".into(),
        }),
    }
}

/// Cells must be of columns the task writes and rows it holds, each named once.
pub(super) fn cells(
    table: &Table,
    cursor: &Cursor,
    id: LeaseId,
    lease: &Lease,
    cells: &[CellWrite],
) -> Result<(), Refusal> {
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
        shape(table, write)?;
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
            cell(table, write, name, row)?;
        }
    }
    Ok(())
}

fn cell(table: &Table, write: &CellWrite, name: &str, id: RowId) -> Result<(), Refusal> {
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
pub(super) fn notes(
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
            span_of(state, table, cursor, note.row, span)?;
        }
        kept.push(note.clone());
    }
    Ok(kept)
}

pub(super) fn span_of(state: &State, table: &Table, cursor: &Cursor, id: RowId, span: Span) -> Result<(), Refusal> {
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

/// Every declared write of every row must be sealed, before or by this call.
pub(super) fn all_sealed(table: &Table, cursor: &Cursor, rows: &Rows, cells: &[CellWrite]) -> Result<(), Refusal> {
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
