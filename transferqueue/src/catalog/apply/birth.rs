//! Partitions and rows come and go.

use std::collections::BTreeSet;

use super::{
    super::{
        bits::Bits,
        build,
        command::{CellWrite, DropRows, NewRow},
        definition::{self, Gate},
        event::Admitted,
        state::{
            State, Wake,
            cursor::{Counted, Delta, Tally},
            pages::{Label, Row},
            table::{Batch, Group, Round, set_bits},
        },
    },
    scope::Scope,
};
use crate::ids::{GroupId, ModelId, PartitionId, RowId, SessionId};

impl State {
    pub(super) fn partition_created(
        &mut self,
        id: PartitionId,
        partition: &definition::Partition,
        owner: Option<SessionId>,
    ) {
        let mut table = build::table(partition, false);
        table.owner = owner;
        self.tables.insert(id, table);
        self.next.partition = PartitionId(id.0 + 1);
    }

    /// No row comes any more; for an expansion: it also lets go of what it would have expanded.
    pub(super) fn partition_closed(&mut self, id: PartitionId) {
        let Some(table) = self.tables.get_mut(&id) else { return };
        table.closed = true;
        self.scratch.schedule = true;
        self.scratch.wakes.insert(Wake::Put(id));
        self.scratch.wakes.extend(table.tasks.iter().map(|&task| Wake::Task(task)));
        if self.progress.as_ref().is_some_and(|progress| progress.partition == id) {
            let models = (0..self.models.len() as u16).map(ModelId);
            self.scratch.wakes.extend(models.map(Wake::Version));
        }
        let Some(expansion) = &table.expansion else { return };
        let (parent, from) = match expansion.gate {
            Gate::Schedule => (expansion.parent, expansion.next),
            Gate::Every { .. } => (expansion.parent, RowId(0)),
        };
        if let Some(table) = self.tables.get(&parent) {
            let rest = table.live.iter_from(from.0).map(|row| (parent, RowId(row)));
            self.scratch.released.extend(rest);
            self.scratch.wakes.insert(Wake::Put(parent));
        }
    }

    pub(super) fn partition_deleted(&mut self, id: PartitionId) {
        if let Some(table) = self.tables.remove(&id) {
            let chunks = table.chunks.iter().map(|(&chunk, found)| (id, chunk, found.slots));
            self.scratch.gone.extend(chunks);
        }
    }

    pub(super) fn rows_put(&mut self, id: PartitionId, first: RowId, rows: &[NewRow], cells: &[CellWrite]) {
        self.scratch.schedule = true;
        let open = |child: &&PartitionId| self.tables.get(child).is_some_and(|table| !table.closed);
        let holds = self.tables.get(&id).map_or(0, |table| table.children.iter().filter(open).count() as u16);
        let Some(mut scope) = self.scope(id) else { return };
        for (id, new) in (first.0..).map(RowId).zip(rows) {
            if let Some(key) = &new.key {
                scope.table.keys.insert(key.clone(), id);
            }
            let label = Label { key: new.key.as_deref().map(Box::from), tags: new.tags.clone(), span: None };
            let label = (label != Label::default()).then(|| Box::new(label));
            scope.insert(id, Row { group: GroupId(id.0), holds, label, ..Row::default() });
        }
        scope.enroll(first, rows.len() as u64);
        cells.iter().for_each(|write| scope.write(write));
    }

    pub(super) fn groups_admitted(&mut self, id: PartitionId, groups: &[Admitted], round: Option<u64>) {
        self.scratch.schedule = true;
        let Some(mut scope) = self.scope(id) else { return };
        if let Some(version) = round {
            scope.begin_round(version, groups);
        }
        for admitted in groups {
            scope.admit(admitted);
        }
        scope.eras(groups);
        let (Some(first), Some(last)) = (groups.first(), groups.last()) else { return };
        let rows = last.first.0 + u64::from(last.n) - first.first.0;
        scope.enroll(first.first, rows);
        if scope.table.cut_on == 0 {
            groups.iter().for_each(|admitted| scope.group_completed(admitted.group));
        }
        let parent = scope.table.expansion.as_ref().map(|expansion| expansion.parent);
        scope.scratch.wakes.extend(parent.map(Wake::Put));
    }

    pub(super) fn rows_dropped(&mut self, id: PartitionId, drop: &DropRows) {
        self.scratch.schedule = true;
        self.scratch.wakes.insert(Wake::Put(id));
        let Some(mut scope) = self.scope(id) else { return };
        let rows = Bits::from(&drop.rows).intersection(&scope.table.live);
        let mut leased = vec![Bits::default(); scope.table.tasks.len()];
        for (position, leased) in leased.iter_mut().enumerate() {
            let task = scope.task(position);
            for lease in &scope.cursors[task.0 as usize].leases {
                let lease = scope.leases.get_mut(lease).expect("invariant: a task's lease is in the table of leases");
                let lost = lease.rows.intersection(&rows);
                lease.rows.subtract(&lost);
                lease.lost.union(&lost);
                leased.union(&lost);
            }
        }
        for row in rows.iter().map(RowId) {
            let wanted = scope.table.pages.get(row).map_or(0, Row::wanted);
            for position in set_bits(wanted) {
                scope.leave(scope.task(position), row, &drop.reason, leased[position].contains(row.0));
            }
            scope.remove(row);
        }
        scope.prune();
    }

    /// A batch is cut: from here on its rows are counted per batch, and models that do not train yet renounce them.
    pub(super) fn batch_cut(&mut self, id: PartitionId, at: (u64, u64), groups: &[GroupId], last: bool) {
        self.scratch.schedule = true;
        let Some(mut scope) = self.scope(id) else { return };
        let tallies = vec![Tally::default(); scope.table.batch_tallies];
        scope.table.batches.insert(at, Batch { groups: groups.to_vec(), last, tallies });
        for &group in groups {
            scope.cut(group, at);
        }
        if let Some(progress) = &mut scope.progress {
            progress.cut += groups.len() as u64;
            progress.batches += 1;
            progress.whole = last;
        } else if let Some(round) = scope.table.expansion.as_mut().and_then(|expansion| expansion.round.as_mut()) {
            round.cut = true;
        }
        scope.idle_trainers(at.0, groups);
        let tasks = scope.table.tasks.iter().map(|&task| Wake::Task(task));
        scope.scratch.wakes.extend(tasks);
        scope.prune();
    }
}

impl Scope<'_> {
    fn insert(&mut self, id: RowId, row: Row) {
        self.table.pages.insert(id, row);
        self.table.live.insert(id.0);
        self.table.next_row = RowId(id.0 + 1);
        self.table.reserved += self.table.reservation();
    }

    fn admit(&mut self, admitted: &Admitted) {
        let &Admitted { group, first, n, parent, ordinal, version } = admitted;
        let tallies = vec![Tally { left: n, ..Tally::default() }; self.table.group_tallies];
        let incomplete = if self.table.cut_on == 0 { 0 } else { n };
        let born = Group {
            first,
            n,
            parent,
            ordinal,
            version,
            live: n,
            owed: n,
            incomplete,
            completed: None,
            sampled: None,
            noted: 0,
            cut: None,
            retired: false,
            tallies,
        };
        self.table.groups.insert(group, born);
        self.table.next_group = GroupId(group.0 + 1);
        for (sample, row) in (0..n).zip(first.0..) {
            self.insert(RowId(row), Row { group, sample, ..Row::default() });
        }
        if let Some(progress) = &mut self.progress {
            progress.admitted += 1;
            progress.uncut.insert(group);
            *progress.needed.entry(version).or_insert(0) += 1;
            if let Some(expansion) = &mut self.table.expansion {
                expansion.next = RowId(parent.0 + 1);
            }
        }
    }

    /// Remembers where the rows of a version begin, and forgets versions without live rows.
    fn eras(&mut self, groups: &[Admitted]) {
        for admitted in groups {
            self.table.eras.entry(admitted.version).or_insert((admitted.first, admitted.group));
        }
        let oldest = self.table.live.min().unwrap_or(0);
        while let Some(&(next, _)) = self.table.eras.values().nth(1)
            && next.0 <= oldest
        {
            self.table.eras.pop_first();
        }
    }

    fn begin_round(&mut self, version: u64, groups: &[Admitted]) {
        let Some(expansion) = &mut self.table.expansion else { return };
        if expansion.due.front() == Some(&version) {
            expansion.due.pop_front();
        }
        expansion.last_due = expansion.last_due.max(Some(version));
        let ids: BTreeSet<GroupId> = groups.iter().map(|admitted| admitted.group).collect();
        let n = ids.len() as u64;
        let round = Round { version, groups: ids, incomplete: n, owed: n, cut: false };
        expansion.round = (n > 0).then_some(round);
    }

    /// Newborn rows are owed to every task without a filter; the others decide once their columns are sealed.
    fn enroll(&mut self, first: RowId, len: u64) {
        let (mut owing, mut pending) = (0, 0);
        for position in 0..self.table.tasks.len() {
            let task = self.task(position);
            let cursor = self.cursor(task);
            match cursor.def.filter {
                Some(_) => {
                    pending |= cursor.bit;
                    cursor.undecided += len;
                }
                None => {
                    owing |= cursor.bit;
                    cursor.owing.insert_run(first.0, len);
                    cursor.owed += len;
                }
            }
        }
        let rows = (first.0..first.0 + len).map(RowId);
        for id in rows.clone() {
            let row = self.table.pages.get_mut(id).expect("invariant: just born");
            (row.owing, row.pending) = (owing, pending);
        }
        for position in 0..self.table.tasks.len() {
            let task = self.task(position);
            if self.cursor(task).reads != 0 {
                continue;
            }
            let decided = owing & 1 << position != 0;
            for id in rows.clone() {
                let Some(row) = self.table.pages.get(id) else { continue };
                let group = row.group;
                if decided {
                    self.gain(task, id, group);
                } else {
                    self.judge(task, id);
                    self.lapse(id);
                }
            }
        }
    }

    fn cut(&mut self, id: GroupId, at: (u64, u64)) {
        let Some(group) = self.table.groups.get_mut(&id) else { return };
        group.cut = Some(at);
        let (rows, completed) = (group.rows(), group.completed);
        if let Some(progress) = &mut self.progress {
            progress.uncut.remove(&id);
            if let Some(seq) = completed {
                progress.complete.remove(&seq);
            }
        }
        for row in rows {
            let Some(wanted) = self.table.pages.get(row).map(Row::wanted) else { continue };
            for position in set_bits(wanted) {
                let task = self.task(position);
                let cursor = self.cursor(task);
                if matches!(cursor.counted, Counted::Batches(_)) {
                    let ready = i32::from(cursor.ready.contains(row.0));
                    self.shift(task, id, Delta { left: 1, ready, leased: 0 });
                }
            }
        }
    }

    /// Rows cut before a model's first cycle are not owed to its training task.
    fn idle_trainers(&mut self, cycle: u64, groups: &[GroupId]) {
        for position in 0..self.table.tasks.len() {
            let task = self.task(position);
            let cursor = self.cursor(task);
            if cursor.training.is_none() || cursor.trains_in(cycle) {
                continue;
            }
            for group in groups {
                let Some(rows) = self.table.groups.get(group).map(Group::rows) else { continue };
                for row in rows {
                    self.renounce(task, row, "before_from_cycle");
                    self.lapse(row);
                }
            }
        }
    }
}
