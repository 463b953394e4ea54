//! One partition with everything its rows touch, and how a row passes from state to state for one task.
//!
//! For each task a row is *waiting* (owed, a column is missing), *ready*, *leased*, *done* (training) or out. The methods
//! here are the only ones that move a row between these, so that bitmaps, tallies and wake-ups stay in step.

use std::collections::BTreeMap;

use super::super::{
    definition::Gate,
    state::{
        Lease, Scratch, State, Wake,
        cursor::{Counted, Cursor, Delta},
        cycle::Progress,
        table::{Table, set_bits},
    },
};
use crate::ids::{GroupId, LeaseId, PartitionId, RowId, TaskId};

/// A partition, borrowed for change.
pub(super) struct Scope<'a> {
    pub(super) id: PartitionId,
    pub(super) table: &'a mut Table,
    pub(super) cursors: &'a mut [Cursor],
    pub(super) leases: &'a mut BTreeMap<LeaseId, Lease>,
    /// The schedule, if it trains this partition.
    pub(super) progress: Option<&'a mut Progress>,
    pub(super) scratch: &'a mut Scratch,
}

impl State {
    /// `None` for a partition that is gone.
    pub(super) fn scope(&mut self, id: PartitionId) -> Option<Scope<'_>> {
        Some(Scope {
            id,
            table: self.tables.get_mut(&id)?,
            cursors: &mut self.cursors,
            leases: &mut self.leases,
            progress: self.progress.as_mut().filter(|p| p.partition == id),
            scratch: &mut self.scratch,
        })
    }
}

impl Scope<'_> {
    /// The partition's task with this bit.
    pub(super) fn task(&self, bit: usize) -> TaskId {
        self.table.tasks[bit]
    }

    pub(super) fn cursor(&mut self, task: TaskId) -> &mut Cursor {
        &mut self.cursors[task.0 as usize]
    }

    /// Counts a change of one row in its group or batch.
    pub(super) fn shift(&mut self, task: TaskId, group: GroupId, by: Delta) {
        let cursor = &mut self.cursors[task.0 as usize];
        match cursor.counted {
            Counted::Rows => {}
            Counted::Groups(i) => {
                let Some(found) = self.table.groups.get_mut(&group) else { return };
                found.tallies[i].shift(by);
                if found.tallies[i].whole() {
                    if cursor.ready_groups.insert(group.0) {
                        self.scratch.wakes.insert(Wake::Task(task));
                    }
                } else {
                    cursor.ready_groups.remove(group.0);
                }
                if let Some(reuse) = &mut cursor.reuse {
                    let owed = found.rows().filter(|row| cursor.owing.contains(row.0));
                    let fewest = owed.map(|row| reuse.uses(row)).min();
                    reuse.place(group.0, fewest.filter(|_| found.tallies[i].whole()));
                }
            }
            Counted::Batches(i) => {
                let cut = self.table.groups.get(&group).and_then(|group| group.cut);
                let Some(batch) = cut.and_then(|cut| self.table.batches.get_mut(&cut)) else { return };
                batch.tallies[i].shift(by);
                if batch.tallies[i].servable() || batch.tallies[i].left == 0 {
                    self.scratch.wakes.insert(Wake::Task(task));
                }
            }
        }
    }

    /// Waiting → ready.
    pub(super) fn gain(&mut self, task: TaskId, row: RowId, group: GroupId) {
        let cursor = self.cursor(task);
        cursor.ready.insert(row.0);
        if cursor.counted == Counted::Rows {
            if let Some(reuse) = &mut cursor.reuse {
                reuse.place(row.0, Some(reuse.uses(row)));
            }
            self.scratch.wakes.insert(Wake::Task(task));
        }
        self.shift(task, group, Delta { ready: 1, ..Delta::default() });
    }

    /// Leased → consumed; → ready where it is to be used again.
    pub(super) fn used(&mut self, task: TaskId, row: RowId) {
        let cursor = &mut self.cursors[task.0 as usize];
        if !cursor.reuse.as_mut().is_some_and(|reuse| reuse.count(row)) {
            return self.finish(task, row);
        }
        // What failed before has come to pass: the next use has its own attempts.
        cursor.attempts.remove(&row);
        let group = self.table.pages.get(row).expect("invariant: leased rows are live").group;
        self.shift(task, group, Delta { leased: -1, ..Delta::default() });
        self.gain(task, row, group);
    }

    /// Leased → consumed.
    fn finish(&mut self, task: TaskId, row: RowId) {
        let cursor = &mut self.cursors[task.0 as usize];
        let bit = cursor.bit;
        cursor.owing.remove(row.0);
        cursor.consumed += 1;
        if !cursor.attempts.is_empty() {
            cursor.attempts.remove(&row);
        }
        let found = self.table.pages.get_mut(row).expect("invariant: leased rows are live");
        found.owing &= !bit;
        let group = found.group;
        self.shift(task, group, Delta { left: -1, leased: -1, ..Delta::default() });
        self.lapse(row);
    }

    /// A filter is decided, now that the task's columns are sealed.
    pub(super) fn judge(&mut self, task: TaskId, row: RowId) {
        let cursor = &mut self.cursors[task.0 as usize];
        let found = self.table.pages.get(row).expect("invariant: judged rows are live");
        let head = self.table.head(row, found);
        let matches = cursor.def.filter.as_ref().is_none_or(|filter| filter.matches(&head));
        let bit = cursor.bit;
        let found = self.table.pages.get_mut(row).expect("invariant: judged rows are live");
        found.pending &= !bit;
        cursor.undecided -= 1;
        if matches {
            found.owing |= bit;
            cursor.owing.insert(row.0);
            cursor.owed += 1;
            self.gain(task, row, head.group);
        } else {
            if cursor.idle() {
                self.scratch.wakes.insert(Wake::Task(task));
            }
            self.shift(task, head.group, Delta { left: -1, ..Delta::default() });
            self.forgo(task, row);
        }
    }

    /// A task will not have this row, for `reason`; whatever it was doing with it ends.
    pub(super) fn renounce(&mut self, task: TaskId, row: RowId, reason: &str) {
        if self.leave(task, row, reason, false) {
            self.forgo(task, row);
        }
    }

    /// A row goes out for a task without being consumed. `leased`: a lease has just let go of it. Returns whether the
    /// task wanted it.
    pub(super) fn leave(&mut self, task: TaskId, row: RowId, reason: &str, leased: bool) -> bool {
        let cursor = &mut self.cursors[task.0 as usize];
        let bit = cursor.bit;
        let Some(found) = self.table.pages.get_mut(row) else { return false };
        let group = found.group;
        if found.pending & bit != 0 {
            found.pending &= !bit;
            cursor.undecided -= 1;
            if cursor.idle() {
                self.scratch.wakes.insert(Wake::Task(task));
            }
            self.shift(task, group, Delta { left: -1, ..Delta::default() });
            return true;
        }
        if found.owing & bit == 0 {
            return false;
        }
        found.owing &= !bit;
        cursor.owing.remove(row.0);
        cursor.attempts.remove(&row);
        cursor.drop_one(reason);
        let done = cursor.done.remove(row.0);
        let ready = cursor.ready.remove(row.0);
        if let Some(reuse) = &mut cursor.reuse {
            reuse.forfeit(row);
            if cursor.counted == Counted::Rows {
                reuse.place(row.0, None);
            }
        }
        if cursor.idle() {
            self.scratch.wakes.insert(Wake::Task(task));
        }
        let left = if done { 0 } else { -1 };
        self.shift(task, group, Delta { left, ready: -i32::from(ready), leased: -i32::from(leased) });
        true
    }

    /// A task that will not have a row does not write its columns either: if nobody else does, their readers renounce it.
    fn forgo(&mut self, task: TaskId, row: RowId) {
        let writes = self.cursors[task.0 as usize].writes;
        let Some(found) = self.table.pages.get(row) else { return };
        for column in set_bits(writes & !found.settled()) {
            self.void(row, column);
        }
    }

    fn void(&mut self, row: RowId, column: usize) {
        let field = &self.table.fields[column];
        let (readers, writers, max) = (field.readers, field.writers, field.def.max_bytes.unwrap_or(0));
        let found = self.table.pages.get(row).expect("invariant: the caller holds a live row");
        if writers & found.wanted() != 0 {
            return;
        }
        let before = self.table.complete(found);
        let found = self.table.pages.get_mut(row).expect("invariant: found above");
        found.void |= 1 << column;
        let (group, wanted) = (found.group, found.wanted());
        self.table.reserved -= max;
        self.completed(row, group, before);
        for bit in set_bits(readers & wanted) {
            self.renounce(self.task(bit), row, "unproduced");
        }
    }

    /// Takes note if a row has just come to have all columns that batches are cut on.
    pub(super) fn completed(&mut self, row: RowId, group: GroupId, before: bool) {
        if before || !self.table.pages.get(row).is_some_and(|row| self.table.complete(row)) {
            return;
        }
        let Some(found) = self.table.groups.get_mut(&group) else { return };
        found.incomplete -= 1;
        if found.incomplete == 0 {
            self.group_completed(group);
        }
    }

    /// A group may be cut.
    pub(super) fn group_completed(&mut self, id: GroupId) {
        let Some(group) = self.table.groups.get_mut(&id).filter(|group| group.completed.is_none()) else { return };
        self.scratch.schedule = true;
        match (&mut self.progress, &mut self.table.expansion) {
            (Some(progress), _) => {
                group.completed = Some(progress.completions);
                progress.complete.insert(progress.completions, id);
                progress.completions += 1;
            }
            (None, Some(expansion)) => {
                group.completed = Some(0);
                if let Some(round) = &mut expansion.round {
                    round.incomplete -= 1;
                }
            }
            (None, None) => {}
        }
    }

    /// No task owes a row of the group any more.
    pub(super) fn group_unowed(&mut self, id: GroupId) {
        let Some(group) = self.table.groups.get(&id) else { return };
        let Some(expansion) = &mut self.table.expansion else { return };
        match expansion.gate {
            Gate::Schedule => self.scratch.released.push((expansion.parent, group.parent)),
            Gate::Every { .. } => {
                let Some(round) = &mut expansion.round else { return };
                round.owed -= 1;
                if round.owed == 0 {
                    expansion.round = None;
                    self.scratch.schedule = true;
                    self.scratch.versions = true;
                }
            }
        }
    }

    /// The last row of a group is gone.
    pub(super) fn group_gone(&mut self, id: GroupId) {
        let Some(group) = self.table.groups.remove(&id) else { return };
        for &task in &self.table.tasks {
            self.cursors[task.0 as usize].ready_groups.remove(id.0);
        }
        if let Some(progress) = &mut self.progress {
            if !group.retired {
                match group.cut {
                    Some(_) => progress.vacant += 1,
                    None => progress.dropped += 1,
                }
                progress.unneed(group.version);
                self.scratch.versions = true;
            }
            progress.uncut.remove(&id);
            if let Some(seq) = group.completed {
                progress.complete.remove(&seq);
            }
            self.scratch.schedule = true;
        } else if let Some(round) = self.table.expansion.as_mut().and_then(|expansion| expansion.round.as_mut()) {
            if round.groups.remove(&id) && group.completed.is_none() {
                round.incomplete -= 1;
            }
            self.scratch.schedule = true;
        }
    }

    /// Forgets batches of ended cycles that no task will claim from.
    pub(super) fn prune(&mut self) {
        let current = self.progress.as_ref().map(|progress| progress.cycle);
        let batches = &mut self.table.batches;
        batches.retain(|&(cycle, _), batch| {
            batch.tallies.iter().any(|tally| tally.left > 0) || current.is_some_and(|current| cycle >= current)
        });
    }
}
