//! One row: its columns with their writers, and how far each task is with it.

use super::super::{
    definition::Grain,
    refusal::Refusal,
    state::{
        State,
        cursor::{Counted, Cursor},
        pages::Row,
        table::{Table, set_bits},
    },
    views::{CellState, RowColumn, RowTask, RowTaskState, RowView, SavedView},
};
use crate::ids::{Millis, PartitionId, RowId, Rows, TaskId};

impl State {
    /// Everything known of a live row.
    ///
    /// # Errors
    /// An unknown partition, or a row that is gone.
    pub fn row(&self, partition: PartitionId, id: RowId, now: Millis) -> Result<RowView, Refusal> {
        let mut heads = self.heads(partition, &Rows::run(id, 1))?;
        let head = heads.pop().expect("invariant: one head for one row");
        let table = self.table(partition)?;
        let row = table.pages.get(id).expect("invariant: its head was found");
        let group = table.groups.get(&row.group);
        let parent = table.expansion.as_ref().zip(group);
        let mut columns: Vec<RowColumn> =
            (0..table.fields.len()).map(|at| self.row_column(table, row, id, at)).collect();
        if let Some((expansion, group)) = parent
            && let Some(source) = self.tables.get(&expansion.parent)
            && let Some(from) = source.pages.get(group.parent)
        {
            columns.extend(expansion.links.iter().map(|(_, column)| RowColumn {
                from: Some((source.name.clone(), group.parent)),
                ..self.row_column(source, from, group.parent, usize::from(*column))
            }));
        }
        let tasks = table.tasks.iter().map(|&task| self.row_task(table, row, id, task, now));
        Ok(RowView {
            key: row.key().map(str::to_owned),
            parent: parent
                .and_then(|(expansion, group)| Some((self.tables.get(&expansion.parent)?.name.clone(), group.parent))),
            batch: group.and_then(|group| group.cut),
            columns,
            tasks: tasks.collect(),
            head,
        })
    }

    fn row_column(&self, table: &Table, row: &Row, id: RowId, position: usize) -> RowColumn {
        let field = &table.fields[position];
        let bit = 1 << position;
        let open = table.open.get(&(id, position as u16));
        let (state, bytes) = match open {
            Some(open) => (CellState::Open, open.bytes),
            None if row.held & bit != 0 => {
                (CellState::Held, table.pages.cell(id, position).map_or(0, |cell| cell.bytes))
            }
            None if row.sealed & bit != 0 => (CellState::Freed, 0),
            None if row.void & bit != 0 => (CellState::Never, 0),
            None => (CellState::Missing, 0),
        };
        // Of several writers with disjoint filters, those that are owed the row are the ones that still may.
        let writers = match state {
            CellState::Missing | CellState::Open => field.writers & row.wanted(),
            _ => field.writers,
        };
        let writers = set_bits(writers).map(|bit| self.cursors[table.tasks[bit].0 as usize].def.name.clone()).collect();
        RowColumn { column: field.def.name.clone(), from: None, state, bytes: u64::from(bytes), writers }
    }

    fn row_saved(&self, table: &Table, id: RowId, task: TaskId) -> Option<SavedView> {
        let saved = table.saved.get(&(id, task))?;
        let tokens = saved.sampled.iter().map(|stretch| stretch.tokens).sum();
        let cells = table.open_in(id, self.cursors[task.0 as usize].writes);
        let bytes = cells.map(|(_, open)| u64::from(open.bytes)).sum();
        Some(SavedView { worker: saved.worker.clone(), tokens, bytes })
    }

    fn row_task(&self, table: &Table, row: &Row, id: RowId, task: TaskId, now: Millis) -> RowTask {
        let cursor = &self.cursors[task.0 as usize];
        let missing: Vec<String> =
            set_bits(cursor.reads & !row.sealed).map(|column| table.fields[column].def.name.clone()).collect();
        let lease = cursor.leases.iter().find(|lease| self.leases[lease].rows.contains(id.0));
        let group = table.groups.get(&row.group);
        let cut = group.and_then(|group| group.cut);
        let (state, note) = if row.pending & cursor.bit != 0 {
            (RowTaskState::Undecided, "its filter is judged once its columns are there".to_owned())
        } else if row.owing & cursor.bit == 0 {
            self.finished(table, row, id, cursor, cut)
        } else if lease.is_some() {
            (RowTaskState::Leased, String::new())
        } else if cursor.done.contains(id.0) {
            (RowTaskState::Done, format!("trained; version {} consumes it", self.version + 1))
        } else if cursor.ready.contains(id.0) {
            let note = match (cursor.counted, cut) {
                (Counted::Batches(_), None) => "its group is not cut into a batch yet".to_owned(),
                (Counted::Batches(_), Some(_)) if cursor.def.per == Grain::Cycle => {
                    "its cycle is not whole, or no worker has claimed it yet".to_owned()
                }
                (Counted::Batches(_), Some((cycle, index))) => {
                    format!("batch {index} of cycle {cycle} is not whole, or no worker has claimed it yet")
                }
                (Counted::Groups(_), _) if !cursor.ready_groups.contains(row.group.0) => {
                    "other rows of its group are not ready".to_owned()
                }
                _ => "no worker has claimed it yet".to_owned(),
            };
            (RowTaskState::Ready, note)
        } else {
            (RowTaskState::Waiting, String::new())
        };
        let shown = matches!(state, RowTaskState::Waiting | RowTaskState::Undecided);
        RowTask {
            task: cursor.def.name.clone(),
            state,
            lease: lease.map(|lease| self.lease_view(*lease, now)),
            missing: if shown { missing } else { Vec::new() },
            failed: cursor.attempts.get(&id).copied().unwrap_or(0),
            attempts: cursor.def.attempts,
            saved: self.row_saved(table, id, task),
            uses: cursor
                .reuse
                .as_ref()
                .map(|reuse| (if state == RowTaskState::Consumed { reuse.each } else { reuse.uses(id) }, reuse.each)),
            note,
        }
    }

    /// A task that owes a row no longer has consumed it, or was never to have it; the row itself tells which.
    fn finished(
        &self,
        table: &Table,
        row: &Row,
        id: RowId,
        cursor: &Cursor,
        cut: Option<(u64, u64)>,
    ) -> (RowTaskState, String) {
        let never = cursor.reads & row.void;
        let note = if cursor.def.filter.as_ref().is_some_and(|filter| !filter.matches(&table.head(id, row))) {
            "its filter does not match".to_owned()
        } else if cut.is_some_and(|(cycle, _)| cursor.training.is_some() && !cursor.trains_in(cycle)) {
            "its cycle is before the first one this task trains in".to_owned()
        } else if never != 0 {
            format!("nobody will write {}", table.names(never))
        } else {
            return (RowTaskState::Consumed, String::new());
        };
        (RowTaskState::NotOwed, note)
    }
}
