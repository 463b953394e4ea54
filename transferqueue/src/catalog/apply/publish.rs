//! Weight versions: offered, published, pinned, retired; and what a restore undoes.

use super::super::{
    bits::Bits,
    definition::Gate,
    event::Published,
    state::{
        State, Wake,
        models::{Part, Version},
        table::{Table, set_bits},
    },
};
use crate::ids::{GroupId, LeaseId, ModelId, PartitionId, RowId, SessionId, TaskId};

impl State {
    pub(super) fn part_offered(&mut self, model: ModelId, weights: Option<PartitionId>, state: Option<PartitionId>) {
        for id in weights.iter().chain(&state) {
            if let Some(table) = self.tables.get_mut(id) {
                table.owner = None;
            }
        }
        self.models[usize::from(model.0)].part = Some(Part { weights, state });
    }

    /// The publication: one event for every model and every row of the cycle.
    pub(super) fn cycle_published(&mut self, cycle: Option<u64>, version: u64, lineage: u64, models: &[Published]) {
        self.version = version;
        for published in models {
            let model = &mut self.models[usize::from(published.model.0)];
            model.part = None;
            let visible = Version { lineage, partition: published.weights, pins: Default::default() };
            model.live.insert(version, visible);
            model.state = published.state.or(model.state);
            self.scratch.wakes.insert(Wake::Version(published.model));
        }
        self.scratch.versions = true;
        self.scratch.schedule = true;
        let trainers = (0..).map(TaskId).zip(&self.cursors).filter(|(_, cursor)| cursor.training.is_some());
        self.scratch.wakes.extend(trainers.map(|(task, _)| Wake::Task(task)));
        if let Some(cycle) = cycle {
            self.cycle_ended(cycle);
            self.rounds_due(version);
        }
    }

    fn cycle_ended(&mut self, cycle: u64) {
        let Some(partition) = self.progress.as_ref().map(|progress| progress.partition) else { return };
        let Some(mut scope) = self.scope(partition) else { return };
        let groups: Vec<GroupId> = scope
            .table
            .batches
            .range((cycle, 0)..(cycle + 1, 0))
            .flat_map(|(_, batch)| &batch.groups)
            .copied()
            .collect();
        for id in groups {
            let Some(group) = scope.table.groups.get_mut(&id) else { continue };
            group.retired = true;
            let (rows, version) = (group.rows(), group.version);
            if let Some(progress) = &mut scope.progress {
                progress.retired += 1;
                progress.unneed(version);
            }
            rows.for_each(|row| scope.consume_trained(row));
        }
        if let Some(progress) = &mut scope.progress {
            progress.cycle = cycle + 1;
            progress.dropped += std::mem::take(&mut progress.vacant);
            (progress.cut, progress.batches, progress.whole) = (0, 0, false);
        }
        scope.prune();
        for cursor in self.cursors.iter_mut().filter(|cursor| cursor.training.is_some()) {
            cursor.trainers.clear();
        }
    }

    /// Validation rounds that follow a version.
    fn rounds_due(&mut self, version: u64) {
        for expansion in self.tables.values_mut().filter_map(|table| table.expansion.as_mut()) {
            if let Gate::Every { cycles, .. } = expansion.gate
                && cycles > 0
                && version.is_multiple_of(cycles)
            {
                expansion.due.push_back(version);
                expansion.last_due = Some(version);
            }
        }
    }

    pub(super) fn version_pinned(&mut self, session: SessionId, model: ModelId, version: u64) {
        if let Some(found) = self.models[usize::from(model.0)].live.get_mut(&version) {
            *found.pins.entry(session).or_insert(0) += 1;
        }
    }

    pub(super) fn version_unpinned(&mut self, session: SessionId, model: ModelId, version: u64) {
        self.scratch.versions = true;
        let Some(found) = self.models[usize::from(model.0)].live.get_mut(&version) else { return };
        if let Some(pins) = found.pins.get_mut(&session) {
            *pins -= 1;
            if *pins == 0 {
                found.pins.remove(&session);
            }
        }
    }

    /// After a restore: nobody holds anything, what only a worker's memory held is undone, and a new lineage begins.
    pub(super) fn restored(&mut self, lineage: u64) {
        self.lineage = lineage;
        // Whoever goes on may have mended what failed, so every row has its attempts again.
        self.poisoned = None;
        self.tables.values_mut().for_each(Table::unspill);
        self.cursors.iter_mut().for_each(|cursor| cursor.attempts.clear());
        (self.scratch.schedule, self.scratch.versions) = (true, true);
        let leases: Vec<LeaseId> = self.leases.keys().copied().collect();
        for id in leases {
            let lease = &self.leases[&id];
            let (task, rows, lost) = (lease.task, lease.rows.rows(), lease.lost.rows());
            self.rows_returned(id, task, &rows, &lost, &super::super::event::Returned::Released);
        }
        (0..self.cursors.len() as u32).for_each(|task| self.untrain(TaskId(task)));
        let gangs = self.cursors.iter_mut().filter_map(|cursor| cursor.gang.as_mut());
        gangs.for_each(|gang| gang.end("the store was restored"));
        let sessions: Vec<SessionId> = self.sessions.keys().copied().collect();
        sessions.into_iter().for_each(|session| self.session_ended(session));
        let mut orphans = Bits::default();
        for model in &mut self.models {
            let part = model.part.take();
            let named = part.iter().flat_map(|part| part.weights.into_iter().chain(part.state));
            named.for_each(|id| _ = orphans.insert(u64::from(id.0)));
        }
        let owned = self.tables.iter().filter(|(_, table)| table.owner.is_some()).map(|(id, _)| *id);
        owned.for_each(|id| _ = orphans.insert(u64::from(id.0)));
        for id in orphans.iter() {
            self.partition_deleted(PartitionId(id as u32));
        }
    }
}

impl super::scope::Scope<'_> {
    /// A row of an ended cycle is consumed for every training task that owed it.
    fn consume_trained(&mut self, row: RowId) {
        let Some(owing) = self.table.pages.get(row).map(|row| row.owing) else { return };
        for position in set_bits(owing) {
            let task = self.task(position);
            let cursor = &mut self.cursors[task.0 as usize];
            if cursor.training.is_none() {
                continue;
            }
            cursor.owing.remove(row.0);
            cursor.done.remove(row.0);
            cursor.attempts.remove(&row);
            cursor.consumed += 1;
            let bit = cursor.bit;
            self.table.pages.get_mut(row).expect("invariant: found above").owing &= !bit;
        }
        self.lapse(row);
    }
}
