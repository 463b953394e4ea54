//! Partial outputs that are to outlive their worker.

use std::collections::BTreeMap;

use super::{
    super::{
        bits::Bits,
        command::{CellWrite, Reply, Sampled, SavedRow, Span},
        definition::OnLost,
        event::Event,
        refusal::Refusal,
        state::{State, cursor::Cursor, table::Table},
    },
    Decision,
    leases::lease,
    outputs,
    write::lost_among,
};
use crate::ids::{LeaseId, PartitionId, RowId, Rows, SessionId};

pub(super) fn save(
    state: &State,
    id: LeaseId,
    cells: &[CellWrite],
    rows: &[SavedRow],
    caller: SessionId,
) -> Result<Decision, Refusal> {
    let lease = lease(state, id, caller)?;
    let cursor = state.cursor(lease.task)?;
    if cursor.def.on_lost != OnLost::Resume {
        return Err(Refusal::NotResumed { task: cursor.def.name.clone() });
    }
    let table = state.table_of(cursor);
    if let Some(sealed) = cells.iter().find(|write| write.seal) {
        let (partition, rows) = (table.name.clone(), &sealed.rows);
        let found = format!("sealed cells of column {}, rows {rows}, to be saved", sealed.column);
        return Err(Refusal::Cells { partition, found, expected: "open ones: a commit seals".into() });
    }
    outputs::cells(table, cursor, id, lease, cells)?;
    let named: Bits = cells.iter().fold(Bits::default(), |mut all, write| {
        all.union(&Bits::from(&write.rows));
        all
    });
    let mut saved: BTreeMap<RowId, Vec<Sampled>> =
        named.intersection(&lease.rows).iter().map(|row| (RowId(row), Vec::new())).collect();
    for SavedRow { row, sampled } in rows {
        if lease.lost.contains(row.0) {
            continue;
        }
        sampled_of(state, table, cursor, *row, sampled)?;
        match saved.get_mut(row) {
            Some(kept) if kept.is_empty() => kept.clone_from(sampled),
            Some(_) => return Err(note(table, *row, "versions of its tokens, twice", "them once")),
            None => return Err(note(table, *row, "versions of its tokens without a cell", "a row that is saved")),
        }
    }
    let dropped = lost_among(lease, named.iter().map(RowId)).rows();
    let rows: Vec<SavedRow> = saved.into_iter().map(|(row, sampled)| SavedRow { row, sampled }).collect();
    let saved = Event::RowsSaved { lease: id, task: lease.task, cells: cells.to_vec(), rows };
    let events = if cells.is_empty() { Vec::new() } else { vec![saved] };
    Ok(Decision::new(events, Reply::Written { dropped }))
}

fn sampled_of(state: &State, table: &Table, cursor: &Cursor, row: RowId, sampled: &[Sampled]) -> Result<(), Refusal> {
    let (Some(first), Some(last)) = (sampled.first(), sampled.last()) else { return Ok(()) };
    let rising = sampled.windows(2).all(|pair| pair[0].version < pair[1].version);
    if !rising || sampled.iter().any(|stretch| stretch.tokens == 0) {
        return Err(note(
            table,
            row,
            "versions that do not rise, or of no token",
            "rising versions of some tokens each",
        ));
    }
    outputs::span_of(state, table, cursor, row, Span { first: first.version, last: last.version })
}

fn note(table: &Table, row: RowId, found: &str, expected: &str) -> Refusal {
    Refusal::Note { partition: table.name.clone(), row, found: found.into(), expected: expected.into() }
}

/// What was saved of these rows cannot be had.
pub(super) fn forget(state: &State, partition: PartitionId, rows: &Rows) -> Vec<Event> {
    let Some(table) = state.tables.get(&partition) else { return Vec::new() };
    let rows: Rows = rows.iter().filter(|row| table.saved_of(*row).next().is_some()).collect();
    if rows.is_empty() { Vec::new() } else { vec![Event::SavedForgotten { partition, rows }] }
}
