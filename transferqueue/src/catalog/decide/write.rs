//! Outputs of a lease: cells, notes, drops, and the commit that consumes its inputs.

use super::{
    super::{
        bits::Bits,
        command::{CellWrite, DropRows, Reply, RowNote},
        event::Event,
        refusal::Refusal,
        state::{Lease, State, cursor::Cursor, table::Table},
    },
    Decision,
    leases::{lease, split},
    outputs,
};
use crate::ids::{LeaseId, PartitionId, RowId, Rows, SessionId};

/// What a worker hands in besides the rows it finished.
#[derive(Clone, Copy)]
pub(super) struct Outputs<'a> {
    pub(super) cells: &'a [CellWrite],
    pub(super) notes: &'a [RowNote],
    pub(super) drops: &'a [DropRows],
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
    outputs::final_ones(table, cursor, cells)?;
    outputs::cells(table, cursor, id, lease, cells)?;
    let notes = outputs::notes(state, table, cursor, id, lease, notes)?;
    let named = cells.iter().flat_map(|write| write.rows.iter());
    let dropped: Bits = lost_among(lease, named);
    let events = written(cursor, lease, cells, notes);
    Ok(Decision::new(events, Reply::Written { dropped: dropped.rows() }))
}

pub(super) fn commit(
    state: &State,
    id: LeaseId,
    rows: &Rows,
    handed: Outputs<'_>,
    caller: SessionId,
) -> Result<Decision, Refusal> {
    let lease = lease(state, id, caller)?;
    let cursor = state.cursor(lease.task)?;
    let table = state.table_of(cursor);
    outputs::final_ones(table, cursor, handed.cells)?;
    outputs::cells(table, cursor, id, lease, handed.cells)?;
    let notes = outputs::notes(state, table, cursor, id, lease, handed.notes)?;
    let (mut rows, mut lost) = split(id, lease, rows)?;

    let mut leaving = Bits::default();
    let mut drops = Vec::with_capacity(handed.drops.len());
    for drop in handed.drops {
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
    answered.union(&lost_among(lease, handed.cells.iter().flat_map(|write| write.rows.iter())));
    if !leaving.is_empty() {
        lost = lost.iter().chain(rows.iter().filter(|row| leaving.contains(row.0))).collect();
        rows = rows.iter().filter(|row| !leaving.contains(row.0)).collect();
    }
    outputs::all_sealed(table, cursor, &rows, handed.cells)?;

    let mut events = written(cursor, lease, handed.cells, notes);
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

pub(super) fn lost_among(lease: &Lease, rows: impl Iterator<Item = RowId>) -> Bits {
    let mut dropped = Bits::default();
    if !lease.lost.is_empty() {
        rows.filter(|row| lease.lost.contains(row.0)).for_each(|row| _ = dropped.insert(row.0));
    }
    dropped
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
    // More rows than were ever born: some are named twice, or were not.
    if drop.rows.len() > table.next_row.0 {
        let (found, born) = (drop.rows.len(), table.next_row.0);
        return Err(Refusal::Partition {
            partition: table.name.clone(),
            found: format!("{found} rows are to be dropped, {born} were ever born"),
            hint: "name each row once".into(),
        });
    }
    let (mut rows, mut seen) = (Rows::default(), Bits::default());
    for row in drop.rows.iter() {
        if row >= table.next_row {
            let (partition, hint) = (table.name.clone(), "it was never born".to_owned());
            return Err(Refusal::NoRow { partition, row, hint });
        }
        let Some(found) = table.pages.get(row) else { continue };
        if found.holds > 0 && expanded.is_none_or(|next| row < next) {
            return Err(Refusal::Partition {
                partition: table.name.clone(),
                found: format!("rows born from row {row} are in use"),
                hint: "drop those first".into(),
            });
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
