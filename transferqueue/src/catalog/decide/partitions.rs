//! Partitions are added, closed and deleted; rows come by put.

use std::collections::BTreeSet;

use super::{
    super::{
        check,
        command::{CellWrite, NewRow, Reply, Tag, Tags},
        definition::{Birth, Gate, Partition},
        event::Event,
        explain,
        refusal::Refusal,
        state::{State, table::Table},
    },
    Decision, outputs,
};
use crate::ids::{PartitionId, RowId, Rows, SessionId};

pub(super) fn create(state: &State, partition: &Partition, owner: Option<SessionId>) -> Result<Decision, Refusal> {
    check::columns(partition)?;
    let name = &partition.name;
    if matches!(partition.birth, Birth::Expand { .. }) {
        let found = format!("partition `{name}` is added while running and expands another one");
        return Err(Refusal::Definition(format!("{found}; expansions are declared before the first row")));
    }
    // What another session is still building is its own; so a worker that comes back need not wait for its former self to
    // be found lost.
    let visible = |table: &Table| table.owner.is_none() || table.owner == owner;
    if let Some((id, _)) = state.tables.iter().find(|(_, table)| table.name == *name && visible(table)) {
        return Err(Refusal::Partition {
            partition: name.clone(),
            found: format!("partition {id} of that name is live"),
            hint: "names are unique among live partitions; delete it first or take another name".into(),
        });
    }
    let id = state.next.partition;
    let created = Event::PartitionCreated { id, partition: partition.clone(), owner };
    Ok(Decision::new(vec![created], Reply::Partition(id)))
}

pub(super) fn delete(state: &State, id: PartitionId) -> Result<Decision, Refusal> {
    let table = state.table(id)?;
    let refuse = |found: &str, hint: &str| {
        Err(Refusal::Partition { partition: table.name.clone(), found: found.into(), hint: hint.into() })
    };
    if table.declared {
        return refuse("it is declared", "only partitions added while running can be deleted; drop its rows instead");
    }
    if state.models.iter().any(|model| model.names(id)) {
        return refuse("a weight version or trainer state lies in it", "it goes by itself once nobody needs it");
    }
    Ok(Decision::done(vec![Event::PartitionDeleted { partition: id }]))
}

pub(super) fn close(state: &State, id: PartitionId) -> Result<Decision, Refusal> {
    let table = state.table(id)?;
    if table.expansion.is_some() {
        return Err(Refusal::Partition {
            partition: table.name.clone(),
            found: "it expands another partition".into(),
            hint: "it closes by itself; close the partition it expands".into(),
        });
    }
    let closed = Event::PartitionClosed { partition: id };
    Ok(Decision::done(if table.closed { Vec::new() } else { vec![closed] }))
}

pub(super) fn put(state: &State, id: PartitionId, rows: &[NewRow], cells: &[CellWrite]) -> Result<Decision, Refusal> {
    let table = state.table(id)?;
    let Birth::Put { capacity } = table.birth else {
        return Err(Refusal::Partition {
            partition: table.name.clone(),
            found: "its rows are born at admission".into(),
            hint: "put into the partition it expands".into(),
        });
    };
    if state.over() && state.needs_no_more(table) {
        return Ok(Decision::nothing(Reply::Ended));
    }
    if table.closed {
        return Err(Refusal::Closed { partition: table.name.clone() });
    }
    check_rows(table, rows)?;
    check_cells(table, rows.len() as u64, cells)?;
    if rows.is_empty() {
        return Ok(Decision::nothing(Reply::Put(Rows::default())));
    }
    state.weights_fit(table, cells.iter().map(|write| write.sizes.total(write.rows.len())).sum())?;
    if let Some(capacity) = capacity
        && state.waiting_rows(table) >= capacity
    {
        return match state.stopped() {
            Some(refusal) => Err(refusal),
            None => Ok(Decision::nothing(Reply::NotYet(explain::put(state, table, capacity)))),
        };
    }
    let first = table.next_row;
    let cells = cells.iter().map(|write| CellWrite { rows: shifted(&write.rows, first), ..write.clone() }).collect();
    let put = Event::RowsPut { partition: id, first, rows: rows.to_vec(), cells };
    Ok(Decision::new(vec![put], Reply::Put(Rows::run(first, rows.len() as u64))))
}

/// Positions become row ids.
fn shifted(positions: &Rows, first: RowId) -> Rows {
    let mut rows = Rows::default();
    positions.runs().iter().for_each(|&(at, len)| rows.push_run(RowId(first.0 + at), len));
    rows
}

fn check_rows(table: &Table, rows: &[NewRow]) -> Result<(), Refusal> {
    let mut seen = BTreeSet::new();
    for (position, row) in rows.iter().enumerate() {
        finite(table, RowId(table.next_row.0 + position as u64), &row.tags)?;
        let Some(key) = &row.key else { continue };
        let taken = table.keys.get(key).copied();
        let twice = (!seen.insert(key)).then_some(RowId(table.next_row.0 + position as u64));
        if let Some(row) = taken.or(twice) {
            return Err(Refusal::KeyTaken { partition: table.name.clone(), key: key.clone(), row });
        }
    }
    Ok(())
}

/// The log cannot hold numbers that are not finite.
pub(super) fn finite(table: &Table, row: RowId, tags: &Tags) -> Result<(), Refusal> {
    for (name, tag) in tags {
        if let Tag::Float(value) = tag
            && !value.is_finite()
        {
            let found = format!("tag `{name}` is {value}");
            let expected = "a finite number".to_owned();
            return Err(Refusal::Note { partition: table.name.clone(), row, found, expected });
        }
    }
    Ok(())
}

/// A put brings every column that no task writes, sealed, for every row.
fn check_cells(table: &Table, rows: u64, cells: &[CellWrite]) -> Result<(), Refusal> {
    let partition = &table.name;
    let refuse =
        |found: String, expected: String| Err(Refusal::Cells { partition: partition.clone(), found, expected });
    let mut covered = 0_u64;
    for write in cells {
        let field = outputs::field(table, write.column)?;
        outputs::shape(table, write)?;
        let bit = 1 << write.column.0;
        let name = &field.def.name;
        if table.made & bit != 0 {
            return refuse(format!("a put brings column `{name}`"), "that its task writes it".into());
        }
        if !write.seal || write.replaces.is_some() {
            return refuse(format!("a put brings open or replacing cells of `{name}`"), "sealed ones".into());
        }
        if covered & bit != 0 || write.rows.runs() != Rows::run(RowId(0), rows).runs() {
            let found = format!("cells of `{name}` for positions {}", write.rows);
            return refuse(found, format!("one write of positions 0 to {} in order", rows.saturating_sub(1)));
        }
        covered |= bit;
    }
    let all = (1_u128 << table.fields.len()) - 1;
    let missing = all as u64 & !table.made & !covered;
    if missing != 0 && rows > 0 {
        let columns = table.names(missing);
        return refuse(format!("a put without {columns}"), "a cell of every column that no task writes".into());
    }
    Ok(())
}

impl State {
    /// Rows that count against a partition's capacity: live, and not expanded by the child that the schedule admits.
    pub(crate) fn waiting_rows(&self, table: &Table) -> u64 {
        let expansions = table.children.iter().filter_map(|child| self.tables.get(child)?.expansion.as_ref());
        let next = expansions.filter(|e| e.gate == Gate::Schedule).map(|e| e.next).next();
        table.unexpanded(next.unwrap_or(RowId(0)))
    }

    /// Whether everything that expands this partition is over.
    pub(crate) fn needs_no_more(&self, table: &Table) -> bool {
        let closed = |child: &PartitionId| self.tables.get(child).is_none_or(|table| table.closed);
        !table.children.is_empty() && table.children.iter().all(closed) && table.tasks.is_empty()
    }

    /// The refusal of everything that would wait, once a row has stopped the run.
    pub(crate) fn stopped(&self) -> Option<Refusal> {
        self.poisoned.as_ref().map(|poisoned| Refusal::Poisoned {
            task: self.cursors[poisoned.task.0 as usize].def.name.clone(),
            row: poisoned.row,
            error: poisoned.error.clone(),
        })
    }
}
