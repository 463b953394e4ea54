//! The views of a state: [`super::views`] filled in.

mod bytes;
mod health;
mod row;

pub(crate) use self::bytes::Cold;

use super::{
    definition::Partition,
    explain,
    refusal::Refusal,
    state::{
        Session, State,
        cursor::{Counted, Cursor},
        table::{Field, Open, Table, set_bits},
    },
    views::{
        ColumnView, LeaseView, LedgerEntry, LiveRun, PartitionView, ScheduleView, SessionView, TaskLoss, TaskView,
    },
};
use crate::ids::{ColumnId, LeaseId, Millis, PartitionId, RowId, Rows, SessionId, TaskId};

impl State {
    /// The ledger: one entry per task.
    pub fn ledger(&self) -> Vec<LedgerEntry> {
        let entry = |cursor: &Cursor| LedgerEntry {
            partition: cursor.def.partition.clone(),
            task: cursor.def.name.clone(),
            owed: cursor.owed,
            consumed: cursor.consumed,
            live: cursor.owing.len(),
            dropped: cursor.dropped.clone(),
            uses: cursor.reuse.as_ref().map(|reuse| reuse.view()),
        };
        self.cursors.iter().map(entry).collect()
    }

    /// Every task: what it owes, who holds it, what it waits for.
    pub fn tasks(&self, now: Millis) -> Vec<TaskView> {
        (0..).map(TaskId).zip(&self.cursors).map(|(id, cursor)| self.task_view(id, cursor, now)).collect()
    }

    fn task_view(&self, id: TaskId, cursor: &Cursor, now: Millis) -> TaskView {
        let ended = self.has_ended(cursor);
        let served = super::decide::servable(self, id);
        TaskView {
            id,
            task: cursor.def.name.clone(),
            partition: cursor.def.partition.clone(),
            per: cursor.def.per,
            backlog: cursor.owing.len(),
            ready: cursor.ready.len(),
            done: cursor.done.len(),
            leased: cursor.leases.iter().map(|id| self.leases[id].rows.len()).sum(),
            uses: cursor.reuse.as_ref().map(|reuse| reuse.view()),
            leases: cursor.leases.iter().map(|id| self.lease_view(*id, now)).collect(),
            more_leases: 0,
            ended,
            wait: (!ended && !served).then(|| explain::claim(self, id, 1, now)),
        }
    }

    fn lease_view(&self, id: LeaseId, now: Millis) -> LeaseView {
        let lease = &self.leases[&id];
        LeaseView {
            lease: id,
            holder: self.sessions.get(&lease.session).map_or_else(String::new, |session| session.name.clone()),
            rows: lease.rows.len(),
            for_ms: now.0.saturating_sub(lease.since.0),
            left_ms: lease.until.0.saturating_sub(now.0),
            progress: lease.progress,
        }
    }

    /// Every column of every partition, with its bytes and its readers.
    pub fn columns(&self) -> Vec<ColumnView> {
        self.tables.iter().flat_map(|(&id, table)| self.columns_of(id, table)).collect()
    }

    fn columns_of(&self, id: PartitionId, table: &Table) -> Vec<ColumnView> {
        let view = |(position, field): (usize, &Field)| {
            let own = set_bits(field.readers).map(|bit| &self.cursors[table.tasks[bit].0 as usize]);
            let linked = table.children.iter().filter_map(|child| self.tables.get(child)).filter(|child| {
                child.expansion.as_ref().is_some_and(|e| {
                    e.parent == id && e.links.iter().any(|(_, column)| usize::from(*column) == position)
                })
            });
            let through = linked
                .flat_map(|child| child.tasks.iter().map(|task| &self.cursors[task.0 as usize]))
                .filter(|cursor| cursor.def.reads.contains(&field.def.name));
            let owing = own.chain(through).map(|cursor| (cursor.def.name.clone(), cursor.owing.len()));
            ColumnView {
                partition: table.name.clone(),
                column: field.def.name.clone(),
                kind: field.def.kind.to_string(),
                cells: field.cells,
                bytes_live: field.live,
                bytes_spilled: field.spilled,
                bytes_dead_in_chunk: field.dead,
                bytes_freed_total: field.freed,
                bytes_written_total: field.written,
                readers_owing: owing.filter(|(_, rows)| *rows > 0).collect(),
            }
        };
        table.fields.iter().enumerate().map(view).collect()
    }

    /// The partition whose rows are under a lease; `None` for a lease that is not there.
    pub(crate) fn leased_from(&self, lease: LeaseId) -> Option<PartitionId> {
        Some(self.cursors[self.leases.get(&lease)?.task.0 as usize].partition)
    }

    /// Every session.
    pub fn sessions(&self, now: Millis) -> Vec<SessionView> {
        self.sessions.iter().map(|(&id, session)| self.session_view(id, session, now)).collect()
    }

    fn session_view(&self, id: SessionId, session: &Session, now: Millis) -> SessionView {
        SessionView {
            session: id,
            name: session.name.clone(),
            seen_ms_ago: now.0.saturating_sub(session.seen.0),
            leases: session.leases.iter().copied().collect(),
            more_leases: 0,
            rows: session.leases.iter().map(|lease| self.leases[lease].rows.len()).sum(),
        }
    }

    /// Every live partition.
    pub fn partitions(&self) -> Vec<PartitionView> {
        let view = |(&id, table): (&PartitionId, &Table)| PartitionView {
            id,
            name: table.name.clone(),
            live: table.live.len(),
            born: table.next_row.0,
            groups: table.groups.len() as u64,
            closed: table.closed,
            reserved: table.reserved,
        };
        self.tables.iter().map(view).collect()
    }

    /// The schedule's progress; `None` when nothing is trained.
    pub fn schedule(&self) -> Option<ScheduleView> {
        let progress = self.progress.as_ref()?;
        let table = &self.tables[&progress.partition];
        let trainers: Vec<usize> = self
            .cursors
            .iter()
            .filter(|cursor| cursor.training.is_some())
            .filter_map(|cursor| match cursor.counted {
                Counted::Batches(tally) => Some(tally),
                _ => None,
            })
            .collect();
        let batches = table.batches.range((progress.cycle, 0)..(progress.cycle + 1, 0));
        let batches = batches.map(|(&(_, index), batch)| {
            let left = trainers.iter().map(|&tally| u64::from(batch.tallies[tally].left)).sum();
            (index, batch.groups.len() as u64, left)
        });
        Some(ScheduleView {
            partition: table.name.clone(),
            cycle: progress.cycle,
            total_cycles: progress.cycles,
            version: self.version,
            lineage: self.lineage,
            admitted: progress.admitted,
            dropped: progress.dropped,
            retired: progress.retired,
            in_flight: progress.in_flight(),
            allowed: progress.allowed(),
            lag: progress.needed.keys().next().map_or(0, |oldest| self.version.saturating_sub(*oldest)),
            complete: progress.complete.len() as u64,
            cut: progress.cut,
            batches: batches.collect(),
            over: self.over(),
        })
    }

    /// All live rows of a partition, in order.
    ///
    /// # Errors
    /// An unknown partition.
    pub fn rows(&self, partition: PartitionId) -> Result<Rows, Refusal> {
        self.table(partition).map(|table| table.live.rows())
    }

    /// Name, columns and birth of a live partition.
    ///
    /// # Errors
    /// An unknown partition.
    pub fn describe(&self, partition: PartitionId) -> Result<Partition, Refusal> {
        let table = self.table(partition)?;
        let columns = table.fields.iter().map(|field| field.def.clone()).collect();
        Ok(Partition { name: table.name.clone(), columns, birth: table.birth.clone() })
    }

    /// Whether nothing will come for any task of the run again (readers outside it may be owed rows still).
    pub fn all_ended(&self) -> bool {
        self.cursors.iter().all(|cursor| cursor.def.external || self.has_ended(cursor))
    }

    /// Whether nothing will come for a task again. One that trains is needed until the last cycle is published, also when
    /// every row of it was dropped: whoever is lost before must find the next worker still waiting.
    pub(crate) fn has_ended(&self, cursor: &Cursor) -> bool {
        self.table_of(cursor).closed && cursor.idle() && (cursor.training.is_none() || self.over())
    }

    /// Every cell whose bytes are to stay, as runs: what a snapshot writes. Sealed ones that are held, and saved ones.
    pub fn live_cells(&self) -> impl Iterator<Item = LiveRun> + '_ {
        let held = self.tables.iter().flat_map(|(&partition, table)| {
            table.pages.held().map(move |(column, cell, len)| LiveRun {
                partition,
                column: ColumnId(column as u16),
                chunk: cell.chunk,
                slot: cell.slot,
                len,
            })
        });
        held.chain(self.saved_cells().map(|(_, run)| run))
    }

    /// Every saved cell, with its row.
    pub(crate) fn saved_cells(&self) -> impl Iterator<Item = (RowId, LiveRun)> + '_ {
        self.tables.iter().flat_map(move |(&partition, table)| {
            table.saved.keys().flat_map(move |&(row, task)| {
                let cells = table.open_in(row, self.cursors[task.0 as usize].writes);
                let run = move |(column, Open { chunk, slot, .. })| LiveRun {
                    partition,
                    column: ColumnId(column),
                    chunk,
                    slot,
                    len: 1,
                };
                cells.map(move |cell| (row, run(cell)))
            })
        })
    }

    /// What each task would lose if rows left; tasks that lose nothing are left out.
    ///
    /// # Errors
    /// An unknown partition.
    pub fn losses(&self, partition: PartitionId, rows: &Rows) -> Result<Vec<TaskLoss>, Refusal> {
        let table = self.table(partition)?;
        let loss = |task: &TaskId| {
            let cursor = &self.cursors[task.0 as usize];
            let wanted = |row: &RowId| table.pages.get(*row).is_some_and(|found| found.wanted() & cursor.bit != 0);
            let held = |row: &RowId| cursor.leases.iter().any(|lease| self.leases[lease].rows.contains(row.0));
            let wanted: Vec<RowId> = rows.iter().filter(wanted).collect();
            let leased = wanted.iter().filter(|row| held(row)).count() as u64;
            TaskLoss { task: cursor.def.name.clone(), rows: wanted.len() as u64, leased }
        };
        Ok(table.tasks.iter().map(loss).filter(|loss| loss.rows > 0).collect())
    }

    /// The row with a key, if it is live.
    pub fn row_of_key(&self, partition: PartitionId, key: &str) -> Option<RowId> {
        self.tables.get(&partition)?.keys.get(key).copied()
    }
}

impl SessionView {
    /// Lists this many leases at most.
    pub(crate) fn shorten(&mut self, most: usize) {
        self.more_leases += self.leases.len().saturating_sub(most) as u64;
        self.leases.truncate(most);
    }
}

impl TaskView {
    /// Lists this many leases at most, those held for longest.
    pub(crate) fn shorten(&mut self, most: usize) {
        self.more_leases += self.leases.len().saturating_sub(most) as u64;
        self.leases.sort_by_key(|lease| (std::cmp::Reverse(lease.for_ms), lease.lease));
        self.leases.truncate(most);
    }
}
