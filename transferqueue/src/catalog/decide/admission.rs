//! Groups are born: by the schedule's inequality, or a whole round at once.

use super::super::{
    definition::Gate,
    event::{Admitted, Event},
    state::{
        State,
        table::{Expansion, Table},
    },
};
use crate::ids::{GroupId, PartitionId, RowId};

impl State {
    /// Whether training is over: all cycles have ended, or no group is left and none will come.
    pub(crate) fn over(&self) -> bool {
        let Some(progress) = &self.progress else { return false };
        let drained = || {
            let table = &self.tables[&progress.partition];
            table.closed && progress.uncut.is_empty() && progress.batches == 0
        };
        progress.cycle >= progress.cycles || drained()
    }

    /// Whether a parent has no row left to expand and will get none.
    pub(crate) fn used_up(&self, expansion: &Expansion) -> bool {
        let parent = &self.tables[&expansion.parent];
        parent.closed && parent.live.iter_from(expansion.next.0).next().is_none()
    }

    /// Bytes that count against the budget.
    pub(crate) fn budgeted(&self) -> u64 {
        self.tables.values().filter(|table| table.expansion.is_some()).map(Table::budgeted).sum()
    }
}

/// The columns that a child reads of a parent's row must be there before the row is expanded.
fn linked(expansion: &Expansion) -> u64 {
    expansion.links.iter().fold(0, |mask, (_, column)| mask | 1 << column)
}

fn born(table: &Table, n: u32, version: u64, parents: impl Iterator<Item = RowId>) -> Vec<Admitted> {
    let ids = (table.next_group.0..).map(GroupId).zip((table.next_row.0..).step_by(n as usize).map(RowId));
    ids.zip(parents)
        .map(|((group, first), parent)| Admitted { group, first, n, parent, ordinal: parent.0, version })
        .collect()
}

/// Groups that the schedule admits now.
pub(super) fn scheduled(state: &State) -> Vec<Event> {
    let Some(progress) = state.progress.as_ref().filter(|p| p.cycle < p.cycles) else { return Vec::new() };
    let table = &state.tables[&progress.partition];
    let Some(expansion) = table.expansion.as_ref().filter(|_| !table.closed) else { return Vec::new() };
    let mut room = progress.allowed().saturating_sub(progress.in_flight()).min(progress.remaining());
    if let Some(budget) = state.definition.budget {
        let group = u64::from(expansion.n) * table.reservation();
        let free = budget.saturating_sub(state.budgeted());
        room = room.min(free.checked_div(group).unwrap_or(room));
    }
    if room == 0 {
        return Vec::new();
    }
    let parent = &state.tables[&expansion.parent];
    let links = linked(expansion);
    let ready = |row: &RowId| parent.pages.get(*row).is_some_and(|row| links & !row.sealed == 0);
    let parents = parent.live.iter_from(expansion.next.0).map(RowId).take(room as usize).take_while(ready);
    let groups = born(table, expansion.n, state.version, parents);
    if groups.is_empty() {
        return Vec::new();
    }
    vec![Event::GroupsAdmitted { partition: progress.partition, groups, round: None }]
}

/// Rounds that are due in partitions with a gate of their own, one at a time each.
pub(super) fn rounds(state: &State) -> Vec<Event> {
    state.tables.iter().filter_map(|(&id, table)| round(state, id, table)).collect()
}

fn round(state: &State, id: PartitionId, table: &Table) -> Option<Event> {
    let expansion = table.expansion.as_ref().filter(|_| !table.closed)?;
    let Gate::Every { cycles, .. } = expansion.gate else { return None };
    let last = (state.over() && cycles > 0 && expansion.last_due != Some(state.version)).then_some(state.version);
    let version = expansion.due.front().copied().or(last)?;
    let parent = &state.tables[&expansion.parent];
    let links = linked(expansion);
    let mut rows = parent.live.iter().filter_map(|row| parent.pages.get(RowId(row)));
    if expansion.round.is_some() || !parent.closed || !rows.all(|row| links & !row.sealed == 0) {
        return None;
    }
    let groups = born(table, expansion.n, version, parent.live.iter().map(RowId));
    Some(Event::GroupsAdmitted { partition: id, groups, round: Some(version) })
}

/// Partitions that nothing can come into any more.
pub(super) fn closings(state: &State) -> Vec<Event> {
    let over = state.over();
    let finished = |table: &Table| match &table.expansion {
        Some(expansion) => match expansion.gate {
            Gate::Schedule => over || state.used_up(expansion),
            Gate::Every { cycles, .. } => {
                let ended = match state.progress {
                    Some(_) => over && (cycles == 0 || expansion.last_due == Some(state.version)),
                    None => true,
                };
                ended && expansion.due.is_empty() && expansion.round.is_none()
            }
        },
        None => state.needs_no_more(table),
    };
    let open = state.tables.iter().filter(|(_, table)| !table.closed && finished(table));
    open.map(|(&partition, _)| Event::PartitionClosed { partition }).collect()
}
