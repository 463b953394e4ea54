//! Everything the state keeps twice, counted again and compared. For tests, and for a state that came from a disk.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    bits::Bits,
    definition::{Gate, OnLost},
    state::{
        State,
        cursor::{Counted, Cursor, Tally},
        table::{Group, Table, set_bits},
    },
};
use crate::ids::{ChunkId, GroupId, PartitionId, RowId, Rows, TaskId};

type Verdict = Result<(), String>;

fn equal<T: PartialEq + std::fmt::Debug>(what: impl FnOnce() -> String, kept: T, counted: T) -> Verdict {
    if kept == counted { Ok(()) } else { Err(format!("{}: kept {kept:?}, counted {counted:?}", what())) }
}

fn holds(what: impl FnOnce() -> String, condition: bool) -> Verdict {
    if condition { Ok(()) } else { Err(what()) }
}

impl State {
    /// Counts everything again that is kept in more than one form: ledger, bitmaps, tallies, bytes, holds, the schedule's
    /// numbers. Costs time in proportion to live rows.
    ///
    /// # Errors
    /// The first difference, in words.
    pub fn verify(&self) -> Result<(), String> {
        for entry in self.ledger() {
            holds(|| format!("ledger of `{}` does not balance: {entry:?}", entry.task), entry.balanced())?;
        }
        for (&id, table) in &self.tables {
            let within = |verdict: Verdict| verdict.map_err(|error| format!("`{}`: {error}", table.name));
            within(self.verify_rows(id, table))?;
            within(self.verify_groups(table))?;
            within(verify_bytes(table))?;
            within(self.verify_saved(table))?;
        }
        for cursor in &self.cursors {
            let within = |verdict: Verdict| verdict.map_err(|error| format!("task `{}`: {error}", cursor.def.name));
            within(self.verify_cursor(cursor))?;
            within(self.verify_gang(cursor))?;
            within(self.verify_reuse(cursor))?;
        }
        self.verify_leases()?;
        self.verify_weights()?;
        self.verify_schedule()
    }

    fn verify_rows(&self, id: PartitionId, table: &Table) -> Verdict {
        let mut keys = 0;
        for row in table.live.iter().map(RowId) {
            let Some(found) = table.pages.get(row) else { return Err(format!("row {row} is live without a page")) };
            holds(|| format!("row {row}: sealed and void overlap"), found.sealed & found.void == 0)?;
            holds(|| format!("row {row}: held but not sealed"), found.held & !found.sealed == 0)?;
            equal(|| format!("holds of row {row}"), found.holds, self.children_holding(id, table, row))?;
            keys += usize::from(found.key().is_some_and(|key| table.keys.get(key) == Some(&row)));
            if table.lasting() {
                continue;
            }
            let idle = found.wanted() == 0 && found.holds == 0;
            holds(|| format!("row {row} should have retired"), !idle || found.held & table.kept != 0)?;
            for column in set_bits(found.held & !table.kept) {
                let field = &table.fields[column];
                let read = field.readers & found.wanted() != 0 || field.linked && found.holds > 0;
                let unread = field.readers != 0 || field.linked;
                holds(|| format!("row {row}: `{}` should be free", field.def.name), !idle && (read || !unread))?;
            }
        }
        equal(|| "rows in pages".into(), table.pages.len(), table.live.len())?;
        equal(|| "keys".into(), table.keys.len(), keys)
    }

    /// Whatever is open is in some worker's hands, or saved of a row that is still owed to a task which resumes.
    fn verify_saved(&self, table: &Table) -> Verdict {
        for &(row, task) in table.saved.keys() {
            let cursor = &self.cursors[task.0 as usize];
            let name = &cursor.def.name;
            holds(
                || format!("row {row} is saved for `{name}`, which does it again"),
                cursor.def.on_lost == OnLost::Resume,
            )?;
            holds(|| format!("row {row} is saved for `{name}`, which does not owe it"), cursor.owing.contains(row.0))?;
            let cells = table.open_in(row, cursor.writes).next();
            holds(|| format!("row {row} is saved for `{name}` without a cell"), cells.is_some())?;
        }
        for &(row, column) in table.open.keys() {
            let writes = |task: &&TaskId| self.cursors[task.0 as usize].writes & 1 << column != 0;
            let in_hand = |task: &TaskId| {
                let leases = &self.cursors[task.0 as usize].leases;
                table.saved.contains_key(&(row, *task)) || leases.iter().any(|id| self.leases[id].rows.contains(row.0))
            };
            let kept = table.tasks.iter().filter(writes).any(in_hand);
            holds(|| format!("an open cell of row {row} is in nobody's hands, and not saved"), kept)?;
        }
        Ok(())
    }

    /// Children that still need a row of their parent.
    fn children_holding(&self, id: PartitionId, table: &Table, row: RowId) -> u16 {
        let holding = |child: &&PartitionId| {
            let Some(child) = self.tables.get(child) else { return false };
            let Some(expansion) = child.expansion.as_ref().filter(|e| e.parent == id) else { return false };
            match expansion.gate {
                Gate::Every { .. } => !child.closed,
                Gate::Schedule if row >= expansion.next => !child.closed,
                Gate::Schedule => child.groups.values().any(|group| group.parent == row && group.owed > 0),
            }
        };
        table.children.iter().filter(holding).count() as u16
    }

    fn verify_groups(&self, table: &Table) -> Verdict {
        let mut seen = 0;
        for (id, group) in &table.groups {
            let rows: Vec<_> = group.rows().filter_map(|row| Some((row, table.pages.get(row)?))).collect();
            seen += rows.len() as u64;
            let count =
                |test: &dyn Fn(&super::state::pages::Row) -> bool| rows.iter().filter(|(_, r)| test(r)).count() as u32;
            equal(|| format!("live of group {id}"), group.live, rows.len() as u32)?;
            holds(|| format!("group {id} has no row"), group.live > 0)?;
            equal(|| format!("owed of group {id}"), group.owed, count(&|row| row.wanted() != 0))?;
            equal(|| format!("incomplete of group {id}"), group.incomplete, count(&|row| !table.complete(row)))?;
            equal(|| format!("noted of group {id}"), group.noted, count(&|row| row.span().is_some()))?;
            equal(|| format!("completed of group {id}"), group.completed.is_some(), group.incomplete == 0)?;
            for task in &table.tasks {
                let cursor = &self.cursors[task.0 as usize];
                if let Counted::Groups(i) = cursor.counted {
                    let counted = self.tally(table, cursor, [group].into_iter());
                    equal(|| format!("tally of group {id} for `{}`", cursor.def.name), group.tallies[i], counted)?;
                    let ready = cursor.ready_groups.contains(id.0);
                    equal(|| format!("group {id} ready for `{}`", cursor.def.name), ready, counted.whole())?;
                }
            }
        }
        if table.expansion.is_some() {
            equal(|| "rows of groups".into(), table.live.len(), seen)?;
        }
        for (at, batch) in &table.batches {
            for task in &table.tasks {
                let cursor = &self.cursors[task.0 as usize];
                if let Counted::Batches(i) = cursor.counted {
                    let groups = batch.groups.iter().filter_map(|id| table.groups.get(id));
                    let counted = self.tally(table, cursor, groups);
                    equal(|| format!("tally of batch {at:?} for `{}`", cursor.def.name), batch.tallies[i], counted)?;
                }
            }
            let cut = |id: &GroupId| table.groups.get(id).is_none_or(|group| group.cut == Some(*at));
            holds(|| format!("groups of batch {at:?} say otherwise"), batch.groups.iter().all(cut))?;
        }
        Ok(())
    }

    fn tally<'a>(&self, table: &Table, cursor: &Cursor, groups: impl Iterator<Item = &'a Group>) -> Tally {
        let mut tally = Tally::default();
        for row in groups.flat_map(Group::rows) {
            let Some(found) = table.pages.get(row) else { continue };
            if found.wanted() & cursor.bit == 0 || cursor.done.contains(row.0) {
                continue;
            }
            let leased = cursor.leases.iter().any(|lease| self.leases[lease].rows.contains(row.0));
            tally.left += 1;
            tally.ready += u32::from(cursor.ready.contains(row.0));
            tally.leased += u32::from(leased);
        }
        tally
    }

    fn verify_cursor(&self, cursor: &Cursor) -> Verdict {
        let table = self.table_of(cursor);
        let mut leased = Bits::default();
        for lease in &cursor.leases {
            let rows = &self.leases[lease].rows;
            holds(|| format!("lease {lease} shares rows with another"), leased.intersection(rows).is_empty())?;
            leased.union(rows);
        }
        let (mut owing, mut ready, mut undecided) = (Bits::default(), Bits::default(), 0);
        for row in table.live.iter() {
            let found = table.pages.get(RowId(row)).ok_or("live rows have pages")?;
            undecided += u64::from(found.pending & cursor.bit != 0);
            if found.owing & cursor.bit == 0 {
                continue;
            }
            owing.insert(row);
            let there = cursor.reads & !found.sealed == 0;
            let held = cursor.reads & !found.held == 0;
            holds(|| format!("row {row}: a column it reads is gone"), !there || held)?;
            if there && !leased.contains(row) && !cursor.done.contains(row) {
                ready.insert(row);
            }
        }
        equal(|| "owing".into(), &cursor.owing, &owing)?;
        equal(|| "ready".into(), &cursor.ready, &ready)?;
        equal(|| "undecided".into(), cursor.undecided, undecided)?;
        holds(|| "done rows are owed".into(), cursor.done.is_subset(&owing))?;
        holds(|| "done rows are not leased".into(), cursor.done.intersection(&leased).is_empty())?;
        holds(|| "leased rows are owed".into(), leased.is_subset(&owing))?;
        holds(|| "attempts are of owed rows".into(), cursor.attempts.keys().all(|row| owing.contains(row.0)))
    }

    /// Only owed rows have uses, fewer than consume them, and what is ready lies in the pass that these say.
    fn verify_reuse(&self, cursor: &Cursor) -> Verdict {
        let Some(reuse) = &cursor.reuse else { return Ok(()) };
        for (row, uses) in &reuse.of {
            holds(|| format!("row {row} has uses and is not owed"), cursor.owing.contains(row.0))?;
            holds(|| format!("row {row} is used {uses} times of {}", reuse.each), (1..reuse.each).contains(uses))?;
        }
        let table = self.table_of(cursor);
        let fewest = |id: u64| match cursor.counted {
            Counted::Groups(_) => {
                let rows = table.groups.get(&GroupId(id)).into_iter().flat_map(Group::rows);
                rows.filter(|row| cursor.owing.contains(row.0)).map(|row| reuse.uses(row)).min().unwrap_or_default()
            }
            _ => reuse.uses(RowId(id)),
        };
        let ready = if matches!(cursor.counted, Counted::Groups(_)) { &cursor.ready_groups } else { &cursor.ready };
        let mut passes: BTreeMap<u32, Bits> = BTreeMap::new();
        ready.iter().for_each(|id| _ = passes.entry(fewest(id)).or_default().insert(id));
        equal(|| "passes".into(), &reuse.passes, &passes)
    }

    fn verify_gang(&self, cursor: &Cursor) -> Verdict {
        let Some(gang) = &cursor.gang else { return Ok(()) };
        let seated: Vec<_> = gang.seats.iter().flatten().collect();
        let distinct: BTreeSet<_> = seated.iter().collect();
        equal(|| "a session holds one rank".into(), distinct.len(), seated.len())?;
        for session in seated {
            holds(|| format!("session {session} holds a rank and has ended"), self.sessions.contains_key(session))?;
        }
        for session in &gang.unseated {
            let waits = self.sessions.contains_key(session) && gang.rank_of(*session).is_none();
            holds(|| format!("session {session} is to hear of a gang's end, and has ended or joined again"), waits)?;
        }
        for id in &cursor.leases {
            let session = self.leases[id].session;
            holds(|| format!("lease {id} is held by no rank"), gang.rank_of(session).is_some())?;
        }
        let Some(cut) = &gang.cut else { return Ok(()) };
        holds(|| "a cut that all have taken is kept".into(), gang.behind().next().is_some())?;
        for (share, seat) in cut.shares.iter().zip(&gang.seats) {
            equal(|| "a share is its rank's".into(), Some(share.session), *seat)?;
            let Some(lease) = self.leases.get(&share.lease) else { continue };
            let rows: Bits = share.minis.iter().flat_map(Rows::iter).fold(Bits::default(), |mut all, row| {
                all.insert(row.0);
                all
            });
            holds(|| format!("lease {} holds rows of another share", share.lease), lease.rows.is_subset(&rows))?;
        }
        Ok(())
    }

    fn verify_leases(&self) -> Verdict {
        for (id, lease) in &self.leases {
            let known = self.cursors[lease.task.0 as usize].leases.contains(id)
                && self.sessions.get(&lease.session).is_some_and(|session| session.leases.contains(id));
            holds(|| format!("lease {id} is not known to its task and session"), known)?;
            holds(|| format!("lease {id} is empty"), !lease.rows.is_empty() || !lease.lost.is_empty())?;
        }
        let of_tasks: usize = self.cursors.iter().map(|cursor| cursor.leases.len()).sum();
        let of_sessions: usize = self.sessions.values().map(|session| session.leases.len()).sum();
        equal(|| "leases of tasks".into(), of_tasks, self.leases.len())?;
        equal(|| "leases of sessions".into(), of_sessions, self.leases.len())
    }

    /// Every live version has a reason, and its weights are there.
    fn verify_weights(&self) -> Verdict {
        for version in self.weights().into_iter().flat_map(|view| view.versions) {
            let (model, number) = (&version.model, version.version);
            holds(
                || format!("version {number} of `{model}` is alive and nobody needs it"),
                !version.reasons.is_empty(),
            )?;
            holds(|| format!("version {number} of `{model}` has no weights"), !version.partition.is_empty())?;
        }
        Ok(())
    }

    fn verify_schedule(&self) -> Verdict {
        let Some(progress) = &self.progress else { return Ok(()) };
        let table = &self.tables[&progress.partition];
        let (mut uncut, mut complete, mut flying, mut needed) = (0, 0, 0, BTreeMap::new());
        for (id, group) in table.groups.iter().filter(|(_, group)| !group.retired) {
            flying += 1;
            *needed.entry(group.version).or_insert(0) += 1;
            if group.cut.is_none() {
                uncut += 1;
                holds(|| format!("group {id} is not cut and not uncut"), progress.uncut.contains(id))?;
                if let Some(seq) = group.completed {
                    complete += 1;
                    equal(|| format!("completion {seq}"), progress.complete.get(&seq), Some(id))?;
                }
            }
        }
        equal(|| "uncut groups".into(), progress.uncut.len(), uncut)?;
        equal(|| "complete groups".into(), progress.complete.len(), complete)?;
        equal(|| "groups in flight".into(), progress.in_flight(), flying + progress.vacant)?;
        equal(|| "needed versions".into(), &progress.needed, &needed)?;
        holds(|| format!("{flying} groups in flight"), progress.in_flight() <= progress.allowed())?;
        let all = progress.plan.groups_per_cycle * progress.plan.total_cycles;
        holds(|| "more groups than the run needs".into(), progress.admitted - progress.dropped <= all)?;
        equal(|| "version".into(), self.version, progress.cycle)
    }
}

fn verify_bytes(table: &Table) -> Verdict {
    let columns = table.fields.len();
    let (mut cells, mut live, mut spilled, mut reserved) =
        (vec![0_u64; columns], vec![0_u64; columns], vec![0_u64; columns], 0);
    let mut runs: BTreeMap<ChunkId, u64> = BTreeMap::new();
    for row in table.live.iter().map(RowId) {
        let found = table.pages.get(row).ok_or("live rows have pages")?;
        for column in 0..columns {
            let bit = 1 << column;
            if found.held & bit != 0 {
                let cell =
                    table.pages.cell(row, column).ok_or_else(|| format!("row {row}: held cell without a place"))?;
                cells[column] += 1;
                live[column] += u64::from(cell.bytes);
                spilled[column] += if table.is_spilled(cell.chunk) { u64::from(cell.bytes) } else { 0 };
            }
            if found.settled() & bit == 0 {
                reserved += table.fields[column].def.max_bytes.unwrap_or(0);
            }
        }
    }
    for (&(row, column), open) in &table.open {
        holds(|| format!("open cell of row {row}, which is gone"), table.live.contains(row.0))?;
        cells[usize::from(column)] += 1;
        live[usize::from(column)] += u64::from(open.bytes);
        spilled[usize::from(column)] += if table.is_spilled(open.chunk) { u64::from(open.bytes) } else { 0 };
        *runs.entry(open.chunk).or_insert(0) += 1;
    }
    table.pages.run_chunks().for_each(|chunk| *runs.entry(chunk).or_insert(0) += 1);
    for (id, chunk) in &table.chunks {
        equal(|| format!("runs of chunk {id}"), chunk.runs, runs.remove(id).unwrap_or(0))?;
        holds(|| format!("chunk {id} should be freed"), chunk.runs > 0)?;
    }
    holds(|| format!("runs in unknown chunks {runs:?}"), runs.is_empty())?;
    for (position, field) in table.fields.iter().enumerate() {
        let name = &field.def.name;
        equal(|| format!("cells of `{name}`"), field.cells, cells[position])?;
        equal(|| format!("live bytes of `{name}`"), field.live, live[position])?;
        equal(|| format!("spilled bytes of `{name}`"), field.spilled, spilled[position])?;
        equal(|| format!("bytes of `{name}`"), field.written, field.live + field.dead + field.freed)?;
        let chunks = table.chunks.values().filter(|chunk| usize::from(chunk.column) == position);
        let held: u64 = chunks.map(|chunk| chunk.bytes).sum();
        equal(|| format!("bytes in chunks of `{name}`"), field.live + field.dead, held)?;
    }
    let by_file = table.spills.iter().flat_map(|(number, spill)| spill.chunks.iter().map(|chunk| (*chunk, *number)));
    let by_chunk = table.chunks.iter().filter_map(|(id, chunk)| Some((*id, chunk.spill?)));
    equal(|| "spilled chunks".into(), by_file.collect::<BTreeMap<_, _>>(), by_chunk.collect())?;
    equal(|| "reserved bytes".into(), table.reserved, reserved)
}
