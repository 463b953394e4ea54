//! Everything about one row: the catalog's view of it, and what its cells hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::peek::{Cell, one, shorten};
use crate::{
    catalog::{
        Refusal, State,
        definition::Birth,
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
            None => samples(state)?,
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

fn named(state: &State, name: &str) -> Result<PartitionId, Refusal> {
    state.partition(name).ok_or_else(|| unknown(state, format!("`{name}`")))
}

/// The partition that holds samples, if one alone does: rows born from those of another partition.
fn samples(state: &State) -> Result<PartitionId, Refusal> {
    let expanding = |name: &str| state.definition().partitions.iter().any(|p| p.name == name && is_expansion(&p.birth));
    let views = state.partitions();
    let found: Vec<_> = views.iter().filter(|view| view.born > 0 && expanding(&view.name)).collect();
    match found[..] {
        [one] => Ok(one.id),
        _ => Err(unknown(state, "without a name (none or several hold samples; name one)".to_owned())),
    }
}

fn is_expansion(birth: &Birth) -> bool {
    matches!(birth, Birth::Expand { .. })
}

fn unknown(state: &State, name: String) -> Refusal {
    let known: Vec<String> = state.partitions().iter().take(64).map(|view| format!("`{}`", view.name)).collect();
    Refusal::Unknown { what: "partition".to_owned(), name, known: known.join(", ") }
}
