//! What a worker saves of a row outlives its lease: open cells that nobody reads until another worker has the row.

use super::super::{
    command::{CellWrite, SavedRow},
    state::{
        State,
        table::{Saved, set_bits},
    },
};
use crate::ids::{LeaseId, RowId, TaskId};

impl State {
    pub(super) fn rows_saved(&mut self, lease: LeaseId, task: TaskId, cells: &[CellWrite], rows: &[SavedRow]) {
        let session = self.leases.get(&lease).and_then(|lease| self.sessions.get(&lease.session));
        let worker = session.map_or_else(String::new, |session| session.name.clone());
        let cursor = &self.cursors[task.0 as usize];
        let (partition, writes) = (cursor.partition, cursor.writes);
        let Some(mut scope) = self.scope(partition) else { return };
        rows.iter().for_each(|saved| scope.forget(saved.row, writes));
        cells.iter().for_each(|write| scope.write(write));
        for SavedRow { row, sampled } in rows {
            let saved = Saved { worker: worker.clone(), sampled: sampled.clone() };
            scope.table.saved.insert((*row, task), saved);
        }
    }
}

impl super::scope::Scope<'_> {
    /// What tasks have saved of a row is gone.
    pub(super) fn forget_saved(&mut self, row: RowId) {
        let tasks: Vec<TaskId> = self.table.saved_of(row).map(|(task, _)| task).collect();
        for task in tasks {
            let writes = self.cursor(task).writes;
            self.forget(row, writes);
        }
    }

    /// Open cells of a row die, and what was saved of it with them.
    pub(super) fn forget(&mut self, row: RowId, columns: u64) {
        // Nearly always: every row that is freed comes by here.
        if self.table.open.is_empty() {
            return;
        }
        let open: u64 = self.table.open_in(row, columns).fold(0, |mask, (column, _)| mask | 1 << column);
        set_bits(open).for_each(|column| self.close(row, column));
    }

    /// An open cell of the row is gone: tasks of which it was the last one have nothing saved of it.
    pub(super) fn unsave(&mut self, row: RowId) {
        if self.table.saved.is_empty() {
            return;
        }
        let (table, cursors) = (&*self.table, &*self.cursors);
        let empty = |task: &TaskId| table.open_in(row, cursors[task.0 as usize].writes).next().is_none();
        let gone: Vec<TaskId> = table.saved_of(row).map(|(task, _)| task).filter(empty).collect();
        gone.into_iter().for_each(|task| _ = self.table.saved.remove(&(row, task)));
    }
}
