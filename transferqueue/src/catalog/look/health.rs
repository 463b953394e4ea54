//! What may need a person, without judging it: how long is too long is for whoever asks.

use std::cmp::Reverse;

use super::{
    super::{
        state::State,
        views::{BudgetView, FailedRow, HealthView, PoisonedRow, QuietLease, TaskWait},
    },
    LeaseView,
};
use crate::ids::{LeaseId, Millis, SessionId};

/// Entries of each list.
const SHOWN: usize = 16;

impl State {
    /// Leases without progress, silent sessions, rows that fail, tasks that wait, a budget that keeps groups out.
    pub fn health(&self, now: Millis) -> HealthView {
        let name = |task: usize| self.cursors[task].def.name.clone();
        let tasks = self.tasks(now);
        let waits = tasks.into_iter().filter_map(|task| {
            let (task, leased, wait) = (task.task, task.leased, task.wait?);
            Some(TaskWait { task, leased, wait })
        });
        let mut failed: Vec<FailedRow> = Vec::new();
        for cursor in &self.cursors {
            let (task, partition, attempts) = (&cursor.def.name, &cursor.def.partition, cursor.def.attempts);
            // Only the worst matter: few rows fail at all, but nothing bounds their number.
            let rows = cursor.attempts.iter().map(|(&row, &failed)| {
                let (task, partition) = (task.clone(), partition.clone());
                FailedRow { task, partition, row, failed, attempts }
            });
            failed.extend(worst(rows, |row| Reverse(row.failed)));
        }
        failed.sort_by_key(|row| (row.attempts.saturating_sub(row.failed), row.row));
        failed.truncate(SHOWN);
        HealthView {
            leases: self.quiet_leases(now),
            sessions: self.silent_sessions(now),
            failed,
            poisoned: self.poisoned.as_ref().map(|poisoned| PoisonedRow {
                task: name(poisoned.task.0 as usize),
                partition: self.cursors[poisoned.task.0 as usize].def.partition.clone(),
                row: poisoned.row,
                error: poisoned.error.chars().take(1_000).collect(),
            }),
            waits: waits.collect(),
            budget: self.definition.budget.map(|bytes| BudgetView {
                bytes,
                used: self.budgeted(),
                blocks: self.short_of() > 0,
                spilled: self.tables.values().flat_map(|table| &table.fields).map(|field| field.spilled).sum(),
            }),
        }
    }

    fn quiet_leases(&self, now: Millis) -> Vec<QuietLease> {
        let quiet = |id: &LeaseId| {
            let lease = &self.leases[id];
            let life = self.cursors[lease.task.0 as usize].def.lease_ms;
            // A lease ends its life after it began or was renewed.
            now.0.saturating_sub(lease.until.0.saturating_sub(life))
        };
        let longest = worst(self.leases.keys().copied(), |id| (Reverse(quiet(id)), *id));
        let view = |id: LeaseId| {
            let lease: LeaseView = self.lease_view(id, now);
            let task = self.cursors[self.leases[&id].task.0 as usize].def.name.clone();
            QuietLease { task, lease, quiet_ms: quiet(&id) }
        };
        longest.into_iter().map(view).collect()
    }

    fn silent_sessions(&self, now: Millis) -> Vec<super::SessionView> {
        let silent = worst(self.sessions.keys().copied(), |id: &SessionId| (self.sessions[id].seen, *id));
        let view = |id| {
            let mut view = self.session_view(id, &self.sessions[&id], now);
            view.shorten(SHOWN);
            view
        };
        silent.into_iter().map(view).collect()
    }
}

/// The first few in an order, in it.
fn worst<T, K: Ord>(items: impl Iterator<Item = T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    items.sort_by_key(key);
    items.truncate(SHOWN);
    items
}
