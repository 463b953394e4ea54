//! Batches are cut: which groups, in which order, and when none is waited for any longer.

use super::super::{
    command::DropRows,
    definition::{CutGrain, Order, Schedule, WeightRule},
    event::Event,
    state::{
        State,
        cycle::Progress,
        table::{Group, Table},
    },
};
use crate::ids::{GroupId, PartitionId, RowId, Rows};

/// Batches of the current cycle that can be cut now.
pub(super) fn batches(state: &State) -> Vec<Event> {
    let Some(progress) = state.progress.as_ref().filter(|p| !p.whole && p.cycle < p.cycles) else {
        return Vec::new();
    };
    let plan = &progress.plan;
    let mini = plan.groups_per_cycle / plan.minis_per_cycle;
    // Groups that were cut and dropped are not made up for within the cycle.
    let open = plan.groups_per_cycle - progress.cut;
    let wanted = match plan.grain {
        CutGrain::Cycle => open,
        CutGrain::Mini => mini.min(open),
    };
    let there = progress.uncut.len() as u64;
    let ended = no_more(state, progress);
    let take = if ended { wanted.min(there) } else { wanted };
    let last = take == open || ended && take == there;
    if take > there || take == 0 && progress.batches == 0 {
        return Vec::new();
    }
    let table = &state.tables[&progress.partition];
    let Some(chosen) = choose(state, progress, table, take as usize, open) else { return Vec::new() };
    let count = chosen.len().div_ceil(mini as usize).max(1);
    let slices = (0..count).map(|i| {
        let from = i * mini as usize;
        chosen[from..chosen.len().min(from + mini as usize)].to_vec()
    });
    let cut = |(i, groups): (usize, Vec<GroupId>)| Event::BatchCut {
        partition: progress.partition,
        cycle: progress.cycle,
        index: progress.batches + i as u64,
        groups,
        last: last && i + 1 == count,
    };
    slices.enumerate().map(cut).collect()
}

/// Whether no further group will be admitted, as things stand.
fn no_more(state: &State, progress: &Progress) -> bool {
    let table = &state.tables[&progress.partition];
    progress.remaining() == 0
        || table.closed
        || table.expansion.as_ref().is_some_and(|expansion| state.used_up(expansion))
}

/// The next `take` groups by the schedule's order, sorted by id; `None` while one of them is waited for. `open`: groups
/// that the cycle still takes, these included.
fn choose(state: &State, progress: &Progress, table: &Table, take: usize, open: u64) -> Option<Vec<GroupId>> {
    if progress.complete.len() < take {
        return None;
    }
    let mut chosen = match progress.plan.order {
        Order::Admission => {
            let complete = |id: &GroupId| table.groups.get(id).is_some_and(|group| group.completed.is_some());
            let next: Vec<GroupId> = progress.uncut.iter().take(take).copied().collect();
            next.iter().all(complete).then_some(next)?
        }
        Order::Completion => urgent(state.version, progress, table, take, open)?,
    };
    for id in progress.complete.values() {
        if chosen.len() >= take {
            break;
        }
        if !chosen.contains(id) {
            chosen.push(*id);
        }
    }
    chosen.sort_unstable();
    (chosen.len() == take).then_some(chosen)
}

/// In completion order under `max_lag` without dropping: the complete groups that this cut cannot leave to later ones;
/// `None` while too few of the old ones are complete.
///
/// A group of lag l may be left for at most max_lag − l more cycles: its deadline. By deadline d, later cuts have the rest
/// of this cycle and B places in each of d more cycles, so of the groups with deadline ≤ d at least as many as do not fit
/// there must be cut now. The lag of a group that is not sampled yet is counted from its admission.
fn urgent(version: u64, progress: &Progress, table: &Table, take: usize, open: u64) -> Option<Vec<GroupId>> {
    let plan = &progress.plan;
    let mut chosen = Vec::new();
    let Some(max) = plan.max_lag.filter(|_| !plan.drop_beyond) else { return Some(chosen) };
    let deadline = |id: &GroupId| {
        let group = &table.groups[id];
        max.saturating_sub(version - group.oldest(group.version))
    };
    let mut deadlines: Vec<u64> = progress.uncut.iter().map(deadline).collect();
    deadlines.sort_unstable();
    let mut n = 0;
    while let Some(&due) = deadlines.get(n) {
        n += deadlines[n..].iter().take_while(|d| **d == due).count();
        let later = open - take as u64 + due * plan.groups_per_cycle;
        let now = (n as u64).saturating_sub(later).min(take as u64) as usize;
        for id in progress.complete.values().filter(|id| deadline(id) <= due) {
            if chosen.len() >= now {
                break;
            }
            if !chosen.contains(id) {
                chosen.push(*id);
            }
        }
        if chosen.len() < now {
            return None;
        }
    }
    Some(chosen)
}

/// Rounds whose groups are all complete: one batch each.
pub(super) fn round_batches(state: &State) -> Vec<Event> {
    let round = |(&partition, table): (&PartitionId, &Table)| {
        let round = table.expansion.as_ref()?.round.as_ref().filter(|r| !r.cut && r.incomplete == 0)?;
        let groups = round.groups.iter().copied().collect();
        Some(Event::BatchCut { partition, cycle: round.version, index: 0, groups, last: true })
    };
    state.tables.iter().filter_map(round).collect()
}

/// Groups too old to be trained, if the schedule drops those.
pub(super) fn stale(state: &State) -> Vec<Event> {
    let Some(progress) = &state.progress else { return Vec::new() };
    let Schedule { max_lag: Some(max), drop_beyond: true, weights, .. } = progress.plan else { return Vec::new() };
    let table = &state.tables[&progress.partition];
    let old = |id: &GroupId| {
        let group = &table.groups[id];
        // Rows that are not sampled yet may still begin with the newest weights, unless the rule is exact.
        let sampled = weights == WeightRule::Exact || group.completed.is_some();
        let unknown = if sampled { group.version } else { state.version };
        state.version - group.oldest(unknown) > max
    };
    leaving(progress, table, progress.uncut.iter().copied().filter(old), "stale")
}

/// Groups that were admitted beyond the last cycle.
pub(super) fn surplus(state: &State) -> Vec<Event> {
    match &state.progress {
        Some(progress) if progress.cycle >= progress.cycles => {
            let table = &state.tables[&progress.partition];
            leaving(progress, table, progress.uncut.iter().copied(), "surplus")
        }
        _ => Vec::new(),
    }
}

fn leaving(progress: &Progress, table: &Table, groups: impl Iterator<Item = GroupId>, reason: &str) -> Vec<Event> {
    let rows = groups.filter_map(|id| table.groups.get(&id)).flat_map(Group::rows);
    let rows: Rows = rows.filter(|row: &RowId| table.live.contains(row.0)).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let drop = DropRows { rows, reason: reason.to_owned() };
    vec![Event::RowsDropped { partition: progress.partition, drop }]
}
