//! Everything about one row: the catalog's view of it, and what its cells hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::peek::{Cell, one, shorten};
use crate::{
    catalog::{
        Refusal, State,
        definition::{Birth, Definition},
        views::{CellState, RowView},
    },
    error::Error,
    ids::{PartitionId, RowId},
    store::Store,
};

/// One row of a running store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Why {
    /// Name of its partition.
    pub partition: String,
    /// Its id.
    pub row: RowId,
    /// What is known of it; `None` when it is gone, consumed by every reader or dropped: the event log tells which.
    pub live: Option<RowView>,
    /// What its cells hold, linked ones included.
    pub cells: BTreeMap<String, Cell>,
}

pub(super) fn why(store: &Store, partition: Option<&str>, row: RowId) -> Result<Why, Error> {
    let found = store.with_state(|state, now| {
        let id = match partition {
            Some(name) => named(state, name)?,
            None => named(state, samples(state.definition())?)?,
        };
        let name = state.describe(id)?.name;
        match state.row(id, row, now) {
            Ok(view) => Ok((id, name, Some(view))),
            Err(Refusal::NoRow { .. }) if row.0 < state.born(id)? => Ok((id, name, None)),
            Err(refusal) => Err(refusal),
        }
    })?;
    let (id, partition, mut live) = found?;
    let mut cells = BTreeMap::new();
    if let Some(view) = &mut live {
        shorten(&mut view.head.tags);
        for column in view.columns.iter().filter(|column| column.state == CellState::Held) {
            if let Some(cell) = one(store, id, row, &column.column)? {
                cells.insert(column.column.clone(), cell);
            }
        }
    }
    Ok(Why { partition, row, live, cells })
}

/// The partition that is meant where none is named: the trained one; without a schedule the only one whose rows are born
/// from those of another.
///
/// # Errors
/// When nothing is trained, and none or several hold such rows.
pub fn samples(definition: &Definition) -> Result<&str, Refusal> {
    if let Some(schedule) = &definition.schedule {
        return Ok(&schedule.partition);
    }
    let expanding = definition.partitions.iter().filter(|partition| matches!(partition.birth, Birth::Expand { .. }));
    match expanding.map(|partition| partition.name.as_str()).collect::<Vec<_>>()[..] {
        [one] => Ok(one),
        _ => {
            let known = definition.partitions.iter().map(|partition| partition.name.as_str());
            Err(unknown("without a name (none or several hold samples; name one)".to_owned(), known))
        }
    }
}

fn named(state: &State, name: &str) -> Result<PartitionId, Refusal> {
    let found = state.partition(name);
    found.ok_or_else(|| unknown(format!("`{name}`"), state.partitions().iter().map(|view| view.name.as_str())))
}

fn unknown<'a>(name: String, known: impl Iterator<Item = &'a str>) -> Refusal {
    let known: Vec<String> = known.take(64).map(|known| format!("`{known}`")).collect();
    Refusal::Unknown { what: "partition".to_owned(), name, known: known.join(", ") }
}
