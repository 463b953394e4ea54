//! Cells come, are replaced, die; rows whose last reader is done retire.

use super::{
    super::{
        command::{CellWrite, RowNote},
        definition::Birth,
        state::{
            Wake,
            pages::{Run, place},
            table::{Chunk, Open, set_bits},
        },
    },
    scope::Scope,
};
use crate::ids::{ChunkId, RowId, TaskId};

impl Scope<'_> {
    /// Tags and versions of rows.
    pub(super) fn note(&mut self, notes: &[RowNote]) {
        for note in notes {
            let Some(row) = self.table.pages.get_mut(note.row) else { continue };
            if !note.tags.is_empty() {
                let label = row.label.get_or_insert_default();
                label.tags.extend(note.tags.iter().map(|(name, tag)| (name.clone(), tag.clone())));
            }
            let Some(span) = note.span else { continue };
            let fresh = row.label.get_or_insert_default().span.replace(span).is_none();
            self.scratch.schedule |= self.progress.as_ref().is_some_and(|progress| progress.plan.drop_beyond);
            if let Some(group) = self.table.groups.get_mut(&row.group) {
                group.noted += u32::from(fresh);
                group.sampled = Some(group.sampled.map_or(span.first, |first| first.min(span.first)));
            }
        }
    }

    /// Cells of one column. Those of rows that are gone count as written and dead.
    pub(super) fn write(&mut self, write: &CellWrite) {
        let column = usize::from(write.column.0);
        let bytes = write.sizes.total(write.rows.len());
        self.table.fields[column].written += bytes;
        let chunk = self.table.chunks.entry(write.chunk).or_insert(Chunk {
            column: write.column.0,
            runs: 0,
            bytes: 0,
            slots: 0,
            spill: None,
        });
        chunk.bytes += bytes;
        chunk.slots = chunk.slots.max(write.slot + write.rows.len() as u32);

        let mut building: Option<(u64, Run)> = None;
        for ((slot, index), row) in (write.slot..).zip(0..).zip(write.rows.iter()) {
            let size = write.sizes.at(index);
            let Some(found) = self.table.pages.get(row) else {
                self.table.fields[column].dead += u64::from(size);
                continue;
            };
            let held = found.held & 1 << column != 0;
            let field = &mut self.table.fields[column];
            field.live += u64::from(size);
            field.cells += 1;
            // A file holds what a chunk held when it was written, and such a chunk takes no more: but accounts must agree.
            if self.table.is_spilled(write.chunk) {
                self.table.fields[column].spilled += u64::from(size);
            }
            self.close(row, column);
            if !write.seal {
                self.table.open.insert((row, write.column.0), Open { chunk: write.chunk, slot, bytes: size });
                self.runs(write.chunk, 1);
                continue;
            }
            if held {
                self.replace(row, column);
            }
            let (page, at) = place(row);
            self.table.pages.page_mut(page).expect("invariant: the row is live").set_size(column, at, size);
            match &mut building {
                Some((number, run))
                    if *number == page && run.at + run.len == at && run.slot + u32::from(run.len) == slot =>
                {
                    run.len += 1;
                    run.live += 1;
                }
                other => {
                    let (chunk, column) = (write.chunk, write.column.0 as u8);
                    let run = Run { column, at, len: 1, live: 1, slot, chunk };
                    if let Some((page, run)) = other.replace((page, run)) {
                        self.place(page, run);
                    }
                }
            }
        }
        if let Some((page, run)) = building {
            self.place(page, run);
        }
        if write.seal {
            write.rows.iter().for_each(|row| self.sealed(row, column));
        }
        self.reclaim(write.chunk);
    }

    fn place(&mut self, page: u64, run: Run) {
        let chunk = run.chunk;
        let page = self.table.pages.page_mut(page).expect("invariant: the run's rows are live");
        if page.add(run) {
            self.runs(chunk, 1);
        }
    }

    fn runs(&mut self, chunk: ChunkId, by: i64) {
        let found = self.table.chunks.get_mut(&chunk).expect("invariant: a held cell's chunk is known");
        found.runs = found.runs.checked_add_signed(by).expect("invariant: no run ceases that did not begin");
        self.reclaim(chunk);
    }

    /// Notes a chunk that no cell holds.
    fn reclaim(&mut self, chunk: ChunkId) {
        if self.table.chunks.get(&chunk).is_some_and(|chunk| chunk.runs == 0) {
            self.scratch.chunks.push((self.id, chunk));
        }
    }

    /// A cell counts as dead from now on.
    fn count_dead(&mut self, column: usize, chunk: ChunkId, bytes: u32) {
        let (bytes, spilled) = (u64::from(bytes), self.table.is_spilled(chunk));
        let field = &mut self.table.fields[column];
        field.cells -= 1;
        field.live -= bytes;
        field.dead += bytes;
        if spilled {
            field.spilled -= bytes;
        }
    }

    /// The open form of a cell dies.
    pub(super) fn close(&mut self, row: RowId, column: usize) {
        let Some(open) = self.table.open.remove(&(row, column as u16)) else { return };
        self.count_dead(column, open.chunk, open.bytes);
        self.runs(open.chunk, -1);
        self.unsave(row);
    }

    /// The sealed form of a cell makes room.
    fn replace(&mut self, row: RowId, column: usize) {
        let (number, offset) = place(row);
        let page = self.table.pages.page_mut(number).expect("invariant: the row is live");
        let (cell, runs) = page.punch(column, offset).expect("invariant: a held cell lies in a run");
        self.count_dead(column, cell.chunk, cell.bytes);
        self.runs(cell.chunk, runs);
    }

    /// A cell is sealed: tasks that wait for it move on.
    fn sealed(&mut self, id: RowId, column: usize) {
        let Some(row) = self.table.pages.get(id) else { return };
        let (bit, group, fresh) = (1 << column, row.group, row.sealed & 1 << column == 0);
        let before = self.table.complete(row);
        let row = self.table.pages.get_mut(id).expect("invariant: found above");
        row.sealed |= bit;
        row.held |= bit;
        let (sealed, owing, wanted) = (row.sealed, row.owing, row.wanted());
        if !fresh {
            return;
        }
        let field = &self.table.fields[column];
        let readers = field.readers;
        // Children may expand the row now.
        self.scratch.schedule |= field.linked;
        let unread = !field.linked && readers != 0 && readers & wanted == 0;
        self.table.reserved -= field.def.max_bytes.unwrap_or(0);
        self.completed(id, group, before);
        let mut decided = false;
        for position in set_bits(readers & wanted) {
            let task = self.task(position);
            if self.cursor(task).reads & !sealed != 0 {
                continue;
            }
            if owing & 1 << position != 0 {
                self.gain(task, id, group);
            } else {
                self.judge(task, id);
                decided = true;
            }
        }
        if unread || decided {
            self.lapse(id);
        }
    }

    /// A worker let go of a row: what it had appended without sealing is dead, unless it saved it for the next one.
    pub(super) fn abandon(&mut self, task: TaskId, row: RowId) {
        if self.table.open.is_empty() || self.table.saved.contains_key(&(row, task)) {
            return;
        }
        let writes = self.cursor(task).writes;
        self.forget(row, writes);
    }

    /// Frees the cells of a row that nobody will read, and the row itself once nobody owes it.
    pub(super) fn lapse(&mut self, id: RowId) {
        if self.table.lasting() {
            return;
        }
        let Some(row) = self.table.pages.get_mut(id) else { return };
        let wanted = row.wanted();
        let idle = wanted == 0 && row.holds == 0;
        let mut free = 0_u64;
        for column in set_bits(row.held & !self.table.kept) {
            let field = &self.table.fields[column];
            let unread =
                (field.readers != 0 || field.linked) && field.readers & wanted == 0 && !(field.linked && row.holds > 0);
            free |= u64::from(idle || unread) << column;
        }
        row.held &= !free;
        let gone = idle && row.held == 0;
        let unowed = wanted == 0 && !row.unowed;
        row.unowed |= unowed;
        let group = row.group;
        self.kill(id, free);
        if unowed && let Some(found) = self.table.groups.get_mut(&group) {
            found.owed -= 1;
            if found.owed == 0 {
                self.group_unowed(group);
            }
        }
        if gone {
            self.remove(id);
        }
    }

    /// Held cells of a row die; its bits say so already.
    fn kill(&mut self, id: RowId, columns: u64) {
        let (number, offset) = place(id);
        for column in set_bits(columns) {
            let page = self.table.pages.page_mut(number).expect("invariant: the row is live");
            let dead = page.kill(column, offset).expect("invariant: a held cell lies in a run");
            self.count_dead(column, dead.chunk, dead.bytes);
            if dead.last {
                self.runs(dead.chunk, -1);
            }
        }
    }

    /// A row that no task owes leaves the table, with all it held.
    pub(super) fn remove(&mut self, id: RowId) {
        let Some(row) = self.table.pages.get_mut(id) else { return };
        let held = std::mem::take(&mut row.held);
        let (group, missing, unowed) = (row.group, !row.settled(), row.unowed);
        self.kill(id, held);
        self.forget(id, u64::MAX);
        let open = self.table.fields.iter().enumerate().filter(|(column, _)| missing & 1 << column != 0);
        let back: u64 = open.filter_map(|(_, field)| field.def.max_bytes).sum();
        self.table.reserved -= back;
        let incomplete = self.table.cut_on & missing != 0;
        if matches!(self.table.birth, Birth::Put { capacity: Some(_) }) {
            self.scratch.wakes.insert(Wake::Put(self.id));
        }
        self.table.live.remove(id.0);
        let row = self.table.pages.remove(id).expect("invariant: found above");
        if let Some(key) = row.key() {
            self.table.keys.remove(key);
        }
        let Some(found) = self.table.groups.get_mut(&group) else { return };
        found.live -= 1;
        found.noted -= u32::from(row.span().is_some());
        found.owed -= u32::from(!unowed);
        found.incomplete -= u32::from(incomplete);
        let (live, owed, whole) = (found.live, found.owed, found.incomplete == 0);
        if owed == 0 && !unowed {
            self.group_unowed(group);
        }
        if live == 0 {
            self.group_gone(group);
        } else if whole && incomplete {
            self.group_completed(group);
        }
    }
}
