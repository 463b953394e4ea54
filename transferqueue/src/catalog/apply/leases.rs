//! Sessions and leases: who holds which rows, and for how long.

use super::super::{
    bits::Bits,
    event::Returned,
    state::{
        Lease, Session, State, Wake,
        cursor::{Counted, Delta},
    },
};
use crate::ids::{LeaseId, Millis, RowId, Rows, SessionId, TaskId};

impl State {
    pub(super) fn session_opened(&mut self, id: SessionId, name: &str, at: Millis, here: bool) {
        self.sessions.insert(id, Session { name: name.to_owned(), seen: at, here, leases: Default::default() });
        self.next.session = SessionId(id.0 + 1);
    }

    /// Its leases were returned by the events before. Training that only its memory held has to be done again.
    pub(super) fn session_ended(&mut self, id: SessionId) {
        self.sessions.remove(&id);
        self.cursors
            .iter_mut()
            .filter_map(|cursor| cursor.gang.as_mut())
            .for_each(|gang| _ = gang.unseated.remove(&id));
        for model in &mut self.models {
            for version in model.live.values_mut() {
                version.pins.remove(&id);
            }
        }
        self.scratch.versions = true;
        let lost = |task: &TaskId| {
            let cursor = &self.cursors[task.0 as usize];
            let offered = cursor.training.is_some_and(|t| self.models[usize::from(t.model.0)].part.is_some());
            cursor.trainers.contains(&id) && !offered
        };
        let tasks: Vec<TaskId> = (0..self.cursors.len() as u32).map(TaskId).filter(lost).collect();
        tasks.into_iter().for_each(|task| self.untrain(task));
    }

    /// Done → ready, for all of a training task's rows.
    pub(super) fn untrain(&mut self, task: TaskId) {
        self.scratch.wakes.insert(Wake::Task(task));
        let cursor = &mut self.cursors[task.0 as usize];
        cursor.trainers.clear();
        let (done, partition) = (std::mem::take(&mut cursor.done), cursor.partition);
        let Some(mut scope) = self.scope(partition) else { return };
        for row in done.iter().map(RowId) {
            let Some(group) = scope.table.pages.get(row).map(|row| row.group) else { continue };
            scope.cursor(task).ready.insert(row.0);
            scope.shift(task, group, Delta { left: 1, ready: 1, leased: 0 });
        }
    }

    pub(super) fn leased(&mut self, id: LeaseId, task: TaskId, session: SessionId, rows: &Rows, at: Millis) {
        self.next.lease = LeaseId(id.0 + 1);
        let cursor = &mut self.cursors[task.0 as usize];
        cursor.leases.insert(id);
        cursor.ready.remove_rows(rows);
        if let (Some(reuse), Counted::Rows) = (&mut cursor.reuse, cursor.counted) {
            reuse.take(rows);
        }
        let (partition, counted) = (cursor.partition, cursor.counted);
        let until = Millis(at.0 + cursor.def.lease_ms);
        if let Some(session) = self.sessions.get_mut(&session) {
            session.leases.insert(id);
        }
        let lease =
            Lease { task, session, rows: Bits::from(rows), lost: Bits::default(), since: at, until, progress: None };
        self.leases.insert(id, lease);
        if counted == Counted::Rows {
            return;
        }
        let Some(mut scope) = self.scope(partition) else { return };
        for row in rows.iter() {
            let Some(group) = scope.table.pages.get(row).map(|row| row.group) else { continue };
            scope.shift(task, group, Delta { ready: -1, leased: 1, left: 0 });
        }
        // The next batch in order may be another worker's now.
        if matches!(counted, Counted::Batches(_)) {
            self.scratch.wakes.insert(Wake::Task(task));
        }
    }

    pub(super) fn lease_renewed(&mut self, id: LeaseId, progress: u64, at: Millis) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        lease.progress = Some(progress);
        lease.until = Millis(at.0 + self.cursors[lease.task.0 as usize].def.lease_ms);
    }

    pub(super) fn rows_committed(&mut self, id: LeaseId, task: TaskId, rows: &Rows, lost: &Rows) {
        self.let_go(id, rows, lost);
        let session = self.leases.get(&id).map(|lease| lease.session);
        let cursor = &mut self.cursors[task.0 as usize];
        let (partition, training) = (cursor.partition, cursor.training.is_some());
        if training {
            cursor.trainers.extend(session);
        }
        let Some(mut scope) = self.scope(partition) else { return };
        for row in rows.iter() {
            if training {
                let Some(group) = scope.table.pages.get(row).map(|row| row.group) else { continue };
                scope.cursor(task).done.insert(row.0);
                scope.shift(task, group, Delta { left: -1, leased: -1, ready: 0 });
            } else {
                scope.used(task, row);
            }
        }
        if matches!(scope.cursor(task).counted, Counted::Batches(_)) {
            scope.prune();
        }
        if self.cursors[task.0 as usize].idle() {
            self.scratch.wakes.insert(Wake::Task(task));
        }
        // Bytes went, which admission may be waiting for.
        self.scratch.schedule |= self.definition.budget.is_some();
        self.end_if_empty(id);
    }

    pub(super) fn rows_returned(&mut self, id: LeaseId, task: TaskId, rows: &Rows, lost: &Rows, why: &Returned) {
        self.let_go(id, rows, lost);
        let cursor = &mut self.cursors[task.0 as usize];
        if !matches!(why, Returned::Released | Returned::GangEnded) {
            rows.iter().for_each(|row| *cursor.attempts.entry(row).or_insert(0) += 1);
        }
        let partition = cursor.partition;
        if let Some(mut scope) = self.scope(partition) {
            for row in rows.iter() {
                let Some(group) = scope.table.pages.get(row).map(|row| row.group) else { continue };
                scope.abandon(task, row);
                scope.shift(task, group, Delta { leased: -1, ..Delta::default() });
                scope.gain(task, row, group);
            }
        }
        // A training worker that lost a lease will be refused; what it did in the cycle is done again.
        if *why == Returned::Expired && self.cursors[task.0 as usize].training.is_some() {
            self.untrain(task);
        }
        self.end_if_empty(id);
    }

    fn let_go(&mut self, id: LeaseId, rows: &Rows, lost: &Rows) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.rows.remove_rows(rows);
            lease.lost.remove_rows(lost);
        }
    }

    pub(super) fn end_if_empty(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get(&id).filter(|lease| lease.rows.is_empty() && lease.lost.is_empty()) else {
            return;
        };
        self.cursors[lease.task.0 as usize].leases.remove(&id);
        if let Some(session) = self.sessions.get_mut(&lease.session) {
            session.leases.remove(&id);
        }
        self.leases.remove(&id);
    }

    /// Every lease and session gets its full time again.
    pub(super) fn clock_jumped(&mut self, to: Millis) {
        for lease in self.leases.values_mut() {
            lease.since = lease.since.min(to);
            lease.until = Millis(to.0 + self.cursors[lease.task.0 as usize].def.lease_ms);
        }
        for session in self.sessions.values_mut() {
            session.seen = to;
        }
    }
}
