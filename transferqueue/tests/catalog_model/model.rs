//! What the catalog should do, as simply as it can be said.
//!
//! One fixed definition: `samples` expands `prompts` by 2 and links `prompt`; `roll` fills `out`, `score` fills `score` and
//! a kept `copy`, `long` fills `note` for rows tagged long, `noted` reads it twice, `whole` reads scores group by group,
//! three times, `train` trains mini-batches of one group, 2 to a cycle, 3 cycles, 1 group ahead.

mod settle;

use std::collections::{BTreeMap, BTreeSet};

pub const TASKS: usize = 6;
pub const ROLL: usize = 0;
pub const SCORE: usize = 1;
pub const LONG: usize = 2;
pub const NOTED: usize = 3;
pub const WHOLE: usize = 4;
pub const TRAIN: usize = 5;

pub const COLUMNS: usize = 4;
const OUT: usize = 0;
const NOTE: usize = 2;
const COPY: usize = 3;

/// Own columns that each task reads and writes.
pub const READS: [&[usize]; TASKS] = [&[], &[OUT], &[OUT], &[NOTE], &[1], &[OUT, 1]];
pub const WRITES: [&[usize]; TASKS] = [&[OUT], &[1, COPY], &[NOTE], &[], &[], &[]];

/// The task that saves what it has not sealed.
pub const RESUMES: usize = SCORE;

/// How often each task uses a row.
pub const REUSE: [u32; TASKS] = [1, 1, 1, 2, 3, 1];

pub const B: u64 = 2;
pub const AHEAD: u64 = 1;
pub const CYCLES: u64 = 3;
pub const LEASE_MS: u64 = 5_000;
pub const SCORE_ATTEMPTS: u32 = 2;
const SESSION_MS: u64 = 30_000;

/// A row, as one task sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum For {
    Undecided,
    NotOwed,
    Waiting,
    Ready,
    Leased(u64),
    Done,
    Consumed,
    Dropped(&'static str),
}

impl For {
    fn active(self) -> bool {
        matches!(self, Self::Undecided | Self::Waiting | Self::Ready | Self::Leased(_) | Self::Done)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell {
    Absent,
    Open(u64),
    Held(u64),
    Gone,
    Never,
}

impl Cell {
    fn sealed(self) -> bool {
        matches!(self, Self::Held(_) | Self::Gone)
    }
}

#[derive(Clone, Debug)]
pub struct Row {
    pub tasks: [For; TASKS],
    pub cells: [Cell; COLUMNS],
    pub long: bool,
    /// Commits by each task that does not train.
    pub uses: [u32; TASKS],
    /// Failures in `score`, the one task that drops poison.
    attempts: u32,
    pub dropped: bool,
}

impl Row {
    fn active(&self) -> bool {
        self.tasks.iter().any(|task| task.active())
    }

    /// In the table: owed to someone, or holding its kept cell.
    pub fn present(&self) -> bool {
        !self.dropped && (self.active() || matches!(self.cells[COPY], Cell::Held(_)))
    }
}

#[derive(Clone, Debug)]
pub struct Group {
    pub prompt: u64,
    pub version: u64,
    pub cut: Option<(u64, u64)>,
    retired: bool,
    gone: bool,
}

#[derive(Clone, Debug)]
pub struct Lease {
    pub task: usize,
    pub session: u64,
    pub rows: BTreeSet<u64>,
    pub lost: BTreeSet<u64>,
    until: u64,
    progress: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub now: u64,
    pub rows: Vec<Row>,
    pub groups: Vec<Group>,
    /// Prompts: whether each is still in its table.
    pub prompts: Vec<bool>,
    next_prompt: usize,
    pub closed: bool,
    pub samples_closed: bool,
    /// Live sessions: when each was last seen.
    pub sessions: BTreeMap<u64, u64>,
    pub leases: BTreeMap<u64, Lease>,
    pub next_lease: u64,
    pub cycle: u64,
    /// Cycles of the run.
    pub cycles: u64,
    pub cut: bool,
    pub admitted: u64,
    pub dropped: u64,
    pub vacant: u64,
    pub retired: u64,
    /// Who trains the current cycle.
    pub trainer: Option<u64>,
}

impl Model {
    pub fn new() -> Self {
        Self { next_lease: 1, cycles: CYCLES, ..Self::default() }
    }

    /// Moves the clock as the catalog does; returns whether it jumped.
    pub fn clock(&self, to: u64) -> (u64, bool) {
        let jumped = to + 1_000 < self.now || to > self.now + 10_000;
        (if jumped { to } else { to.max(self.now) }, jumped)
    }

    /// A call that was answered (or waits): time passes, its session lives.
    pub fn passed(&mut self, to: u64, session: Option<u64>) {
        let (now, jumped) = self.clock(to);
        self.now = now;
        if jumped {
            self.sessions.values_mut().for_each(|seen| *seen = now);
            self.leases.values_mut().for_each(|lease| lease.until = now + LEASE_MS);
        } else if let Some(seen) = session.and_then(|session| self.sessions.get_mut(&session))
            && now.saturating_sub(*seen) >= 1_000
        {
            *seen = now;
        }
    }

    pub fn tick(&mut self, to: u64) {
        let (_, jumped) = self.clock(to);
        self.passed(to, None);
        if jumped {
            return;
        }
        let lost: Vec<u64> =
            self.sessions.iter().filter(|(_, seen)| self.now - **seen > SESSION_MS).map(|(s, _)| *s).collect();
        let mut poison = Vec::new();
        let expired: Vec<u64> = self
            .leases
            .iter()
            .filter(|(_, lease)| lost.contains(&lease.session) || lease.until <= self.now)
            .map(|(id, _)| *id)
            .collect();
        for id in expired {
            let lease = &self.leases[&id];
            let (task, rows, with_session) = (lease.task, lease.rows.clone(), lost.contains(&lease.session));
            self.give_back(id, &rows, true, &mut poison);
            self.leases.remove(&id);
            if task == TRAIN && !with_session {
                self.untrain();
            }
        }
        self.poison(poison);
        for session in lost {
            self.end_session(session);
        }
        self.settle();
    }

    /// A session is gone, its leases already are.
    fn end_session(&mut self, session: u64) {
        self.sessions.remove(&session);
        if self.trainer == Some(session) {
            self.untrain();
        }
    }

    pub fn close_session(&mut self, session: u64) {
        let leases: Vec<u64> = self.leases.iter().filter(|(_, l)| l.session == session).map(|(id, _)| *id).collect();
        for id in leases {
            let rows = self.leases[&id].rows.clone();
            self.give_back(id, &rows, false, &mut Vec::new());
            self.leases.remove(&id);
        }
        self.end_session(session);
        self.settle();
    }

    /// A worker is known to be dead: as a silence that is over, and no other's.
    pub fn lose_session(&mut self, session: u64) {
        let leases: Vec<u64> = self.leases.iter().filter(|(_, l)| l.session == session).map(|(id, _)| *id).collect();
        let mut poison = Vec::new();
        for id in leases {
            let rows = self.leases[&id].rows.clone();
            self.give_back(id, &rows, true, &mut poison);
            self.leases.remove(&id);
        }
        self.poison(poison);
        self.end_session(session);
        self.settle();
    }

    fn untrain(&mut self) {
        self.trainer = None;
        for row in &mut self.rows {
            if row.tasks[TRAIN] == For::Done {
                row.tasks[TRAIN] = For::Ready;
            }
        }
    }

    fn give_back(&mut self, id: u64, rows: &BTreeSet<u64>, counts: bool, poison: &mut Vec<u64>) {
        let lease = self.leases.get_mut(&id).unwrap();
        let task = lease.task;
        for &row in rows {
            lease.lost.remove(&row);
            if !lease.rows.remove(&row) {
                continue;
            }
            let found = &mut self.rows[row as usize];
            found.tasks[task] = For::Ready;
            for &column in WRITES[task] {
                if let Cell::Open(_) = found.cells[column]
                    && task != RESUMES
                {
                    found.cells[column] = Cell::Absent;
                }
            }
            if counts && task == SCORE {
                found.attempts += 1;
                if found.attempts >= SCORE_ATTEMPTS {
                    poison.push(row);
                }
            }
        }
    }

    /// All at once: nothing follows from one of them before the others are dropped too.
    fn poison(&mut self, rows: Vec<u64>) {
        for row in rows {
            self.mark_dropped(&[row & !1, row | 1], "failed");
        }
    }

    pub fn release(&mut self, id: u64, rows: &BTreeSet<u64>, failed: bool) {
        let mut poison = Vec::new();
        self.give_back(id, rows, failed, &mut poison);
        self.end_if_empty(id);
        self.poison(poison);
        self.settle();
    }

    fn end_if_empty(&mut self, id: u64) {
        let lease = &self.leases[&id];
        if lease.rows.is_empty() && lease.lost.is_empty() {
            // An emptied training lease leaves the cycle to whoever has done rows in it.
            self.leases.remove(&id);
        }
    }

    pub fn renew(&mut self, id: u64, progress: u64) -> u64 {
        let now = self.now;
        let lease = self.leases.get_mut(&id).unwrap();
        if lease.progress.is_some_and(|before| progress <= before) {
            return lease.until.saturating_sub(now);
        }
        (lease.progress, lease.until) = (Some(progress), now + LEASE_MS);
        LEASE_MS
    }

    pub fn drop_rows(&mut self, rows: &[u64], reason: &'static str) {
        self.mark_dropped(rows, reason);
        self.settle();
    }

    fn mark_dropped(&mut self, rows: &[u64], reason: &'static str) {
        for &row in rows {
            if !self.rows[row as usize].present() {
                continue;
            }
            for (task, state) in self.rows[row as usize].tasks.iter_mut().enumerate() {
                if let For::Leased(id) = *state {
                    let lease = self.leases.get_mut(&id).unwrap();
                    assert_eq!(lease.task, task);
                    lease.rows.remove(&row);
                    lease.lost.insert(row);
                }
                if state.active() {
                    *state = if *state == For::Undecided { For::NotOwed } else { For::Dropped(reason) };
                }
            }
            self.rows[row as usize].dropped = true;
        }
    }

    /// Writes cells of rows under a lease.
    pub fn write(&mut self, rows: &[u64], column: usize, bytes: u64, seal: bool) {
        for &row in rows {
            let found = &mut self.rows[row as usize];
            if !found.dropped {
                found.cells[column] = if seal { Cell::Held(bytes) } else { Cell::Open(bytes) };
            }
        }
    }

    /// Rows of a lease are finished, but for those that are dropped with it.
    pub fn commit_with(&mut self, id: u64, rows: &BTreeSet<u64>, drops: &BTreeSet<u64>) {
        let drops: Vec<u64> = drops.iter().copied().collect();
        self.mark_dropped(&drops, "unwanted");
        self.commit(id, rows);
    }

    fn commit(&mut self, id: u64, rows: &BTreeSet<u64>) {
        let lease = self.leases.get_mut(&id).unwrap();
        let (task, session) = (lease.task, lease.session);
        for &row in rows {
            lease.lost.remove(&row);
            if lease.rows.remove(&row) {
                let found = &mut self.rows[row as usize];
                found.uses[task] += 1;
                found.tasks[task] = match task {
                    TRAIN => For::Done,
                    _ if found.uses[task] < REUSE[task] => For::Ready,
                    _ => For::Consumed,
                };
            }
        }
        if task == TRAIN {
            self.trainer = Some(session);
        }
        self.end_if_empty(id);
        self.settle();
    }

    pub fn publish(&mut self) {
        for (row, found) in self.rows.iter_mut().enumerate() {
            let group = &self.groups[row / 2];
            if group.cut.is_some_and(|(cycle, _)| cycle == self.cycle) && found.tasks[TRAIN].active() {
                found.tasks[TRAIN] = For::Consumed;
            }
        }
        for group in &mut self.groups {
            if group.cut.is_some_and(|(cycle, _)| cycle == self.cycle) && !group.gone {
                group.retired = true;
                self.retired += 1;
            }
        }
        self.dropped += std::mem::take(&mut self.vacant);
        (self.cycle, self.cut, self.trainer) = (self.cycle + 1, false, None);
        self.settle();
    }

    /// Everyone is gone, and what only their memory held.
    pub fn restore(&mut self) {
        let sessions: Vec<u64> = self.sessions.keys().copied().collect();
        sessions.into_iter().for_each(|session| self.close_session(session));
        self.untrain();
        self.rows.iter_mut().for_each(|row| row.attempts = 0);
        self.settle();
    }

    /// The rows a claim returns, if it is served.
    pub fn claim(&self, task: usize, limit: usize, session: u64) -> Option<Vec<u64>> {
        let ready = |row: &u64| self.rows[*row as usize].tasks[task] == For::Ready;
        let all = || (0..self.rows.len() as u64).filter(ready);
        let found: Vec<u64> = match task {
            WHOLE => {
                let whole = |group: &u64| {
                    let rows = [2 * group, 2 * group + 1].map(|row| self.rows[row as usize].tasks[task]);
                    rows.contains(&For::Ready) && rows.iter().all(|state| !state.active() || *state == For::Ready)
                };
                // The fewest uses of any row that is still to be used.
                let uses = |group: &u64| {
                    let rows = [2 * group, 2 * group + 1].map(|row| &self.rows[row as usize]);
                    rows.iter().filter(|row| row.tasks[task].active()).map(|row| row.uses[task]).min()
                };
                let mut groups: Vec<u64> = (0..self.groups.len() as u64).filter(whole).collect();
                groups.sort_by_key(uses);
                groups.into_iter().take(limit).flat_map(|group| [2 * group, 2 * group + 1]).filter(ready).collect()
            }
            TRAIN => return self.claim_batch(session),
            // Weights are exact, so one claim keeps to the version of its first row.
            ROLL => {
                let version = |row: u64| self.groups[row as usize / 2].version;
                let first = all().next().map(version);
                all().take_while(|row| Some(version(*row)) == first).take(limit).collect()
            }
            _ => {
                let mut rows: Vec<u64> = all().collect();
                rows.sort_by_key(|row| self.rows[*row as usize].uses[task]);
                rows.truncate(limit);
                rows
            }
        };
        (!found.is_empty()).then_some(found)
    }

    fn holder(&self) -> Option<u64> {
        let leased = self.leases.values().find(|lease| lease.task == TRAIN).map(|lease| lease.session);
        self.trainer.or(leased)
    }

    fn claim_batch(&self, session: u64) -> Option<Vec<u64>> {
        if self.holder().is_some_and(|holder| holder != session) || !self.cut {
            return None;
        }
        let mut left = false;
        for index in 0..B {
            let batch = |group: &usize| self.groups[*group].cut == Some((self.cycle, index));
            let rows: Vec<u64> = (0..self.groups.len())
                .filter(batch)
                .flat_map(|group| [2 * group as u64, 2 * group as u64 + 1])
                .collect();
            let state = |row: &u64| self.rows[*row as usize].tasks[TRAIN];
            left |= rows.iter().any(|row| matches!(state(row), For::Ready | For::Waiting | For::Leased(_)));
            let ready: Vec<u64> = rows.iter().copied().filter(|row| state(row) == For::Ready).collect();
            if rows.iter().any(|row| state(row) == For::Waiting) {
                return None;
            }
            if !ready.is_empty() {
                return Some(ready);
            }
        }
        // Nothing is left in a cycle that is completely cut: a lease without rows asks for the offer.
        (!left).then(Vec::new)
    }

    pub fn lease(&mut self, task: usize, session: u64, rows: &[u64]) {
        let id = self.next_lease;
        self.next_lease += 1;
        rows.iter().for_each(|row| self.rows[*row as usize].tasks[task] = For::Leased(id));
        let lease = Lease {
            task,
            session,
            rows: rows.iter().copied().collect(),
            lost: BTreeSet::new(),
            until: self.now + LEASE_MS,
            progress: None,
        };
        self.leases.insert(id, lease);
    }

    pub fn ended(&self, task: usize) -> bool {
        let needed = task == TRAIN && !self.over();
        self.samples_closed && !needed && !self.rows.iter().any(|row| row.tasks[task].active())
    }

    pub fn over(&self) -> bool {
        let uncut = |group: &Group| group.cut.is_none() && !group.gone;
        self.cycle >= self.cycles || self.samples_closed && !self.cut && !self.groups.iter().any(uncut)
    }
}
